//! Trace files as they come: plain, or packed by gzip, zip, xz or zstd, told apart by their first bytes.

use std::{
    fs,
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read at all.
    #[error("read {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The packed file is damaged, or packed in a way we do not know.
    #[error("unpack {path}: {problem}")]
    Unpack {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A line is not what the format says.
    #[error("{path}, line {line}: {problem}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// The file as a whole is not what the format says.
    #[error("{path}: {problem}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// The unpacked content of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, TraceError> {
    let packed =
        fs::read(path).map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    unpack(packed).map_err(|problem| TraceError::Unpack { path: path.to_owned(), problem })
}

fn unpack(packed: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    if packed.starts_with(&[0x1f, 0x8b]) {
        let mut reader = flate2::read::MultiGzDecoder::new(packed.as_slice());
        reader.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    } else if packed.starts_with(b"PK\x03\x04") {
        let mut archive =
            zip::ZipArchive::new(Cursor::new(packed)).map_err(|error| error.to_string())?;
        if archive.len() != 1 {
            return Err(format!("the archive has {} files instead of one", archive.len()));
        }
        let mut member = archive.by_index(0).map_err(|error| error.to_string())?;
        member.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    } else if packed.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        lzma_rs::xz_decompress(&mut packed.as_slice(), &mut bytes)
            .map_err(|error| format!("{error:?}"))?;
    } else if packed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut reader = ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
            .map_err(|error| error.to_string())?;
        reader.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    } else {
        return Ok(packed);
    }
    Ok(bytes)
}

//! Trace files: plain, or compressed by gzip, zip, xz or zstd, detected by their first bytes.

use std::{
    fs,
    io::{self, Cursor, Read as _},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

/// Error of reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// No such file.
    #[error("there is no file `{path}`; check its name")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The compressed file is damaged, or its compression is not supported.
    #[error("cannot unpack `{path}`: {problem}")]
    Unpack {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A line does not match the format.
    #[error("{path}, line {line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The problem.
        problem: String,
    },
    /// The file does not match the format.
    #[error("{path}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// Longest trace. One that would unpack to more is rejected before it exhausts memory.
const UNPACKED_SIZE_MAX: usize = if cfg!(fuzzing) { 1 << 20 } else { 16 << 30 };

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TraceError> {
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let content = |problem: String| TraceError::Content { path: path.to_owned(), problem };
    let kind = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => TraceError::Missing { path: path.to_owned() },
        _ => io(source),
    })?;
    let kind = kind.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(content("neither a file nor a pipe; name one".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(io)?;
    file.take(UNPACKED_SIZE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > UNPACKED_SIZE_MAX {
        return Err(content(format!("more than {UNPACKED_SIZE_MAX} bytes; split the file")));
    }
    Ok(bytes)
}

/// The uncompressed content; `path` is for errors.
pub(crate) fn unpacked(path: &Path, packed: Vec<u8>) -> Result<Vec<u8>, TraceError> {
    unpack(packed, UNPACKED_SIZE_MAX)
        .map_err(|problem| TraceError::Unpack { path: path.to_owned(), problem })
}

fn unpack(packed: Vec<u8>, size_max: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Bounded { bytes: Vec::new(), size_max };
    let text = |error: io::Error| error.to_string();
    if packed.starts_with(&[0x1f, 0x8b]) {
        let mut reader = flate2::read::MultiGzDecoder::new(packed.as_slice());
        io::copy(&mut reader, &mut bytes).map_err(text)?;
    } else if packed.starts_with(b"PK\x03\x04") {
        let mut archive =
            zip::ZipArchive::new(Cursor::new(packed)).map_err(|error| error.to_string())?;
        if archive.len() != 1 {
            return Err(format!("the archive has {} files instead of one", archive.len()));
        }
        let mut member = archive.by_index(0).map_err(|error| error.to_string())?;
        io::copy(&mut member, &mut bytes).map_err(text)?;
    } else if packed.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        lzma_rs::xz_decompress(&mut packed.as_slice(), &mut bytes)
            .map_err(|error| format!("{error:?}"))?;
    } else if packed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut reader = ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
            .map_err(|error| error.to_string())?;
        io::copy(&mut reader, &mut bytes).map_err(text)?;
    } else {
        return Ok(packed);
    }
    Ok(bytes.bytes)
}

/// A buffer with a size limit.
struct Bounded {
    bytes: Vec<u8>,
    size_max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.size_max {
            return Err(io::Error::other(format!(
                "it unpacks to over {} bytes; split the file",
                self.size_max
            )));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Promise 6 (bounded): a small file must not unpack to more than the limit.
    #[test]
    fn unpacked_size_is_limited() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let text = vec![b'1'; 100_000];
        gzip.write_all(&text).unwrap();
        let packed = gzip.finish().unwrap();
        assert_eq!(unpack(packed.clone(), 100_000).unwrap(), text);
        let problem = unpack(packed, 99_999).unwrap_err();
        assert!(problem.contains("over 99999 bytes"), "{problem}");
    }
}

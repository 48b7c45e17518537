//! Digest files: mapped when opened, checked once, published whole.
//!
//! The full check reads every row, so its success is remembered beside the file, together with what
//! identifies the file's state. A digest that has been checked opens in milliseconds, however large.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use forebay_core::digest::{Blob, Digest, DigestError, DigestWriter, Header, Value};
use tempfile::NamedTempFile;

/// Why a digest file cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The bytes are not a digest.
    #[error("`{}` is {source}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        source: DigestError,
    },
    /// The rows cannot be written.
    #[error("`{}` {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: DigestError,
    },
    /// There is no such file.
    #[error("there is no file `{}`; check its name, or build it with `forebay digest build`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file failed.
    #[error("cannot {doing} `{}`: {source}", path.display())]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

/// A digest and the file that it is mapped from.
#[derive(Debug, Clone)]
pub struct DigestFile {
    /// The digest itself.
    pub digest: Digest,
    path: PathBuf,
    /// What identifies this state of the file.
    state: String,
}

/// Opens a digest that has been checked, or checks it now and remembers it.
pub fn open(path: &Path) -> Result<DigestFile, FileError> {
    let file = open_unchecked(path)?;
    if !file.was_checked() {
        file.check()?;
    }
    Ok(file)
}

/// Opens a digest by its metadata alone; its rows may yet prove damaged.
pub fn open_unchecked(path: &Path) -> Result<DigestFile, FileError> {
    let failed = |source| FileError::Io { doing: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FileError::Missing { path: path.to_owned() },
        _ => failed(source),
    })?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let bytes = if metadata.len() == 0 { Bytes::new() } else { map(&file).map_err(failed)? };
    let digest = Digest::open(bytes)
        .map_err(|source| FileError::Digest { path: path.to_owned(), source })?;
    let state = format!(
        "{} {} {} {}.{:09} {}.{:09}\n",
        digest.checksum(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    );
    Ok(DigestFile { digest, path: path.to_owned(), state })
}

#[expect(unsafe_code, reason = "mapping a file is the point; see SAFETY")]
fn map(file: &File) -> io::Result<Bytes> {
    // SAFETY: the map is read-only and private, and digests are never written in place: they appear
    // by rename, complete, so the mapped inode does not change under us. Whoever truncates one in
    // place all the same gets SIGBUS, and whoever overwrites it gets an error from a row that makes no
    // sense: rows are read through checked slices as plain integers, for which any bytes are valid.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}

impl DigestFile {
    /// Whether this very state of the file has passed the full check before.
    pub fn was_checked(&self) -> bool {
        fs::read_to_string(self.memo_path()).is_ok_and(|memo| memo == self.state)
    }

    /// Proves the whole digest, and remembers it if the directory can be written.
    pub fn check(&self) -> Result<(), FileError> {
        let digest = |source| FileError::Digest { path: self.path.clone(), source };
        self.digest.check().map_err(digest)?;
        // Only a hint: without it the next opening checks again.
        let _ = self.remember();
        Ok(())
    }

    fn remember(&self) -> io::Result<()> {
        let mut memo = temporary(parent(&self.path))?;
        memo.write_all(self.state.as_bytes())?;
        memo.persist(self.memo_path())?;
        Ok(())
    }

    fn memo_path(&self) -> PathBuf {
        with_suffix(&self.path, ".checked")
    }
}

/// A digest that is being written: it appears whole under its name, or not at all.
pub struct PendingDigest {
    writer: DigestWriter<BufWriter<NamedTempFile>>,
    path: PathBuf,
}

impl PendingDigest {
    /// Begins a digest that will be published at `path`.
    pub fn create(path: &Path, header: Header) -> Result<Self, FileError> {
        let failed = |source| FileError::Io { doing: "write", path: path.to_owned(), source };
        let file = temporary(parent(path)).map_err(failed)?;
        let writer = DigestWriter::new(BufWriter::with_capacity(1 << 20, file), header)
            .map_err(|error| file_error(path, error))?;
        Ok(Self { writer, path: path.to_owned() })
    }

    /// Adds a row.
    pub fn push(&mut self, blob: &Blob, values: &[Vec<Value<'_>>]) -> Result<(), FileError> {
        self.writer.push(blob, values).map_err(|error| file_error(&self.path, error))
    }

    /// Makes it durable, then gives it its name, then remembers that it is sound.
    pub fn publish(self) -> Result<(), FileError> {
        let path = self.path;
        let failed = |source| FileError::Io { doing: "write", path: path.clone(), source };
        let buffer = self.writer.finish().map_err(|error| file_error(&path, error))?;
        let file = buffer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        File::open(parent(&path)).and_then(|directory| directory.sync_all()).map_err(failed)?;
        // The writer has just proved what the full check would.
        let _ = open_unchecked(&path)?.remember();
        Ok(())
    }
}

fn file_error(path: &Path, error: DigestError) -> FileError {
    let path = path.to_owned();
    match error {
        DigestError::Io(source) => FileError::Io { doing: "write", path, source },
        source => FileError::Unwritable { path, source },
    }
}

/// A file that vanishes unless it is given its name, as readable as any other.
fn temporary(directory: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".forebay-")
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(directory)
}

/// The directory that holds a path; `.` for a bare name.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `x.digest` with `.checked` becomes `x.digest.checked`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

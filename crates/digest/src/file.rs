//! Digest files: mapped when opened, checked once, published atomically.
//!
//! The full check reads every row. Its success is recorded beside the file (`.checked`), together
//! with the checksum, inode, length and times that identify the file's state. A digest that has
//! been checked opens in milliseconds at any size.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, BufWriter, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::format::{Blob, Digest, DigestError, DigestWriter, Header, Value};
use bytes::Bytes;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// Why a digest file cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum DigestFileError {
    /// The bytes are not a digest.
    #[error("`{}` is {source}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// The error.
        source: DigestError,
    },
    /// The rows cannot be written.
    #[error("`{}` {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The error.
        source: DigestError,
    },
    /// No such file.
    #[error(
        "there is no file `{}`; check its name, or build it with `forebay digest build`",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A directory.
    #[error(
        "`{}` is a directory; give a digest, built with `forebay digest build`",
        path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// A listing, which has no addresses yet.
    #[error(
        "`{}` is a listing of objects that were not read yet, not a digest; \
         build a digest with `forebay digest build`",
        path.display()
    )]
    Listing {
        /// The file.
        path: PathBuf,
    },
    /// I/O error.
    #[error("cannot {doing} `{}`: {source}", path.display())]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A digest and the file that it is mapped from.
#[derive(Debug, Clone)]
pub struct DigestFile {
    /// The digest itself.
    pub digest: Digest,
    path: PathBuf,
    /// Checksum, inode, length and times of the file.
    state: String,
}

/// Opens a digest. Runs the full check unless this state of the file has passed it before.
pub fn open(path: &Path) -> Result<DigestFile, DigestFileError> {
    let file = open_with_listings(path)?;
    if file.digest.is_listing() {
        return Err(DigestFileError::Listing { path: path.to_owned() });
    }
    Ok(file)
}

/// Opens a digest or a listing ([`crate::publish_listing`]). Runs the same check.
pub fn open_with_listings(path: &Path) -> Result<DigestFile, DigestFileError> {
    let file = open_unchecked(path)?;
    if !file.was_checked() {
        file.check()?;
    }
    Ok(file)
}

/// Opens a digest by its metadata alone. Its rows may be damaged.
pub fn open_unchecked(path: &Path) -> Result<DigestFile, DigestFileError> {
    let failed = |source| DigestFileError::Io { doing: "read", path: path.to_owned(), source };
    let (file, metadata) = open_regular(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => DigestFileError::Missing { path: path.to_owned() },
        io::ErrorKind::IsADirectory => DigestFileError::Directory { path: path.to_owned() },
        _ => failed(source),
    })?;
    let bytes = if metadata.len() == 0 { Bytes::new() } else { map(&file).map_err(failed)? };
    let digest = Digest::open(bytes)
        .map_err(|source| DigestFileError::Digest { path: path.to_owned(), source })?;
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

/// Opens a regular file without waiting for the other end of a pipe. The directory may be another
/// user's, who can put anything under the name.
fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("flags are positive");
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file; name a digest"));
    }
    Ok((file, metadata))
}

#[expect(unsafe_code, reason = "a digest is mapped, not read; see SAFETY")]
fn map(file: &File) -> io::Result<Bytes> {
    // SAFETY: the map is read-only and private, and digests are never written in place: they appear
    // by rename, complete, so the mapped inode does not change. If another process truncates the
    // file in place all the same, the reader gets SIGBUS. If it overwrites the file, the reader
    // gets an error: rows are read through checked slices as integers, for which any bytes are
    // valid.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}

impl DigestFile {
    /// Whether this state of the file has passed the full check before.
    pub fn was_checked(&self) -> bool {
        let Ok((file, _)) = open_regular(&self.memo_path()) else { return false };
        let mut memo = Vec::new();
        // One byte more than the record, so that a longer file differs.
        let read = file.take(self.state.len() as u64 + 1).read_to_end(&mut memo);
        read.is_ok() && memo == self.state.as_bytes()
    }

    /// Runs the full check, and records its success if the directory is writable.
    pub fn check(&self) -> Result<(), DigestFileError> {
        let digest = |source| DigestFileError::Digest { path: self.path.clone(), source };
        self.digest.check().map_err(digest)?;
        // Without the record the next open checks again.
        let _ = self.record_check();
        Ok(())
    }

    fn record_check(&self) -> io::Result<()> {
        let mut memo = temporary(&self.memo_path())?;
        memo.write_all(self.state.as_bytes())?;
        memo.persist(self.memo_path())?;
        Ok(())
    }

    fn memo_path(&self) -> PathBuf {
        with_suffix(&self.path, ".checked")
    }
}

/// An unfinished digest file. It appears under its name complete, or not at all.
pub struct PendingDigest {
    writer: DigestWriter<BufWriter<NamedTempFile>>,
    path: PathBuf,
}

impl PendingDigest {
    /// Begins a digest that will be published at `path`.
    pub fn create(path: &Path, header: Header) -> Result<Self, DigestFileError> {
        let failed = |source| DigestFileError::Io { doing: "write", path: path.to_owned(), source };
        let file = temporary(path).map_err(failed)?;
        let writer = DigestWriter::new(BufWriter::with_capacity(1 << 20, file), header)
            .map_err(|error| file_error(path, error))?;
        Ok(Self { writer, path: path.to_owned() })
    }

    /// Adds a row.
    pub fn push(&mut self, blob: &Blob, values: &[Vec<Value<'_>>]) -> Result<(), DigestFileError> {
        self.writer.push(blob, values).map_err(|error| file_error(&self.path, error))
    }

    /// Syncs the file, renames it to its path, and records that it has passed the full check.
    pub fn publish(self) -> Result<(), DigestFileError> {
        let path = self.path;
        let failed = |source| DigestFileError::Io { doing: "write", path: path.clone(), source };
        let buffer = self.writer.finish().map_err(|error| file_error(&path, error))?;
        let file = buffer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        File::open(parent(&path)).and_then(|directory| directory.sync_all()).map_err(failed)?;
        // The writer has verified what the full check would.
        let _ = open_unchecked(&path)?.record_check();
        Ok(())
    }
}

fn file_error(path: &Path, error: DigestError) -> DigestFileError {
    let path = path.to_owned();
    match error {
        DigestError::Io(source) => DigestFileError::Io { doing: "write", path, source },
        source => DigestFileError::Unwritable { path, source },
    }
}

/// A temporary file beside `path`, deleted on drop. Its name is always the same, so that a later
/// run removes the file that a killed process left.
///
/// Only its owner may read it: a job that holds a digest may read the dataset from a node, and
/// a digest has object names and labels.
fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    match fs::remove_file(parent(path).join(with_suffix(Path::new(&hidden), ".tmp"))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    tempfile::Builder::new()
        .prefix(&hidden)
        .suffix(".tmp")
        .rand_bytes(0)
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(parent(path))
}

/// The directory of a path; `.` for a bare name.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Appends to the file name: `x.digest` and `.checked` become `x.digest.checked`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

//! Table files: opened in place, read with direct I/O where the file system supports it, and
//! written only by [`DataFile::write`].
//!
//! Files are not locked, so other processes may change them. A file that is renamed over is still
//! read in its old version. A file that is truncated or written in place is detected by its length
//! and modification time, which are checked after every read: rows read while it changed are an
//! error.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use memmap2::MmapMut;
use parking_lot::{RwLock, RwLockReadGuard};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::{
    error::{OpenError, ReadError},
    format::{self, Dtype, FormatError, Layout, Npy, SAFETENSORS_HEADER_MAX, Tensor},
};

/// Alignment of direct reads, in the file and in memory. It suits all common drives and file
/// systems; where it does not, reads go through the page cache.
pub(crate) const BLOCK: u64 = 4096;

/// Location of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// Name of the tensor, in a `.safetensors` with several tables.
    pub tensor: Option<String>,
    /// Format of the rows, for a file of bare rows.
    pub raw: Option<RawRows>,
}

/// Format of a file of bare rows, which has no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRows {
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Numbers in a row.
    pub dimension: u64,
    /// Bytes before the first row.
    pub offset: u64,
}

impl Source {
    /// A file with a header.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), tensor: None, raw: None }
    }

    /// One table of a `.safetensors` file.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.tensor = Some(name.into());
        self
    }

    /// A file of bare rows.
    #[must_use]
    pub fn raw(mut self, dtype: Dtype, dimension: u64) -> Self {
        self.raw = Some(RawRows { dtype, dimension, offset: 0 });
        self
    }
}

/// Contents of a file by its header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "format")]
pub enum Contents {
    /// One table.
    Npy {
        /// Its layout.
        table: Layout,
    },
    /// Any number of tensors, some of them tables.
    Safetensors {
        /// All of them.
        tensors: Vec<Tensor>,
    },
}

/// An open file.
#[derive(Debug)]
pub(crate) struct DataFile {
    path: PathBuf,
    /// For headers, and for rows if direct reads do not work.
    buffered: File,
    /// For rows, bypassing the page cache.
    direct: Option<File>,
    length: u64,
    /// Device and inode.
    identity: (u64, u64),
    /// Version of the file when it was opened or last written by us. Reads of rows hold the lock
    /// shared, so that none sees half of a [`DataFile::write`].
    version: RwLock<FileVersion>,
}

/// Length and modification time, which change when the file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    length: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileVersion {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { length: metadata.len(), seconds, nanoseconds })
    }
}

impl DataFile {
    /// Opens a file. Reads at most one block, to test direct reads.
    pub fn open(path: &Path, direct: bool) -> Result<Self, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
            _ => OpenError::Io { path: path.to_owned(), source },
        };
        // Opening a pipe would block until another process writes to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        let buffered = File::open(path).map_err(failed)?;
        if !buffered.metadata().map_err(failed)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        let version = FileVersion::of(&buffered).map_err(failed)?;
        let direct = if direct { open_direct(path, &buffered) } else { None };
        let _ = rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Random);
        let metadata = buffered.metadata().map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            length: version.length,
            buffered,
            direct,
            version: RwLock::new(version),
        })
    }

    /// Whether both are the same file, under any names.
    pub fn is_same_file(&self, other: &DataFile) -> bool {
        self.identity == other.identity
    }

    /// Whether both are the same version of the same file.
    pub fn is_same_version(&self, other: &DataFile) -> bool {
        self.is_same_file(other) && *self.version.read() == *other.version.read()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Decodes the header.
    pub fn contents(&self) -> Result<Contents, OpenError> {
        let problem = |source| OpenError::Format { path: self.path.clone(), source };
        let mut start = self.start(9)?;
        if start.starts_with(b"\x93NUMPY") {
            loop {
                match format::npy(&start, self.length).map_err(problem)? {
                    Npy::Table(table) => return Ok(Contents::Npy { table }),
                    Npy::Needs(bytes) => start = self.start(bytes)?,
                }
            }
        }
        // A safetensors file begins with the length of its header, and the header with a brace.
        let length = match start.split_first_chunk::<8>() {
            Some((length, b"{")) => u64::from_le_bytes(*length),
            _ => return Err(OpenError::Unknown { path: self.path.clone() }),
        };
        if length > SAFETENSORS_HEADER_MAX || length > self.length - 8 {
            let needed = 8 + u128::from(length);
            return Err(problem(FormatError::Truncated { needed, file: self.length }));
        }
        let length = usize::try_from(length).expect("it is bounded");
        let header = self.start(8 + length)?.split_off(8);
        let tensors = format::safetensors(&header, self.length).map_err(problem)?;
        Ok(Contents::Safetensors { tensors })
    }

    /// The layout of a table of this file.
    pub fn layout(&self, source: &Source) -> Result<Layout, OpenError> {
        let problem = |source| OpenError::Format { path: self.path.clone(), source };
        if let Some(RawRows { dtype, dimension, offset }) = source.raw {
            // The header would be read as rows.
            if offset == 0 && self.contents().is_ok() {
                return Err(OpenError::NotBare { path: self.path.clone() });
            }
            return Layout::raw(dtype, dimension, offset, self.length).map_err(problem);
        }
        match self.contents()? {
            Contents::Npy { table } if source.tensor.is_none() => Ok(table),
            Contents::Npy { .. } => Err(problem(FormatError::NoTensor {
                name: source.tensor.clone().unwrap_or_default(),
                available: Vec::new(),
            })),
            Contents::Safetensors { tensors } => {
                choose(&tensors, source.tensor.as_deref()).map_err(problem)
            }
        }
    }

    fn start(&self, bytes: usize) -> Result<Vec<u8>, OpenError> {
        let mut start = vec![0; bytes.min(usize::try_from(self.length).unwrap_or(usize::MAX))];
        self.buffered
            .read_exact_at(&mut start, 0)
            .map_err(|source| OpenError::Io { path: self.path.clone(), source })?;
        Ok(start)
    }

    /// Locks the file against our own writes while rows are read.
    pub fn read_lock(&self) -> ReadGuard<'_> {
        ReadGuard { file: self, version: self.version.read() }
    }

    /// Writes to the file while no row is read. After a crash the written range is undefined.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let metadata = file.metadata()?;
        if self.identity != (metadata.dev(), metadata.ino()) {
            return Err(io::Error::other(
                "another file has taken its place; replace the table first",
            ));
        }
        let mut version = self.version.write();
        if FileVersion::of(&file)? != *version {
            return Err(io::Error::other(
                "another process has changed it; replace the table first",
            ));
        }
        let written = file.write_all_at(bytes, offset).and_then(|()| file.sync_data());
        *version = FileVersion::of(&file)?;
        written
    }
}

/// Opens the same file again for direct reads; `None` if they do not work.
fn open_direct(path: &Path, buffered: &File) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let (direct, opened) = (file.metadata().ok()?, buffered.metadata().ok()?);
    if (direct.dev(), direct.ino()) != (opened.dev(), opened.ino()) {
        return None;
    }
    // Some file systems accept the flag and fail the first read.
    let mut block = MmapMut::map_anon(usize::try_from(BLOCK).expect("small")).ok()?;
    file.read_at(&mut block, 0).is_ok().then_some(file)
}

fn choose(tensors: &[Tensor], name: Option<&str>) -> Result<Layout, FormatError> {
    let names = |tensors: Vec<&Tensor>| tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let tables: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.table.is_some()).collect();
    let chosen = match (name, &tables[..]) {
        (Some(name), _) => match tensors.iter().find(|tensor| tensor.name == name) {
            Some(tensor) => tensor,
            None => {
                return Err(FormatError::NoTensor {
                    name: name.to_owned(),
                    available: names(tables),
                });
            }
        },
        (None, [only]) => *only,
        (None, []) => return Err(FormatError::NoTable),
        (None, _) => return Err(FormatError::Ambiguous { available: names(tables) }),
    };
    match chosen.table {
        Some(table) => Ok(table),
        None if chosen.shape.len() != 2 => Err(FormatError::Shape { shape: chosen.shape.clone() }),
        None if chosen.is_of_known_dtype() => {
            Err(FormatError::Dimension { dimension: chosen.shape[1] })
        }
        None => Err(FormatError::Dtype { found: format!("`{}`", chosen.dtype.escape_debug()) }),
    }
}

/// A shared lock on a file: rows can be read, and we do not write to it.
pub(crate) struct ReadGuard<'a> {
    file: &'a DataFile,
    version: RwLockReadGuard<'a, FileVersion>,
}

impl ReadGuard<'_> {
    /// The descriptor from which rows are read.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.direct.as_ref().unwrap_or(&self.file.buffered).as_fd()
    }

    /// Checks that the file has not changed since it was locked, so that what was read is valid.
    pub fn check(&self) -> Result<(), ReadError> {
        let path = || self.file.path.clone();
        let now = FileVersion::of(&self.file.buffered)
            .map_err(|source| ReadError::Io { path: path(), source })?;
        if now.length < self.version.length {
            let (was, now) = (self.version.length, now.length);
            return Err(ReadError::Truncated { path: path(), was, now });
        }
        if now != *self.version {
            return Err(ReadError::Changed { path: path() });
        }
        Ok(())
    }

    pub fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { path: self.file.path.clone(), source }
    }
}

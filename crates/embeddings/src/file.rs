//! Table files, opened where they are: read past the page cache where the file system lets us, never
//! locked, never changed but by [`DataFile::write`].
//!
//! Others may do what they like to a file meanwhile. One that is renamed over goes on being read as it was.
//! One that is cut off or written to in place is noticed by its length and its time of change, looked at
//! after every read: what was read while it changed is an error, not a row.

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

/// Direct reads begin, end and land at multiples of this. Every drive and file system that we know of takes
/// it, and one that does not is read through the page cache.
pub(crate) const BLOCK: u64 = 4096;

/// Where a table is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its file.
    pub path: PathBuf,
    /// Its name there, if the file is a `.safetensors` with several tables.
    pub tensor: Option<String>,
    /// What its rows are, if the file is nothing but rows.
    pub raw: Option<RawRows>,
}

/// What nobody wrote into a file of bare rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRows {
    /// What its numbers are.
    pub dtype: Dtype,
    /// Numbers in a row.
    pub dimension: u64,
    /// Bytes before the first row.
    pub offset: u64,
}

impl Source {
    /// A file that says itself what it is.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), tensor: None, raw: None }
    }

    /// One table of a `.safetensors` file.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.tensor = Some(name.into());
        self
    }

    /// A file of nothing but rows.
    #[must_use]
    pub fn raw(mut self, dtype: Dtype, dimension: u64) -> Self {
        self.raw = Some(RawRows { dtype, dimension, offset: 0 });
        self
    }
}

/// What a file says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "format")]
pub enum Contents {
    /// One table.
    Npy {
        /// Where it lies.
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
    /// For headers and tails, through the page cache.
    buffered: File,
    /// For rows, past it.
    direct: Option<File>,
    length: u64,
    /// Device and number there.
    identity: (u64, u64),
    /// How the file was when it was opened, or when we last wrote to it. Whoever reads rows holds it for
    /// reading meanwhile, so that nobody reads half of what [`DataFile::write`] writes.
    state: RwLock<State>,
}

/// What changes when somebody writes to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    length: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl State {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { length: metadata.len(), seconds, nanoseconds })
    }
}

impl DataFile {
    /// Opens a file; nothing of it is read but what `direct` needs to know.
    pub fn open(path: &Path, direct: bool) -> Result<Self, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
            _ => OpenError::Io { path: path.to_owned(), source },
        };
        // Opening a pipe would wait for whoever writes to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        let buffered = File::open(path).map_err(failed)?;
        if !buffered.metadata().map_err(failed)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        let state = State::of(&buffered).map_err(failed)?;
        let direct = if direct { open_direct(path, &buffered) } else { None };
        let _ = rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Random);
        let metadata = buffered.metadata().map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            length: state.length,
            buffered,
            direct,
            state: RwLock::new(state),
        })
    }

    /// Whether both are one file, by whatever names.
    pub fn is(&self, other: &DataFile) -> bool {
        self.identity == other.identity
    }

    /// Whether both are one file, as it is now.
    pub fn is_as(&self, other: &DataFile) -> bool {
        self.is(other) && *self.state.read() == *other.state.read()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it was when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether rows are read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// What the file says about itself.
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

    /// Where the rows of a table of this file lie.
    pub fn layout(&self, source: &Source) -> Result<Layout, OpenError> {
        let problem = |source| OpenError::Format { path: self.path.clone(), source };
        if let Some(RawRows { dtype, dimension, offset }) = source.raw {
            // Its header would be taken for rows.
            if offset == 0 && self.contents().is_ok() {
                return Err(OpenError::NotBare { path: self.path.clone() });
            }
            return Layout::raw(dtype, dimension, offset, self.length).map_err(problem);
        }
        match self.contents()? {
            Contents::Npy { table } if source.tensor.is_none() => Ok(table),
            Contents::Npy { .. } => Err(problem(FormatError::NoTensor {
                name: source.tensor.clone().unwrap_or_default(),
                there: Vec::new(),
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

    /// Keeps our own writes away while rows are read.
    pub fn reading(&self) -> Reading<'_> {
        Reading { file: self, state: self.state.read() }
    }

    /// Writes to the file, for as long as nobody reads. What a crash leaves of it is anything.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let there = file.metadata()?;
        if self.identity != (there.dev(), there.ino()) {
            return Err(io::Error::other("another file has taken its place"));
        }
        let mut state = self.state.write();
        if State::of(&file)? != *state {
            return Err(io::Error::other("somebody else has changed it"));
        }
        let written = file.write_all_at(bytes, offset).and_then(|()| file.sync_data());
        *state = State::of(&file)?;
        written
    }
}

/// Opens the same file once more, for direct reads; `None` where they do not work.
fn open_direct(path: &Path, buffered: &File) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let (ours, there) = (file.metadata().ok()?, buffered.metadata().ok()?);
    if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
        return None;
    }
    // Some file systems take the flag and fail the first read.
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
                return Err(FormatError::NoTensor { name: name.to_owned(), there: names(tables) });
            }
        },
        (None, [only]) => *only,
        (None, []) => return Err(FormatError::NoTable),
        (None, _) => return Err(FormatError::Ambiguous { there: names(tables) }),
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

/// A file that we do not write to.
pub(crate) struct Reading<'a> {
    file: &'a DataFile,
    state: RwLockReadGuard<'a, State>,
}

impl Reading<'_> {
    /// What rows are read from.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.direct.as_ref().unwrap_or(&self.file.buffered).as_fd()
    }

    /// Says whether what was read since may be believed.
    pub fn check(&self) -> Result<(), ReadError> {
        let path = || self.file.path.clone();
        let now = State::of(&self.file.buffered)
            .map_err(|source| ReadError::Io { path: path(), source })?;
        if now.length < self.state.length {
            let (was, now) = (self.state.length, now.length);
            return Err(ReadError::Truncated { path: path(), was, now });
        }
        if now != *self.state {
            return Err(ReadError::Changed { path: path() });
        }
        Ok(())
    }

    pub fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { path: self.file.path.clone(), source }
    }
}

//! Local directories as origins.
//!
//! `object_store` is not used: its walk is unsorted and holds every name in memory, and each range
//! is read on another thread. This walk is sorted and streams. A caller that reads many small files
//! does so on its own blocking thread ([`LocalTree::reader`]), with five system calls per file.

mod walk;

use std::{
    ffi::OsStr,
    fs::File,
    io,
    ops::Range,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use forebay_core::dataset::ListedObject;
use futures::Stream;
use rustix::{
    fs::{CWD, Mode, OFlags, Stat, fstat, openat, stat},
    io::Errno,
};

use crate::{OriginError, any_version_of_length, url::Location};

/// A directory, or one file of it.
#[derive(Debug, Clone)]
pub struct LocalTree {
    root: PathBuf,
    only: Option<String>,
}

impl LocalTree {
    pub(crate) fn new(path: &Path) -> Result<Self, OriginError> {
        let missing = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OriginError::Missing { what: path.display().to_string() },
            _ => io_error(path, source),
        };
        let root = path.canonicalize().map_err(missing)?;
        if root.is_dir() {
            return Ok(Self { root, only: None });
        }
        let name = root.file_name().and_then(OsStr::to_str).ok_or_else(|| not_utf8(&root))?;
        let parent = root.parent().unwrap_or(Path::new("/"));
        Ok(Self { root: parent.to_owned(), only: Some(name.to_owned()) })
    }

    pub(crate) fn url(&self) -> String {
        Location::Local(self.root.clone()).url()
    }

    /// Whether a file at this path is, or would be, an object of this origin.
    pub fn would_hold(&self, path: &Path) -> bool {
        if let Some(only) = &self.only {
            let identity = |path: &Path| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
            return identity(path)
                .is_some_and(|file| identity(&self.root.join(only)) == Some(file));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).canonicalize();
        directory.is_ok_and(|directory| directory.starts_with(&self.root))
    }

    pub(crate) fn list(&self) -> impl Stream<Item = Result<ListedObject, OriginError>> + use<> {
        walk::listing(self.root.clone(), self.only.clone())
    }

    pub(crate) async fn read(
        &self,
        object: &str,
        version: &str,
        range: Range<u64>,
    ) -> Result<Bytes, OriginError> {
        let (tree, object, version) = (self.clone(), object.to_owned(), version.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
            let file = tree.reader().open(&object)?;
            file.read_exact_at(&mut bytes, range.start)?;
            file.confirm(&version)?;
            Ok(Bytes::from(bytes))
        });
        read.await.expect("reading does not panic")
    }

    /// A reader of many objects on the calling thread, which may block.
    pub fn reader(&self) -> LocalReader<'_> {
        LocalReader { root: &self.root, directory: None }
    }
}

/// Opens objects, fastest in the order of their keys: it keeps the directory of the last object
/// open, so that neighbours need no path lookup.
pub struct LocalReader<'a> {
    root: &'a Path,
    directory: Option<(String, OwnedFd)>,
}

impl LocalReader<'_> {
    /// Opens an object.
    pub fn open<'o>(&mut self, object: &'o str) -> Result<LocalObject<'o>, OriginError> {
        let failed = |error: Errno| match error {
            Errno::NOENT | Errno::NOTDIR => OriginError::Vanished { object: object.to_owned() },
            // The file was replaced by a socket.
            Errno::NXIO => OriginError::Changed { object: object.to_owned() },
            error => io_error(&self.root.join(object), error.into()),
        };
        let (folder, name) = object.rsplit_once('/').unwrap_or(("", object));
        let directory = match self.directory.take() {
            Some(open) if open.0 == folder => open,
            _ => {
                let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
                let opened = openat(CWD, self.root.join(folder), flags, Mode::empty());
                (folder.to_owned(), opened.map_err(failed)?)
            }
        };
        // Without blocking: the file may have been replaced by a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(&directory.1, name, flags, Mode::empty());
        let file = opened.map_err(failed)?.into();
        self.directory = Some(directory);
        Ok(LocalObject { file, object })
    }
}

/// An open file of a tree.
pub struct LocalObject<'a> {
    file: File,
    object: &'a str,
}

impl LocalObject<'_> {
    /// Fills the buffer. The bytes are valid only after [`LocalObject::confirm`] has succeeded.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), OriginError> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            // The file is shorter now, or was replaced by a directory or pipe.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotSeekable => self.changed(),
            _ => io_error(Path::new(self.object), error),
        })
    }

    /// Checks that all bytes read are of this version. Called after the last read, so that it
    /// detects every write before or between the reads.
    pub fn confirm(&self, version: &str) -> Result<(), OriginError> {
        let found =
            fstat(&self.file).map_err(|error| io_error(Path::new(self.object), error.into()))?;
        let length = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        let same = any_version_of_length(version)
            .map_or_else(|| version_of(&found) == version, |lengths| lengths.contains(&length));
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> OriginError {
        OriginError::Changed { object: self.object.to_owned() }
    }
}

/// The version of a file, in place of an `ETag`: its inode, times and length. Both times, because
/// tools that write in place may restore the modification time, but cannot restore the change time.
fn version_of(stat: &Stat) -> String {
    let nanos = |seconds: i64, nanos| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let modified = nanos(stat.st_mtime, stat.st_mtime_nsec);
    let changed = nanos(stat.st_ctime, stat.st_ctime_nsec);
    format!("{:x}-{modified:x}-{changed:x}-{:x}", stat.st_ino, stat.st_size)
}

fn io_error(path: &Path, source: io::Error) -> OriginError {
    OriginError::Io { path: path.display().to_string().escape_debug().to_string(), source }
}

fn not_utf8(path: &Path) -> OriginError {
    let path = path.display().to_string();
    OriginError::Name { problem: format!("`{}`, whose name is not UTF-8", path.escape_debug()) }
}

//! A directory as an origin.
//!
//! Not through `object_store`: its walk has no order, keeps every name, and reads through a thread
//! hop per range. Here the walk is sorted and streams, and whoever reads many files can do so on a
//! blocking thread of its own ([`LocalTree::open`]).

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use forebay_core::digest::plan::Listed;
use futures::Stream;
use tokio::sync::mpsc;

use crate::{OriginError, url::Location};

/// Entries that the walk may be ahead of its reader, in groups.
const GROUP: usize = 256;
const GROUPS_AHEAD: usize = 4;
/// Deeper than any sane tree: a loop of links.
const DEPTH_MAX: usize = 128;

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
        let name = root.file_name().map(|name| name.to_string_lossy().into_owned());
        let parent = root.parent().map(Path::to_path_buf);
        Ok(Self { root: parent.unwrap_or_default(), only: name })
    }

    pub(crate) fn url(&self) -> String {
        Location::Local(self.root.clone()).url()
    }

    /// Whether a file at this path would be part of the data.
    pub fn would_hold(&self, path: &Path) -> bool {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).canonicalize();
        self.only.is_none() && directory.is_ok_and(|directory| directory.starts_with(&self.root))
    }

    pub(crate) fn list(&self) -> impl Stream<Item = Result<Listed, OriginError>> + use<> {
        let (sender, mut receiver) =
            mpsc::channel::<Vec<Result<Listed, OriginError>>>(GROUPS_AHEAD);
        let tree = self.clone();
        tokio::task::spawn_blocking(move || {
            let mut walk = Walk { sender, group: Vec::with_capacity(GROUP) };
            let outcome = match &tree.only {
                Some(name) => walk.file(&tree.root.join(name), name.clone()),
                None => walk.directory(&tree.root, "", 0),
            };
            if let Err(Stop::Error(error)) = outcome {
                walk.group.push(Err(error));
            }
            let _ = walk.flush();
        });
        let groups = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        futures::StreamExt::flat_map(groups, futures::stream::iter)
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
            let file = tree.open(&object)?;
            file.read_exact_at(&mut bytes, range.start)?;
            file.confirm(&version)?;
            Ok(Bytes::from(bytes))
        });
        read.await.expect("reading does not panic")
    }

    /// Opens an object for reading on the calling thread, which may block.
    pub fn open<'a>(&self, object: &'a str) -> Result<LocalObject<'a>, OriginError> {
        let path = self.root.join(object);
        match File::open(&path) {
            Ok(file) => Ok(LocalObject { file, object }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(OriginError::Vanished { object: object.to_owned() })
            }
            Err(error) => Err(io_error(&path, error)),
        }
    }
}

/// An open file of a tree.
pub struct LocalObject<'a> {
    file: File,
    object: &'a str,
}

impl LocalObject<'_> {
    /// Fills the buffer. What was read counts only once [`LocalObject::confirm`] has said so.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), OriginError> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => io_error(Path::new(self.object), error),
        })
    }

    /// Whether all that was read is of this version. Asked last, for then it covers every write that
    /// came before, whether it preceded our reads or fell between them.
    pub fn confirm(&self, version: &str) -> Result<(), OriginError> {
        let metadata =
            self.file.metadata().map_err(|error| io_error(Path::new(self.object), error))?;
        if version.is_empty() || version_of(&metadata) == version {
            Ok(())
        } else {
            Err(self.changed())
        }
    }

    fn changed(&self) -> OriginError {
        OriginError::Changed { object: self.object.to_owned() }
    }
}

/// What stands in for an `ETag`: the file's identity, its time and its length.
fn version_of(metadata: &fs::Metadata) -> String {
    let nanos = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    format!("{:x}-{nanos:x}-{:x}", metadata.ino(), metadata.len())
}

fn io_error(path: &Path, source: io::Error) -> OriginError {
    OriginError::Io { path: path.display().to_string().escape_debug().to_string(), source }
}

/// Why a walk ends early.
enum Stop {
    /// Nobody listens any more.
    Unheard,
    Error(OriginError),
}

impl From<OriginError> for Stop {
    fn from(error: OriginError) -> Self {
        Self::Error(error)
    }
}

struct Walk {
    sender: mpsc::Sender<Vec<Result<Listed, OriginError>>>,
    group: Vec<Result<Listed, OriginError>>,
}

impl Walk {
    /// Visits a directory in the order that its keys have as texts: `a.b` comes before `a/b`, so a
    /// directory is sorted as if its name ended in a slash.
    fn directory(&mut self, path: &Path, prefix: &str, depth: usize) -> Result<(), Stop> {
        if depth > DEPTH_MAX {
            let problem = format!("`{prefix}`, which is nested too deeply: a loop of links?");
            return Err(OriginError::Name { problem }.into());
        }
        let failed = |source| Stop::Error(io_error(path, source));
        let mut names: Vec<Box<str>> = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(mut name) = entry.file_name().into_string() else {
                let shown = entry.path().display().to_string();
                let problem = format!("`{}`, whose name is not UTF-8", shown.escape_debug());
                return Err(OriginError::Name { problem }.into());
            };
            let kind = entry.file_type().map_err(failed)?;
            // A dangling link is not part of the data; a link to a directory is one.
            let is_directory = kind.is_dir()
                || kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir());
            if is_directory {
                name.push('/');
            }
            names.push(name.into());
        }
        names.sort_unstable();
        for name in names {
            let key = format!("{prefix}{name}");
            match name.strip_suffix('/') {
                Some(directory) => self.directory(&path.join(directory), &key, depth + 1)?,
                None => self.file(&path.join(&*name), key)?,
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, object: String) -> Result<(), Stop> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata,
            // Sockets, pipes, devices, dangling links.
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error(path, error).into()),
        };
        let listed = Listed { object, length: metadata.len(), version: version_of(&metadata) };
        self.group.push(Ok(listed));
        if self.group.len() == GROUP { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Stop> {
        let group = std::mem::replace(&mut self.group, Vec::with_capacity(GROUP));
        self.sender.blocking_send(group).map_err(|_| Stop::Unheard)
    }
}

//! The walk of a directory, which streams its files in the byte order of their keys.
//!
//! `a.b` comes before `a/b`, so a directory is sorted as if its name ended in a slash. Memory holds
//! the entries of the directories from the root to the current one only.

use std::{
    ffi::{CStr, OsStr},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use forebay_core::dataset::ListedObject;
use futures::Stream;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use tokio::sync::mpsc;

use super::{io_error, not_utf8, version_of};
use crate::OriginError;

/// Entries per message to the reader.
const GROUP: usize = 256;
/// Groups that the walk may be ahead of its reader.
const GROUPS_AHEAD: usize = 16;
/// Deepest directory. Only a loop of links is deeper.
const DEPTH_MAX: usize = 128;

type Group = Vec<Result<ListedObject, OriginError>>;

/// All files below `root`, or `only` one of them.
pub fn listing(
    root: PathBuf,
    only: Option<String>,
) -> impl Stream<Item = Result<ListedObject, OriginError>> + use<> {
    let (sender, mut receiver) = mpsc::channel(GROUPS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut walk = Walk { root: &root, sender, group: Vec::with_capacity(GROUP) };
        if let Err(Stop::Error(error)) = walk.start(only) {
            walk.group.push(Err(error));
        }
        let _ = walk.flush();
    });
    let groups = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    futures::StreamExt::flat_map(groups, futures::stream::iter)
}

/// Why a walk ends early.
enum Stop {
    /// The reader has dropped the stream.
    Cancelled,
    Error(OriginError),
}

struct Walk<'a> {
    root: &'a Path,
    sender: mpsc::Sender<Group>,
    group: Group,
}

impl Walk<'_> {
    fn start(&mut self, only: Option<String>) -> Result<(), Stop> {
        let root = self.open(CWD, self.root, "")?;
        match only {
            Some(name) => self.file(&root, name.clone(), &name),
            None => self.directory(&root, "", 0),
        }
    }

    fn directory(&mut self, directory: &OwnedFd, prefix: &str, depth: usize) -> Result<(), Stop> {
        if depth > DEPTH_MAX {
            let problem = format!("`{prefix}`, which is nested too deeply: a loop of links?");
            return Err(Stop::Error(OriginError::Name { problem }));
        }
        for name in self.names(directory, prefix)? {
            let key = format!("{prefix}{name}");
            match name.strip_suffix('/') {
                Some(name) => {
                    let below = self.open(directory, Path::new(name), &key)?;
                    self.directory(&below, &key, depth + 1)?;
                }
                None => self.file(directory, key, &name)?,
            }
        }
        Ok(())
    }

    /// The names in a directory, sorted; those of directories end in a slash.
    fn names(&self, directory: &OwnedFd, prefix: &str) -> Result<Vec<Box<str>>, Stop> {
        let mut names: Vec<Box<str>> = Vec::new();
        for entry in Dir::read_from(directory).map_err(|error| self.failed(prefix, error))? {
            let entry = entry.map_err(|error| self.failed(prefix, error))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(text) = name.to_str() else {
                let path = self.root.join(prefix).join(OsStr::from_bytes(name.to_bytes()));
                return Err(Stop::Error(not_utf8(&path)));
            };
            let slash = if is_directory(directory, name, entry.file_type()) { "/" } else { "" };
            names.push(format!("{text}{slash}").into());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn file(&mut self, directory: &OwnedFd, object: String, name: &str) -> Result<(), Stop> {
        let stat = match statat(directory, name, AtFlags::empty()) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat,
            // Sockets, pipes, devices.
            Ok(_) => return Ok(()),
            // A dangling link is an error when it is read, not when it is listed: it may be
            // excluded.
            Err(rustix::io::Errno::NOENT) => {
                self.group.push(Ok(ListedObject {
                    object,
                    length: 0,
                    version: "missing".to_owned(),
                }));
                return Ok(());
            }
            Err(error) => return Err(self.failed(&object, error)),
        };
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        self.group.push(Ok(ListedObject { object, length, version: version_of(&stat) }));
        if self.group.len() == GROUP { self.flush() } else { Ok(()) }
    }

    fn open(&self, at: impl AsFd, name: &Path, key: &str) -> Result<OwnedFd, Stop> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(at, name, flags, Mode::empty()).map_err(|error| self.failed(key, error))
    }

    fn failed(&self, key: &str, error: rustix::io::Errno) -> Stop {
        Stop::Error(io_error(&self.root.join(key), error.into()))
    }

    fn flush(&mut self) -> Result<(), Stop> {
        let group = std::mem::replace(&mut self.group, Vec::with_capacity(GROUP));
        self.sender.blocking_send(group).map_err(|_| Stop::Cancelled)
    }
}

/// Whether an entry is a directory or a link to one.
fn is_directory(directory: &OwnedFd, name: &CStr, kind: FileType) -> bool {
    match kind {
        FileType::Directory => true,
        FileType::Symlink | FileType::Unknown => statat(directory, name, AtFlags::empty())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        _ => false,
    }
}

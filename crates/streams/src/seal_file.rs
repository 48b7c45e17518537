//! The file of a store's seal list.
//!
//! The store works without it: an error is logged, and streams whose records are overwritten from
//! outside may then vanish without being reported lost.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use forebay_core::streams::seal_list::{LIST_SIZE_MAX, SealEntry, SealList};
use parking_lot::Mutex;

/// Name of the file in a store's directory.
const FILE: &str = "store.sealed";
/// Name of a new file before it replaces the old one.
const NEW_FILE: &str = "store.sealed.new";

/// The file. Only the owner of the store writes it.
pub(crate) struct SealFile {
    directory: PathBuf,
    /// `None` while it cannot be written.
    file: Mutex<Option<File>>,
}

impl SealFile {
    /// Reads the file of a store, if there is one.
    pub(crate) fn open(directory: &Path) -> (Self, SealList) {
        let directory = directory.to_owned();
        let list = match read(&directory.join(FILE)) {
            Ok(bytes) => SealList::decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => SealList::default(),
            Err(error) => {
                let path = directory.join(FILE);
                tracing::warn!(path = %path.display(), %error, "list of sealed streams not read");
                SealList::default()
            }
        };
        (Self { directory, file: Mutex::new(None) }, list)
    }

    /// Replaces the file.
    pub(crate) fn replace(&self, list: &SealList) {
        let replaced = self.try_replace(&list.encode());
        *self.file.lock() = self.done(replaced);
    }

    fn try_replace(&self, bytes: &[u8]) -> io::Result<File> {
        let new = self.directory.join(NEW_FILE);
        let mut options = OpenOptions::new();
        let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        std::fs::rename(&new, self.directory.join(FILE))?;
        File::open(&self.directory)?.sync_all()?;
        Ok(file)
    }

    /// Adds an entry. Without `is_durable`, a power failure may lose it. False if not written.
    pub(crate) fn add(&self, entry: &SealEntry, is_durable: bool) -> bool {
        let mut file = self.file.lock();
        let Some(open) = file.as_mut() else { return false };
        let mut write = || {
            open.write_all(&entry.encode())?;
            if is_durable { open.sync_data() } else { Ok(()) }
        };
        let written = write();
        let is_written = written.is_ok();
        if self.done(written).is_none() {
            // What follows a torn entry would not be read.
            *file = None;
        }
        is_written
    }

    fn done<T>(&self, result: io::Result<T>) -> Option<T> {
        result
            .inspect_err(|error| {
                let path = self.directory.join(FILE);
                tracing::warn!(path = %path.display(), %error, "seals of streams not written");
            })
            .ok()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIST_SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! The directory in which a demonstration happens.
//!
//! It is removed at the end. One that is killed outright cannot do that, so the next removes what it left: whoever
//! lives holds a lock in its directory, which ends with the process.

use std::{
    env,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::bail;
use tempfile::TempDir;

const PREFIX: &str = "forebay-demo-";
const LOCK: &str = "lock";

/// Room for one demonstration.
#[derive(Debug)]
pub struct Room {
    directory: TempDir,
    _lock: File,
}

impl Room {
    pub fn new() -> io::Result<Self> {
        sweep();
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::create(directory.path().join(LOCK))?;
        lock.try_lock()?;
        Ok(Self { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Something may still be on its way into the directory, for a moment.
    pub fn remove(self) -> anyhow::Result<()> {
        const ATTEMPTS: u32 = 20;
        let path = self.directory.keep();
        for _ in 0..ATTEMPTS {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    thread::sleep(Duration::from_millis(50));
                }
                _ => return Ok(()),
            }
        }
        bail!("`{}` could not be removed; please do", path.display())
    }
}

/// Removes the directories of this user's demonstrations that were killed.
fn sweep() {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // One without a lock is just being made.
        if is_ours
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            // What cannot be removed is left to the next.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

//! The temporary directory of a demo.
//!
//! The demo removes it at the end. If the demo is killed, the next one removes the directory. A
//! live demo holds a lock on a file in its directory, which the kernel releases at the end of the
//! process.

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
use forebay_auth::open_own;
use tempfile::TempDir;

const PREFIX: &str = "forebay-demo-";
const LOCK: &str = "lock";

/// The directory of one demo.
#[derive(Debug)]
pub struct Workdir {
    directory: TempDir,
    _lock: File,
}

impl Workdir {
    pub fn new() -> io::Result<Self> {
        remove_stale();
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::create(directory.path().join(LOCK))?;
        lock.try_lock()?;
        Ok(Self { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes the directory. Retries, because ending processes may still write to it.
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
        bail!("cannot remove the directory `{}`; remove it by hand", path.display())
    }
}

/// Removes the directories of this user's demos that were killed.
fn remove_stale() {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // A directory without a lock file is just being made.
        if is_ours
            && let Ok(lock) = open_own(&entry.path().join(LOCK), File::options().read(true))
            && lock.try_lock().is_ok()
        {
            // A failure is left to the next demo.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

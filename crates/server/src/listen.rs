//! A Unix socket that one process owns.
//!
//! Whoever holds the lock beside it owns the name, so a socket that a killed process left behind is
//! simply replaced, and two processes that start at once do not take it from each other. The directory
//! is this user's alone, and so are those who may connect.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _},
        net,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

/// A process that was killed holds its lock for a moment after nobody answers any more; longer than this
/// it is another's for good.
const CHANGING: Duration = Duration::from_secs(5);

/// A listening socket; its name goes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Listener {
    /// Listens at `path`, in a directory that nobody else can enter; makes it if need be.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let directory = path.parent().context("the socket needs a directory")?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("make the directory `{}`", directory.display()))?;
        let metadata = fs::metadata(directory)?;
        ensure!(
            metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0,
            "others may write to `{}`, so they could take the socket's place; name a socket in a directory \
             of your own",
            directory.display()
        );
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = File::options().create(true).truncate(false).write(true).open(lock_path)?;
        let waiting_since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // Its holder is just coming or going.
                Err(fs::TryLockError::WouldBlock)
                    if net::UnixStream::connect(path).is_err()
                        && waiting_since.elapsed() < CHANGING =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(fs::TryLockError::WouldBlock) => {
                    bail!("another forebay listens at `{shown}`; stop it, or name another socket")
                }
                Err(fs::TryLockError::Error(error)) => {
                    return Err(error).context("lock the socket");
                }
            }
        }
        // The lock is ours, so whatever has the name was left behind.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("replace `{shown}`"));
            }
            _ => {}
        }
        let socket = UnixListener::bind(path).with_context(|| format!("listen at `{shown}`"))?;
        Ok(Self { socket, path: path.to_owned(), _lock: lock })
    }

    /// The next connection of this user (or root); strangers are turned away without a word.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.socket.accept().await {
                Ok((socket, _)) => match socket.peer_cred() {
                    Ok(peer) if peer.uid() == 0 || peer.uid() == geteuid().as_raw() => {
                        return socket;
                    }
                    _ => tracing::warn!("a connection of another user was turned away"),
                },
                // Out of descriptors, most likely: wait for some to be returned.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process may be gone from its socket before it is from its lock.
    #[tokio::test]
    async fn a_lock_that_is_just_being_left_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let lock = File::create(directory.path().join("node.sock.lock")).unwrap();
        lock.lock().unwrap();
        let leaving = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(lock);
        });
        let listener = Listener::bind(&path).unwrap();
        leaving.join().unwrap();
        assert!(Listener::bind(&path).is_err(), "now it is taken");
        drop(listener);
    }
}

//! A Unix socket that one process owns.
//!
//! Whoever holds the lock beside it owns the name, so a socket that a killed process left behind is
//! simply replaced, and two processes that start at once do not take it from each other. Nobody else may write to
//! the directory. Those who may connect are this user's alone, unless it is said otherwise.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
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

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// This user, and root.
    Owner,
    /// Every user of this machine; who each is, is found out later.
    Everyone,
}

/// A listening socket; its name goes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    audience: Audience,
    _lock: File,
}

impl Listener {
    /// Listens at `path`, in a directory that nobody else can write to; makes it if need be.
    pub fn bind(path: &Path, audience: Audience) -> anyhow::Result<Self> {
        let shown = path.display();
        let directory = path.parent().context("the socket needs a directory")?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(if audience == Audience::Owner { 0o700 } else { 0o711 })
            .create(directory)
            .with_context(|| format!("make the directory `{}`", directory.display()))?;
        let metadata = fs::metadata(directory)?;
        ensure!(
            metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0,
            "others may write to `{}`, so they could take the socket's place; name a socket in a directory \
             of your own",
            directory.display()
        );
        ensure!(
            audience == Audience::Owner || metadata.mode() & 0o001 != 0,
            "tenants of other users cannot enter `{0}`; let them with `chmod 711 {0}`",
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
        if audience == Audience::Everyone {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))
                .with_context(|| format!("let others use `{shown}`"))?;
        }
        Ok(Self { socket, path: path.to_owned(), audience, _lock: lock })
    }

    /// The next connection of those who may; others are turned away without a word.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.socket.accept().await {
                Ok((socket, _)) => match socket.peer_cred() {
                    Ok(peer)
                        if self.audience == Audience::Everyone
                            || peer.uid() == 0
                            || peer.uid() == geteuid().as_raw() =>
                    {
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

    /// Tenants of other users can use the socket, if they can get at it; nobody can take its place.
    #[tokio::test]
    async fn others_are_let_at_the_socket_only_if_they_are_expected() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let path = directory.path().join("node.sock");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let complaint = Listener::bind(&path, Audience::Everyone).unwrap_err().to_string();
        assert!(complaint.contains("chmod 711"), "{complaint}");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let listener = Listener::bind(&path, Audience::Everyone).unwrap();
        assert_eq!(mode(&path), 0o666);
        drop(listener);
        let _own = Listener::bind(&path, Audience::Owner).unwrap();
        assert_ne!(mode(&path), 0o666);
    }

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
        let listener = Listener::bind(&path, Audience::Owner).unwrap();
        leaving.join().unwrap();
        assert!(Listener::bind(&path, Audience::Owner).is_err(), "now it is taken");
        drop(listener);
    }
}

//! Listener: a Unix socket that exactly one process owns.
//!
//! A lock file beside the socket decides which process owns the path. So a socket that a killed
//! process left behind is replaced, and of two processes that start at once only one gets it. Other
//! users may not write to the directory, or they could replace the socket. By default only
//! processes of the same user may connect ([`SocketAccess`]).

use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use forebay_auth::{ensure_own_directory, open_own};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

/// Longest wait for a lock whose socket does not answer. A killed process holds its lock for a
/// moment after its socket is closed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Which users of the machine may connect to a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketAccess {
    /// The process's own user, and root.
    Owner,
    /// Every user. The session authenticates each connection.
    AllUsers,
}

/// A listening Unix socket. Dropping it removes the path.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    access: SocketAccess,
    _lock: File,
}

impl Listener {
    /// Listens at `path`. Creates its directory if it does not exist; an existing directory that
    /// other users may write to is an error.
    pub fn bind(path: &Path, access: SocketAccess) -> anyhow::Result<Self> {
        let shown = path.display();
        let directory = path.parent().context("the socket needs a directory")?;
        let mode = if access == SocketAccess::Owner { 0o700 } else { 0o711 };
        let metadata =
            ensure_own_directory(directory, mode).context("the directory of the socket")?;
        ensure!(
            access == SocketAccess::Owner || metadata.mode() & 0o001 != 0,
            "tenants of other users cannot enter `{0}`; run `chmod 711 {0}`",
            directory.display()
        );
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock =
            open_own(lock_path.as_ref(), File::options().create(true).truncate(false).write(true))?;
        let waiting_since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // The holder of the lock is starting or stopping.
                Err(fs::TryLockError::WouldBlock)
                    if net::UnixStream::connect(path).is_err()
                        && waiting_since.elapsed() < LOCK_TIMEOUT =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(fs::TryLockError::WouldBlock) => {
                    bail!("another forebay listens at `{shown}`; stop it, or use another socket")
                }
                Err(fs::TryLockError::Error(error)) => {
                    return Err(error).context("lock the socket");
                }
            }
        }
        // This process holds the lock, so an existing socket is a leftover.
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {
                fs::remove_file(path).with_context(|| format!("replace `{shown}`"))?;
            }
            Ok(_) => bail!("`{shown}` exists and is not a socket; name another path"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("replace `{shown}`")),
        }
        let socket = UnixListener::bind(path).with_context(|| format!("listen at `{shown}`"))?;
        if access == SocketAccess::AllUsers {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))
                .with_context(|| format!("make `{shown}` accessible to all users"))?;
        }
        Ok(Self { socket, path: path.to_owned(), access, _lock: lock })
    }

    /// The next connection of a user with access. Other connections are closed.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.socket.accept().await {
                Ok((socket, _)) => match socket.peer_cred() {
                    Ok(peer)
                        if self.access == SocketAccess::AllUsers
                            || peer.uid() == 0
                            || peer.uid() == geteuid().as_raw() =>
                    {
                        return socket;
                    }
                    _ => tracing::warn!("connection of another user closed"),
                },
                // Most likely out of file descriptors: wait until some are free.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
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

    #[tokio::test]
    async fn other_users_reach_the_socket_only_with_all_users_access() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let path = directory.path().join("node.sock");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let error = Listener::bind(&path, SocketAccess::AllUsers).unwrap_err().to_string();
        assert!(error.contains("chmod 711"), "{error}");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let listener = Listener::bind(&path, SocketAccess::AllUsers).unwrap();
        assert_eq!(mode(&path), 0o666);
        drop(listener);
        let _private = Listener::bind(&path, SocketAccess::Owner).unwrap();
        assert_ne!(mode(&path), 0o666);
    }

    #[tokio::test]
    async fn a_leftover_socket_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        drop(net::UnixListener::bind(&path).unwrap());
        drop(Listener::bind(&path, SocketAccess::Owner).unwrap());
        fs::write(&path, "a digest").unwrap();
        let error = Listener::bind(&path, SocketAccess::Owner).unwrap_err().to_string();
        assert!(error.contains("node.sock` exists and is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a digest");
    }

    /// The socket of a killed process may close before its lock is released.
    #[tokio::test]
    async fn bind_waits_for_the_lock_of_a_dead_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let lock = File::create(directory.path().join("node.sock.lock")).unwrap();
        lock.lock().unwrap();
        let dying = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(lock);
        });
        let listener = Listener::bind(&path, SocketAccess::Owner).unwrap();
        dying.join().unwrap();
        assert!(Listener::bind(&path, SocketAccess::Owner).is_err(), "the socket is in use");
        drop(listener);
    }
}

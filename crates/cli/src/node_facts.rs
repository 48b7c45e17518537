//! Facts about a running node that are no counters: its process, version and directory.
//!
//! A node writes them to the lock file beside its socket, which it holds until it exits. A reader
//! believes them only if the process that listens at the socket is the one they name.

use std::{
    fs,
    io::Read as _,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};

/// Longest file that is read.
const FACTS_SIZE_MAX: u64 = 64 << 10;

/// Facts about a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Version of forebay.
    pub version: String,
    /// Process id.
    pub pid: i32,
    /// Name in its cluster.
    pub name: Option<String>,
    /// The socket.
    pub socket: PathBuf,
    /// The directory of blobs and of the node's identity.
    pub directory: PathBuf,
    /// The configuration file.
    pub config: Option<PathBuf>,
}

impl NodeFacts {
    /// Writes the facts to the lock file of the socket, which this process holds.
    pub fn write(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec(self).expect("facts are strings and numbers");
        fs::write(lock_file(&self.socket), text).context("cannot write the lock file")
    }

    /// The facts of the node that listens at a socket; `None` if they are not known, for example
    /// because the node is of another version.
    pub fn read(socket: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = fs::File::open(lock_file(socket)).ok()?;
        file.take(FACTS_SIZE_MAX).read_to_end(&mut text).ok()?;
        let facts: Self = serde_json::from_slice(&text).ok()?;
        (listener(socket).ok()? == facts.pid).then_some(facts)
    }
}

/// The process that listens at a Unix socket.
pub fn listener(socket: &Path) -> anyhow::Result<i32> {
    let connection = UnixStream::connect(socket)
        .with_context(|| format!("no node listens at `{}`", socket.display()))?;
    let peer = socket_peercred(&connection).context("cannot identify the node")?;
    Ok(peer.pid.as_raw_nonzero().get())
}

fn lock_file(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn facts_are_believed_only_of_the_process_that_listens() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let own = i32::try_from(std::process::id()).unwrap();
        let facts = NodeFacts {
            version: "0.1.0".to_owned(),
            pid: own,
            name: None,
            socket: socket.clone(),
            directory: directory.path().to_owned(),
            config: None,
        };
        facts.write().unwrap();
        assert_eq!(NodeFacts::read(&socket), None, "nothing listens");
        let _listening = UnixListener::bind(&socket).unwrap();
        assert_eq!(NodeFacts::read(&socket), Some(facts.clone()));
        NodeFacts { pid: own + 1, ..facts }.write().unwrap();
        assert_eq!(NodeFacts::read(&socket), None, "another process has written them");
        fs::write(lock_file(&socket), "{").unwrap();
        assert_eq!(NodeFacts::read(&socket), None);
    }
}

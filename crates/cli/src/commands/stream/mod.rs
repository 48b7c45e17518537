//! `forebay stream`: writes, reads, lists and removes the streams of a store, or of a node.

mod get;
mod list;
mod put;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use forebay_auth::Credentials;
use forebay_client::{NodeStreams, node_of_store};
use forebay_core::{ByteSize, streams::catalogue::StreamInfo};
use forebay_streams::{
    CreateOptions, OpenOptions, OpenedStore, Reader, Store, StoreConfig, StreamError, Writer,
};

use crate::{logging, output::Verdict};

/// Write, read, list and remove the streams of a store.
///
/// A store is a directory, or a node that keeps streams for this user: its socket,
/// tcp://HOST:PORT or tls://HOST:PORT. If another process has a directory open, `get`, `cat`, `ls`
/// and `facts` borrow from it.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write a file, or standard input, to a new stream.
    ///
    /// The stream is kept until it is removed, or for the time of `--lease`. It is durable when the
    /// command returns; if that is interrupted, nothing is left of it.
    #[command(after_help = put::EXAMPLES)]
    Put(put::Args),
    /// Write a stream to a file.
    ///
    /// The file appears when all of it is written. A stream of tables becomes an Arrow IPC stream.
    #[command(after_help = get::GET_EXAMPLES)]
    Get(get::GetArgs),
    /// Write a stream to standard output.
    ///
    /// A stream of tables becomes an Arrow IPC stream.
    #[command(after_help = get::CAT_EXAMPLES)]
    Cat(get::CatArgs),
    /// List the streams of a store.
    #[command(after_help = "Examples:\n  forebay stream ls /nvme/spill")]
    Ls(list::Args),
    /// Remove streams from a store. They are gone when the command returns.
    #[command(after_help = "Examples:\n  forebay stream rm /nvme/spill table 'partition 7'")]
    Rm(list::RemoveArgs),
    /// Show the size, free space and memory of a store.
    #[command(after_help = "Examples:\n  forebay stream facts /nvme/spill --format json")]
    Facts(list::Args),
}

/// The store of a command.
#[derive(Debug, Clone, clap::Args)]
pub struct StoreArgs {
    /// The directory of the store, or a node: a socket, tcp://HOST:PORT or tls://HOST:PORT.
    store: PathBuf,
    /// Take this amount of memory for reading and writing. A node has memory of its own.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteSize,
}

/// Where the streams of a command are.
enum StreamPlace {
    Local(OpenedStore),
    Node(NodeStreams),
}

impl StoreArgs {
    /// Opens the store, borrows it from the process that has it open, or names the node. With a
    /// capacity, a directory is created or gets this size.
    fn open(&self, capacity: Option<ByteSize>) -> anyhow::Result<StreamPlace> {
        if let Some(node) = node_of_store(&self.store)? {
            ensure!(
                capacity.is_none(),
                "--capacity is for directories: the space of a node is `streams` in its \
                 configuration"
            );
            let credentials = Credentials::from_environment()?;
            return Ok(StreamPlace::Node(NodeStreams::new(node, credentials, "forebay")));
        }
        let config = match capacity {
            Some(capacity) => StoreConfig::new(&self.store, capacity),
            None => StoreConfig::existing(&self.store)?,
        };
        let store = StoreConfig { memory: self.memory, ..config }.open_or_borrow();
        let store = store.with_context(|| format!("open the store `{}`", self.store.display()))?;
        Ok(StreamPlace::Local(store))
    }
}

impl StreamPlace {
    /// Creates a stream.
    fn create(&self, name: &str, options: CreateOptions) -> anyhow::Result<Writer> {
        match self {
            Self::Local(store) => Ok(owned(store)?.create(name, options)?),
            Self::Node(node) => Ok(node.create(name, options.lifetime)?),
        }
    }

    /// Opens a stream. A node decides how far it reads ahead.
    fn read(&self, name: &str, options: OpenOptions) -> Result<Reader, StreamError> {
        match self {
            Self::Local(OpenedStore::Owned(store)) => store.open(name, options),
            Self::Local(OpenedStore::Borrowed(store)) => store.open(name, options),
            Self::Node(node) => node.open(name, options.consume),
        }
    }

    /// The streams, by name.
    fn list(&self) -> Result<Vec<StreamInfo>, StreamError> {
        match self {
            Self::Local(OpenedStore::Owned(store)) => Ok(store.list()),
            Self::Local(OpenedStore::Borrowed(store)) => store.list(),
            Self::Node(node) => node.list(),
        }
    }

    /// Removes a stream. Readers in this store's process get an error.
    fn destroy(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Local(store) => Ok(owned(store)?.destroy(name, Duration::ZERO)?),
            Self::Node(node) => Ok(node.destroy(name)?),
        }
    }
}

/// A store that this process may change.
fn owned(store: &OpenedStore) -> anyhow::Result<&Store> {
    match store {
        OpenedStore::Owned(store) => Ok(store),
        OpenedStore::Borrowed(_) => bail!(
            "the store is open in another process, which alone can change it: end that process, \
             or use another store"
        ),
    }
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    // How the device is opened is of interest to a node's operator, not between two commands.
    logging::set_level("warn");
    match command {
        Command::Put(args) => put::run(&args),
        Command::Get(args) => get::get(&args),
        Command::Cat(args) => get::cat(&args),
        Command::Ls(args) => list::list(&args),
        Command::Rm(args) => list::remove(&args),
        Command::Facts(args) => list::facts(&args),
    }
}

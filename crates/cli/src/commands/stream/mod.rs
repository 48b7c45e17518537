//! `forebay stream`: writes, reads, lists and removes the streams of a store.

mod get;
mod list;
mod put;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use forebay_core::{ByteSize, streams::catalogue::StreamInfo};
use forebay_streams::{OpenedStore, Store, StoreConfig, StreamError};

use crate::{logging, output::Verdict};

/// Write, read, list and remove the streams of a store.
///
/// If another process has the store open, `get`, `cat`, `ls` and `facts` borrow from it.
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
    /// The directory of the store.
    store: PathBuf,
    /// Take this amount of memory for reading and writing.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteSize,
}

impl StoreArgs {
    /// Opens the store for writing. With a capacity, it is created or gets this size.
    fn open(&self, capacity: Option<ByteSize>) -> anyhow::Result<Store> {
        match self.open_or_borrow(capacity)? {
            OpenedStore::Owned(store) => Ok(store),
            OpenedStore::Borrowed(_) => bail!(
                "the store `{}` is open in another process, which alone can change it: end that \
                 process, or use another store",
                self.store.display()
            ),
        }
    }

    /// Opens the store, or borrows it from the process that has it open.
    fn open_or_borrow(&self, capacity: Option<ByteSize>) -> anyhow::Result<OpenedStore> {
        let config = match capacity {
            Some(capacity) => StoreConfig::new(&self.store, capacity),
            None => StoreConfig::existing(&self.store)?,
        };
        let store = StoreConfig { memory: self.memory, ..config }.open_or_borrow();
        store.with_context(|| format!("open the store `{}`", self.store.display()))
    }
}

/// The streams of a store, by name.
fn streams(store: &OpenedStore) -> Result<Vec<StreamInfo>, StreamError> {
    match store {
        OpenedStore::Owned(store) => Ok(store.list()),
        OpenedStore::Borrowed(store) => store.list(),
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

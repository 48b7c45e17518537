//! Errors of stores and streams.

use std::path::PathBuf;

use forebay_core::{
    ByteSize,
    streams::{BlockNumber, StreamNameError, catalogue::CatalogueError, lending::LendingError},
};
use forebay_flash::{DeviceError, FlashError, RequestError, io::DeviceFileError};

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum StoreError {
    #[error("cannot create the store's directory {}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("there is no store in {}: name a capacity to create one", .0.display())]
    NotFound(PathBuf),
    #[error("the store in {} belongs to another user: run as that user", .0.display())]
    NotPermitted(PathBuf),
    #[error("{} cannot be the directory of a store: name another", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("memory {memory} is too small for blocks of {block}: use at least {min}")]
    Memory { memory: ByteSize, block: ByteSize, min: ByteSize },
    #[error(transparent)]
    Flash(#[from] FlashError),
    #[error("cannot list the streams of the store: {0}")]
    Recovery(RequestError),
    #[error("cannot lend the streams of the store in {}", path.display())]
    Lender { path: PathBuf, source: std::io::Error },
    #[error(
        "the process that owns the store in {} does not answer: continue or end it, and open the \
         store again",
        path.display()
    )]
    Borrow { path: PathBuf, source: std::io::Error },
    #[error("the store in {} is open in a process of another user: run as that user", .0.display())]
    OtherUser(PathBuf),
    #[error("{0}")]
    NotLent(String),
    #[error("interrupted")]
    Interrupted,
}

impl StoreError {
    /// Whether another process has the device open.
    pub(crate) fn is_locked(&self) -> bool {
        let Self::Flash(FlashError::Device(DeviceError::Open(error))) = self else { return false };
        matches!(error, DeviceFileError::Locked { .. })
    }
}

/// Why a call on a stream failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum StreamError {
    #[error(transparent)]
    Name(#[from] StreamNameError),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    #[error(
        "the block has {length} bytes, but this store's blocks have at most {max}: split it, or \
         open the store with longer blocks"
    )]
    TooLong { length: u64, max: u64 },
    #[error(
        "the store is full ({capacity}): stream {stream:?} needs {needed} more; destroy streams, \
         use a larger `capacity`, or let the writer wait for space"
    )]
    Full { stream: String, needed: ByteSize, capacity: ByteSize },
    #[error(
        "{depth} slots of {slot} are {needed}, but {free} of the store's memory for reading are \
         free: use a smaller `depth`, close readers, or open the store with more `memory`"
    )]
    Memory { depth: u32, slot: ByteSize, needed: ByteSize, free: ByteSize },
    #[error("block {} of stream {stream:?} is lost: write the stream again", block.0)]
    Lost { stream: String, block: BlockNumber },
    #[error("cannot read block {} of stream {stream:?}: {error}", block.0)]
    Read { stream: String, block: BlockNumber, error: RequestError },
    #[error("cannot write stream {stream:?}: {error}")]
    Write { stream: String, error: RequestError },
    #[error("stream {0:?} was destroyed while it was read")]
    Destroyed(String),
    #[error("stream {0:?} was destroyed while it was written: create it again")]
    DestroyedUnsealed(String),
    #[error("stream {0:?} was dropped by its writer before it was sealed")]
    Abandoned(String),
    #[error(
        "stream {stream:?} ended after {bytes} bytes, but was sealed with {expected}: write it \
         again"
    )]
    Shorter { stream: String, bytes: u64, expected: u64 },
    #[error(
        "the store was opened by process {owner}, and this is its child {process}: open it again \
         in the child"
    )]
    Forked { owner: u32, process: u32 },
    #[error("the process that owned the store in {0} has ended or does not answer: open it again")]
    OwnerGone(String),
    #[error(
        "stream {0:?} is in a store of another process: `follow` and `consume` are for that \
         process alone"
    )]
    OwnerOnly(String),
    #[error(transparent)]
    Lending(#[from] LendingError),
    #[error("{0}")]
    Refused(String),
    /// A node refused because a budget or its device is full.
    #[error("{0}")]
    RefusedFull(String),
    /// A node refused because blocks are lost.
    #[error("{0}")]
    RefusedLost(String),
    #[error("{0}: the stream was not read or written completely; try again")]
    ConnectionLost(String),
    #[error("interrupted")]
    Interrupted,
}

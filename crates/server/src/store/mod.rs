//! Where blobs lie: the seam behind which the flash engine will take the place of plain files.
//!
//! A store keeps whole blobs and proves what it reads. It decides nothing: what may be written, and what
//! has to go for it, is the business of `core::node`. Its calls block, and are made where blocking is
//! allowed.

mod files;

use std::{io, ops::Range};

use bytes::Bytes;
use forebay_core::Address;

pub use files::Files;

/// Keeps blobs.
pub trait Store: Send + Sync + 'static {
    /// What is there after a start, oldest first, with lengths. What was left half-written is cleared away.
    fn recover(&self) -> io::Result<Vec<(Address, u64)>>;

    /// How much space a blob of this length takes.
    fn footprint(&self, length: u64) -> u64;

    /// Some bytes of a blob, proved to be those that were written (promise 1).
    fn read(&self, address: &Address, length: u64, range: Range<u64>) -> Result<Bytes, ReadError>;

    /// Begins a blob, which appears when it is finished, or not at all.
    fn create(&self, address: &Address, length: u64) -> io::Result<Box<dyn Writing>>;

    /// Forgets a blob; not being there is no error.
    fn remove(&self, address: &Address) -> io::Result<()>;
}

/// A blob that is being written; dropped unfinished, it leaves nothing behind.
pub trait Writing: Send {
    /// Adds the next piece.
    fn append(&mut self, piece: &[u8]) -> io::Result<()>;

    /// Gives it its name.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Why nothing was read. Either way it is a miss.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It went while it was being asked for.
    #[error("the blob is gone")]
    Gone,
    /// It is whole, but not as long as the caller believes: the caller's table is wrong.
    #[error("the blob has another length")]
    OtherLength,
    /// What is there is not what was written.
    #[error("the blob is damaged: {0}")]
    Damaged(&'static str),
    /// The disk failed.
    #[error("the disk failed")]
    Io(#[from] io::Error),
}

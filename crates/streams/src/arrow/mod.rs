//! Arrow: record batches as blocks, in the layout of Arrow IPC, uncompressed and 64-byte aligned.
//!
//! A block holds whole IPC messages: the schema before the first batch, the dictionaries that a
//! batch needs, and the batch. Writing copies the batch once, into memory that the device writes
//! from. Reading slices the block: no byte is copied between the device and the consumer.
//!
//! - [`BatchWriter`] splits a batch by rows that does not fit into a block.
//! - [`BatchReader`] is a `RecordBatchReader`, for other Arrow libraries.
//! - [`BlockDecoder`] turns the bytes of one block into batches.

mod block_decoder;
mod compaction;
mod reader;
mod writer;

use arrow_schema::ArrowError;

use crate::error::StreamError;

pub use block_decoder::BlockDecoder;
pub use reader::BatchReader;
pub use writer::BatchWriter;

/// Alignment of messages and buffers. A block begins at a multiple of it.
const ALIGNMENT: usize = 64;

/// Why a call on a stream of batches failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum BatchError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error(
        "stream {stream:?} has the columns {expected}, but the batch has {found}: use one schema \
         per stream"
    )]
    Schema { stream: String, expected: String, found: String },
    #[error("block {block} of stream {stream:?} is not Arrow: read it as arrays or as bytes")]
    NotArrow { stream: String, block: u64 },
    #[error(
        "stream {0:?} has no blocks, so it has no schema: append a table to it, which may be empty"
    )]
    Empty(String),
    #[error(
        "one row of stream {stream:?} takes {length} bytes, with the dictionaries that it needs, \
         but this store's blocks have at most {max}: use shorter values or smaller dictionaries, \
         or open a store with a larger capacity"
    )]
    RowTooLong { stream: String, length: u64, max: u64 },
}

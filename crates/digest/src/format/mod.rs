//! Digests: the table of a dataset.
//!
//! A digest has the address, length and location (its **parts**) of every blob, and for every item
//! its span in a blob and the user's columns. It is an Arrow IPC file, so that any tool that reads
//! Arrow can read it; `docs/reference/digest-format.md` describes it.
//!
//! `write` makes the file, `read` opens one without touching its rows, and [`Digest::check`]
//! verifies every byte of it.

mod check;
mod columns;
mod layout;
mod read;
#[cfg(test)]
mod tests;
mod write;

use forebay_core::{
    Address, DatasetId,
    dataset::{blob_table, chunking::Chunking, hash_tree::HashTree},
};

pub use columns::{ColumnGuess, ColumnType, Value};
pub use read::{BlobView, Digest, ItemLocation, PartView};
pub use write::{DigestWriter, Header};

/// The newest format that is read. It is written if blobs have hash trees.
pub const FORMAT: u32 = 2;
/// The oldest format that is read. It has no hash trees, and is written if there are none.
pub const FORMAT_WITHOUT_TREES: u32 = 1;
/// Longest blob, and end of the last part of an object: 256 TiB.
pub const BLOB_LENGTH_MAX: u64 = blob_table::LENGTH_MAX;
/// Longest item: 64 GiB. A job holds a whole item in memory.
pub const ITEM_LENGTH_MAX: u64 = 1 << 36;
/// Largest dataset: 1 EiB, so that sums of positions do not overflow.
pub const DATASET_LENGTH_MAX: u64 = 1 << 60;

/// A byte range of one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The object's key, relative to the digest's origin.
    pub object: String,
    /// The origin's name for this state of the object (its `ETag`), sent back as `If-Match`.
    pub version: String,
    /// First byte within the object.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// The byte range of an item within its blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemSpan {
    /// First byte within the blob.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// One row of a digest. The content of the blob is the concatenation of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The blob's address.
    pub address: Address,
    /// Where its bytes are stored.
    pub parts: Vec<Part>,
    /// The items in it.
    pub items: Vec<ItemSpan>,
    /// The hash tree, by which its items are verified one by one.
    pub tree: Option<HashTree>,
}

impl Blob {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}

/// Metadata of a dataset as a whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// The dataset's id.
    pub dataset: DatasetId,
    /// `public`, or the id of the namespace of the addresses.
    pub namespace: String,
    /// URL of the objects, without credentials.
    pub origin: String,
    /// The layout of the build, as text (see [`Layout`](crate::Layout)).
    pub layout: String,
    /// The dataset's chunking.
    pub chunking: Chunking,
    /// Number of items.
    pub items: u64,
    /// Number of blobs.
    pub blobs: u64,
    /// Total length of all blobs.
    pub bytes: u64,
}

/// Why bytes are not a usable digest, or why a digest cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// A file of another kind.
    #[error("not a forebay digest: {0}; build one with `forebay digest build URL -o x.digest`")]
    Foreign(&'static str),
    /// Written by a later forebay.
    #[error(
        "a digest of format {0}, but this forebay reads up to {FORMAT}; install a newer forebay"
    )]
    Newer(String),
    /// A digest whose bytes have changed or contradict each other.
    #[error("a damaged digest ({0}); restore it from a copy or build it again")]
    Damaged(String),
    /// A row or column of the caller that cannot be written.
    #[error("cannot be written as a digest: {0}")]
    Unwritable(String),
    /// I/O error of the output.
    #[error("write the digest")]
    Io(#[from] std::io::Error),
}

fn damaged(what: impl Into<String>) -> DigestError {
    DigestError::Damaged(what.into())
}

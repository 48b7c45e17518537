//! Digests: the table of a dataset.
//!
//! A digest says, for every blob, its address, its length and where its bytes lie (its **parts**), and
//! for every item which bytes of which blob it is, with any columns of the user's own. It is an Arrow
//! IPC file, so that any tool that reads Arrow can look at it; `docs/digest.md` describes it.
//!
//! `plan` turns a listing into blobs, `write` makes the file, `read` opens one without touching
//! its rows, and [`Digest::check`] proves every byte of it.

mod check;
mod columns;
mod layout;
pub mod plan;
mod read;
#[cfg(test)]
mod tests;
mod write;

use crate::{Address, DatasetId, chunking::Chunking};

pub use columns::{ColumnGuess, ColumnType, Value};
pub use read::{BlobView, Digest, ItemPlace, PartView};
pub use write::{DatasetIdHasher, DigestWriter, Header};

/// Newest format that is read, and the one that is written.
pub const FORMAT: u32 = 1;

/// Some bytes of an object, as they were when the digest was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The object's key, relative to the digest's origin.
    pub object: String,
    /// What the origin called this state of the object (its `ETag`), sent back as `If-Match`.
    pub version: String,
    /// First byte within the object.
    pub offset: u64,
    /// Bytes taken.
    pub length: u64,
}

/// The place of an item within its blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemSpan {
    /// First byte within the blob.
    pub offset: u64,
    /// Bytes taken.
    pub length: u64,
}

/// One row of a digest. The blob's content is its parts, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The blob's name.
    pub address: Address,
    /// Where its bytes lie.
    pub parts: Vec<Part>,
    /// What they mean.
    pub items: Vec<ItemSpan>,
}

impl Blob {
    /// How long the blob is.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}

/// What holds for a dataset as a whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// What all who share the dataset agree on.
    pub dataset: DatasetId,
    /// `public`, or the id of the namespace whose key made the addresses.
    pub namespace: String,
    /// Where the objects lie: a URL without credentials.
    pub origin: String,
    /// How items were found and packed.
    pub layout: String,
    /// How the dataset is cut into chunks.
    pub chunking: Chunking,
    /// How many items there are.
    pub items: u64,
    /// How many blobs there are.
    pub blobs: u64,
    /// How long all blobs are together.
    pub bytes: u64,
}

/// Why bytes are not a digest that can be used.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// Some other file.
    #[error("not a forebay digest: {0}")]
    Foreign(&'static str),
    /// A later forebay wrote it.
    #[error(
        "a digest of format {0}, but this forebay reads up to {FORMAT}; install a newer forebay"
    )]
    Newer(String),
    /// One of ours, but not as it was written.
    #[error("a damaged digest ({0}); restore it from a copy or build it again")]
    Damaged(String),
    /// A row or column that the caller made cannot be written.
    #[error("cannot be written as a digest: {0}")]
    Unwritable(String),
    /// The file it was being written to failed.
    #[error("write the digest")]
    Io(#[from] std::io::Error),
}

fn damaged(what: impl Into<String>) -> DigestError {
    DigestError::Damaged(what.into())
}

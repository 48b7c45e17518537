//! Datasets as a node sees them: blob table, chunking and proof of possession.

pub mod blob_table;
pub mod chunking;
mod id;
mod listing;
pub mod possession;

pub use blob_table::{BlobRow, BlobTable};
pub use chunking::{ChunkOrdinal, Chunking};
pub use id::DatasetIdHasher;
pub use listing::ListedObject;

//! Datasets as a node sees them: blob table, chunking and proof of possession; and how their bytes
//! are verified.

pub mod blob_table;
pub mod chunking;
pub mod hash_tree;
mod id;
mod listing;
pub mod possession;
pub mod verification;

pub use blob_table::{BlobRow, BlobTable};
pub use chunking::{ChunkOrdinal, Chunking};
pub use id::DatasetIdHasher;
pub use listing::ListedObject;

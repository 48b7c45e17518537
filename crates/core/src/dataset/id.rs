//! The dataset id: a hash over the addresses and lengths of all blobs, and the chunking.

use super::chunking::Chunking;
use crate::{Address, DatasetId};

/// Domain of BLAKE3's key derivation, fixed by the digest format.
const DATASET_ID_CONTEXT: &str = "forebay 2026 dataset id v1";

/// Computes a dataset's id from its blobs, in order, and its chunking. Nothing else enters, so that
/// a node can compute the id from an uploaded blob table.
pub struct DatasetIdHasher(blake3::Hasher);

impl DatasetIdHasher {
    /// A hasher of no blobs yet.
    #[expect(clippy::new_without_default, reason = "an id of no rows is not a sensible default")]
    pub fn new() -> Self {
        Self(blake3::Hasher::new_derive_key(DATASET_ID_CONTEXT))
    }

    /// Adds the next blob.
    pub fn push(&mut self, address: &Address, length: u64) {
        self.0.update(address.as_bytes());
        self.0.update(&length.to_le_bytes());
    }

    /// The id of all blobs so far with this chunking.
    pub fn finish(mut self, chunking: Chunking) -> DatasetId {
        self.0.update(&chunking.chunks().to_le_bytes());
        self.0.update(&chunking.partitions().to_le_bytes());
        DatasetId::from_bytes(*self.0.finalize().as_bytes())
    }
}

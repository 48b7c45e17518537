//! Proof of possession: a client proves that it holds a dataset's digest without sending it
//! (promise 4).
//!
//! The node sends a nonce. The client answers with a hash over all rows of the blob table, keyed
//! with the nonce. A dataset id alone grants nothing.

use std::fmt;

use super::blob_table::BlobRow;
use crate::{Address, DatasetId, NamespaceId};

/// A key that binds addresses and dataset ids to a namespace.
///
/// A node stores bound addresses and ids only. A client may have obtained addresses of a namespace
/// that it may not use. If it presents them under its own namespace, they are bound to that one and
/// match nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct NamespaceBinding([u8; 32]);

impl NamespaceBinding {
    /// The key of a namespace.
    pub fn new(namespace: NamespaceId) -> Self {
        Self(blake3::derive_key("forebay names bound to a namespace v1", namespace.as_bytes()))
    }

    /// The bound form of a blob's address.
    pub fn address(&self, address: &Address) -> Address {
        Address::from_bytes(*blake3::keyed_hash(&self.0, address.as_bytes()).as_bytes())
    }

    /// The bound form of a dataset's id.
    pub fn dataset(&self, dataset: &DatasetId) -> DatasetId {
        DatasetId::from_bytes(*blake3::keyed_hash(&self.0, dataset.as_bytes()).as_bytes())
    }

    /// The bound form of a row, as a node stores it.
    pub fn row(&self, row: BlobRow) -> BlobRow {
        BlobRow { address: self.address(&row.address), length: row.length }
    }
}

impl fmt::Debug for NamespaceBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamespaceBinding")
    }
}

/// The answer to a challenge: a hash over all rows, bound to their namespace, keyed with the nonce.
pub fn proof(nonce: &[u8; 32], rows: impl IntoIterator<Item = BlobRow>) -> [u8; 32] {
    let mut hasher = ProofHasher::new(nonce);
    hasher.update(rows);
    hasher.finish()
}

/// Computes a [`proof`] in parts.
pub struct ProofHasher {
    hash: blake3::Hasher,
    /// Few large updates: BLAKE3 is several times faster on them.
    buffer: Vec<u8>,
}

impl ProofHasher {
    /// The proof of no rows, for a challenge with this nonce.
    pub fn new(nonce: &[u8; 32]) -> Self {
        Self { hash: blake3::Hasher::new_keyed(nonce), buffer: Vec::with_capacity(1 << 16) }
    }

    /// Adds the next rows.
    pub fn update(&mut self, rows: impl IntoIterator<Item = BlobRow>) {
        for row in rows {
            self.buffer.extend_from_slice(row.address.as_bytes());
            self.buffer.extend_from_slice(&row.length.to_le_bytes());
            if self.buffer.len() > (1 << 16) - 64 {
                self.hash.update(&self.buffer);
                self.buffer.clear();
            }
        }
    }

    /// The proof of all rows.
    pub fn finish(mut self) -> [u8; 32] {
        self.hash.update(&self.buffer);
        *self.hash.finalize().as_bytes()
    }
}

/// Whether two proofs are equal. Takes constant time.
pub fn proofs_match(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

//! A digest's rows as a node stores them, and the proof that a client holds the digest (promise 4).

use forebay_core::{
    Namespace,
    dataset::{
        blob_table::BlobRow,
        possession::{self, NamespaceBinding},
    },
};

use crate::format::{Digest, DigestError};

/// The rows of a digest that a client uploads to a node.
pub fn rows_of(digest: &Digest) -> impl Iterator<Item = Result<BlobRow, DigestError>> {
    digest.blobs().map(|row| row.map(|row| BlobRow { address: row.address, length: row.length }))
}

/// The answer of a client that holds `digest` to a challenge. An error if a row is damaged.
pub fn proof_of(digest: &Digest, nonce: &[u8; 32]) -> Result<[u8; 32], DigestError> {
    let mut damaged = None;
    let rows = rows_of(digest).map_while(|row| row.map_err(|error| damaged = Some(error)).ok());
    let namespace = digest.namespace().unwrap_or_else(|| Namespace::public().id());
    let binding = NamespaceBinding::new(namespace);
    let proof = possession::proof(nonce, rows.map(|row| binding.row(row)));
    damaged.map_or(Ok(proof), Err)
}

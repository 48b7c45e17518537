//! A digest of blobs that no origin is known of: all that is to be said of each is its address and its length. Nodes are
//! told no more of any dataset, so that presence, reports and placement work for these as well.

use std::path::Path;

use forebay_core::{
    Address, ByteSize, Namespace, NamespaceId,
    chunking::Chunking,
    digest::{Blob, DatasetIdHasher, Header, ItemSpan, Part, Summary},
};

use crate::{FileError, PendingDigest};

/// Publishes the digest of these blobs, each of which is one item. `origin` says in words where they come from.
pub fn publish_snapshot(
    path: &Path,
    namespace: NamespaceId,
    origin: &str,
    rows: &[(Address, u64)],
) -> Result<(), FileError> {
    let (items, bytes) = (rows.len() as u64, rows.iter().map(|(_, length)| length).sum());
    let chunking = Chunking::for_dataset(ByteSize(bytes), items);
    let mut id = DatasetIdHasher::new();
    for (address, length) in rows {
        id.push(address, *length);
    }
    let is_public = namespace == Namespace::public().id();
    let namespace = if is_public { "public".to_owned() } else { namespace.to_string() };
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace,
        origin: origin.to_owned(),
        layout: "files".to_owned(),
        chunking,
        items,
        blobs: items,
        bytes,
    };
    let mut digest = PendingDigest::create(path, Header { summary, columns: Vec::new() })?;
    for (index, (address, length)) in rows.iter().enumerate() {
        let (offset, length) = (0, *length);
        let part = Part { object: format!("{index:012}"), version: String::new(), offset, length };
        let items = vec![ItemSpan { offset, length }];
        digest.push(&Blob { address: *address, parts: vec![part], items }, &[vec![]])?;
    }
    digest.publish()
}

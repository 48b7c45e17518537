//! Snapshots: digests of blobs without an origin, which have an address and a length only.
//!
//! A node stores no more than that of any dataset, so presence, reports and placement work for
//! snapshots, too.

use std::path::Path;

use crate::format::{Blob, Header, ItemSpan, Part, Summary};
use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{Address, ByteSize, Namespace, NamespaceId, dataset::chunking::Chunking};

use crate::{DigestFileError, PendingDigest};

/// Publishes the digest of these blobs, each of which is one item. `origin` describes in words
/// where they come from.
pub fn publish_snapshot(
    path: &Path,
    namespace: NamespaceId,
    origin: &str,
    rows: &[(Address, u64)],
) -> Result<(), DigestFileError> {
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
    let mut digest =
        PendingDigest::create(path, Header { summary, columns: Vec::new(), has_trees: false })?;
    for (index, (address, length)) in rows.iter().enumerate() {
        let (offset, length) = (0, *length);
        let part = Part { object: format!("{index:012}"), version: String::new(), offset, length };
        let items = vec![ItemSpan { offset, length }];
        let blob = Blob { address: *address, parts: vec![part], items, tree: None };
        digest.push(&blob, &[vec![]])?;
    }
    digest.publish()
}

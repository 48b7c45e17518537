//! The full check of a digest: checksums of every byte, and consistency of every row.
//!
//! It reads the whole file, so [`DigestFile`](crate::DigestFile) runs it once per file and records
//! that it passed.

use super::{Digest, DigestError, damaged};
use crate::plan::{Layout, check_name};
use forebay_core::dataset::DatasetIdHasher;

impl Digest {
    /// Verifies content, rows, dataset id and the user's columns.
    pub fn check(&self) -> Result<(), DigestError> {
        self.check_content()?;
        self.check_rows()?;
        // Decoding one of the user's columns validates all of them.
        self.columns().first().map_or(Ok(()), |(name, _)| self.column(name).map(drop))
    }

    fn check_content(&self) -> Result<(), DigestError> {
        let mut hash = blake3::Hasher::new();
        for batch in &self.batches {
            hash.update(&self.bytes[batch.body.clone()]);
        }
        if hash.finalize().to_string() != self.content {
            return Err(damaged("its content does not match its checksum"));
        }
        Ok(())
    }

    fn check_rows(&self) -> Result<(), DigestError> {
        let summary = self.summary();
        if !self.is_listing() {
            summary.layout.parse::<Layout>().map_err(damaged)?;
        }
        let mut id = DatasetIdHasher::new();
        let mut start = 0_u64;
        let mut previous: Option<&str> = None;
        for batch in &self.batches {
            let (mut parts_seen, mut items_seen, mut nodes_seen) = (0, 0, 0);
            for row in batch.first_blob..batch.first_blob + batch.blobs {
                let blob = self.blob(forebay_core::BlobOrdinal::new(row))?;
                let row_is = |what: &str| damaged(format!("row {row} {what}"));
                let (parts, items) = blob.child_ranges();
                if (parts.start, items.start) != (parts_seen, items_seen) || items.is_empty() {
                    return Err(row_is("overlaps its neighbour or has no item"));
                }
                (parts_seen, items_seen) = (parts.end, items.end);
                if blob.start != start {
                    return Err(row_is("does not begin where the last one ends"));
                }
                let mut length = 0_u64;
                for part in blob.parts() {
                    let part = part?;
                    check_name(part.object)
                        .map_err(|problem| row_is(&format!("names {problem}")))?;
                    if previous.is_some_and(|previous| previous > part.object) {
                        return Err(row_is("is out of order"));
                    }
                    previous = Some(part.object);
                    length = length
                        .checked_add(part.length)
                        .ok_or_else(|| row_is("is impossibly long"))?;
                }
                if length != blob.length {
                    return Err(row_is("is not as long as its parts"));
                }
                start = start.checked_add(length).ok_or_else(|| row_is("is impossibly long"))?;
                blob.items().try_for_each(|item| item.map(drop))?;
                if self.has_trees() {
                    let nodes = blob.tree_range()?;
                    if nodes.start != nodes_seen {
                        return Err(row_is("has nodes of another blob's hash tree"));
                    }
                    nodes_seen = nodes.end;
                    blob.tree()?;
                }
                id.push(&blob.address, length);
            }
            if (parts_seen, items_seen, nodes_seen) != (batch.parts, batch.items, batch.nodes) {
                return Err(damaged("a batch holds parts or items of no blob"));
            }
        }
        if start != summary.bytes {
            return Err(damaged("its rows are not as long as it announces"));
        }
        if id.finish(summary.chunking) != summary.dataset {
            return Err(damaged("its rows do not hash to its dataset id"));
        }
        Ok(())
    }
}

//! The second phase of a build: writes the digest from a complete journal.

use std::path::Path;

use anyhow::{Context as _, bail};
use forebay_core::{ByteSize, dataset::chunking::Chunking};
use forebay_digest::{Blob, Header, Journal, JournalHeader, PendingDigest, Summary};

use super::{Spec, scan::Totals};
use crate::commands::digest::columns::Columns;

/// A published digest, with the mismatches between items and columns.
pub struct Published {
    pub summary: Summary,
    pub items_without_columns: u64,
    pub columns_without_items: u64,
}

/// Writes and publishes the digest. The journal is kept if this fails.
pub fn publish(
    spec: &Spec,
    header: &JournalHeader,
    totals: Totals,
    chunks: Option<u64>,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<Published> {
    let Totals { id, blobs, items, bytes, has_trees, .. } = totals;
    if blobs == 0 {
        let exclude = if spec.exclude.is_empty() { "" } else { " and --exclude" };
        bail!("there are no objects under `{}`; check the prefix{exclude}", header.origin);
    }
    let chunking = match chunks {
        Some(chunks) => Chunking::into_chunks(chunks, blobs).context(JOURNAL_KEPT)?,
        None => Chunking::for_dataset(ByteSize(bytes), blobs),
    };
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: header.namespace.clone(),
        origin: header.origin.clone(),
        layout: header.layout.clone(),
        chunking,
        items,
        blobs,
        bytes,
    };
    let kinds = columns.kinds.clone();
    let header = Header { summary: summary.clone(), columns: kinds, has_trees };
    let (items_without_columns, objects_with) = write(&spec.output, header, journal, columns)?;
    let columns_without_items = (columns.len() as u64).saturating_sub(objects_with);
    Ok(Published { summary, items_without_columns, columns_without_items })
}

/// For errors that are found only after hashing.
const JOURNAL_KEPT: &str = "hashed rows are kept for the next run of this command";

/// Returns the number of items without columns, and of objects with columns.
fn write(
    output: &Path,
    header: Header,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<(u64, u64)> {
    let (items, origin) = (header.summary.items, header.summary.origin.clone());
    let mut pending = PendingDigest::create(output, header)?;
    let (mut unlabelled, mut objects_with) = (0, 0);
    let mut last = String::new();
    for row in journal.rows()? {
        if columns.kinds.is_empty() {
            pending.push(&row, &[])?;
            continue;
        }
        let Blob { parts, items, .. } = &row;
        // All items of an object have its columns.
        let object = |item: usize| &*parts[item.min(parts.len() - 1)].object;
        let objects = || (0..items.len()).map(object);
        let values: Vec<_> = objects().map(|object| columns.values(object)).collect();
        for object in objects() {
            if !columns.contains(object) {
                unlabelled += 1;
            } else if last != object {
                object.clone_into(&mut last);
                objects_with += 1;
            }
        }
        pending.push(&row, &values)?;
    }
    if !columns.kinds.is_empty() && unlabelled == items {
        bail!(
            "none of the {} objects in the file of columns is in the dataset; its first column \
             names objects relative to {} ({JOURNAL_KEPT})",
            columns.len(),
            origin
        );
    }
    pending.publish()?;
    Ok((unlabelled, objects_with))
}

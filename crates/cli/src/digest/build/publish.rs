//! The second phase of a build: from a complete journal to a digest.

use std::path::Path;

use anyhow::bail;
use forebay_core::{
    ByteSize,
    chunking::Chunking,
    digest::{Blob, Header, Summary},
};
use forebay_digest::{Journal, JournalHeader, PendingDigest};

use super::{Spec, gather::Gathered};
use crate::digest::columns::Columns;

/// Writes and publishes the digest; says what it holds, and how many items had no row in the columns.
pub fn publish(
    spec: &Spec,
    header: &JournalHeader,
    gathered: Gathered,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<(Summary, u64)> {
    let Gathered { id, blobs, items, bytes, .. } = gathered;
    if blobs == 0 {
        bail!("there are no objects under `{}`; check the prefix and --exclude", header.origin);
    }
    let chunking = match spec.chunks {
        Some(chunks) => Chunking::into_chunks(chunks, blobs)?,
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
    let unlabelled = write(&spec.output, &summary, journal, columns)?;
    Ok((summary, unlabelled))
}

fn write(
    output: &Path,
    summary: &Summary,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<u64> {
    let header = Header { summary: summary.clone(), columns: columns.kinds.clone() };
    let mut pending = PendingDigest::create(output, header)?;
    let mut unlabelled = 0;
    for row in journal.rows()? {
        if columns.kinds.is_empty() {
            pending.push(&row, &[])?;
            continue;
        }
        let Blob { parts, .. } = &row;
        let values: Vec<_> = parts.iter().map(|part| columns.values(&part.object)).collect();
        unlabelled += parts.iter().filter(|part| !columns.knows(&part.object)).count() as u64;
        pending.push(&row, &values)?;
    }
    if !columns.kinds.is_empty() && unlabelled == summary.items {
        bail!(
            "none of the {} objects in the columns' file is in the dataset; its first column names objects relative to {}",
            columns.len(),
            summary.origin
        );
    }
    pending.publish()?;
    Ok(unlabelled)
}

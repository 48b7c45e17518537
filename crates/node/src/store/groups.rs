//! Groups: how half-chunks map to groups of the flash engine, the unit in which space is freed.
//!
//! Each half-chunk has a group of its own, so that it can be freed at once. If half-chunks are
//! smaller than a region, or regions are few, all half-chunks of a dataset share one group; then
//! freeing a half-chunk only forgets its entries.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal, DatasetId, HalfChunk,
    dataset::blob_table::{BlobRow, BlobTable},
};
use forebay_flash::{EntryKey, RequestError};

use crate::store::blob_store::BlobStore;

/// Groups whose handles are kept.
const GROUP_HANDLES_MAX: usize = 4096;
/// Regions per half-chunk that the node needs for groups of half-chunks. With fewer, the regions
/// being filled would evict each other.
const REGIONS_PER_HALF_CHUNK: u64 = 2;
/// Lifetime class of the groups of datasets.
const LIFETIME_CLASS: u8 = 1;
/// In the name of a group: all half-chunks of the dataset.
const WHOLE_DATASET: HalfChunk = HalfChunk(u32::MAX);
/// Longest wait for the readers of a group before it is freed.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of a group: the dataset id and the half-chunk.
pub(super) type GroupName = [u8; 36];

impl BlobStore {
    /// The group of a blob: its half-chunk's, or its dataset's.
    pub(super) fn group_of(&self, table: &BlobTable, blob: BlobOrdinal) -> GroupName {
        if self.has_groups(table) {
            group_name(table.dataset(), table.half_chunk_of(blob).expect("a blob of this table"))
        } else {
            group_name(table.dataset(), WHOLE_DATASET)
        }
    }

    /// Whether each half-chunk of the dataset has a group of its own.
    pub fn has_groups(&self, table: &BlobTable) -> bool {
        let half_chunks = u64::from(table.chunking().half_chunks());
        let regions = self.capacity().0 / self.region_size;
        table.total().0 / half_chunks >= self.region_size
            && regions >= REGIONS_PER_HALF_CHUNK * half_chunks
    }

    /// The half-chunks with groups of their own of which blobs are resident, of the first `count`.
    pub async fn half_chunks_of(&self, dataset: DatasetId, count: u32) -> Vec<HalfChunk> {
        let groups = self.flash.groups().await.unwrap_or_default();
        let named = groups.iter().filter(|group| group.entries > 0);
        let half_chunks: BTreeSet<HalfChunk> = named
            .filter_map(|group| half_chunk_of_name(&group.name, dataset))
            .filter(|half_chunk| half_chunk.0 < count)
            .collect();
        half_chunks.into_iter().collect()
    }

    /// Frees blobs of a shared group. Its regions are free when all their entries are forgotten, or
    /// when they are evicted.
    pub async fn free_rows(&self, rows: &[BlobRow]) {
        for row in rows {
            self.forget(row).await;
        }
    }

    /// Frees the group of a half-chunk. When this returns, none of its blobs is found.
    pub async fn free_group(
        &self,
        dataset: DatasetId,
        half_chunk: HalfChunk,
    ) -> Result<(), RequestError> {
        let name = group_name(dataset, half_chunk);
        self.groups.lock().remove(&name);
        self.flash.group(&name, LIFETIME_CLASS, false).await?.free(FREE_TIMEOUT).await
    }

    /// Frees all groups of a dataset: another capacity may have had other groups. When this
    /// returns, what was put for the dataset is gone, also after a restart. Blobs that were put for
    /// another dataset stay.
    pub async fn free_groups(&self, dataset: DatasetId) -> Result<(), RequestError> {
        let groups = self.flash.groups().await?;
        let names: BTreeSet<&[u8]> = groups.iter().map(|group| group.name.as_slice()).collect();
        for name in names.into_iter().filter(|name| name.starts_with(dataset.as_bytes())) {
            if let Ok(name) = GroupName::try_from(name) {
                self.groups.lock().remove(&name);
            }
            self.flash.group(name, LIFETIME_CLASS, false).await?.free(FREE_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Appends an entry to a group, which is created if it does not exist.
    pub(super) async fn append(
        &self,
        group: &GroupName,
        key: EntryKey,
        tag: u32,
        bytes: Bytes,
    ) -> Result<(), RequestError> {
        let known = self.groups.lock().get(group).cloned();
        if let Some(known) = known {
            match known.append(key, tag, bytes.clone()).await {
                // The group was empty and its handle is stale: open it again.
                Err(RequestError::Gone) => {}
                outcome => return outcome.map(drop),
            }
        }
        let opened = self.flash.group(group, LIFETIME_CLASS, false).await?;
        {
            let mut groups = self.groups.lock();
            if groups.len() >= GROUP_HANDLES_MAX {
                groups.clear();
            }
            groups.insert(*group, opened.clone());
        }
        opened.append(key, tag, bytes).await.map(drop)
    }
}

fn group_name(dataset: DatasetId, half_chunk: HalfChunk) -> GroupName {
    let mut name = [0; 36];
    name[..32].copy_from_slice(dataset.as_bytes());
    name[32..].copy_from_slice(&half_chunk.0.to_le_bytes());
    name
}

/// The half-chunk of a group of this dataset, or `None` if the group is shared.
fn half_chunk_of_name(name: &[u8], dataset: DatasetId) -> Option<HalfChunk> {
    let (of, number) = name.split_first_chunk::<32>()?;
    let half_chunk = HalfChunk(u32::from_le_bytes(number.try_into().ok()?));
    (of == dataset.as_bytes() && half_chunk != WHOLE_DATASET).then_some(half_chunk)
}

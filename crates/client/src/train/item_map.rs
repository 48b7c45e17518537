//! The item map of a dataset: the blob and the half-chunk of every item. Made once for all epochs.
//!
//! A map may be of a part of a dataset, or of an epoch in which items occur several times. It then
//! has *entries*, which the sampler draws exactly once each; an entry stands for an item.

use std::sync::Arc;

use forebay_core::{
    ByteSize, DatasetId, HalfChunk, ItemOrdinal,
    train::{
        job::HalfChunkSize,
        sampler::{
            HalfChunkMap, HalfChunkMapError, SelectionError, packs_open_max, weighted_counts,
        },
    },
};
use forebay_digest::{Digest, DigestError};

/// Where the items of a dataset are.
#[derive(Debug)]
pub struct ItemMap {
    half_chunks: HalfChunkMap,
    digest: Digest,
    /// Of each entry.
    locations: Arc<[Location]>,
    /// Of each half-chunk of the whole dataset.
    sizes: Vec<HalfChunkSize>,
    /// What the entries stand for; `None` if they are the items of the whole dataset.
    entries: Option<Entries>,
    /// Mean length of the blobs of a random byte, if blobs are packs: if any has several items.
    pack_bytes: Option<u64>,
    /// Bytes that a probe reads for an item, on average.
    probe_item: ByteSize,
}

/// What the entries of a map stand for.
#[derive(Debug, Clone)]
struct Entries {
    /// The item of each entry in the digest.
    items: Arc<[u32]>,
    /// The number of each entry's item for the loader; `None` if it is that of the entry.
    indices: Option<Arc<[u32]>>,
}

/// Where an item is.
#[derive(Debug, Clone, Copy)]
struct Location {
    /// 4 bytes instead of the 8 of a `BlobOrdinal`: there is one for each item.
    blob: u32,
    half_chunk: HalfChunk,
}

/// Why a dataset has no item map.
#[derive(Debug, thiserror::Error)]
pub enum ItemMapError {
    /// The digest is damaged.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The dataset is too large.
    #[error(transparent)]
    HalfChunks(#[from] HalfChunkMapError),
    /// The part or the weights are invalid.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A part has an item that the dataset does not have.
    #[error("there is no item {item}; the dataset has {items}")]
    NoSuchItem {
        /// The item.
        item: u32,
        /// Items of the dataset.
        items: usize,
    },
}

/// The pack of each entry.
fn packs_of(locations: &[Location]) -> Arc<[u32]> {
    locations.iter().map(|location| location.blob).collect()
}

impl ItemMap {
    /// Reads every row of a digest.
    pub fn new(digest: &Digest) -> Result<Self, ItemMapError> {
        Self::identified(digest, digest.summary().dataset)
    }

    /// The same, with the id that states of an epoch have. A digest that was learned has the id of
    /// its listing there, so that an epoch continues when the digest has become complete.
    pub fn identified(digest: &Digest, id: DatasetId) -> Result<Self, ItemMapError> {
        let summary = digest.summary();
        let mut locations = Vec::with_capacity(usize::try_from(summary.items).unwrap_or(0));
        let mut sizes = vec![HalfChunkSize::default(); summary.chunking.half_chunks() as usize];
        let (mut squares, mut is_packed, mut probed) = (0_u128, false, 0_u128);
        for (blob, row) in (0_u32..).zip(digest.blobs()) {
            let row = row?;
            let half_chunk = summary.chunking.half_chunk_of(row.start, ByteSize(summary.bytes));
            let size = &mut sizes[half_chunk.index()];
            size.bytes.0 = size.bytes.0.saturating_add(row.length);
            size.items += row.item_count();
            squares = squares.saturating_add(u128::from(row.length).pow(2));
            is_packed |= row.item_count() > 1;
            // An item that begins anywhere in a leaf touches one leaf more than it fills.
            let mean = row.length / row.item_count().max(1);
            let leaf = row.tree()?.map(|tree| u64::from(tree.leaf().bytes()));
            let one = leaf.map_or(row.length, |leaf| row.length.min(mean + leaf));
            probed += u128::from(one) * u128::from(row.item_count());
            locations.extend((0..row.item_count()).map(|_| Location { blob, half_chunk }));
        }
        let count = u32::try_from(sizes.len()).expect("at most twice the chunks");
        let of_items = locations.iter().map(|location| location.half_chunk);
        let mut half_chunks = HalfChunkMap::new(id, count, of_items)?;
        let pack_bytes = is_packed.then(|| {
            let mean = squares / u128::from(summary.bytes.max(1));
            u64::try_from(mean).unwrap_or(u64::MAX).max(1)
        });
        if is_packed {
            half_chunks = half_chunks.with_packs(packs_of(&locations));
        }
        let probe_item = probed / u128::from(summary.items.max(1));
        let probe_item = ByteSize(u64::try_from(probe_item).unwrap_or(u64::MAX));
        let (digest, locations, entries) = (digest.clone(), locations.into(), None);
        Ok(Self { half_chunks, digest, locations, sizes, entries, pack_bytes, probe_item })
    }

    /// A part of this map: entry `i` is item `items[i]`, which may occur several times.
    pub fn part(&self, items: &[u32]) -> Result<Self, ItemMapError> {
        let count = self.locations.len();
        if let Some(item) = items.iter().find(|item| **item as usize >= count) {
            return Err(ItemMapError::NoSuchItem { item: *item, items: count });
        }
        self.of_entries(items, None)
    }

    /// The map of an epoch in which items occur by weight. It has one entry per item on average.
    pub fn weighted(&self, weights: &[f64], seed: u64, epoch: u64) -> Result<Self, ItemMapError> {
        let items = self.half_chunks.items();
        if weights.len() as u64 != items {
            return Err(SelectionError::Weights { given: weights.len(), items }.into());
        }
        let draws = u32::try_from(items).expect("items are 32 bits wide");
        let counts = weighted_counts(weights, draws, seed, epoch)?;
        let occurrences = (0_u32..).zip(counts);
        let entries: Arc<[u32]> = occurrences
            .flat_map(|(item, count)| std::iter::repeat_n(item, count as usize))
            .collect();
        self.of_entries(&entries, Some(Arc::clone(&entries)))
    }

    /// A map whose entries are these entries of this map.
    fn of_entries(
        &self,
        entries: &[u32],
        indices: Option<Arc<[u32]>>,
    ) -> Result<Self, ItemMapError> {
        let locations: Arc<[Location]> =
            entries.iter().map(|entry| self.locations[*entry as usize]).collect();
        let of_entries = locations.iter().map(|location| location.half_chunk);
        let (dataset, count) = (self.half_chunks.dataset(), self.half_chunks.half_chunks());
        let items: Arc<[u32]> = entries.iter().map(|entry| self.item_of(*entry)).collect();
        let mut half_chunks = HalfChunkMap::new(dataset, count, of_entries)?.of_part(&items);
        if self.pack_bytes.is_some() {
            half_chunks = half_chunks.with_packs(packs_of(&locations));
        }
        let (digest, sizes) = (self.digest.clone(), self.sizes.clone());
        let entries = Some(Entries { items, indices });
        let Self { pack_bytes, probe_item, .. } = *self;
        Ok(Self { half_chunks, digest, locations, sizes, entries, pack_bytes, probe_item })
    }

    /// The same dataset with the length of each item, for batches of like length.
    pub fn with_lengths(&self, lengths: &[f64]) -> Result<Self, HalfChunkMapError> {
        let mut half_chunks = self.half_chunks.clone().with_lengths(lengths)?;
        if let Some(Entries { items, .. }) = &self.entries {
            half_chunks = half_chunks.of_part(items);
        }
        let (digest, locations) = (self.digest.clone(), Arc::clone(&self.locations));
        let (sizes, entries) = (self.sizes.clone(), self.entries.clone());
        let Self { pack_bytes, probe_item, .. } = *self;
        Ok(Self { half_chunks, digest, locations, sizes, entries, pack_bytes, probe_item })
    }

    /// Packs that are open at a time when items outside the cache are drawn, for an agent of this
    /// memory; 0 if no two items share a blob. See
    /// [`forebay_core::train::sampler::EpochPlan::pack_window`].
    pub fn pack_window(&self, agent_memory: ByteSize) -> u32 {
        let pack_bytes = self.pack_bytes.filter(|_| self.half_chunks.has_packs());
        pack_bytes.map_or(0, |pack_bytes| packs_open_max(agent_memory, pack_bytes))
    }

    /// The part that samplers need.
    pub fn half_chunks(&self) -> &HalfChunkMap {
        &self.half_chunks
    }

    /// Size of each half-chunk.
    pub fn sizes(&self) -> &[HalfChunkSize] {
        &self.sizes
    }

    /// Bytes that a probe reads for an item, on average: of a pack some leaves of its hash tree, or
    /// without one the whole pack.
    pub fn probe_item(&self) -> ByteSize {
        self.probe_item
    }

    /// Share of the dataset's bytes in these half-chunks.
    pub fn share(&self, half_chunks: &[HalfChunk]) -> f64 {
        let bytes = |size: &HalfChunkSize| size.bytes.0 as f64;
        let total: f64 = self.sizes.iter().map(bytes).sum();
        let these = half_chunks.iter().filter_map(|half_chunk| self.sizes.get(half_chunk.index()));
        if total > 0.0 { these.map(bytes).sum::<f64>() / total } else { 0.0 }
    }

    /// The numbers of these entries' items for the loader.
    pub fn indices(&self, entries: Vec<ItemOrdinal>) -> Vec<ItemOrdinal> {
        let Some(Entries { indices: Some(indices), .. }) = &self.entries else { return entries };
        let index = |entry: ItemOrdinal| ItemOrdinal::new(indices[position(entry)].into());
        entries.into_iter().map(index).collect()
    }

    /// Whether an item's blob was resident according to `presence`: a bit for each blob, lowest
    /// first, or nothing at all.
    pub fn residents(&self, presence: &[u8]) -> impl Fn(ItemOrdinal) -> bool {
        move |item| {
            let blob = self.location(item).blob;
            presence.get(blob as usize / 8).is_some_and(|byte| byte >> (blob % 8) & 1 == 1)
        }
    }

    /// The half-chunk of an item.
    pub fn half_chunk_of(&self, item: ItemOrdinal) -> HalfChunk {
        self.location(item).half_chunk
    }

    /// Length of these items together, in bytes.
    pub fn bytes_of(&self, items: &[ItemOrdinal]) -> u64 {
        let item = |entry: &ItemOrdinal| match &self.entries {
            Some(Entries { items, .. }) => ItemOrdinal::new(items[position(*entry)].into()),
            None => *entry,
        };
        let length = |entry| self.digest.item(item(entry)).map_or(0, |place| place.length);
        items.iter().map(length).sum()
    }

    /// The item of an entry in the digest.
    fn item_of(&self, entry: u32) -> u32 {
        self.entries.as_ref().map_or(entry, |entries| entries.items[entry as usize])
    }

    fn location(&self, entry: ItemOrdinal) -> Location {
        self.locations[position(entry)]
    }
}

fn position(entry: ItemOrdinal) -> usize {
    usize::try_from(entry.0).expect("an entry of the map")
}

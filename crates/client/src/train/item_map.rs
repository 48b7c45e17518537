//! The item map of a dataset: the blob and the half-chunk of every item. Made once for all epochs.

use std::sync::Arc;

use forebay_core::{
    ByteSize, HalfChunk, ItemOrdinal,
    train::{
        job::HalfChunkSize,
        sampler::{HalfChunkMap, HalfChunkMapError, packs_open_max},
    },
};
use forebay_digest::{Digest, DigestError};

/// Where the items of a dataset are.
#[derive(Debug)]
pub struct ItemMap {
    half_chunks: HalfChunkMap,
    digest: Digest,
    locations: Arc<[Location]>,
    /// Of each half-chunk.
    sizes: Vec<HalfChunkSize>,
    /// Mean length of the blobs of a random byte, if blobs are packs: if any has several items.
    pack_bytes: Option<u64>,
    /// Bytes that a probe reads for an item, on average.
    probe_item: ByteSize,
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
}

impl ItemMap {
    /// Reads every row of a digest.
    pub fn new(digest: &Digest) -> Result<Self, ItemMapError> {
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
        let mut half_chunks = HalfChunkMap::new(summary.dataset, count, of_items)?;
        let pack_bytes = is_packed.then(|| {
            let mean = squares / u128::from(summary.bytes.max(1));
            u64::try_from(mean).unwrap_or(u64::MAX).max(1)
        });
        if is_packed {
            let packs = locations.iter().map(|location| location.blob);
            half_chunks = half_chunks.with_packs(packs.collect());
        }
        let probe_item = probed / u128::from(summary.items.max(1));
        let probe_item = ByteSize(u64::try_from(probe_item).unwrap_or(u64::MAX));
        let (digest, locations) = (digest.clone(), locations.into());
        Ok(Self { half_chunks, digest, locations, sizes, pack_bytes, probe_item })
    }

    /// The same dataset with the length of each item, for batches of like length.
    pub fn with_lengths(&self, lengths: &[f64]) -> Result<Self, HalfChunkMapError> {
        let half_chunks = self.half_chunks.clone().with_lengths(lengths)?;
        let locations = Arc::clone(&self.locations);
        let (digest, sizes) = (self.digest.clone(), self.sizes.clone());
        let Self { pack_bytes, probe_item, .. } = *self;
        Ok(Self { half_chunks, digest, locations, sizes, pack_bytes, probe_item })
    }

    /// Packs that are open at a time when items outside the cache are drawn, for an agent of this
    /// memory; 0 if no blob has several items. See
    /// [`forebay_core::train::sampler::EpochPlan::pack_window`].
    pub fn pack_window(&self, agent_memory: ByteSize) -> u32 {
        self.pack_bytes.map_or(0, |pack_bytes| packs_open_max(agent_memory, pack_bytes))
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
        let length = |item: &ItemOrdinal| self.digest.item(*item).map_or(0, |place| place.length);
        items.iter().map(length).sum()
    }

    fn location(&self, item: ItemOrdinal) -> Location {
        self.locations[usize::try_from(item.0).expect("an item of the dataset")]
    }
}

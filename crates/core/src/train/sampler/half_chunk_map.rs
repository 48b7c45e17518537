//! The half-chunk map of a dataset: the half-chunk of each item and, for batches of like length,
//! which items are similar. Made once; epochs, ranks and jobs share it.

use std::sync::Arc;

use super::{EpochPlan, SamplerError};
use crate::{DatasetId, HalfChunk, ItemOrdinal};

/// Half-chunks that a sampler takes.
const HALF_CHUNKS_MAX: u32 = 1 << 16;
/// Positions are 32 bits wide, and one value is reserved.
const ITEMS_MAX: u32 = u32::MAX - 1;
/// Items whose ranks by length differ by less than 1/10 of the dataset are similar: Quiver's
/// partitions (5.1).
const SIMILAR_SHARE: u32 = 10;

/// The items of each half-chunk.
#[derive(Debug, Clone)]
pub struct HalfChunkMap {
    dataset: DatasetId,
    /// All items, half-chunk by half-chunk.
    items_of_half_chunk: Vec<u32>,
    /// Start of each half-chunk's members, and the end of the last.
    starts: Vec<u32>,
    /// Which items are similar; `None` without lengths.
    similarity: Option<Similarity>,
    /// Which items share a pack; `None` if none do.
    packs: Option<Packs>,
    fingerprint: u64,
}

/// Which items share a pack.
#[derive(Debug, Clone)]
pub(super) struct Packs {
    /// The pack of each item.
    pub(super) of_items: Arc<[u32]>,
    fingerprint: u64,
}

/// Which items suit one batch.
#[derive(Debug, Clone)]
pub(super) struct Similarity {
    /// A number for each item. Items with near numbers are similar.
    pub(super) numbers: Arc<[u32]>,
    /// Smaller differences do not count.
    pub(super) slack: u32,
}

/// Why a dataset has no half-chunk map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HalfChunkMapError {
    /// More items than positions can count.
    #[error("a sampler takes at most {ITEMS_MAX} items; split the dataset in two")]
    TooManyItems,
    /// No half-chunks, or too many.
    #[error("a dataset has 1 to {HALF_CHUNKS_MAX} half-chunks, not {0}")]
    HalfChunks(u32),
    /// An item of a half-chunk that does not exist.
    #[error("item {item} cannot be in half-chunk {half_chunk} of {half_chunks}")]
    NoSuchHalfChunk {
        /// The item.
        item: u64,
        /// Its half-chunk.
        half_chunk: u32,
        /// Half-chunks of the dataset.
        half_chunks: u32,
    },
    /// One length per item is needed.
    #[error("there are {given} lengths for {items} items; give one for each")]
    Lengths {
        /// Lengths that were given.
        given: usize,
        /// Items of the dataset.
        items: u64,
    },
    /// A length that is not a finite number.
    #[error("the length of item {item} is {length}; lengths are finite numbers")]
    NoLength {
        /// The item.
        item: u64,
        /// Its length.
        length: String,
    },
}

impl HalfChunkMap {
    /// A dataset of `half_chunks` half-chunks; `half_chunk_of` has that of each item, in order.
    pub fn new(
        dataset: DatasetId,
        half_chunks: u32,
        half_chunk_of: impl IntoIterator<Item = HalfChunk>,
    ) -> Result<Self, HalfChunkMapError> {
        if !(1..=HALF_CHUNKS_MAX).contains(&half_chunks) {
            return Err(HalfChunkMapError::HalfChunks(half_chunks));
        }
        let mut sizes = vec![0_u32; half_chunks as usize];
        let mut of_item = Vec::new();
        for (item, HalfChunk(half_chunk)) in (0..).zip(half_chunk_of) {
            let Some(size) = sizes.get_mut(half_chunk as usize) else {
                return Err(HalfChunkMapError::NoSuchHalfChunk { item, half_chunk, half_chunks });
            };
            if item >= u64::from(ITEMS_MAX) {
                return Err(HalfChunkMapError::TooManyItems);
            }
            *size += 1;
            of_item.push(half_chunk);
        }
        let mut starts = vec![0];
        starts.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let mut items_of_half_chunk = vec![0; of_item.len()];
        let mut next = starts.clone();
        for (item, half_chunk) in (0_u32..).zip(of_item) {
            items_of_half_chunk[next[half_chunk as usize] as usize] = item;
            next[half_chunk as usize] += 1;
        }
        let fingerprint = fingerprint(&[&starts, &items_of_half_chunk]);
        let (similarity, packs) = (None, None);
        Ok(Self { dataset, items_of_half_chunk, starts, similarity, packs, fingerprint })
    }

    /// A dataset as a single half-chunk, without rotation.
    pub fn undivided(dataset: DatasetId, items: u64) -> Result<Self, HalfChunkMapError> {
        if items > u64::from(ITEMS_MAX) {
            return Err(HalfChunkMapError::TooManyItems);
        }
        Self::new(dataset, 1, (0..items).map(|_| HalfChunk(0)))
    }

    /// The map of a part of a dataset: `items` says which item each one here is. Maps of different
    /// parts are different maps, and neither continues the other's epochs.
    #[must_use]
    pub fn of_part(self, items: &[u32]) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let words = [self.fingerprint as u32, (self.fingerprint >> 32) as u32];
        Self { fingerprint: fingerprint(&[&words, items]), ..self }
    }

    /// Adds the pack of each item, in order, for windows of packs. A pack lies in one half-chunk.
    /// Nothing changes if no two items share a pack.
    #[must_use]
    pub fn with_packs(self, of_items: Arc<[u32]>) -> Self {
        assert_eq!(of_items.len() as u64, self.items(), "one pack for each item");
        // Items of a part may be in any order.
        let mut sorted = of_items.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).all(|pair| pair[0] != pair[1]) {
            return self;
        }
        let packs = Packs { fingerprint: fingerprint(&[&of_items]), of_items };
        Self { packs: Some(packs), ..self }
    }

    /// Adds the stripe unit of each item, counted through the whole dataset so that neighbours have
    /// neighbouring numbers: for batches of like length.
    #[must_use]
    pub fn with_units(self, unit_of: impl Fn(ItemOrdinal) -> u32) -> Self {
        let units = (0..self.items()).map(|item| unit_of(ItemOrdinal::new(item)));
        let units = units.collect();
        self.with_similarity(units, 1)
    }

    /// Adds the length of each item, in order. A batch of like length is drawn at random from about
    /// a tenth of a half-chunk, by length, so that it differs from epoch to epoch.
    pub fn with_lengths(self, lengths: &[f64]) -> Result<Self, HalfChunkMapError> {
        if lengths.len() as u64 != self.items() {
            return Err(HalfChunkMapError::Lengths { given: lengths.len(), items: self.items() });
        }
        if let Some(item) = lengths.iter().position(|length| !length.is_finite()) {
            let (item, length) = (item as u64, lengths[item].to_string());
            return Err(HalfChunkMapError::NoLength { item, length });
        }
        let length = |item: &u32| lengths[*item as usize];
        let items = u32::try_from(lengths.len()).expect("items are 32 bits wide");
        let mut by_length: Vec<u32> = (0..items).collect();
        by_length.sort_unstable_by(|one, other| length(one).total_cmp(&length(other)));
        // Items of equal length have the rank of the first of them.
        let mut ranks = vec![0; lengths.len()];
        let mut rank = 0;
        for (position, item) in (0_u32..).zip(&by_length) {
            if position > 0 && length(item) > length(&by_length[position as usize - 1]) {
                rank = position;
            }
            ranks[*item as usize] = rank;
        }
        Ok(self.with_similarity(ranks, (items / SIMILAR_SHARE).max(1)))
    }

    fn with_similarity(self, numbers: Vec<u32>, slack: u32) -> Self {
        let fingerprint =
            fingerprint(&[&self.starts, &self.items_of_half_chunk, &numbers, &[slack]]);
        let similarity = Some(Similarity { numbers: numbers.into(), slack });
        Self { similarity, fingerprint, ..self }
    }

    /// The dataset.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// Number of items.
    pub fn items(&self) -> u64 {
        self.items_of_half_chunk.len() as u64
    }

    /// Number of half-chunks.
    pub fn half_chunks(&self) -> u32 {
        u32::try_from(self.starts.len() - 1).expect("at most HALF_CHUNKS_MAX")
    }

    pub(super) fn items_of_half_chunk(&self, half_chunk: u32) -> &[u32] {
        let half_chunk = half_chunk as usize;
        &self.items_of_half_chunk
            [self.starts[half_chunk] as usize..self.starts[half_chunk + 1] as usize]
    }

    pub(super) fn similarity(&self) -> Result<&Similarity, SamplerError> {
        self.similarity.as_ref().ok_or(SamplerError::NoLengths)
    }

    /// Whether items share packs.
    pub fn has_packs(&self) -> bool {
        self.packs.is_some()
    }

    /// Which items share a pack, if the plan draws from a window of packs.
    pub(super) fn packs(&self, plan: &EpochPlan) -> Option<&Packs> {
        self.packs.as_ref().filter(|_| plan.has_pack_window())
    }

    /// The half-chunk of every item.
    pub(super) fn half_chunk_of_items(&self) -> Vec<u32> {
        let mut of_item = vec![0; self.items_of_half_chunk.len()];
        for half_chunk in 0..self.half_chunks() {
            for item in self.items_of_half_chunk(half_chunk) {
                of_item[*item as usize] = half_chunk;
            }
        }
        of_item
    }

    /// Distinguishes maps of one dataset: its id does not cover how blobs divide into items. Packs
    /// count only where the plan makes use of them: states of older versions remain valid.
    pub(super) fn fingerprint(&self, plan: &EpochPlan) -> u64 {
        self.packs(plan).map_or(self.fingerprint, |packs| {
            let words = [self.fingerprint, packs.fingerprint];
            let half = |bits: u64| u32::try_from(bits).expect("half of a word");
            let words = words.map(|word| [half(word & u64::from(u32::MAX)), half(word >> 32)]);
            fingerprint(&[words.as_flattened()])
        })
    }
}

fn fingerprint(lists: &[&[u32]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::new();
    for list in lists {
        hasher.update(&(list.len() as u64).to_le_bytes());
        for words in list.chunks(1 << 14) {
            bytes.clear();
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            hasher.update(&bytes);
        }
    }
    let hash = hasher.finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash is longer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(half_chunks: u32, of: &[u32]) -> Result<HalfChunkMap, HalfChunkMapError> {
        let of = of.iter().map(|half_chunk| HalfChunk(*half_chunk));
        HalfChunkMap::new(DatasetId::from_bytes([1; 32]), half_chunks, of)
    }

    #[test]
    fn items_are_found_by_chunk() {
        let map = map(4, &[2, 0, 2, 3, 0]).unwrap();
        let items_of_half_chunk: Vec<&[u32]> =
            (0..4).map(|half_chunk| map.items_of_half_chunk(half_chunk)).collect();
        assert_eq!(items_of_half_chunk, [&[1, 4][..], &[], &[0, 2], &[3]]);
        assert_eq!(map.half_chunk_of_items(), [2, 0, 2, 3, 0]);
        assert_eq!((map.items(), map.half_chunks()), (5, 4));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(map(0, &[]).unwrap_err(), HalfChunkMapError::HalfChunks(0));
        assert_eq!(map(70_000, &[]).unwrap_err(), HalfChunkMapError::HalfChunks(70_000));
        let wrong = map(2, &[1, 2]).unwrap_err();
        assert_eq!(wrong.to_string(), "item 1 cannot be in half-chunk 2 of 2");
        let huge = HalfChunkMap::undivided(DatasetId::from_bytes([1; 32]), 1 << 40);
        assert_eq!(huge.unwrap_err(), HalfChunkMapError::TooManyItems);
    }

    #[test]
    fn lengths_are_ranked() {
        let map = map(1, &[0; 5]).unwrap();
        let ranked = map.clone().with_lengths(&[2.5, -1.0, 2.5, 9.0, 0.0]).unwrap();
        assert_eq!(*ranked.similarity().unwrap().numbers, [2, 0, 2, 4, 1]);
        let refusal = |lengths: &[f64]| map.clone().with_lengths(lengths).unwrap_err().to_string();
        assert_eq!(refusal(&[1.0; 4]), "there are 4 lengths for 5 items; give one for each");
        assert_eq!(
            refusal(&[1.0, f64::NAN, 1.0, 1.0, 1.0]),
            "the length of item 1 is NaN; lengths are finite numbers"
        );
    }

    #[test]
    fn layouts_that_differ_have_other_fingerprints() {
        let one = map(3, &[0, 1, 2]).unwrap();
        let others = [
            map(3, &[0, 2, 1]).unwrap(),
            map(4, &[0, 1, 2]).unwrap(),
            one.clone().with_units(|_| 0),
            one.clone().with_units(|item| u32::from(item.0 == 1)),
            one.clone().with_lengths(&[1.0, 3.0, 2.0]).unwrap(),
            one.clone().of_part(&[4, 5, 6]),
            one.clone().of_part(&[4, 5, 7]),
        ];
        let plan = EpochPlan::new(1, 0, 8);
        let of = |map: &HalfChunkMap| map.fingerprint(&plan);
        assert_eq!(of(&one), of(&map(3, &[0, 1, 2]).unwrap()));
        assert!(others.iter().all(|other| of(other) != of(&one)));
        assert_ne!(of(&others[2]), of(&others[3]));
        assert_ne!(of(&others[5]), of(&others[6]));
        let packed = one.clone().with_packs([0, 0, 1].into());
        assert_eq!(of(&packed), of(&one), "packs are not used");
        let windowed = EpochPlan { pack_window: 2, ..plan };
        assert_ne!(packed.fingerprint(&windowed), of(&one));
        let other = one.clone().with_packs([0, 1, 1].into());
        assert_ne!(packed.fingerprint(&windowed), other.fingerprint(&windowed));
        assert_eq!(one.clone().with_packs([0, 1, 2].into()).fingerprint(&windowed), of(&one));
        assert!(one.clone().with_packs([0, 1, 0].into()).has_packs(), "in any order");
    }
}

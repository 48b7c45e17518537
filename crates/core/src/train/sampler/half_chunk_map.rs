//! What a sampler knows of a dataset: how many items there are, the chunk of each, and, where batches of
//! like length are wanted, which items are alike. Made once, shared by epochs, ranks and jobs.

use std::sync::Arc;

use super::Refusal;
use crate::{DatasetId, ItemOrdinal, chunking::ChunkOrdinal};

/// A dataset cannot be cut into more.
const CHUNKS_MAX: u32 = 1 << 16;
/// Places are 32 bits wide, and one value is set aside. A permutation of more would not fit, either.
const ITEMS_MAX: u32 = u32::MAX - 1;
/// Items whose ranks by length are nearer than one part in so many of the dataset are alike: Quiver's partitions (5.1).
const ALIKE: u32 = 10;

/// Which items belong to which chunk.
#[derive(Debug, Clone)]
pub struct Layout {
    dataset: DatasetId,
    /// All items, chunk by chunk.
    members: Vec<u32>,
    /// Where each chunk's members begin, and where the last one's end.
    starts: Vec<u32>,
    /// If anyone wants to know.
    likeness: Option<Likeness>,
    fingerprint: u64,
}

/// Which items go well together into a batch.
#[derive(Debug, Clone)]
pub(super) struct Likeness {
    /// Of each item; those with near numbers are alike.
    pub(super) numbers: Arc<[u32]>,
    /// Numbers that are nearer than this make no difference.
    pub(super) slack: u32,
}

/// Why there is no such layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// More items than places can count.
    #[error("a sampler takes at most {ITEMS_MAX} items; cut the dataset in two")]
    TooManyItems,
    /// None, or more than a dataset can have.
    #[error("a dataset has 1 to {CHUNKS_MAX} chunks, not {0}")]
    Chunks(u32),
    /// An item in a chunk that there is not.
    #[error("item {item} is said to be in chunk {chunk} of {chunks}")]
    NoSuchChunk {
        /// The item.
        item: u64,
        /// Its alleged chunk.
        chunk: u32,
        /// How many there are.
        chunks: u32,
    },
    /// As many lengths as items are needed.
    #[error("there are {given} lengths for {items} items; give one for each")]
    Lengths {
        /// How many were given.
        given: usize,
        /// How many there are to be.
        items: u64,
    },
    /// A length that is none.
    #[error("the length of item {item} is {length}; lengths are finite numbers")]
    NoLength {
        /// The item.
        item: u64,
        /// Its alleged length.
        length: String,
    },
}

impl Layout {
    /// A dataset that is cut into `chunks`; `chunk_of` names the chunk of each item, in order.
    pub fn new(
        dataset: DatasetId,
        chunks: u32,
        chunk_of: impl IntoIterator<Item = ChunkOrdinal>,
    ) -> Result<Self, LayoutError> {
        if !(1..=CHUNKS_MAX).contains(&chunks) {
            return Err(LayoutError::Chunks(chunks));
        }
        let mut sizes = vec![0_u32; chunks as usize];
        let mut of_item = Vec::new();
        for (item, ChunkOrdinal(chunk)) in (0..).zip(chunk_of) {
            let Some(size) = sizes.get_mut(chunk as usize) else {
                return Err(LayoutError::NoSuchChunk { item, chunk, chunks });
            };
            if item >= u64::from(ITEMS_MAX) {
                return Err(LayoutError::TooManyItems);
            }
            *size += 1;
            of_item.push(chunk);
        }
        let mut starts = vec![0];
        starts.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let mut members = vec![0; of_item.len()];
        let mut next = starts.clone();
        for (item, chunk) in (0_u32..).zip(of_item) {
            members[next[chunk as usize] as usize] = item;
            next[chunk as usize] += 1;
        }
        let fingerprint = fingerprint(&[&starts, &members]);
        Ok(Self { dataset, members, starts, likeness: None, fingerprint })
    }

    /// A dataset that nobody rotates.
    pub fn in_one_chunk(dataset: DatasetId, items: u64) -> Result<Self, LayoutError> {
        if items > u64::from(ITEMS_MAX) {
            return Err(LayoutError::TooManyItems);
        }
        Self::new(dataset, 1, (0..items).map(|_| ChunkOrdinal(0)))
    }

    /// The same, with the stripe unit of each item, counted through the whole dataset so that
    /// neighbours have neighbouring numbers: what batches of like length are made by.
    #[must_use]
    pub fn with_units(self, unit_of: impl Fn(ItemOrdinal) -> u32) -> Self {
        let units = (0..self.items()).map(|item| unit_of(ItemOrdinal::new(item)));
        let units = units.collect();
        self.with_likeness(units, 1)
    }

    /// The same, with the length of each item, in order. A batch of like length is drawn at random from
    /// about a tenth of a chunk, by length: so it is another one every epoch.
    pub fn with_lengths(self, lengths: &[f64]) -> Result<Self, LayoutError> {
        if lengths.len() as u64 != self.items() {
            return Err(LayoutError::Lengths { given: lengths.len(), items: self.items() });
        }
        if let Some(item) = lengths.iter().position(|length| !length.is_finite()) {
            let (item, length) = (item as u64, lengths[item].to_string());
            return Err(LayoutError::NoLength { item, length });
        }
        let length = |item: &u32| lengths[*item as usize];
        let items = u32::try_from(lengths.len()).expect("a layout counts in 32 bits");
        let mut by_length: Vec<u32> = (0..items).collect();
        by_length.sort_unstable_by(|one, other| length(one).total_cmp(&length(other)));
        // Equally long ones have the rank of the first of them.
        let mut ranks = vec![0; lengths.len()];
        let mut rank = 0;
        for (place, item) in (0_u32..).zip(&by_length) {
            if place > 0 && length(item) > length(&by_length[place as usize - 1]) {
                rank = place;
            }
            ranks[*item as usize] = rank;
        }
        Ok(self.with_likeness(ranks, (items / ALIKE).max(1)))
    }

    fn with_likeness(self, numbers: Vec<u32>, slack: u32) -> Self {
        let fingerprint = fingerprint(&[&self.starts, &self.members, &numbers, &[slack]]);
        let likeness = Some(Likeness { numbers: numbers.into(), slack });
        Self { likeness, fingerprint, ..self }
    }

    /// The dataset.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// How many items there are.
    pub fn items(&self) -> u64 {
        self.members.len() as u64
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.starts.len() - 1).expect("at most CHUNKS_MAX")
    }

    pub(super) fn members(&self, chunk: u32) -> &[u32] {
        let chunk = chunk as usize;
        &self.members[self.starts[chunk] as usize..self.starts[chunk + 1] as usize]
    }

    pub(super) fn likeness(&self) -> Result<&Likeness, Refusal> {
        self.likeness.as_ref().ok_or(Refusal::NoLengths)
    }

    /// The chunk of every item.
    pub(super) fn chunk_of_items(&self) -> Vec<u32> {
        let mut of_item = vec![0; self.members.len()];
        for chunk in 0..self.chunks() {
            for item in self.members(chunk) {
                of_item[*item as usize] = chunk;
            }
        }
        of_item
    }

    /// Tells layouts apart that a dataset's id does not: how blobs divide into items is not part of it.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
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

    fn layout(chunks: u32, of: &[u32]) -> Result<Layout, LayoutError> {
        let of = of.iter().map(|chunk| ChunkOrdinal(*chunk));
        Layout::new(DatasetId::from_bytes([1; 32]), chunks, of)
    }

    #[test]
    fn items_are_found_by_chunk() {
        let layout = layout(4, &[2, 0, 2, 3, 0]).unwrap();
        let members: Vec<&[u32]> = (0..4).map(|chunk| layout.members(chunk)).collect();
        assert_eq!(members, [&[1, 4][..], &[], &[0, 2], &[3]]);
        assert_eq!(layout.chunk_of_items(), [2, 0, 2, 3, 0]);
        assert_eq!((layout.items(), layout.chunks()), (5, 4));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(layout(0, &[]).unwrap_err(), LayoutError::Chunks(0));
        assert_eq!(layout(70_000, &[]).unwrap_err(), LayoutError::Chunks(70_000));
        let wrong = layout(2, &[1, 2]).unwrap_err();
        assert_eq!(wrong.to_string(), "item 1 is said to be in chunk 2 of 2");
        let huge = Layout::in_one_chunk(DatasetId::from_bytes([1; 32]), 1 << 40);
        assert_eq!(huge.unwrap_err(), LayoutError::TooManyItems);
    }

    #[test]
    fn lengths_are_told_by_rank() {
        let layout = layout(1, &[0; 5]).unwrap();
        let ranked = layout.clone().with_lengths(&[2.5, -1.0, 2.5, 9.0, 0.0]).unwrap();
        assert_eq!(*ranked.likeness().unwrap().numbers, [2, 0, 2, 4, 1]);
        let refusal =
            |lengths: &[f64]| layout.clone().with_lengths(lengths).unwrap_err().to_string();
        assert_eq!(refusal(&[1.0; 4]), "there are 4 lengths for 5 items; give one for each");
        assert_eq!(
            refusal(&[1.0, f64::NAN, 1.0, 1.0, 1.0]),
            "the length of item 1 is NaN; lengths are finite numbers"
        );
    }

    #[test]
    fn layouts_that_differ_have_other_fingerprints() {
        let one = layout(3, &[0, 1, 2]).unwrap();
        let others = [
            layout(3, &[0, 2, 1]).unwrap(),
            layout(4, &[0, 1, 2]).unwrap(),
            one.clone().with_units(|_| 0),
            one.clone().with_units(|item| u32::from(item.0 == 1)),
            one.clone().with_lengths(&[1.0, 3.0, 2.0]).unwrap(),
        ];
        assert_eq!(one.fingerprint(), layout(3, &[0, 1, 2]).unwrap().fingerprint());
        assert!(others.iter().all(|other| other.fingerprint() != one.fingerprint()));
        assert_ne!(others[2].fingerprint(), others[3].fingerprint());
    }
}

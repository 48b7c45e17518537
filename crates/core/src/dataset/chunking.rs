//! Chunking: the striped partition of a dataset into chunks (Quiver 5.1), the unit of rotation.
//!
//! A chunk must look like the dataset in small, because for some time batches are drawn from it
//! alone. Datasets are often sorted (by class, by sequence length), so a contiguous tenth is not a
//! fair sample. Instead the dataset is cut into contiguous partitions, and each partition into one
//! **stripe unit** per chunk. A chunk is one unit of every partition. A unit is contiguous, and its
//! neighbours in the same chunk are near, so that batches of similar length can be drawn from a few
//! units.
//!
//! Quiver has equally many partitions and chunks. Ten units of a sorted dataset are too few: of
//! CIFAR-10, sorted by class, a chunk of ten units lacks three classes. forebay has the largest
//! number of partitions that leaves a blob in every unit. From partition to partition the stripes
//! shift by one chunk. Otherwise a pattern in the data (an image, its mask, the next image) or in
//! the rounding would always favour the same chunk.
//!
//! Cuts are by bytes, so that chunks are equally large whatever the sizes of their blobs: a blob
//! belongs to the unit in which it starts. Membership is a division, with nothing to store.

use std::ops::Range;

use crate::{HalfChunk, units::ByteSize};

/// Number of chunks, unless the user chooses another (promise 8).
const CHUNKS_DEFAULT: u64 = 10;
/// Larger chunks exceed what double-buffering needs (Quiver uses 15 GB for all its datasets).
const CHUNK_SIZE_MAX: ByteSize = ByteSize::gb(15);
/// Bounds the units that a reader visits for one chunk, and the memory of per-unit state.
const UNITS_MAX: u64 = 1 << 16;

/// Half-chunks of a chunk. Nodes and samplers count half-chunks; where two chunks do not fit into
/// the cache, half-chunks rotate.
pub const HALF_CHUNKS_PER_CHUNK: u32 = 2;

/// Numbers of chunks and partitions of a dataset; part of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Chunking {
    chunks: u32,
    partitions: u32,
}

/// Position of a chunk in its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkOrdinal(pub u32);

/// A number of chunks that a dataset cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{chunks} chunks cannot be cut from {blobs} blobs; ask for 1 to {}",
    (*blobs).clamp(1, UNITS_MAX)
)]
pub struct ChunkingError {
    chunks: u64,
    blobs: u64,
}

impl Chunking {
    /// Chunks of a tenth of the dataset or 15 GB, whichever is less.
    pub fn for_dataset(total: ByteSize, blobs: u64) -> Self {
        let chunks = (total.0 / CHUNK_SIZE_MAX.0).max(CHUNKS_DEFAULT);
        Self::cut(chunks.min(blobs).clamp(1, UNITS_MAX), blobs)
    }

    /// A number of chunks that the user chooses.
    pub fn into_chunks(chunks: u64, blobs: u64) -> Result<Self, ChunkingError> {
        if chunks == 0 || chunks > blobs.min(UNITS_MAX) {
            return Err(ChunkingError { chunks, blobs });
        }
        Ok(Self::cut(chunks, blobs))
    }

    /// The chunking that a digest or a wire message states. `None` if no dataset has such a
    /// chunking.
    pub fn from_parts(chunks: u32, partitions: u32) -> Option<Self> {
        let units = u64::from(chunks) * u64::from(partitions);
        (1..=UNITS_MAX).contains(&units).then_some(Self { chunks, partitions })
    }

    /// The largest number of partitions that leaves a blob in every unit.
    fn cut(chunks: u64, blobs: u64) -> Self {
        let partitions = (blobs.min(UNITS_MAX) / chunks).max(1);
        let narrow = |n: u64| u32::try_from(n).expect("at most UNITS_MAX");
        Self { chunks: narrow(chunks), partitions: narrow(partitions) }
    }

    /// Number of chunks.
    pub fn chunks(self) -> u32 {
        self.chunks
    }

    /// Number of partitions, which is also the number of stripe units of a chunk.
    pub fn partitions(self) -> u32 {
        self.partitions
    }

    fn units(self) -> u64 {
        u64::from(self.chunks) * u64::from(self.partitions)
    }

    /// Number of half-chunks.
    pub fn half_chunks(self) -> u32 {
        self.chunks * HALF_CHUNKS_PER_CHUNK
    }

    /// The chunk of a blob that begins at byte `start` of a dataset of `total` bytes.
    pub fn chunk_of(self, start: u64, total: ByteSize) -> ChunkOrdinal {
        self.chunk_and_partition(start, total).0
    }

    /// The half-chunk of such a blob: every other stripe unit of a chunk is in the same half.
    pub fn half_chunk_of(self, start: u64, total: ByteSize) -> HalfChunk {
        let (chunk, partition) = self.chunk_and_partition(start, total);
        HalfChunk(chunk.0 * HALF_CHUNKS_PER_CHUNK + partition % HALF_CHUNKS_PER_CHUNK)
    }

    /// Chunk and partition of a blob that begins at byte `start` of a dataset of `total` bytes.
    fn chunk_and_partition(self, start: u64, total: ByteSize) -> (ChunkOrdinal, u32) {
        let unit = match total.0 {
            0 => self.units() - 1,
            total => {
                u64::try_from(u128::from(start) * u128::from(self.units()) / u128::from(total))
                    .map_or(self.units(), |unit| unit)
                    .min(self.units() - 1)
            }
        };
        let (partition, stripe) = (unit / u64::from(self.chunks), unit % u64::from(self.chunks));
        let chunk = (stripe + partition) % u64::from(self.chunks);
        let narrow = |number: u64| u32::try_from(number).expect("below a u32");
        (ChunkOrdinal(narrow(chunk)), narrow(partition))
    }

    /// The stripe units of a chunk, in order, as byte ranges of the dataset. A blob belongs to the
    /// unit that its first byte lies in.
    pub fn units_of(
        self,
        chunk: ChunkOrdinal,
        total: ByteSize,
    ) -> impl Iterator<Item = Range<u64>> + Clone {
        assert!(chunk.0 < self.chunks, "chunk {} of {}", chunk.0, self.chunks);
        let chunks = u64::from(self.chunks);
        (0..u64::from(self.partitions)).map(move |partition| {
            let stripe = (u64::from(chunk.0) + chunks - partition % chunks) % chunks;
            let unit = partition * chunks + stripe;
            self.unit_start(unit, total)..self.unit_start(unit + 1, total)
        })
    }

    /// First byte at which a blob of this unit may begin. Empty blobs at the end of the dataset
    /// begin at `total` and belong to the last unit.
    fn unit_start(self, unit: u64, total: ByteSize) -> u64 {
        if unit == self.units() {
            return u64::MAX;
        }
        let start = (u128::from(unit) * u128::from(total.0)).div_ceil(u128::from(self.units()));
        u64::try_from(start).expect("within the dataset")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn starts(lengths: &[u64]) -> (Vec<u64>, ByteSize) {
        let mut total = 0;
        let starts = lengths
            .iter()
            .map(|length| {
                total += length;
                total - length
            })
            .collect();
        (starts, ByteSize(total))
    }

    #[test]
    fn a_tenth_or_fifteen_gigabytes() {
        let imagenet = Chunking::for_dataset(ByteSize::gb(154), 1_281_167);
        assert_eq!((imagenet.chunks(), imagenet.partitions()), (10, 6553));
        let open_images = Chunking::for_dataset(ByteSize::gb(531), 1_743_042);
        assert_eq!((open_images.chunks(), open_images.partitions()), (35, 1872));
        let huge = Chunking::for_dataset(ByteSize::gb(15_000_000), 1 << 40);
        assert!(huge.units() <= UNITS_MAX);
        for few in 0..200 {
            let chunking = Chunking::for_dataset(ByteSize(few), few);
            assert!(u64::from(chunking.chunks()) <= few.max(1));
        }
    }

    #[test]
    fn impossible_chunks_are_refused() {
        assert!(Chunking::into_chunks(0, 10).is_err());
        assert!(Chunking::into_chunks(11, 10).unwrap_err().to_string().contains("1 to 10"));
        assert!(Chunking::from_parts(0, 1).is_none());
        assert!(Chunking::from_parts(1 << 16, 2).is_none());
    }

    /// Of a dataset sorted by class, with classes of unequal size, every chunk has its share of
    /// every class and of every second blob.
    #[test]
    fn chunks_of_a_sorted_dataset_look_like_it() {
        let classes: Vec<usize> =
            (0..10).flat_map(|class| vec![class; 500 + 250 * (class % 3)]).collect();
        let total = ByteSize(classes.len() as u64 * 1000);
        let chunking = Chunking::for_dataset(total, classes.len() as u64);
        let mut seen = vec![[0_usize; 10]; 10];
        let mut even = [0_usize; 10];
        for (blob, class) in classes.iter().enumerate() {
            let chunk = chunking.chunk_of(blob as u64 * 1000, total).0 as usize;
            seen[chunk][*class] += 1;
            even[chunk] += usize::from(blob % 2 == 0);
        }
        for (chunk, even) in even.into_iter().enumerate() {
            for (class, seen) in seen[chunk].iter().enumerate() {
                let fair = classes.iter().filter(|of| **of == class).count() / 10;
                assert!(
                    seen.abs_diff(fair) <= 2,
                    "chunk {chunk}: {seen} of class {class}, fair {fair}"
                );
            }
            let all: usize = seen[chunk].iter().sum();
            assert!(even.abs_diff(all / 2) <= all / 20, "chunk {chunk}: {even} of {all} are even");
        }
    }

    /// With one or two blobs in a unit, the blobs that do not divide evenly are spread over chunks.
    #[test]
    fn rounding_favours_no_chunk() {
        for blobs in [35, 55, 101, 119, 999] {
            let chunking = Chunking::into_chunks(10, blobs).unwrap();
            let mut held = [0_u64; 10];
            for blob in 0..blobs {
                held[chunking.chunk_of(blob * 1000, ByteSize(blobs * 1000)).0 as usize] += 1;
            }
            let spread = held.iter().max().unwrap() - held.iter().min().unwrap();
            assert!(spread <= 2, "{blobs} blobs: {held:?}");
        }
    }

    proptest! {
        /// Every blob, and so every item, is in exactly one chunk: the one that `chunk_of` returns.
        #[test]
        fn every_blob_is_in_exactly_one_chunk(
            lengths in proptest::collection::vec(
                prop_oneof![Just(0), 0_u64..50, 0_u64..10_000],
                1..600,
            ),
            chunks in 1_u64..40,
        ) {
            let (starts, total) = starts(&lengths);
            let blobs = starts.len() as u64;
            let chunking = Chunking::into_chunks(chunks.min(blobs), blobs).unwrap();
            for start in starts {
                let holders: Vec<_> = (0..chunking.chunks())
                    .map(ChunkOrdinal)
                    .filter(|chunk| {
                        chunking.units_of(*chunk, total).any(|unit| unit.contains(&start))
                    })
                    .collect();
                prop_assert_eq!(holders, [chunking.chunk_of(start, total)]);
            }
        }

        /// Promise 8 needs chunks that look like the dataset: each chunk holds the same share of
        /// every partition, except for the one blob that straddles a cut at either end.
        #[test]
        fn each_chunk_holds_the_same_share_of_every_partition(
            lengths in proptest::collection::vec(1_u64..10_000, 200..2000),
            chunks in 1_u32..20,
        ) {
            let (starts, total) = starts(&lengths);
            let chunking = Chunking::into_chunks(chunks.into(), starts.len() as u64).unwrap();
            let fair = total.0 / chunking.units();
            let longest = *lengths.iter().max().unwrap();
            let mut held = std::collections::BTreeMap::new();
            for (start, length) in starts.iter().zip(&lengths) {
                let partition = start * u64::from(chunking.partitions) / total.0;
                *held.entry((partition, chunking.chunk_of(*start, total))).or_insert(0) += length;
            }
            for held in held.values() {
                prop_assert!(held.abs_diff(fair) <= longest, "{held} of a fair {fair}");
            }
            prop_assert_eq!(held.values().sum::<u64>(), total.0);
        }
    }
}

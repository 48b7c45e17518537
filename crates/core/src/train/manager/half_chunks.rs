//! The half-chunks of a dataset, and how they are grouped into the chunks that rotate.
//!
//! Samplers, nodes and the wire always count half-chunks, so that nothing is renamed when a dataset
//! gets more or less space. Rotation moves larger chunks, because a batch is more random and a job
//! waits less often if it draws from more data at a time: up to [`group_max`] fine chunks, and
//! fewer where two such chunks would not fit. What is left of the space beside whole chunks holds a
//! **part** of the last one. So all space is used, whatever its size.

use crate::{
    ByteSize, HalfChunk, HalfChunkRange,
    dataset::chunking::ChunkOrdinal,
    train::{
        placement::{self, Allocation, ROTATING, group_max},
        rotation::ChunkParts,
    },
};

/// Sizes of a dataset's half-chunks, and their grouping into rotating chunks.
#[derive(Debug, Clone)]
pub(super) struct HalfChunks {
    sizes: Vec<ByteSize>,
    /// Half-chunks of a fine chunk: two, or one in comparisons with the paper.
    per_chunk: u32,
    grouping: Grouping,
}

/// The rotating chunks: runs of half-chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Grouping {
    /// First half-chunk of each, and the end of the last.
    starts: Vec<u32>,
    parts: ChunkParts,
}

impl Grouping {
    /// Runs of `length` half-chunks; of `count`, the last `part` are a run by themselves.
    fn new(count: u32, length: u32, part: u32) -> Self {
        let whole = count - part;
        let mut starts: Vec<u32> = (0..whole).step_by(length as usize).collect();
        let is_cut = !whole.is_multiple_of(length);
        let rest = is_cut.then(|| starts.len() - 1).map(ordinal);
        let kept = (part > 0).then(|| ordinal(starts.len()));
        starts.extend(kept.map(|_| whole));
        starts.push(count);
        Self { starts, parts: ChunkParts { kept, rest } }
    }
}

impl HalfChunks {
    pub fn new(sizes: Vec<ByteSize>, per_chunk: u32) -> Self {
        assert!(per_chunk > 0, "a chunk has at least one half-chunk");
        let is_whole = sizes.len().is_multiple_of(per_chunk as usize);
        assert!(is_whole && u32::try_from(sizes.len()).is_ok(), "{} half-chunks", sizes.len());
        let count = u32::try_from(sizes.len()).expect("checked above");
        let mut all = Self { sizes, per_chunk, grouping: Grouping::new(count, per_chunk, 0) };
        all.grouping = all.whole_chunks(all.group_max());
        all
    }

    /// Groups half-chunks as an allocation requires. Returns whether the grouping changed.
    pub fn regroup(&mut self, allocation: Allocation) -> bool {
        let grouping = self.grouping_for(allocation);
        std::mem::replace(&mut self.grouping, grouping.clone()) != grouping
    }

    fn grouping_for(&self, allocation: Allocation) -> Grouping {
        let group_max = self.group_max();
        match allocation {
            Allocation::Halves => Grouping::new(self.count(), 1, 0),
            Allocation::Chunks(chunks) if chunks < self.chunks() && group_max > 1 => {
                self.fitting(self.space(allocation).0)
            }
            Allocation::Nothing | Allocation::Chunks(_) => self.whole_chunks(group_max),
        }
    }

    fn whole_chunks(&self, group: u32) -> Grouping {
        let grouping = Grouping::new(self.count(), self.per_chunk * group, 0);
        // The last one may be shorter, but is no rest: it is treated as all others.
        Grouping { parts: ChunkParts::default(), ..grouping }
    }

    /// The largest chunks of which two fit, and a part for the rest of the space. Sizes vary by a
    /// blob, so another chunk may miss the rest by that: then all are smaller by a half-chunk.
    fn fitting(&self, space: u64) -> Grouping {
        let fits = |length: u32| {
            length > 0 && self.run_max(length).saturating_mul(ROTATING.into()) <= space
        };
        let left = |length: u32| space % self.run_max(length).max(1);
        let misses_one = |length: u32| left(length) / 7 > self.run_max(length) / 8;
        let lengths = placement::groups(self.group_max()).map(|group| group * self.per_chunk);
        let length = lengths.into_iter().find_map(|length| {
            let is_smaller_better = !fits(length) || misses_one(length);
            let smaller = Some(length - 1).filter(|smaller| is_smaller_better && fits(*smaller));
            smaller.or(Some(length).filter(|length| fits(*length)))
        });
        let length = length.unwrap_or(1);
        let left = left(length);
        let mut part_bytes = 0_u64;
        let fitting = self.sizes.iter().rev().take_while(|size| {
            part_bytes = part_bytes.saturating_add(size.0);
            part_bytes <= left
        });
        let part = u32::try_from(fitting.count()).expect("checked by `new`").min(length - 1);
        Grouping::new(self.count(), length, part)
    }

    /// Bytes of the largest run of `length` half-chunks.
    fn run_max(&self, length: u32) -> u64 {
        self.sizes.chunks(length as usize).map(|run| total(run).0).max().unwrap_or(0)
    }

    /// Fine chunks that rotate as one at most.
    fn group_max(&self) -> u32 {
        group_max(self.chunks(), self.chunk_size_max())
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.sizes.len()).expect("checked by `new`")
    }

    pub fn all(&self) -> HalfChunkRange {
        HalfChunk::all(self.count())
    }

    pub fn size(&self, half_chunk: HalfChunk) -> Option<ByteSize> {
        self.sizes.get(half_chunk.index()).copied()
    }

    pub fn sizes(&self) -> &[ByteSize] {
        &self.sizes
    }

    /// Fine chunks of the dataset, however they are grouped.
    pub fn chunks(&self) -> u32 {
        self.count() / self.per_chunk
    }

    fn chunk_size_max(&self) -> ByteSize {
        let sizes = self.sizes.chunks(self.per_chunk as usize);
        sizes.map(total).max().unwrap_or(ByteSize(0))
    }

    /// Size of a fine chunk, as allocations count it: the mean if they are grouped, since groups
    /// are cut to fit. Otherwise the largest.
    pub fn chunk_size(&self) -> ByteSize {
        if self.group_max() > 1 {
            ByteSize(self.total().0.div_ceil(u64::from(self.chunks()).max(1)))
        } else {
            self.chunk_size_max()
        }
    }

    pub fn size_max(&self) -> ByteSize {
        self.sizes.iter().copied().max().unwrap_or(ByteSize(0))
    }

    pub fn total(&self) -> ByteSize {
        total(&self.sizes)
    }

    /// The most bytes that an allocation takes.
    pub fn space(&self, allocation: Allocation) -> ByteSize {
        let (size, count) = match allocation {
            Allocation::Nothing => return ByteSize(0),
            Allocation::Halves => (self.size_max(), 2),
            Allocation::Chunks(chunks) if chunks >= self.chunks() => return self.total(),
            Allocation::Chunks(chunks) => (self.chunk_size(), chunks),
        };
        ByteSize(size.0.saturating_mul(count.into())).min(self.total())
    }

    /// Bytes of these half-chunks.
    pub fn bytes_of(&self, half_chunks: impl IntoIterator<Item = HalfChunk>) -> ByteSize {
        let sizes = half_chunks.into_iter().map(|half_chunk| self.sizes[half_chunk.index()].0);
        ByteSize(sizes.fold(0, u64::saturating_add))
    }

    /// Sizes of what rotates.
    pub fn rotating_sizes(&self) -> Vec<ByteSize> {
        self.rotating().map(|chunk| self.rotating_size(chunk)).collect()
    }

    /// The parts of the chunk that is cut in two.
    pub fn parts(&self) -> ChunkParts {
        self.grouping.parts
    }

    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> + use<> {
        (0..self.grouping.starts.len() - 1).map(ordinal)
    }

    pub fn rotating_size(&self, chunk: ChunkOrdinal) -> ByteSize {
        total(&self.sizes[self.of(chunk).indices()])
    }

    /// The half-chunks of a rotating chunk.
    pub fn of(&self, chunk: ChunkOrdinal) -> HalfChunkRange {
        let (starts, at) = (&self.grouping.starts, chunk.0 as usize);
        HalfChunkRange { start: HalfChunk(starts[at]), end: HalfChunk(starts[at + 1]) }
    }

    /// The rotating chunk of a half-chunk.
    pub fn chunk_of(&self, half_chunk: HalfChunk) -> ChunkOrdinal {
        ordinal(self.grouping.starts.partition_point(|start| *start <= half_chunk.0) - 1)
    }
}

fn ordinal(at: usize) -> ChunkOrdinal {
    ChunkOrdinal(u32::try_from(at).expect("no more than half-chunks"))
}

fn total(sizes: &[ByteSize]) -> ByteSize {
    ByteSize(sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 320 fine chunks of nearly one size.
    fn fine() -> HalfChunks {
        HalfChunks::new((0..640).map(|at| ByteSize(1000 + at % 7)).collect(), 2)
    }

    fn occupied_at_most(half_chunks: &HalfChunks, space: u64) -> u64 {
        let ChunkParts { kept, rest } = half_chunks.parts();
        let kept_size = kept.map_or(0, |kept| half_chunks.rotating_size(kept).0);
        let whole = half_chunks.rotating().filter(|chunk| Some(*chunk) != kept.or(rest));
        let largest = whole.map(|chunk| half_chunks.rotating_size(chunk).0).max().unwrap();
        kept_size + (space - kept_size) / largest * largest
    }

    /// Chunks and the part fill any allocation of two fine chunks or more, but for the size of a
    /// half-chunk, and two chunks fit.
    #[test]
    fn chunks_fill_every_allocation() {
        let mut half_chunks = fine();
        for chunks in 2..320 {
            let allocation = Allocation::Chunks(chunks);
            half_chunks.regroup(allocation);
            let space = half_chunks.space(allocation).0;
            let used = occupied_at_most(&half_chunks, space);
            assert!(used <= space, "{chunks} chunks: {used} of {space}");
            let half_chunk = half_chunks.size_max().0;
            assert!(used + half_chunk * 3 / 2 > space, "{chunks} chunks: {used} of {space}");
            let two: u64 = half_chunks.rotating_sizes().iter().take(2).map(|size| size.0).sum();
            assert!(two <= space, "{chunks} chunks: {two} rotate in {space}");
        }
    }

    #[test]
    fn every_half_chunk_is_in_one_rotating_chunk() {
        let mut half_chunks = fine();
        for allocation in [1, 2, 5, 17, 63, 64, 65, 100, 319, 320].map(Allocation::Chunks) {
            half_chunks.regroup(allocation);
            let mut next = HalfChunk(0);
            for chunk in half_chunks.rotating() {
                let of = half_chunks.of(chunk);
                assert_eq!(of.start, next);
                assert!(of.into_iter().all(|half_chunk| half_chunks.chunk_of(half_chunk) == chunk));
                next = of.end;
            }
            assert_eq!(next, HalfChunk(640), "{allocation:?}");
        }
    }

    /// From a fifth of the dataset on, a change of the allocation moves only the last chunk.
    #[test]
    fn large_allocations_have_the_same_chunks() {
        let mut half_chunks = fine();
        half_chunks.regroup(Allocation::Chunks(70));
        let before: Vec<_> = half_chunks.rotating().map(|chunk| half_chunks.of(chunk)).collect();
        half_chunks.regroup(Allocation::Chunks(140));
        let after: Vec<_> = half_chunks.rotating().map(|chunk| half_chunks.of(chunk)).collect();
        assert_eq!(before[..9], after[..9]);
    }

    #[test]
    fn a_dataset_of_few_chunks_rotates_by_single_chunks() {
        let mut half_chunks = HalfChunks::new(vec![ByteSize(100); 20], 2);
        assert!(!half_chunks.regroup(Allocation::Chunks(3)));
        assert_eq!(half_chunks.rotating_sizes(), [ByteSize(200); 10]);
        assert!(half_chunks.regroup(Allocation::Halves));
        assert_eq!(half_chunks.rotating_sizes(), [ByteSize(100); 20]);
    }
}

//! The half-chunks of a dataset, and how many of them rotate as one chunk.
//!
//! Rotation moves whole chunks, or single half-chunks where two chunks do not fit. Samplers, nodes
//! and the wire always count half-chunks, so that nothing is renamed when a dataset gets more or
//! less space.

use crate::{
    ByteSize, HalfChunk, HalfChunkRange, dataset::chunking::ChunkOrdinal,
    train::placement::Allocation,
};

/// Sizes of a dataset's half-chunks, and their grouping into rotating chunks.
#[derive(Debug, Clone)]
pub(super) struct HalfChunks {
    sizes: Vec<ByteSize>,
    /// Half-chunks of a chunk: two, or one in comparisons with the paper.
    per_chunk: u32,
    /// Half-chunks that rotate as one: `per_chunk`, or one if only halves fit.
    per_rotating: u32,
}

impl HalfChunks {
    pub fn new(sizes: Vec<ByteSize>, per_chunk: u32) -> Self {
        assert!(per_chunk > 0, "a chunk has at least one half-chunk");
        let is_whole = sizes.len().is_multiple_of(per_chunk as usize);
        assert!(is_whole && u32::try_from(sizes.len()).is_ok(), "{} half-chunks", sizes.len());
        Self { sizes, per_chunk, per_rotating: per_chunk }
    }

    /// Groups half-chunks as an allocation requires. Returns whether the grouping changed.
    pub fn regroup(&mut self, allocation: Allocation) -> bool {
        let per_rotating = match allocation {
            Allocation::Halves => 1,
            Allocation::Nothing | Allocation::Chunks(_) => self.per_chunk,
        };
        std::mem::replace(&mut self.per_rotating, per_rotating) != per_rotating
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

    /// Chunks of the dataset, whether chunks or half-chunks rotate.
    pub fn chunks(&self) -> u32 {
        self.count() / self.per_chunk
    }

    pub fn chunk_size_max(&self) -> ByteSize {
        let sizes = self.sizes.chunks(self.per_chunk as usize);
        sizes.map(total).max().unwrap_or(ByteSize(0))
    }

    pub fn size_max(&self) -> ByteSize {
        self.sizes.iter().copied().max().unwrap_or(ByteSize(0))
    }

    pub fn total(&self) -> ByteSize {
        total(&self.sizes)
    }

    /// Sizes of what rotates.
    pub fn rotating_sizes(&self) -> Vec<ByteSize> {
        self.sizes.chunks(self.per_rotating as usize).map(total).collect()
    }

    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> + use<> {
        (0..self.count() / self.per_rotating).map(ChunkOrdinal)
    }

    pub fn rotating_size(&self, chunk: ChunkOrdinal) -> ByteSize {
        total(&self.sizes[self.of(chunk).indices()])
    }

    /// The half-chunks of a rotating chunk.
    pub fn of(&self, chunk: ChunkOrdinal) -> HalfChunkRange {
        let start = chunk.0 * self.per_rotating;
        HalfChunkRange { start: HalfChunk(start), end: HalfChunk(start + self.per_rotating) }
    }

    /// The rotating chunk of a half-chunk.
    pub fn chunk_of(&self, half_chunk: HalfChunk) -> ChunkOrdinal {
        ChunkOrdinal(half_chunk.0 / self.per_rotating)
    }
}

fn total(sizes: &[ByteSize]) -> ByteSize {
    ByteSize(sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0)))
}

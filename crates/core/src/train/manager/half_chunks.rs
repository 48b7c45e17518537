//! Chunks, and the pieces that they are made of.
//!
//! Rotation moves chunks, or halves of them where two chunks do not fit. Everyone else (samplers, nodes, the
//! wire) knows **pieces**, which are halves from the beginning, so that nothing is renamed when a dataset
//! is given more space or less.

use std::ops::Range;

use crate::{ByteSize, chunking::ChunkOrdinal, placement::Choice};

/// The pieces of a dataset, and how many of them move together.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    sizes: Vec<ByteSize>,
    /// How many make a chunk.
    per_chunk: u32,
    /// How many move together now.
    together: u32,
}

impl Pieces {
    pub fn new(sizes: Vec<ByteSize>, per_chunk: u32) -> Self {
        assert!(per_chunk > 0, "a chunk consists of something");
        let is_whole = sizes.len().is_multiple_of(per_chunk as usize);
        assert!(is_whole && u32::try_from(sizes.len()).is_ok(), "{} pieces", sizes.len());
        Self { sizes, per_chunk, together: per_chunk }
    }

    /// Cuts the dataset as a choice wants it. Says whether that is another cut than before.
    pub fn cut(&mut self, choice: Choice) -> bool {
        let together = match choice {
            Choice::Halves => 1,
            Choice::Nothing | Choice::Chunks(_) => self.per_chunk,
        };
        std::mem::replace(&mut self.together, together) != together
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.sizes.len()).expect("checked when made")
    }

    pub fn size(&self, piece: u32) -> Option<ByteSize> {
        self.sizes.get(piece as usize).copied()
    }

    /// How many chunks there are, whatever rotates.
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

    /// How much each of those has that rotate.
    pub fn rotating_sizes(&self) -> Vec<ByteSize> {
        self.sizes.chunks(self.together as usize).map(total).collect()
    }

    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> + use<> {
        (0..self.count() / self.together).map(ChunkOrdinal)
    }

    pub fn rotating_size(&self, chunk: ChunkOrdinal) -> ByteSize {
        let pieces = self.of(chunk);
        total(&self.sizes[pieces.start as usize..pieces.end as usize])
    }

    pub fn of(&self, chunk: ChunkOrdinal) -> Range<u32> {
        chunk.0 * self.together..(chunk.0 + 1) * self.together
    }

    pub fn holder_of(&self, piece: u32) -> ChunkOrdinal {
        ChunkOrdinal(piece / self.together)
    }
}

fn total(sizes: &[ByteSize]) -> ByteSize {
    ByteSize(sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0)))
}

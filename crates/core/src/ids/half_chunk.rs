//! Half-chunks: the unit that nodes keep and jobs draw from.

use std::{fmt, ops::Range};

/// Position of a half-chunk in its dataset, from 0. Half-chunks `2n` and `2n + 1` make chunk `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HalfChunk(pub u32);

impl HalfChunk {
    /// The first `count` half-chunks of a dataset, in order.
    pub fn all(count: u32) -> HalfChunkRange {
        HalfChunkRange { start: Self(0), end: Self(count) }
    }

    /// Index into a list with one entry per half-chunk.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HalfChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Neighbouring half-chunks: those of one chunk, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HalfChunkRange {
    /// The first.
    pub start: HalfChunk,
    /// The one after the last.
    pub end: HalfChunk,
}

impl HalfChunkRange {
    /// Number of half-chunks.
    pub fn count(self) -> u32 {
        self.end.0 - self.start.0
    }

    /// Whether a half-chunk is one of them.
    pub fn contains(self, half_chunk: HalfChunk) -> bool {
        (self.start..self.end).contains(&half_chunk)
    }

    /// Indices into a list with one entry per half-chunk.
    pub fn indices(self) -> Range<usize> {
        self.start.index()..self.end.index()
    }
}

impl IntoIterator for HalfChunkRange {
    type Item = HalfChunk;
    type IntoIter = std::iter::Map<Range<u32>, fn(u32) -> HalfChunk>;

    fn into_iter(self) -> Self::IntoIter {
        (self.start.0..self.end.0).map(HalfChunk)
    }
}

//! Half-chunks: the unit that nodes keep and jobs draw from.

use std::{fmt, ops::Range};

/// Position of a half-chunk in its dataset, from 0. Half-chunks `2n` and `2n + 1` make fine chunk
/// `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HalfChunk(pub u32);

impl HalfChunk {
    /// The first `count` half-chunks of a dataset, in order.
    pub fn all(count: u32) -> HalfChunkRange {
        HalfChunkRange { start: Self(0), end: Self(count) }
    }

    /// This one alone, as a range.
    pub fn alone(self) -> HalfChunkRange {
        HalfChunkRange { start: self, end: Self(self.0 + 1) }
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

/// Neighbouring half-chunks: those of a rotating chunk, or a single one.
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

    /// Whether a half-chunk is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
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

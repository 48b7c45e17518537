//! Loading of a chunk: which items are still to be requested, and whether all are present.
//!
//! Two cursors move over its items, which are in random order. Everything before the first has been
//! requested, everything before the second is present. So each item is visited a few times only.

use forebay_core::{HalfChunk, HalfChunkRange};

#[derive(Debug)]
pub(super) struct Fill {
    half_chunks: HalfChunkRange,
    requested: Cursor,
    present: Cursor,
}

/// A position among the items of several half-chunks.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    half_chunk: HalfChunk,
    index: usize,
}

impl Cursor {
    /// The item at this position; `None` at the end.
    fn item(&mut self, half_chunks: &[Vec<u32>], end: HalfChunk) -> Option<u32> {
        while self.half_chunk < end {
            if let Some(item) = half_chunks[self.half_chunk.index()].get(self.index) {
                return Some(*item);
            }
            *self = Self { half_chunk: HalfChunk(self.half_chunk.0 + 1), index: 0 };
        }
        None
    }
}

impl Fill {
    pub fn new(half_chunks: HalfChunkRange) -> Self {
        let start = Cursor { half_chunk: half_chunks.start, index: 0 };
        Self { half_chunks, requested: start, present: start }
    }

    /// Its half-chunks.
    pub fn half_chunks(&self) -> HalfChunkRange {
        self.half_chunks
    }

    /// Adds the next wanted items, up to a total of `count`.
    pub fn next_items(
        &mut self,
        half_chunks: &[Vec<u32>],
        count: usize,
        is_wanted: impl Fn(u32) -> bool,
        items: &mut Vec<u32>,
    ) {
        while items.len() < count
            && let Some(item) = self.requested.item(half_chunks, self.half_chunks.end)
        {
            self.requested.index += 1;
            if is_wanted(item) {
                items.push(item);
            }
        }
    }

    /// Whether every item is present.
    pub fn is_full(&mut self, half_chunks: &[Vec<u32>], is_present: impl Fn(u32) -> bool) -> bool {
        while let Some(item) = self.present.item(half_chunks, self.half_chunks.end) {
            if !is_present(item) {
                return false;
            }
            self.present.index += 1;
        }
        true
    }

    /// Starts over, after a requested or present item was lost.
    pub fn restart(&mut self) {
        let start = Cursor { half_chunk: self.half_chunks.start, index: 0 };
        (self.requested, self.present) = (start, start);
    }
}

//! A chunk that is being filled: what is still to be asked for, and whether all of it is there.
//!
//! Two marks move over its items, which lie in random order: up to the first, everything has been asked
//! for; up to the second, everything is there. So each item is looked at a few times only.

use std::ops::Range;

use forebay_core::chunking::ChunkOrdinal;

/// The rotation is told of every so many bytes' worth of a chunk.
const NEWS_PER_CHUNK: u64 = 16;

#[derive(Debug)]
pub(super) struct Fill {
    pub chunk: ChunkOrdinal,
    /// Whether the rotation waits for it; otherwise it makes good a loss.
    pub is_ordered: bool,
    pieces: Range<u32>,
    asked: Mark,
    there: Mark,
    arrived: u64,
    told: u64,
}

/// A place among the items of several pieces.
#[derive(Debug, Clone, Copy)]
struct Mark {
    piece: u32,
    place: usize,
}

impl Mark {
    /// The item here, and whether there is one.
    fn item(&mut self, pieces: &[Vec<u32>], end: u32) -> Option<u32> {
        while self.piece < end {
            if let Some(item) = pieces[self.piece as usize].get(self.place) {
                return Some(*item);
            }
            *self = Self { piece: self.piece + 1, place: 0 };
        }
        None
    }
}

impl Fill {
    pub fn new(chunk: ChunkOrdinal, pieces: Range<u32>, is_ordered: bool) -> Self {
        let start = Mark { piece: pieces.start, place: 0 };
        Self { chunk, is_ordered, pieces, asked: start, there: start, arrived: 0, told: 0 }
    }

    /// What it consists of.
    pub fn pieces(&self) -> Range<u32> {
        self.pieces.clone()
    }

    /// So many bytes of it have arrived.
    pub fn arrived(&mut self, bytes: u64) {
        self.arrived += bytes;
    }

    /// How much has arrived, if that is worth telling.
    pub fn news(&mut self, chunk_bytes: u64) -> Option<u64> {
        let arrived = self.arrived.min(chunk_bytes);
        let is_news = arrived - self.told > chunk_bytes / NEWS_PER_CHUNK;
        is_news.then(|| {
            self.told = arrived;
            arrived
        })
    }

    /// The next items that are wanted, until there are `count` of them.
    pub fn next_items(
        &mut self,
        pieces: &[Vec<u32>],
        count: usize,
        is_wanted: impl Fn(u32) -> bool,
        items: &mut Vec<u32>,
    ) {
        while items.len() < count
            && let Some(item) = self.asked.item(pieces, self.pieces.end)
        {
            self.asked.place += 1;
            if is_wanted(item) {
                items.push(item);
            }
        }
    }

    /// Whether every item is there.
    pub fn is_full(&mut self, pieces: &[Vec<u32>], is_there: impl Fn(u32) -> bool) -> bool {
        while let Some(item) = self.there.item(pieces, self.pieces.end) {
            if !is_there(item) {
                return false;
            }
            self.there.place += 1;
        }
        true
    }

    /// Something that was asked for, or was there, is lost.
    pub fn look_again(&mut self) {
        let start = Mark { piece: self.pieces.start, place: 0 };
        (self.asked, self.there) = (start, start);
    }
}

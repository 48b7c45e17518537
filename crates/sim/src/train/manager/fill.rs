//! A chunk that is being filled: what is still to be asked for, and whether all of it is there.
//!
//! Two marks move over its items, which lie in random order: up to the first, everything has been asked
//! for; up to the second, everything is there. So each item is looked at a few times only.

use std::ops::Range;

#[derive(Debug)]
pub(super) struct Fill {
    pieces: Range<u32>,
    asked: Mark,
    there: Mark,
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
    pub fn new(pieces: Range<u32>) -> Self {
        let start = Mark { piece: pieces.start, place: 0 };
        Self { pieces, asked: start, there: start }
    }

    /// What it consists of.
    pub fn pieces(&self) -> Range<u32> {
        self.pieces.clone()
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

//! One batch: which items, and where they are expected to come from.

use crate::ItemOrdinal;

/// Where an item was when its batch was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Resident.
    Resident,
    /// Of an open chunk, but not resident: to be claimed, read and kept.
    Claimed,
    /// Of a chunk that is not open, and not resident: to be read and not kept.
    Outside,
    /// Repeated, because other ranks have an item more; it may be anywhere.
    Padding,
}

/// Items that are yielded together. Their order within the batch has no meaning, but is kept in replays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    number: u64,
    items: Vec<ItemOrdinal>,
    sources: Vec<Source>,
    counts: [u32; 4],
}

impl Batch {
    pub(super) fn new(number: u64, length: usize) -> Self {
        let (items, sources) = (Vec::with_capacity(length), Vec::with_capacity(length));
        Self { number, items, sources, counts: [0; 4] }
    }

    pub(super) fn push(&mut self, item: u32, source: Source) {
        self.items.push(ItemOrdinal::new(item.into()));
        self.sources.push(source);
        self.counts[source as usize] += 1;
    }

    /// Counted from nought: what [`super::Sampler::yielded`] is told.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All of them.
    pub fn items(&self) -> &[ItemOrdinal] {
        &self.items
    }

    /// How many were there.
    pub fn count(&self, source: Source) -> u32 {
        self.counts[source as usize]
    }

    /// Which were there.
    pub fn of(&self, source: Source) -> impl Iterator<Item = ItemOrdinal> {
        let all = self.items.iter().zip(&self.sources);
        all.filter(move |(_, its)| **its == source).map(|(item, _)| *item)
    }
}

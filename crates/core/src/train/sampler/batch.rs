//! A batch: its items, and where they are expected to come from.

use crate::ItemOrdinal;

/// Where an item was when its batch was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemSource {
    /// Resident.
    Resident,
    /// In the draw set and not resident: it is claimed, fetched and kept.
    Claimed,
    /// Neither in the draw set nor resident: it is read and not kept.
    Uncached,
    /// Repeated, because other ranks have one item more. It may be anywhere.
    Padding,
}

/// Items that are yielded together. Their order within the batch has no meaning, but replays keep
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    number: u64,
    items: Vec<ItemOrdinal>,
    sources: Vec<ItemSource>,
    counts: [u32; 4],
}

impl Batch {
    pub(super) fn new(number: u64, length: usize) -> Self {
        let (items, sources) = (Vec::with_capacity(length), Vec::with_capacity(length));
        Self { number, items, sources, counts: [0; 4] }
    }

    pub(super) fn push(&mut self, item: u32, source: ItemSource) {
        self.items.push(ItemOrdinal::new(item.into()));
        self.sources.push(source);
        self.counts[source as usize] += 1;
    }

    /// Number of the batch, from 0, for [`super::Sampler::on_yielded`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All items.
    pub fn items(&self) -> &[ItemOrdinal] {
        &self.items
    }

    /// Number of items from a source.
    pub fn count(&self, source: ItemSource) -> u32 {
        self.counts[source as usize]
    }

    /// Items from a source.
    pub fn of(&self, source: ItemSource) -> impl Iterator<Item = ItemOrdinal> {
        let all = self.items.iter().zip(&self.sources);
        all.filter(move |(_, own_source)| **own_source == source).map(|(item, _)| *item)
    }
}

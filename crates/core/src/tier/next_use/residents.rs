//! Residents: the segments in memory and on flash, with their reader bits and rank indices.

use std::time::Duration;

use super::{
    rank_index::{CellKey, Rank, RankIndex},
    unannounced::Expectation,
};
use crate::tier::{
    two_tier_lru::Tier,
    types::{Bucket, Job, Segment},
};
use crate::util::{
    slab_list::{Links, Slot},
    stable_hash::StableMap,
};

/// A resident segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub segment: Segment,
    pub bucket: Bucket,
    /// Trail position.
    pub position: u32,
    /// Bits of the readers that have read it.
    pub read_by: u64,
    pub tier: Tier,
    pub cell: u32,
    /// Time of the last read.
    pub touched: Duration,
    /// The job that brought it in, until another job reads it. By name, because the job may have
    /// ended and its slab index been reused.
    pub brought_by: Option<Job>,
    /// Expectation when it was written to flash; [`Expectation::Read`] from its next read on.
    pub expectation: Expectation,
}

/// All resident segments.
#[derive(Debug)]
pub(super) struct Residents {
    pub slots: StableMap<u64, Slot>,
    pub entries: Vec<Entry>,
    free: Vec<Slot>,
    pub links: Links,
    pub dram: RankIndex,
    pub flash: RankIndex,
}

impl Residents {
    pub fn new(dram: u64, flash: u64) -> Self {
        Self {
            slots: StableMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            dram: RankIndex::new(dram),
            flash: RankIndex::new(flash),
        }
    }

    pub fn bytes(&self, slot: Slot) -> u32 {
        u32::try_from(self.links.weight(slot)).expect("a segment's length is 32-bit")
    }

    pub fn insert(&mut self, entry: Entry, bytes: u32) {
        let slot = if let Some(slot) = self.free.pop() {
            self.entries[slot.0 as usize] = entry;
            slot
        } else {
            self.entries.push(entry);
            Slot(u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 residents"))
        };
        self.links.prepare(slot, bytes);
        self.slots.insert(entry.segment.0, slot);
        let index = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        index.push(&mut self.links, entry.cell, slot);
    }

    /// Sets the readers of a resident, which moves it to another cell.
    pub fn set_read_by(&mut self, slot: Slot, read_by: u64, rank: impl FnOnce(&Entry) -> Rank) {
        let entry = &mut self.entries[slot.0 as usize];
        let index = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        let key = CellKey { read_by, ..index.key(entry.cell) };
        entry.read_by = read_by;
        index.remove(&mut self.links, entry.cell, slot);
        entry.cell = index.cell(key, || rank(entry));
        index.push(&mut self.links, entry.cell, slot);
    }

    pub fn move_to_flash(&mut self, slot: Slot, rank: impl FnOnce(&Entry) -> Rank) {
        let entry = &mut self.entries[slot.0 as usize];
        let key = self.dram.key(entry.cell);
        self.dram.remove(&mut self.links, entry.cell, slot);
        entry.tier = Tier::Flash;
        entry.cell = self.flash.cell(key, || rank(entry));
        self.flash.push(&mut self.links, entry.cell, slot);
    }

    /// Removes a segment.
    pub fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.entries[slot.0 as usize];
        let index = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        index.remove(&mut self.links, entry.cell, slot);
        self.slots.remove(&entry.segment.0);
        self.free.push(slot);
        entry
    }
}

//! Everything that is resident, in memory and on flash.

use std::time::Duration;

use super::{
    super::{
        shelves::Tier,
        words::{Bucket, Job, Segment},
    },
    cells::{CellKey, Cells, Rank},
    speculation::Chance,
};
use crate::{
    list::{Links, Slot},
    stable::StableMap,
};

/// One segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub segment: Segment,
    pub bucket: Bucket,
    pub place: u32,
    pub read_by: u64,
    pub tier: Tier,
    pub cell: u32,
    pub touched: Duration,
    /// Who brought it, until somebody else reads it; that job may be gone, and its place in the slab another's.
    pub brought_by: Option<Job>,
    /// Why it is on flash; nobody has read it there yet if it is on the chance.
    pub chance: Chance,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Residents {
    pub slots: StableMap<u64, Slot>,
    pub entries: Vec<Entry>,
    free: Vec<Slot>,
    pub links: Links,
    pub dram: Cells,
    pub flash: Cells,
}

impl Residents {
    pub fn new(dram: u64, flash: u64) -> Self {
        Self {
            slots: StableMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            dram: Cells::new(dram),
            flash: Cells::new(flash),
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
        let cells = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        cells.push(&mut self.links, entry.cell, slot);
    }

    /// Moves a resident to the cell of those that these have read.
    pub fn rehome(&mut self, slot: Slot, read_by: u64, rank: impl FnOnce(&Entry) -> Rank) {
        let entry = &mut self.entries[slot.0 as usize];
        let cells = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        let key = CellKey { read_by, ..cells.key(entry.cell) };
        entry.read_by = read_by;
        cells.remove(&mut self.links, entry.cell, slot);
        entry.cell = cells.cell(key, || rank(entry));
        cells.push(&mut self.links, entry.cell, slot);
    }

    pub fn move_to_flash(&mut self, slot: Slot, rank: impl FnOnce(&Entry) -> Rank) {
        let entry = &mut self.entries[slot.0 as usize];
        let key = self.dram.key(entry.cell);
        self.dram.remove(&mut self.links, entry.cell, slot);
        entry.tier = Tier::Flash;
        entry.cell = self.flash.cell(key, || rank(entry));
        self.flash.push(&mut self.links, entry.cell, slot);
    }

    /// A segment goes; says what it was.
    pub fn drop(&mut self, slot: Slot) -> Entry {
        let entry = self.entries[slot.0 as usize];
        let cells = match entry.tier {
            Tier::Dram => &mut self.dram,
            Tier::Flash => &mut self.flash,
        };
        cells.remove(&mut self.links, entry.cell, slot);
        self.slots.remove(&entry.segment.0);
        self.free.push(slot);
        entry
    }
}

//! Two queues, as in `CacheLib`: what is admitted lies in memory first, and goes to flash when it has to
//! leave there. Both are LRU or FIFO.

use super::words::{Bucket, Request, Segment};
use crate::{
    list::{Links, List, Slot},
    stable::StableMap,
};

/// In which order segments leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Least recently used first.
    Lru,
    /// First in, first out.
    Fifo,
}

/// Where a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    Dram,
    Flash,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    segment: Segment,
    bucket: Bucket,
    tier: Tier,
    /// Its write to flash has been allowed already.
    paid: bool,
}

#[derive(Debug)]
pub(super) struct Shelves {
    eviction: Eviction,
    slots: StableMap<u64, Slot>,
    entries: Vec<Entry>,
    free: Vec<Slot>,
    links: Links,
    dram: List,
    flash: List,
    dram_max: u64,
    flash_max: u64,
}

impl Shelves {
    pub fn new(eviction: Eviction, dram_max: u64, flash_max: u64) -> Self {
        Self {
            eviction,
            slots: StableMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            dram: List::default(),
            flash: List::default(),
            dram_max,
            flash_max,
        }
    }

    pub fn contains(&self, segment: Segment) -> bool {
        self.slots.contains_key(&segment.0)
    }

    pub fn used(&self) -> (u64, u64) {
        (self.dram.weight(), self.flash.weight())
    }

    /// A segment is wanted: where is it?
    #[inline]
    pub fn touch(&mut self, segment: Segment) -> Option<Tier> {
        let slot = *self.slots.get(&segment.0)?;
        let tier = self.entries[slot.0 as usize].tier;
        if self.eviction == Eviction::Lru {
            let list = if tier == Tier::Dram { &mut self.dram } else { &mut self.flash };
            list.remove(&mut self.links, slot);
            list.push_newest(&mut self.links, slot);
        }
        Some(tier)
    }

    /// Puts a segment into memory; without room even in an empty one it is to go on to flash at once.
    pub fn put(&mut self, request: &Request, paid: bool) -> Slot {
        let Request { segment, bucket, bytes, .. } = *request;
        let entry = Entry { segment, bucket, tier: Tier::Dram, paid };
        let slot = if let Some(slot) = self.free.pop() {
            self.entries[slot.0 as usize] = entry;
            slot
        } else {
            self.entries.push(entry);
            Slot(u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 residents"))
        };
        self.links.prepare(slot, bytes);
        self.slots.insert(segment.0, slot);
        self.dram.push_newest(&mut self.links, slot);
        slot
    }

    /// The next to leave memory, while there is too much in it.
    pub fn overflow(&self) -> Option<Slot> {
        if self.dram.weight() > self.dram_max { self.dram.oldest() } else { None }
    }

    /// Would this segment fit on empty flash?
    pub fn fits_flash(&self, slot: Slot) -> bool {
        self.links.weight(slot) <= self.flash_max
    }

    /// The next to leave flash so that this segment finds room.
    pub fn in_the_way_of(&self, slot: Slot) -> Option<Slot> {
        let needed = self.flash.weight() + self.links.weight(slot);
        if needed > self.flash_max { self.flash.oldest() } else { None }
    }

    /// Moves a segment from memory to flash.
    pub fn store(&mut self, slot: Slot) {
        self.dram.remove(&mut self.links, slot);
        self.entries[slot.0 as usize].tier = Tier::Flash;
        self.flash.push_newest(&mut self.links, slot);
    }

    /// Puts a segment on flash to the newest end, as if it were written again.
    pub fn renew(&mut self, slot: Slot) {
        self.flash.remove(&mut self.links, slot);
        self.flash.push_newest(&mut self.links, slot);
    }

    pub fn drop(&mut self, slot: Slot) -> Segment {
        let entry = self.entries[slot.0 as usize];
        let list = if entry.tier == Tier::Dram { &mut self.dram } else { &mut self.flash };
        list.remove(&mut self.links, slot);
        self.slots.remove(&entry.segment.0);
        self.free.push(slot);
        entry.segment
    }

    pub fn segment(&self, slot: Slot) -> Segment {
        self.entries[slot.0 as usize].segment
    }

    pub fn bucket(&self, slot: Slot) -> Bucket {
        self.entries[slot.0 as usize].bucket
    }

    pub fn paid(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].paid
    }

    pub fn bytes(&self, slot: Slot) -> u32 {
        u32::try_from(self.links.weight(slot)).expect("a segment's length is 32-bit")
    }
}

//! Two-tier LRU: a queue in memory above a queue on flash, as in `CacheLib`.
//!
//! Admitted segments enter memory first and move to flash when they leave it. Both queues are LRU
//! or FIFO.

use super::types::{Bucket, Request, Segment};
use crate::util::{
    slab_list::{Links, List, Slot},
    stable_hash::StableMap,
};

/// Order in which segments leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Least recently used first.
    Lru,
    /// First in, first out.
    Fifo,
}

/// Where a segment is resident.
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
    /// Its flash write has already been charged to the write limit.
    write_charged: bool,
}

/// The two queues.
#[derive(Debug)]
pub(super) struct TwoTierLru {
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

impl TwoTierLru {
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

    /// Resident bytes in memory and on flash.
    pub fn used(&self) -> (u64, u64) {
        (self.dram.weight(), self.flash.weight())
    }

    /// Records a read of a resident segment. Returns where it is.
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

    /// Inserts a segment into memory. The caller then empties [`Self::overflow`], which may move
    /// the same segment on to flash.
    pub fn insert(&mut self, request: &Request, write_charged: bool) -> Slot {
        let Request { segment, bucket, bytes, .. } = *request;
        let entry = Entry { segment, bucket, tier: Tier::Dram, write_charged };
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

    /// The next segment to leave memory, while memory is over its limit.
    pub fn overflow(&self) -> Option<Slot> {
        if self.dram.weight() > self.dram_max { self.dram.oldest() } else { None }
    }

    /// Whether the segment would fit on empty flash.
    pub fn fits_flash(&self, slot: Slot) -> bool {
        self.links.weight(slot) <= self.flash_max
    }

    /// The next segment to evict from flash before this one fits.
    pub fn flash_victim_for(&self, slot: Slot) -> Option<Slot> {
        let needed = self.flash.weight() + self.links.weight(slot);
        if needed > self.flash_max { self.flash.oldest() } else { None }
    }

    /// Moves a segment from memory to flash.
    pub fn move_to_flash(&mut self, slot: Slot) {
        self.dram.remove(&mut self.links, slot);
        self.entries[slot.0 as usize].tier = Tier::Flash;
        self.flash.push_newest(&mut self.links, slot);
    }

    /// Moves a flash segment to the newest end, as if it were written again.
    pub fn reinsert(&mut self, slot: Slot) {
        self.flash.remove(&mut self.links, slot);
        self.flash.push_newest(&mut self.links, slot);
    }

    /// Removes a segment.
    pub fn remove(&mut self, slot: Slot) -> Segment {
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

    pub fn is_write_charged(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].write_charged
    }

    pub fn bytes(&self, slot: Slot) -> u32 {
        u32::try_from(self.links.weight(slot)).expect("a segment's length is 32-bit")
    }
}

//! Memory queue: the segments in memory, above flash, in LRU or FIFO order (as in `CacheLib`).
//!
//! Memory is small beside flash, so its segments are known one by one.

use super::types::{Resident, Segment};
use crate::util::{
    slab_list::{Links, List, Slot},
    stable_hash::StableMap,
};

/// Order in which segments and regions leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Least recently used first.
    Lru,
    /// First in, first out.
    Fifo,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InMemory {
    pub resident: Resident,
    /// Its flash write has already been charged to the write limit.
    pub write_charged: bool,
}

/// The queue.
#[derive(Debug)]
pub(super) struct MemoryQueue {
    eviction: Eviction,
    slots: StableMap<Segment, Slot>,
    entries: Vec<InMemory>,
    free: Vec<Slot>,
    links: Links,
    list: List,
    bytes_max: u64,
}

impl MemoryQueue {
    pub fn new(eviction: Eviction, bytes_max: u64) -> Self {
        Self {
            eviction,
            slots: StableMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            list: List::default(),
            bytes_max,
        }
    }

    /// Whether there is memory at all for a segment of this length.
    pub fn can_hold(&self, length: u32) -> bool {
        u64::from(length) <= self.bytes_max
    }

    pub fn used(&self) -> u64 {
        self.list.weight()
    }

    /// Records a read.
    #[inline]
    pub fn touch(&mut self, segment: Segment) {
        if self.eviction == Eviction::Lru
            && let Some(slot) = self.slots.get(&segment).copied()
        {
            self.list.remove(&mut self.links, slot);
            self.list.push_newest(&mut self.links, slot);
        }
    }

    pub fn insert(&mut self, entry: InMemory) {
        self.remove(entry.resident.segment);
        let slot = if let Some(slot) = self.free.pop() {
            self.entries[slot.0 as usize] = entry;
            slot
        } else {
            self.entries.push(entry);
            Slot(u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 residents"))
        };
        self.links.prepare(slot, entry.resident.length);
        self.slots.insert(entry.resident.segment, slot);
        self.list.push_newest(&mut self.links, slot);
    }

    /// Removes the next segment to leave, while memory is over its limit.
    pub fn pop_overflow(&mut self) -> Option<InMemory> {
        let oldest = self.list.oldest().filter(|_| self.list.weight() > self.bytes_max)?;
        let entry = self.entries[oldest.0 as usize];
        self.remove(entry.resident.segment);
        Some(entry)
    }

    pub fn remove(&mut self, segment: Segment) {
        if let Some(slot) = self.slots.remove(&segment) {
            self.list.remove(&mut self.links, slot);
            self.free.push(slot);
        }
    }
}

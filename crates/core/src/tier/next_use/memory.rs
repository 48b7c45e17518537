//! Memory stage of `next-use`: segments above flash, known one by one and ranked like regions.

use std::time::Duration;

use super::rank::{Rank, RankOrder};
use crate::tier::types::{Resident, Segment};
use crate::util::stable_hash::StableMap;

#[derive(Debug, Clone, Copy)]
pub(super) struct InMemory {
    pub resident: Resident,
    /// Trail position.
    pub position: u32,
    /// Time of the last read.
    pub touched: Duration,
}

/// The segments in memory.
#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: u64,
    bytes: u64,
    slots: StableMap<Segment, u32>,
    entries: Vec<InMemory>,
    free: Vec<u32>,
    order: RankOrder,
}

impl Memory {
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            slots: StableMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            order: RankOrder::default(),
        }
    }

    pub fn used(&self) -> u64 {
        self.bytes
    }

    /// Number of slots that may hold a segment.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("fewer than 2^32 segments in memory")
    }

    pub fn can_hold(&self, length: u32) -> bool {
        u64::from(length) <= self.bytes_max
    }

    /// Whether a segment of this rank may enter: into free space, or in place of a later one.
    pub fn admits(&self, now: Duration, length: u32, rank: Rank) -> bool {
        self.can_hold(length)
            && (self.bytes + u64::from(length) <= self.bytes_max
                || self.order.last().is_some_and(|(last, _)| rank.is_sooner(now, last)))
    }

    pub fn insert(&mut self, entry: InMemory, rank: Rank) {
        self.remove(entry.resident.segment);
        let slot = if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = entry;
            slot
        } else {
            self.entries.push(entry);
            self.slots() - 1
        };
        self.bytes += u64::from(entry.resident.length);
        self.slots.insert(entry.resident.segment, slot);
        self.order.set(slot, rank);
    }

    /// Records a read. Returns the slot.
    pub fn touch(&mut self, now: Duration, segment: Segment) -> Option<u32> {
        let slot = *self.slots.get(&segment)?;
        self.entries[slot as usize].touched = now;
        Some(slot)
    }

    /// The segment in a slot.
    pub fn at(&self, slot: u32) -> Option<InMemory> {
        self.order.contains(slot).then(|| self.entries[slot as usize])
    }

    pub fn set_rank(&mut self, slot: u32, rank: Rank) {
        self.order.set(slot, rank);
    }

    /// Removes the segment with the latest rank, while memory is over its limit.
    pub fn pop_overflow(&mut self) -> Option<InMemory> {
        let (_, slot) = self.order.last().filter(|_| self.bytes > self.bytes_max)?;
        let entry = self.entries[slot as usize];
        self.remove(entry.resident.segment);
        Some(entry)
    }

    pub fn remove(&mut self, segment: Segment) {
        if let Some(slot) = self.slots.remove(&segment) {
            self.bytes -= u64::from(self.entries[slot as usize].resident.length);
            self.order.remove(slot);
            self.free.push(slot);
        }
    }
}

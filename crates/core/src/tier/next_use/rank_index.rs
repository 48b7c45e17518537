//! Residents in the order of their next use, cell by cell.
//!
//! A cell is a stretch of a bucket's trail, of those segments that the same jobs have read: its segments are due at about the same
//! time, so they are ranked together, and what ranks latest goes first. Ranks are moments, not spans:
//! they stay right while time passes, and are only computed again when what is known about jobs has changed.
//!
//! A heap has an entry for every cell; entries of older versions are skipped when they come up.

use std::collections::BinaryHeap;

use super::super::words::Bucket;
use crate::{
    list::{Links, List, Slot},
    stable::StableMap,
};

/// When a cell is due; greater is later. Moments are positive, so their bits sort as they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    pub fn at(seconds: f64) -> Self {
        Self(seconds.max(0.0).to_bits())
    }

    pub fn seconds(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// What the segments of a cell have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CellKey {
    pub bucket: Bucket,
    /// Which stretch of the trail.
    pub block: u32,
    /// Who has read them.
    pub read_by: u64,
}

#[derive(Debug)]
struct Cell {
    key: CellKey,
    list: List,
    rank: Rank,
    version: u32,
}

/// One tier's residents.
#[derive(Debug)]
pub(super) struct Cells {
    capacity: u64,
    used: u64,
    all: Vec<Cell>,
    by_key: StableMap<CellKey, u32>,
    free: Vec<u32>,
    heap: BinaryHeap<(Rank, u32, u32)>,
}

impl Cells {
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            all: Vec::new(),
            by_key: StableMap::default(),
            free: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Is there room without anybody leaving?
    pub fn has_room(&self, bytes: u32) -> bool {
        self.used + u64::from(bytes) <= self.capacity
    }

    /// Could there be room?
    pub fn can_hold(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.capacity
    }

    /// The cell of a key, ranked by `rank` if it is new.
    pub fn cell(&mut self, key: CellKey, rank: impl FnOnce() -> Rank) -> u32 {
        if let Some(cell) = self.by_key.get(&key) {
            return *cell;
        }
        let rank = rank();
        let index = if let Some(index) = self.free.pop() {
            let cell = &mut self.all[index as usize];
            (cell.key, cell.rank) = (key, rank);
            cell.version = cell.version.wrapping_add(1);
            index
        } else {
            self.all.push(Cell { key, list: List::default(), rank, version: 0 });
            u32::try_from(self.all.len() - 1).expect("no more cells than residents")
        };
        self.by_key.insert(key, index);
        self.heap.push((rank, index, self.all[index as usize].version));
        index
    }

    pub fn key(&self, cell: u32) -> CellKey {
        self.all[cell as usize].key
    }

    pub fn push(&mut self, links: &mut Links, cell: u32, slot: Slot) {
        self.used += links.weight(slot);
        self.all[cell as usize].list.push_newest(links, slot);
    }

    pub fn remove(&mut self, links: &mut Links, cell: u32, slot: Slot) {
        self.used -= links.weight(slot);
        let it = &mut self.all[cell as usize];
        it.list.remove(links, slot);
        if it.list.len() == 0 {
            it.version = it.version.wrapping_add(1);
            self.by_key.remove(&it.key);
            self.free.push(cell);
        }
    }

    /// Who goes next: the rank of the last cell, and the one that has been in it for longest.
    pub fn last(&mut self) -> Option<(Rank, Slot)> {
        while let Some((rank, cell, version)) = self.heap.peek().copied() {
            let it = &self.all[cell as usize];
            if it.version == version
                && let Some(oldest) = it.list.oldest()
            {
                return Some((rank, oldest));
            }
            self.heap.pop();
        }
        None
    }

    /// Ranks all cells anew.
    pub fn rank_all(&mut self, mut rank: impl FnMut(CellKey, Slot) -> Rank) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        for (index, cell) in self.all.iter_mut().enumerate() {
            if let Some(oldest) = cell.list.oldest() {
                cell.rank = rank(cell.key, oldest);
                let index = u32::try_from(index).expect("cells are counted");
                entries.push((cell.rank, index, cell.version));
            }
        }
        self.heap = entries.into();
    }

    /// Members of all cells of a bucket that this reader has read.
    pub fn read_by(&self, links: &Links, bucket: Bucket, bit: u8) -> Vec<Slot> {
        let mut slots = Vec::new();
        for cell in &self.all {
            if cell.key.bucket == bucket && cell.key.read_by >> bit & 1 == 1 {
                let mut next = cell.list.oldest();
                while let Some(slot) = next {
                    slots.push(slot);
                    next = links.newer(slot);
                }
            }
        }
        slots
    }
}

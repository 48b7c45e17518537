//! Rank index: residents in the order of their next use.
//!
//! Residents are grouped in **cells**: segments of one stretch of a bucket's trail that the same
//! jobs have read. They have about the same next use, so they share a rank. The cell with the
//! latest rank is evicted first. A rank is a point in time, so it stays valid while time passes and
//! is recomputed only when the knowledge about jobs changes.
//!
//! A heap has an entry for every cell. Entries of older versions are skipped when they come up.

use std::collections::BinaryHeap;

use crate::tier::types::Bucket;
use crate::util::{
    slab_list::{Links, List, Slot},
    stable_hash::StableMap,
};

/// Time of a cell's next use; greater is later. Times are positive, so their bits sort as they do.
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

/// Common properties of the segments of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CellKey {
    pub bucket: Bucket,
    /// Stretch of the trail.
    pub block: u32,
    /// Bits of the readers that have read them.
    pub read_by: u64,
}

#[derive(Debug)]
struct Cell {
    key: CellKey,
    list: List,
    rank: Rank,
    version: u32,
}

/// The residents of one tier.
#[derive(Debug)]
pub(super) struct RankIndex {
    capacity: u64,
    used: u64,
    cells: Vec<Cell>,
    by_key: StableMap<CellKey, u32>,
    free: Vec<u32>,
    /// Rank, cell and version.
    heap: BinaryHeap<(Rank, u32, u32)>,
}

impl RankIndex {
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            cells: Vec::new(),
            by_key: StableMap::default(),
            free: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether the bytes fit without an eviction.
    pub fn has_room(&self, bytes: u32) -> bool {
        self.used + u64::from(bytes) <= self.capacity
    }

    /// Whether the bytes would fit if the tier were empty.
    pub fn can_hold(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.capacity
    }

    /// Cell of a key, added with the rank `rank()` if it is new.
    pub fn cell(&mut self, key: CellKey, rank: impl FnOnce() -> Rank) -> u32 {
        if let Some(cell) = self.by_key.get(&key) {
            return *cell;
        }
        let rank = rank();
        let index = if let Some(index) = self.free.pop() {
            let cell = &mut self.cells[index as usize];
            (cell.key, cell.rank) = (key, rank);
            cell.version = cell.version.wrapping_add(1);
            index
        } else {
            self.cells.push(Cell { key, list: List::default(), rank, version: 0 });
            u32::try_from(self.cells.len() - 1).expect("fewer than 2^32 cells")
        };
        self.by_key.insert(key, index);
        self.heap.push((rank, index, self.cells[index as usize].version));
        index
    }

    pub fn key(&self, cell: u32) -> CellKey {
        self.cells[cell as usize].key
    }

    pub fn push(&mut self, links: &mut Links, cell: u32, slot: Slot) {
        self.used += links.weight(slot);
        self.cells[cell as usize].list.push_newest(links, slot);
    }

    pub fn remove(&mut self, links: &mut Links, cell: u32, slot: Slot) {
        self.used -= links.weight(slot);
        let entry = &mut self.cells[cell as usize];
        entry.list.remove(links, slot);
        if entry.list.len() == 0 {
            entry.version = entry.version.wrapping_add(1);
            self.by_key.remove(&entry.key);
            self.free.push(cell);
        }
    }

    /// The next victim: the latest rank, and the oldest segment of its cell.
    pub fn last(&mut self) -> Option<(Rank, Slot)> {
        while let Some((rank, cell, version)) = self.heap.peek().copied() {
            let entry = &self.cells[cell as usize];
            if entry.version == version
                && let Some(oldest) = entry.list.oldest()
            {
                return Some((rank, oldest));
            }
            self.heap.pop();
        }
        None
    }

    /// Recomputes the ranks of all cells.
    pub fn rank_all(&mut self, mut rank: impl FnMut(CellKey, Slot) -> Rank) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        for (index, cell) in self.cells.iter_mut().enumerate() {
            if let Some(oldest) = cell.list.oldest() {
                cell.rank = rank(cell.key, oldest);
                let index = u32::try_from(index).expect("fewer than 2^32 cells");
                entries.push((cell.rank, index, cell.version));
            }
        }
        self.heap = entries.into();
    }

    /// Segments of a bucket that the reader of this bit has read.
    pub fn read_by(&self, links: &Links, bucket: Bucket, bit: u8) -> Vec<Slot> {
        let mut slots = Vec::new();
        for cell in &self.cells {
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

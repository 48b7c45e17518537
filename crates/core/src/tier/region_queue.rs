//! Region queue: sealed regions in LRU or FIFO order (as `CacheLib`'s block cache evicts).
//!
//! A hit renews the whole region of the segment.

use super::{memory_queue::Eviction, region_table::RegionTable, types::RegionId};
use crate::util::slab_list::{Links, List, Slot};

/// The queue.
#[derive(Debug)]
pub(super) struct RegionQueue {
    eviction: Eviction,
    table: RegionTable<()>,
    links: Links,
    sealed: List,
}

impl RegionQueue {
    pub fn new(eviction: Eviction, regions: u32) -> Self {
        let mut links = Links::default();
        if let Some(last) = regions.checked_sub(1) {
            links.prepare(Slot(last), 1);
        }
        Self { eviction, table: RegionTable::new(regions), links, sealed: List::default() }
    }

    /// Number of regions.
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    pub fn used(&self) -> u32 {
        self.table.used()
    }

    pub fn unknown(&self) -> u64 {
        self.table.unknown
    }

    /// Records a read of one of its segments.
    #[inline]
    pub fn touch(&mut self, region: RegionId) {
        if self.eviction == Eviction::Lru && self.table.get_mut(region).is_some() {
            let is_sealed = self.table.at(region.index).is_some_and(|(_, (), sealed)| sealed);
            if is_sealed {
                self.sealed.remove(&mut self.links, Slot(region.index));
                self.sealed.push_newest(&mut self.links, Slot(region.index));
            }
        }
    }

    /// A segment was stored in a region.
    pub fn on_stored(&mut self, region: RegionId) {
        // A newer generation stands for a region that was freed without a report.
        if let Some((known, (), true)) = self.table.at(region.index)
            && known.generation < region.generation
        {
            self.sealed.remove(&mut self.links, Slot(region.index));
        }
        self.table.stored(region, || ());
    }

    pub fn on_sealed(&mut self, region: RegionId) {
        if self.table.seal(region).is_some() {
            self.links.prepare(Slot(region.index), 1);
            self.sealed.push_newest(&mut self.links, Slot(region.index));
        }
    }

    pub fn on_freed(&mut self, region: RegionId) {
        if let Some(((), true)) = self.table.free(region) {
            self.sealed.remove(&mut self.links, Slot(region.index));
        }
    }

    /// The region that leaves next.
    pub fn oldest(&self) -> Option<RegionId> {
        let slot = self.sealed.oldest()?;
        self.table.at(slot.0).map(|(region, ..)| region)
    }
}

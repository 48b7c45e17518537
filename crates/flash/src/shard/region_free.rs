//! How a region comes to be free again: given up, read and written to the end, and, where that has been
//! promised, made to say so.

use super::{Group, Life, Purpose, Refusal, RegionState, Shard, region::Former, sync::Durable};
use crate::{
    index::Location,
    io::{Command, Fault},
    layout::{BLOCK_SIZE, EntryShape, RegionHeader, RegionId, Use},
};

/// Damaged entries after which a region is not trusted for a while.
pub(super) const DAMAGED_MAX: u32 = 3;

impl<T> Shard<T> {
    /// Gives a region up: nothing in it is found from now on.
    pub(super) fn leave(&mut self, id: RegionId, drain: Option<u32>) {
        let RegionId(at) = id;
        let region = &mut self.regions[at as usize];
        if matches!(region.state, RegionState::Free | RegionState::Leaving { .. }) {
            return;
        }
        let open = std::mem::replace(&mut region.state, RegionState::Leaving { drain });
        self.counters.entries -= std::mem::take(&mut region.entries);
        self.counters.bytes -= std::mem::take(&mut region.bytes);
        let lows = std::mem::take(&mut region.lows);
        let group = region.group.take();
        let mut awaited = Vec::new();
        match open {
            // Its own header is not durable: what a crash brings back is still what was there before.
            RegionState::Filling(open) | RegionState::Sealing(open) if !open.header_is_durable => {
                awaited = open.awaited;
            }
            _ => region.former = group.map_or(region.former, Former::Group),
        }
        let mut index = self.index.write();
        index.remove_region(id, &lows);
        if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
            index.remove_region_of(group.id, id);
            group.regions.retain(|other| *other != id);
            if group.open == Some(id) {
                group.open = None;
            }
        }
        drop(index);
        self.footers.retain(|other| *other != id);
        self.answer_flushers();
        for drain in awaited {
            self.unname(id, drain);
        }
        self.try_leave(id);
    }

    /// What lies at this place is not found any more, and does not count. Its length is known to a unit.
    pub(crate) fn uncount(&mut self, location: Location) {
        let region = self.region(location.region());
        let bytes = match region.entries {
            // It was given up meanwhile.
            0 => return,
            1 => region.bytes,
            _ => EntryShape::of_size(location.size()).length().min(region.bytes),
        };
        region.entries -= 1;
        region.bytes -= bytes;
        self.counters.entries -= 1;
        self.counters.bytes -= bytes;
    }

    /// A region in which nothing is found any more takes no room.
    pub(super) fn leave_if_dead(&mut self, id: RegionId) {
        let region = &self.regions[id.0 as usize];
        let is_dead = region.entries == 0 && matches!(region.state, RegionState::Sealed);
        let group = region.group.and_then(|group| self.groups.get(&group));
        let may_go = |group: &Group<T>| {
            group.life == Life::Filling && !group.dense && group.may_lose_regions()
        };
        if is_dead && group.is_some_and(may_go) {
            self.leave(id, None);
        }
    }

    /// Sees to it that a region that is nobody's does not say that it is somebody's.
    pub(super) fn unname(&mut self, id: RegionId, waiting: u32) {
        self.free.retain(|free| *free != id);
        let region = self.region(id);
        match &mut region.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => open.awaited.push(waiting),
            // One header is enough for all who wait.
            RegionState::Leaving { drain: Some(_) } => region.also.push(waiting),
            RegionState::Leaving { drain } => *drain = Some(waiting),
            RegionState::Free | RegionState::Quarantined { .. } => {
                region.state = RegionState::Leaving { drain: Some(waiting) };
                self.quarantined.retain(|(_, other)| *other != id);
                self.try_leave(id);
            }
            RegionState::Sealed => unreachable!("a sealed region is what its header says"),
        }
    }

    /// A region that nobody reads or writes any more can be used again.
    pub(super) fn try_leave(&mut self, id: RegionId) {
        let region = self.region(id);
        let RegionState::Leaving { drain } = region.state else { return };
        if region.readers > 0 || region.writes > 0 {
            return;
        }
        match drain {
            // Its old header must not bring it back.
            Some(_) => self.write_freed(id),
            None => self.set_free(id),
        }
    }

    pub(super) fn set_free(&mut self, id: RegionId) {
        let until = self.now.saturating_add(self.settings.quarantine);
        let region = self.region(id);
        if region.damaged >= DAMAGED_MAX {
            region.state = RegionState::Quarantined { until };
            self.quarantined.push((until, id));
            tracing::warn!(
                region = id.0,
                "a region is not used for a while: much in it was damaged"
            );
        } else {
            region.state = RegionState::Free;
            self.free.push_back(id);
        }
    }

    fn write_freed(&mut self, id: RegionId) {
        // Without memory it stays as it is, and is tried again.
        let Some(mut block) = self.memory.staging.take(BLOCK_SIZE) else {
            self.unfreed.push(id);
            return;
        };
        let generation = self.next_generation();
        let geometry = self.geometry();
        RegionHeader { device: geometry.device, generation, usage: Use::Free }.encode(&mut block);
        let region = self.region(id);
        region.generation = generation;
        region.writes += 1;
        self.write(Purpose::Freeing(id), geometry.region_offset(id), block.freeze());
    }

    pub(super) fn pump_unfreed(&mut self) {
        for id in std::mem::take(&mut self.unfreed) {
            self.write_freed(id);
        }
    }

    pub(super) fn freeing_written(&mut self, id: RegionId, result: Result<(), Fault>) {
        self.region(id).writes -= 1;
        match result {
            Ok(()) => self.make_durable(Durable::Freed, id),
            Err(_) => self.freed(id, result),
        }
    }

    /// The header says that the region is free, or could not be made to say so.
    pub(super) fn freed(&mut self, id: RegionId, result: Result<(), Fault>) {
        let RegionState::Leaving { drain: Some(drain) } = self.region(id).state else { return };
        let also = std::mem::take(&mut self.region(id).also);
        if result.is_ok() {
            self.region(id).former = Former::Nobody;
        }
        if self.settings.discard && result.is_ok() {
            self.discard(id);
        } else {
            self.set_free(id);
        }
        for drain in also.into_iter().chain([drain]) {
            self.drained(drain, result.is_ok());
        }
    }

    /// It is not to be filled before the device has forgotten it.
    fn discard(&mut self, region: RegionId) {
        self.region(region).state = RegionState::Leaving { drain: None };
        self.region(region).writes += 1;
        let geometry = self.geometry();
        let offset = geometry.region_offset(region) + BLOCK_SIZE as u64;
        let length = geometry.region_size - BLOCK_SIZE as u64;
        let id = self.begin(Purpose::Discard(region));
        self.commands.push(Command::Discard { id, offset, length });
    }

    pub(super) fn discarded(&mut self, id: RegionId) {
        self.region(id).writes -= 1;
        self.try_leave(id);
    }

    /// The device failed under a region that was being written: its content is given up.
    pub(super) fn lose_region(&mut self, id: RegionId) {
        let region = self.region(id);
        if region.open().is_none() {
            return self.try_leave(id);
        }
        let group = region.group;
        self.counters.regions_lost += 1;
        self.leave(id, None);
        if let Some(group) = group {
            self.answer_sealers(group, Some(&Refusal::Failed));
        }
    }

    pub(super) fn end_quarantines(&mut self) {
        let now = self.now;
        let ended: Vec<_> = self.quarantined.extract_if(.., |(until, _)| *until <= now).collect();
        for (_, id) in ended {
            self.region(id).damaged = 0;
            self.set_free(id);
        }
    }

    /// An entry is not what was written. It is a miss from now on; a region with many such is given up.
    pub(super) fn entry_damaged(&mut self, id: RegionId) {
        self.counters.entries_damaged += 1;
        let region = self.region(id);
        region.damaged += 1;
        if region.damaged >= DAMAGED_MAX && matches!(region.state, RegionState::Sealed) {
            self.counters.regions_lost += 1;
            self.leave(id, None);
        }
    }
}

//! Freeing of regions: after a region is given up, reads and writes in progress end, and, for a
//! freed group that a restart would find, a header that says "free" is made durable.

use std::{ops::Range, time::Duration};

use super::{
    GroupState, Purpose, Region, RegionRef, RegionState, RequestError, RequestResult, Shard,
    ShardAnswer, ShardGroup, region::HeaderOwner, sync::SyncTarget,
};
use crate::{
    format::{BLOCK_SIZE, EntryShape, RegionHeader, RegionId, RegionUse},
    index::{GroupId, Location, ORDINALS_MAX},
    io::{IoCommand, IoFault},
};

/// Damaged entries after which a region is quarantined.
pub(super) const DAMAGED_MAX: u32 = 3;

/// A request that waits for a free region.
#[derive(Debug)]
pub struct SpaceWaiter<T> {
    token: T,
    pub(super) until: Option<Duration>,
}

impl Region {
    /// Its header on the device names the group that gives it up. A restart ignores the headers of
    /// ephemeral groups.
    fn set_header_owner<T>(&mut self, owner: Option<&ShardGroup<T>>) {
        match owner {
            Some(group) if group.is_ephemeral() => self.header_owner = HeaderOwner::None,
            Some(group) => self.header_owner = HeaderOwner::Group(group.id),
            None => {}
        }
    }
}

impl<T> Shard<T> {
    /// Gives a region up and removes its entries from the index.
    pub(super) fn free_region(&mut self, id: RegionId, drain: Option<u32>) {
        let RegionId(at) = id;
        let region = &mut self.regions[at as usize];
        if matches!(region.state, RegionState::Free | RegionState::Freeing { .. }) {
            return;
        }
        let open = std::mem::replace(&mut region.state, RegionState::Freeing { drain });
        self.eviction.on_freed(RegionRef { region: id, generation: region.generation });
        let has_entries = region.entries > 0;
        self.counters.entries -= std::mem::take(&mut region.entries);
        self.counters.bytes -= std::mem::take(&mut region.bytes);
        let lows = std::mem::take(&mut region.lows);
        let group = region.group.take();
        let owner = group.and_then(|group| self.groups.get(&group));
        let (mut waiters, mut barriers) = (Vec::new(), Vec::new());
        match open {
            // Its own header is not durable, so a crash restores the previous contents.
            RegionState::Filling(open) | RegionState::Sealing(open) => {
                barriers = open.barriers;
                if open.header_is_durable {
                    region.set_header_owner(owner);
                } else {
                    waiters = open.header_waiters;
                }
            }
            _ => region.set_header_owner(owner),
        }
        let mut index = self.index.write();
        index.remove_region(id, &lows);
        if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
            if has_entries {
                index.remove_region_of(group.id, id);
            }
            group.regions.retain(|other| *other != id);
            if group.open == Some(id) {
                group.open = None;
            }
            if group.prepared == Some(id) {
                group.prepared = None;
            }
        }
        drop(index);
        for barrier in barriers {
            self.on_barrier_part(barrier.id, false);
        }
        self.footers.retain(|other| *other != id);
        self.answer_flushes();
        for drain in waiters {
            self.clear_header(id, drain);
        }
        self.try_finish_free(id);
    }

    /// Subtracts an entry that is no longer indexed from the counts. Its length is known to within
    /// one unit.
    pub(crate) fn subtract_entry(&mut self, location: Location) {
        let region = self.region(location.region());
        let bytes = match region.entries {
            // The region has been given up meanwhile.
            0 => return,
            1 => region.bytes,
            _ => EntryShape::of_size(location.size()).length().min(region.bytes),
        };
        region.entries -= 1;
        region.bytes -= bytes;
        self.counters.entries -= 1;
        self.counters.bytes -= bytes;
    }

    /// Removes entries of a dense group from the index, and frees the regions that are empty then.
    pub(super) fn release_ordinals(
        &mut self,
        id: GroupId,
        ordinals: Vec<Range<u64>>,
    ) -> RequestResult {
        let group = self.groups.get(&id).ok_or(RequestError::Gone)?;
        if !group.dense {
            return Err(RequestError::InvalidName);
        }
        let mut released = Vec::new();
        let mut index = self.index.write();
        for range in ordinals {
            for ordinal in range.start..range.end.min(ORDINALS_MAX) {
                if let Some(location) = index.find_ordinal(id, ordinal) {
                    index.remove_ordinal(id, ordinal, location);
                    released.push(location);
                }
            }
        }
        drop(index);
        for location in &released {
            self.subtract_entry(*location);
            self.region(location.region()).released = true;
        }
        for location in released {
            self.free_if_empty(location.region());
        }
        Ok(ShardAnswer::Done)
    }

    /// Answers now, when a region becomes free, or after the timeout.
    pub(super) fn await_space(&mut self, token: T, timeout: Option<Duration>) {
        let until = timeout.map(|timeout| self.now.saturating_add(timeout));
        self.space_waiters.push(SpaceWaiter { token, until });
        self.answer_space_waiters();
    }

    fn answer_space_waiters(&mut self) {
        if !self.free.is_empty() {
            let waiters = self.space_waiters.drain(..);
            self.answers.extend(waiters.map(|waiter| (waiter.token, Ok(ShardAnswer::Done))));
        }
    }

    pub(super) fn time_out_space_waiters(&mut self) {
        let is_over = |waiter: &mut SpaceWaiter<T>| waiter.until.is_some_and(|at| at <= self.now);
        let over = self.space_waiters.extract_if(.., is_over);
        self.answers.extend(over.map(|waiter| (waiter.token, Ok(ShardAnswer::Done))));
    }

    /// Frees a sealed region without indexed entries.
    pub(super) fn free_if_empty(&mut self, id: RegionId) {
        let region = &self.regions[id.0 as usize];
        let is_empty = region.entries == 0 && matches!(region.state, RegionState::Sealed);
        let group = region.group.and_then(|group| self.groups.get(&group));
        let may_be_freed = |group: &ShardGroup<T>| {
            let of_cache = group.state == GroupState::Filling && group.may_lose_regions();
            region.released || (!group.dense && of_cache)
        };
        if is_empty && group.is_some_and(may_be_freed) {
            self.free_region(id, None);
        }
    }

    /// Makes the header of an unowned region name no group.
    pub(super) fn clear_header(&mut self, id: RegionId, waiting: u32) {
        self.free.retain(|free| *free != id);
        let region = self.region(id);
        match &mut region.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => {
                open.header_waiters.push(waiting);
            }
            // One header write serves all drains.
            RegionState::Freeing { drain: Some(_) } => region.more_drains.push(waiting),
            RegionState::Freeing { drain } => *drain = Some(waiting),
            RegionState::Free | RegionState::Quarantined { .. } => {
                region.state = RegionState::Freeing { drain: Some(waiting) };
                self.quarantined.retain(|(_, other)| *other != id);
                self.try_finish_free(id);
            }
            RegionState::Sealed => unreachable!("a sealed region's header names its owner"),
        }
    }

    /// Finishes freeing a region once its last read and write have ended.
    pub(super) fn try_finish_free(&mut self, id: RegionId) {
        let region = self.region(id);
        let RegionState::Freeing { drain } = region.state else { return };
        if region.readers > 0 || region.writes > 0 {
            return;
        }
        match drain {
            // The old header must not restore it.
            Some(_) => self.write_free_header(id),
            None => self.finish_free(id),
        }
    }

    /// Counts a region as drained when its last read and write have ended.
    pub(super) fn await_free(&mut self, id: RegionId, drain: u32) {
        let region = self.region(id);
        match region.state {
            RegionState::Freeing { .. } => region.more_drains.push(drain),
            _ => self.on_region_drained(drain, true),
        }
    }

    pub(super) fn finish_free(&mut self, id: RegionId) {
        let until = self.now.saturating_add(self.settings.quarantine);
        let region = self.region(id);
        if region.damaged >= DAMAGED_MAX {
            region.state = RegionState::Quarantined { until };
            self.quarantined.push((until, id));
            tracing::warn!(region = id.0, "damaged region quarantined");
        } else {
            region.state = RegionState::Free;
            self.free.push_back(id);
            self.answer_space_waiters();
        }
        for drain in std::mem::take(&mut self.region(id).more_drains) {
            self.on_region_drained(drain, true);
        }
    }

    fn write_free_header(&mut self, id: RegionId) {
        // Without memory, `pump_free_headers` tries again.
        let Some(mut block) = self.pools.staging.take(BLOCK_SIZE) else {
            self.pending_free_headers.push(id);
            return;
        };
        let generation = self.next_generation();
        let geometry = self.geometry();
        RegionHeader { device: geometry.device, generation, usage: RegionUse::Free }
            .encode(&mut block);
        let region = self.region(id);
        region.generation = generation;
        region.writes += 1;
        self.write(Purpose::FreeHeader(id), geometry.region_offset(id), block.freeze());
    }

    pub(super) fn pump_free_headers(&mut self) {
        for id in std::mem::take(&mut self.pending_free_headers) {
            self.write_free_header(id);
        }
    }

    pub(super) fn on_free_header_written(&mut self, id: RegionId, result: Result<(), IoFault>) {
        self.region(id).writes -= 1;
        match result {
            Ok(()) => self.request_sync(SyncTarget::FreeHeader, id),
            Err(_) => self.on_header_cleared(id, result),
        }
    }

    /// The free header is durable, or could not be written.
    pub(super) fn on_header_cleared(&mut self, id: RegionId, result: Result<(), IoFault>) {
        let RegionState::Freeing { drain: Some(drain) } = self.region(id).state else { return };
        let more = std::mem::take(&mut self.region(id).more_drains);
        if result.is_ok() {
            self.region(id).header_owner = HeaderOwner::None;
        }
        if self.settings.discard && result.is_ok() {
            self.discard(id);
        } else {
            self.finish_free(id);
        }
        for drain in more.into_iter().chain([drain]) {
            self.on_region_drained(drain, result.is_ok());
        }
    }

    /// Discards a region's contents. The region is not filled before the discard has completed.
    fn discard(&mut self, region: RegionId) {
        self.region(region).state = RegionState::Freeing { drain: None };
        self.region(region).writes += 1;
        let geometry = self.geometry();
        let offset = geometry.region_offset(region) + BLOCK_SIZE as u64;
        let length = geometry.region_size - BLOCK_SIZE as u64;
        let id = self.begin(Purpose::Discard(region));
        self.commands.push(IoCommand::Discard { id, offset, length });
    }

    pub(super) fn on_discarded(&mut self, id: RegionId) {
        self.region(id).writes -= 1;
        self.try_finish_free(id);
    }

    /// Gives up a region whose write failed.
    pub(super) fn lose_region(&mut self, id: RegionId) {
        let region = self.region(id);
        if region.open().is_none() {
            return self.try_finish_free(id);
        }
        let group = region.group;
        self.counters.regions_lost += 1;
        self.free_region(id, None);
        if let Some(group) = group {
            self.answer_seals(group, Some(&RequestError::Failed));
        }
    }

    pub(super) fn end_quarantines(&mut self) {
        let now = self.now;
        let ended: Vec<_> = self.quarantined.extract_if(.., |(until, _)| *until <= now).collect();
        for (_, id) in ended {
            self.region(id).damaged = 0;
            self.finish_free(id);
        }
    }

    /// Counts a damaged entry, which is a miss from now on. A region with [`DAMAGED_MAX`] of them
    /// is given up, unless it holds other entries of streams, which exist nowhere else.
    pub(super) fn count_damaged_entry(&mut self, id: RegionId) {
        self.counters.entries_damaged += 1;
        let group = self.region(id).group.and_then(|group| self.groups.get(&group));
        let of_stream = group.is_some_and(ShardGroup::is_stream);
        let region = self.region(id);
        region.damaged += 1;
        let is_sealed = matches!(region.state, RegionState::Sealed);
        if region.damaged >= DAMAGED_MAX && is_sealed && !of_stream {
            self.counters.regions_lost += 1;
            self.free_region(id, None);
        }
    }
}

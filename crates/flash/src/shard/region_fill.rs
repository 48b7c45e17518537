//! Filling of regions, from allocation to sealing: header, entries, footer, each made durable
//! before the next.

use super::{
    Candidate, OpenRegion, Purpose, Region, RegionRef, RegionState, RequestError, Shard,
    ShardGroup,
    region::{BarrierEnd, HeaderOwner, StagedWrite, WriteState},
    sync::SyncTarget,
};
use crate::{
    format::{BLOCK_SIZE, Footer, RegionHeader, RegionId, RegionUse},
    index::GroupId,
    io::IoFault,
};

impl<T> Shard<T> {
    pub(super) fn region(&mut self, RegionId(region): RegionId) -> &mut Region {
        &mut self.regions[region as usize]
    }

    /// A region to fill; evicts one if necessary. `Ok(None)` if one will be free soon.
    pub(super) fn take_region(&mut self) -> Result<Option<RegionId>, RequestError> {
        if let Some(region) = self.free.pop_front() {
            return Ok(Some(region));
        }
        // Regions that are being freed or sealed are waited for, rather than evicting more.
        let freeing = |region: &Region| matches!(region.state, RegionState::Freeing { .. });
        if self.regions.iter().any(freeing) {
            return Ok(None);
        }
        if let Some(victim) = self.named_victim() {
            return Ok(self.evict(victim));
        }
        let Self { groups, regions, eviction, .. } = self;
        let mut candidates = regions.iter().enumerate().filter_map(|(at, region)| {
            let group = groups.get(&region.group?)?;
            let may_go = group.may_lose_regions() && !group.is_stream();
            (matches!(region.state, RegionState::Sealed) && may_go).then(|| Candidate {
                region: RegionId(u32::try_from(at).expect("at most REGIONS_MAX")),
                generation: region.generation,
                group: &group.name,
                class: group.class,
                entries: region.entries,
                bytes: region.bytes,
            })
        });
        let Some(victim) = eviction.victim(&mut candidates) else {
            let sealing = |region: &Region| matches!(region.state, RegionState::Sealing(_));
            let soon = self.regions.iter().any(sealing);
            return if soon { Ok(None) } else { Err(RequestError::NoSpace) };
        };
        Ok(self.evict(victim))
    }

    /// Frees a region to make room. Returns a free one, unless that waits for reads in progress.
    fn evict(&mut self, victim: RegionId) -> Option<RegionId> {
        self.counters.regions_evicted += 1;
        self.free_region(victim, None);
        self.free.pop_front()
    }

    /// The region that the eviction policy names, if it may be evicted.
    fn named_victim(&mut self) -> Option<RegionId> {
        let RegionRef { region: id, generation } = self.eviction.named_victim()?;
        let region = self.regions.get(id.0 as usize)?;
        let group = self.groups.get(&region.group?)?;
        let may_go = group.may_lose_regions()
            && !group.is_stream()
            && matches!(region.state, RegionState::Sealed)
            && region.generation == generation;
        may_go.then_some(id)
    }

    /// Begins a new generation of a region, for a group. False if there is no memory for the
    /// header.
    pub(super) fn begin_region(&mut self, id: RegionId, group: GroupId) -> bool {
        let Some(mut block) = self.pools.staging.take(BLOCK_SIZE) else {
            self.free.push_front(id);
            return false;
        };
        let generation = self.next_generation();
        let owner = self.groups.get_mut(&group).expect("the caller's group exists");
        owner.regions.push(id);
        let ephemeral = owner.is_ephemeral();
        let usage =
            RegionUse::Group { name: owner.name.clone(), class: owner.class, dense: owner.dense };
        let device = self.superblock.geometry.device;
        RegionHeader { device, generation, usage }.encode(&mut block);
        let header_owner = self.region(id).header_owner;
        // A restart ignores the contents of an ephemeral region, unless the previous header is
        // found and names another group.
        let header_is_durable = ephemeral && header_owner == HeaderOwner::None;
        let open = OpenRegion { header_is_durable, ..OpenRegion::default() };
        *self.region(id) = Region {
            generation,
            group: Some(group),
            header_owner,
            state: RegionState::Filling(Box::new(open)),
            writes: 1,
            ..Region::free()
        };
        let offset = self.geometry().region_offset(id);
        self.write(Purpose::Header(id), offset, block.freeze());
        true
    }

    /// Opens the next region of a stream before the last one is full, so that the sync of its
    /// header costs the stream no time. Takes free regions only.
    pub(super) fn prepare_region(&mut self, id: GroupId) {
        let group = &self.groups[&id];
        let region_size = self.superblock.geometry.region_size;
        let is_nearly_full = |open: RegionId| {
            self.regions[open.0 as usize]
                .open()
                .is_some_and(|open| open.fill >= region_size / 4 * 3)
        };
        let is_wanted = group.is_stream()
            && !group.is_ephemeral()
            && group.prepared.is_none()
            && group.open.is_some_and(is_nearly_full);
        if is_wanted
            && let Some(region) = self.free.pop_front()
            && self.begin_region(region, id)
        {
            self.groups.get_mut(&id).expect("just seen").prepared = Some(region);
        }
    }

    /// Gives up a region that another group prepared. False if there is none.
    pub(super) fn give_up_prepared(&mut self, except: GroupId) -> bool {
        let mut others = self.groups.values().filter(|group| group.id != except);
        let prepared = others.find_map(|group| group.prepared);
        prepared.inspect(|region| self.free_region(*region, None)).is_some()
    }

    pub(super) fn on_header_written(&mut self, id: RegionId, result: Result<(), IoFault>) {
        let region = self.region(id);
        region.writes -= 1;
        match (result, region.open()) {
            (Ok(()), Some(open)) if open.header_is_durable => {}
            (Ok(()), Some(_)) => self.request_sync(SyncTarget::Header, id),
            (Err(_), Some(_)) => self.lose_region(id),
            (_, None) => self.try_finish_free(id),
        }
    }

    pub(super) fn on_header_durable(&mut self, id: RegionId) {
        let region = self.region(id);
        if let Some(open) = region.open_mut() {
            open.header_is_durable = true;
            let waiters = std::mem::take(&mut open.header_waiters);
            region.header_owner = HeaderOwner::None;
            self.write_staged(id);
            for drain in waiters {
                self.on_region_drained(drain, true);
            }
        }
    }

    /// Writes what is ready. A sealing region then requests its sync.
    pub(super) fn write_staged(&mut self, id: RegionId) {
        let start = self.geometry().region_offset(id);
        let region = self.region(id);
        let Some(open) = region.open_mut().filter(|open| open.header_is_durable) else { return };
        let mut ready = Vec::new();
        for staged in &mut open.staged_writes {
            if let WriteState::Ready(bytes) = &staged.state {
                let bytes = bytes.clone();
                staged.state = WriteState::Writing(bytes.clone());
                ready.push((staged.offset, bytes));
            }
        }
        region.writes += u32::try_from(ready.len()).expect("few writes");
        for (offset, bytes) in ready {
            self.write(Purpose::Data(id, offset), start + offset, bytes);
        }
        let region = self.region(id);
        let is_sealing = region.is_sealing();
        let open = region.open_mut().expect("just seen");
        let staged_from = open.staged_from();
        let reached: Vec<_> =
            open.barriers.extract_if(.., |barrier| barrier.end <= staged_from).collect();
        if is_sealing && open.staged_writes.is_empty() && !open.sync_requested {
            open.sync_requested = true;
            if self.is_ephemeral(id) {
                self.on_entries_durable(id);
            } else {
                self.request_sync(SyncTarget::Entries, id);
            }
        }
        for barrier in reached {
            match barrier.until {
                BarrierEnd::Written => self.on_barrier_part(barrier.id, true),
                BarrierEnd::Durable => self.request_sync(SyncTarget::Barrier(barrier.id), id),
            }
        }
    }

    /// Whether a region belongs to a group that ends with the process.
    pub(super) fn is_ephemeral(&self, RegionId(region): RegionId) -> bool {
        let group = self.regions[region as usize].group.and_then(|group| self.groups.get(&group));
        group.is_some_and(ShardGroup::is_ephemeral)
    }

    pub(super) fn on_data_written(
        &mut self,
        id: RegionId,
        offset: u64,
        result: Result<(), IoFault>,
    ) {
        let region = self.region(id);
        region.writes -= 1;
        let Some(open) = region.open_mut() else { return self.try_finish_free(id) };
        if result.is_err() {
            return self.lose_region(id);
        }
        let staged = open.staged_writes.iter_mut().find(|staged| staged.offset == offset);
        let staged = staged.expect("kept until it is written");
        if let WriteState::Writing(bytes) = &staged.state {
            staged.state = WriteState::Written(bytes.clone());
        }
        while let Some(StagedWrite { state: WriteState::Written(_), .. }) =
            open.staged_writes.front()
        {
            open.staged_writes.pop_front();
        }
        self.write_staged(id);
    }

    /// Ends the filling of a region: writes the staged bytes, then the footer.
    pub(super) fn close_region(&mut self, id: RegionId, last: bool) {
        let region = self.region(id);
        let group = region.group.expect("a filling region belongs to a group");
        let RegionState::Filling(mut open) =
            std::mem::replace(&mut region.state, RegionState::Free)
        else {
            panic!("{id:?} is not being filled")
        };
        open.flush();
        open.last = last;
        region.state = RegionState::Sealing(open);
        if let Some(group) = self.groups.get_mut(&group) {
            group.open = None;
        }
        self.write_staged(id);
    }

    pub(super) fn on_entries_durable(&mut self, id: RegionId) {
        if matches!(self.region(id).state, RegionState::Sealing(_)) {
            self.footers.push_back(id);
        }
    }

    /// Writes the footers for which there is memory.
    pub(super) fn pump_regions(&mut self) {
        while let Some(id) = self.footers.front().copied() {
            let RegionState::Sealing(open) = &self.region(id).state else {
                self.footers.pop_front();
                continue;
            };
            let size = Footer::size(open.descriptors.len());
            let length = usize::try_from(size).expect("fits into memory");
            let Some(mut buffer) = self.pools.staging.take(length) else { return };
            self.footers.pop_front();
            let geometry = self.geometry();
            let region = self.region(id);
            let open = region.open().expect("just seen");
            let footer = Footer {
                device: geometry.device,
                generation: region.generation,
                last: open.last,
                entries: open.descriptors.clone(),
            };
            footer.encode(&mut buffer);
            region.footer_entries = footer.entries.len() as u64;
            region.writes += 1;
            let offset = geometry.region_offset(id) + geometry.region_size - size;
            self.write(Purpose::Footer(id), offset, buffer.freeze());
        }
    }

    pub(super) fn on_footer_written(&mut self, id: RegionId, result: Result<(), IoFault>) {
        let region = self.region(id);
        region.writes -= 1;
        match (result, region.open().is_some()) {
            (Ok(()), true) if self.is_ephemeral(id) => self.on_footer_durable(id),
            (Ok(()), true) => self.request_sync(SyncTarget::Footer, id),
            (Err(_), true) => self.lose_region(id),
            (_, false) => self.try_finish_free(id),
        }
    }

    pub(super) fn on_footer_durable(&mut self, id: RegionId) {
        let region = self.region(id);
        if matches!(region.state, RegionState::Sealing(_)) {
            region.state = RegionState::Sealed;
            let sealed = RegionRef { region: id, generation: region.generation };
            self.eviction.on_sealed(sealed);
            let region = self.region(id);
            let group = region.group.expect("a sealed region belongs to a group");
            self.answer_seals(group, None);
            self.answer_flushes();
            // All its entries may have been removed meanwhile.
            self.free_if_empty(id);
        }
    }
}

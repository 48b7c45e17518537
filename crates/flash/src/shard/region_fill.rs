//! How a region comes to be sealed: taken, given a header, filled piece by piece, closed, given a footer.

use super::{
    Candidate, Purpose, Refusal, Region, RegionState, Shard,
    region::{Former, Piece, Stage},
    sync::Durable,
};
use crate::{
    index::GroupId,
    io::Fault,
    layout::{BLOCK_SIZE, Footer, RegionHeader, RegionId, Use},
};

impl<T> Shard<T> {
    pub(super) fn region(&mut self, RegionId(region): RegionId) -> &mut Region {
        &mut self.regions[region as usize]
    }

    /// A region to fill, if need be by evicting one. `Ok(None)` if one will be free soon.
    pub(super) fn take_region(&mut self) -> Result<Option<RegionId>, Refusal> {
        if let Some(region) = self.free.pop_front() {
            return Ok(Some(region));
        }
        // What is on its way out, or will be a candidate, is waited for rather than evicting more.
        let leaving = |region: &Region| matches!(region.state, RegionState::Leaving { .. });
        if self.regions.iter().any(leaving) {
            return Ok(None);
        }
        let Self { groups, regions, eviction, .. } = self;
        let mut candidates = regions.iter().enumerate().filter_map(|(at, region)| {
            let group = groups.get(&region.group?)?;
            (matches!(region.state, RegionState::Sealed) && group.may_lose_regions()).then(|| {
                Candidate {
                    region: RegionId(u32::try_from(at).expect("REGIONS_MAX")),
                    generation: region.generation,
                    group: &group.name,
                    class: group.class,
                    entries: region.entries,
                    bytes: region.bytes,
                }
            })
        });
        let Some(victim) = eviction.victim(&mut candidates) else {
            let sealing = |region: &Region| matches!(region.state, RegionState::Sealing(_));
            let soon = self.regions.iter().any(sealing);
            return if soon { Ok(None) } else { Err(Refusal::NoSpace) };
        };
        self.counters.regions_evicted += 1;
        self.leave(victim, None);
        Ok(self.free.pop_front())
    }

    /// Begins a new life of a region, for a group.
    pub(super) fn begin_region(&mut self, id: RegionId, group: GroupId) -> bool {
        let Some(mut block) = self.memory.staging.take(BLOCK_SIZE) else {
            self.free.push_front(id);
            return false;
        };
        let generation = self.next_generation();
        let owner = self.groups.get_mut(&group).expect("asked for a region");
        owner.open = Some(id);
        owner.regions.push(id);
        let usage = Use::Group { name: owner.name.clone(), class: owner.class, dense: owner.dense };
        let device = self.superblock.geometry.device;
        RegionHeader { device, generation, usage }.encode(&mut block);
        *self.region(id) = Region {
            generation,
            group: Some(group),
            former: self.region(id).former,
            state: RegionState::Filling(Box::default()),
            writes: 1,
            ..Region::free()
        };
        let offset = self.geometry().region_offset(id);
        self.write(Purpose::Header(id), offset, block.freeze());
        true
    }

    pub(super) fn header_written(&mut self, id: RegionId, result: Result<(), Fault>) {
        self.region(id).writes -= 1;
        match (result, self.region(id).open().is_some()) {
            (Ok(()), true) => self.make_durable(Durable::Header, id),
            (Err(_), true) => self.lose_region(id),
            (_, false) => self.try_leave(id),
        }
    }

    pub(super) fn header_durable(&mut self, id: RegionId) {
        let region = self.region(id);
        if let Some(open) = region.open_mut() {
            open.header_is_durable = true;
            let awaited = std::mem::take(&mut open.awaited);
            region.former = Former::Nobody;
            self.write_pieces(id);
            for drain in awaited {
                self.drained(drain, true);
            }
        }
    }

    /// Writes what is ready; a sealing region goes on when all is written.
    pub(super) fn write_pieces(&mut self, id: RegionId) {
        let start = self.geometry().region_offset(id);
        let region = self.region(id);
        let Some(open) = region.open_mut().filter(|open| open.header_is_durable) else { return };
        let mut ready = Vec::new();
        for piece in &mut open.pieces {
            if let Stage::Ready(bytes) = &piece.stage {
                let bytes = bytes.clone();
                piece.stage = Stage::Writing(bytes.clone());
                ready.push((piece.offset, bytes));
            }
        }
        region.writes += u32::try_from(ready.len()).expect("few pieces");
        for (offset, bytes) in ready {
            self.write(Purpose::Data(id, offset), start + offset, bytes);
        }
        let region = self.region(id);
        if let RegionState::Sealing(open) = &mut region.state
            && open.pieces.is_empty()
            && !open.syncing
        {
            open.syncing = true;
            self.make_durable(Durable::Entries, id);
        }
    }

    pub(super) fn data_written(&mut self, id: RegionId, offset: u64, result: Result<(), Fault>) {
        let region = self.region(id);
        region.writes -= 1;
        let Some(open) = region.open_mut() else { return self.try_leave(id) };
        if result.is_err() {
            return self.lose_region(id);
        }
        let piece = open.pieces.iter_mut().find(|piece| piece.offset == offset);
        let piece = piece.expect("kept until it is written");
        if let Stage::Writing(bytes) = &piece.stage {
            piece.stage = Stage::Written(bytes.clone());
        }
        while let Some(Piece { stage: Stage::Written(_), .. }) = open.pieces.front() {
            open.pieces.pop_front();
        }
        self.write_pieces(id);
    }

    /// No more entries: what is there is written, then the footer.
    pub(super) fn close_region(&mut self, id: RegionId, last: bool) {
        let region = self.region(id);
        let group = region.group.expect("a filling region is some group's");
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
        self.write_pieces(id);
    }

    pub(super) fn entries_durable(&mut self, id: RegionId) {
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
            let Some(mut buffer) = self.memory.staging.take(length) else { return };
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
            region.written = footer.entries.len() as u64;
            region.writes += 1;
            let offset = geometry.region_offset(id) + geometry.region_size - size;
            self.write(Purpose::Footer(id), offset, buffer.freeze());
        }
    }

    pub(super) fn footer_written(&mut self, id: RegionId, result: Result<(), Fault>) {
        let region = self.region(id);
        region.writes -= 1;
        match (result, region.open().is_some()) {
            (Ok(()), true) => self.make_durable(Durable::Footer, id),
            (Err(_), true) => self.lose_region(id),
            (_, false) => self.try_leave(id),
        }
    }

    pub(super) fn footer_durable(&mut self, id: RegionId) {
        let region = self.region(id);
        if matches!(region.state, RegionState::Sealing(_)) {
            region.state = RegionState::Sealed;
            let group = region.group.expect("a sealed region is some group's");
            self.answer_sealers(group, None);
            self.answer_flushers();
            // All of it may have been forgotten meanwhile.
            self.leave_if_dead(id);
        }
    }
}

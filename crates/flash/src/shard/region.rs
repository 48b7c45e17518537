//! The life of regions: taken, filled, sealed, left and taken again.

use std::{collections::VecDeque, time::Duration};

use super::{Candidate, Purpose, Refusal, Shard, sync::Durable};
use crate::{
    arena::{Buffer, View},
    index::GroupId,
    io::{Command, Fault},
    layout::{BLOCK_SIZE, Descriptor, Footer, Generation, RegionHeader, RegionId, Use, round_up},
};

/// Damaged entries after which a region is not trusted for a while.
pub(super) const DAMAGED_MAX: u32 = 3;

/// A region.
#[derive(Debug)]
pub struct Region {
    /// Its life.
    pub generation: Generation,
    /// Whose it is.
    pub group: Option<GroupId>,
    /// Where in its life it is.
    pub state: RegionState,
    /// Whose its header on the device may still say it is.
    pub former: Former,
    /// Reads under way.
    pub readers: u32,
    /// Writes under way.
    pub writes: u32,
    /// Halves of the fingerprints that were written to it (see `index`).
    pub lows: Vec<u32>,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Entries that its footer lists.
    pub written: u64,
    /// How many of them turned out to be damaged.
    pub damaged: u32,
    /// Who else waits until it is free for good.
    pub also: Vec<u32>,
}

/// What a crash would bring back. Nobody minds, unless that group has been freed meanwhile: so whoever frees
/// a group waits until no header names it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// Nothing.
    Nobody,
    /// A part of this group.
    Group(GroupId),
    /// Anything: its header could not be read.
    Unknown,
}

/// Where in its life a region is.
#[derive(Debug)]
pub enum RegionState {
    /// Nobody's.
    Free,
    /// It takes entries.
    Filling(Box<Open>),
    /// It takes no more; its footer is not durable yet.
    Sealing(Box<Open>),
    /// All of it is durable.
    Sealed,
    /// It is given up; reads and writes that were under way end.
    Leaving {
        /// The request that waits until it is free for good.
        drain: Option<u32>,
    },
    /// It is not trusted.
    Quarantined {
        /// For so long.
        until: Duration,
    },
}

/// What a region has in memory while it is not sealed.
#[derive(Debug)]
pub struct Open {
    /// Where the next entry begins.
    pub fill: u64,
    /// What is in it.
    pub descriptors: Vec<Descriptor>,
    /// Whether its header is durable, so that entries may be written.
    pub header_is_durable: bool,
    /// Who waits for that, because the header before it named a group that is being freed.
    pub awaited: Vec<u32>,
    /// What is not written yet: without gaps, and the last of them ends where the next entry begins.
    pub pieces: VecDeque<Piece>,
    /// Whether nothing of its group comes after it.
    pub last: bool,
    /// Whether the sync of its entries has been asked for.
    pub syncing: bool,
    /// When it was last appended to, counted in appends.
    pub used: u64,
    /// And in time.
    pub used_at: Duration,
}

/// Some bytes of a region on their way to the device.
#[derive(Debug)]
pub struct Piece {
    /// Where in the region.
    pub offset: u64,
    /// The bytes.
    pub stage: Stage,
}

/// How far a piece is.
#[derive(Debug)]
pub enum Stage {
    /// So many of its bytes are there.
    Filling(Buffer, usize),
    /// It can be written.
    Ready(View),
    /// It is being written.
    Writing(View),
    /// It has been; kept for as long as one before it has not.
    Written(View),
}

impl Region {
    /// One that is nobody's.
    pub fn free() -> Self {
        Self {
            generation: Generation::default(),
            group: None,
            former: Former::Nobody,
            state: RegionState::Free,
            readers: 0,
            writes: 0,
            lows: Vec::new(),
            entries: 0,
            bytes: 0,
            written: 0,
            damaged: 0,
            also: Vec::new(),
        }
    }

    /// What it has in memory, if it is not sealed yet.
    pub fn open(&self) -> Option<&Open> {
        match &self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut Open> {
        match &mut self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }
}

impl Default for Open {
    /// What a region has when it begins.
    fn default() -> Self {
        Self {
            fill: BLOCK_SIZE as u64,
            descriptors: Vec::new(),
            header_is_durable: false,
            awaited: Vec::new(),
            pieces: VecDeque::new(),
            last: false,
            syncing: false,
            used: 0,
            used_at: Duration::ZERO,
        }
    }
}

impl Open {
    /// Where the bytes begin that are in memory only, or also.
    pub fn staged_from(&self) -> u64 {
        self.pieces.front().map_or(self.fill, |piece| piece.offset)
    }

    /// Makes what is in the last piece ready to be written, up to the end of its block.
    pub fn flush(&mut self) {
        let filling = |piece: &Piece| matches!(piece.stage, Stage::Filling(..));
        if !self.pieces.back().is_some_and(filling) {
            return;
        }
        let Some(Piece { offset, stage: Stage::Filling(mut buffer, filled) }) =
            self.pieces.pop_back()
        else {
            unreachable!("just seen")
        };
        let end = usize::try_from(round_up(filled as u64, BLOCK_SIZE as u64)).expect("in memory");
        if end > 0 {
            buffer[filled..end].fill(0);
            self.fill = offset + end as u64;
            let stage = Stage::Ready(buffer.freeze().slice(0..end));
            self.pieces.push_back(Piece { offset, stage });
        }
    }
}

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
        }
    }

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
        let until = self.now + self.settings.quarantine;
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
        self.set_free(id);
        if self.settings.discard && result.is_ok() {
            let geometry = self.geometry();
            let offset = geometry.region_offset(id) + BLOCK_SIZE as u64;
            let length = geometry.region_size - BLOCK_SIZE as u64;
            self.discard(id, offset, length);
        }
        for drain in also.into_iter().chain([drain]) {
            self.drained(drain, result.is_ok());
        }
    }

    fn discard(&mut self, region: RegionId, offset: u64, length: u64) {
        // Not to be filled before the device has forgotten it.
        self.free.retain(|free| *free != region);
        self.region(region).state = RegionState::Leaving { drain: None };
        self.region(region).writes += 1;
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

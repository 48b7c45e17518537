//! Reads: from an entry's name to its bytes.
//!
//! If the entry's header and the range are close together, one device read covers both; otherwise
//! there are two, in parallel. Staged bytes are copied from memory.

use std::{ops::Range, time::Duration};

use super::{
    EntryName, GroupState, Mismatch, Purpose, RegionState, RequestError, RequestResult, Shard,
    ShardAnswer, UnverifiedRead,
    health::Direction,
    region::{OpenRegion, WriteState},
    verified_read::Part,
};
use crate::{
    buffers::Buffer,
    extent::Extent,
    format::{BLOCK_SIZE, EntryShape, Generation, round_down, round_up},
    index::{EntryKey, GroupId, Location},
    io::{IoCommand, IoFault},
};

/// Longest gap that is read along, rather than issuing two reads.
const GAP_MAX: u64 = 32 << 10;

/// A read that waits for memory.
#[derive(Debug)]
pub struct PendingRead<T> {
    reader: ReadPurpose<T>,
    name: EntryName,
    range: Option<Range<u64>>,
    location: Location,
    generation: Generation,
    pub(super) deadline: Duration,
}

/// What a read is for.
#[derive(Debug)]
pub enum ReadPurpose<T> {
    /// A request.
    Caller(T),
    /// The scrubber.
    Scrub,
}

/// A read in progress.
#[derive(Debug)]
pub struct ActiveRead<T> {
    /// `None` after a timeout.
    reader: Option<ReadPurpose<T>>,
    unverified: UnverifiedRead,
    /// Parts that are still being read.
    parts_pending: usize,
    failed: bool,
    pub(super) deadline: Duration,
}

impl<T> ActiveRead<T> {
    pub(super) fn is_awaited(&self) -> bool {
        self.reader.is_some()
    }
}

impl<T> Shard<T> {
    pub(super) fn read(
        &mut self,
        token: T,
        name: EntryName,
        range: Option<Range<u64>>,
        leased: bool,
        into: Option<Buffer>,
    ) {
        let location = self.locate(&name);
        let is_readable = |location: &Location| {
            let group = self.regions[location.region().0 as usize].group;
            let state = group.and_then(|group| self.groups.get(&group)).map(|group| group.state);
            match state {
                Some(GroupState::Filling | GroupState::Sealed) => true,
                Some(GroupState::Marked) => leased,
                Some(GroupState::Draining) | None => false,
            }
        };
        let Some(location) = location.filter(is_readable) else {
            return self.answers.push((token, Ok(ShardAnswer::Read(None))));
        };
        if !self.health.is_healthy(Direction::Read) {
            return self.answers.push((token, Err(RequestError::Unhealthy)));
        }
        let reader = ReadPurpose::Caller(token);
        match into {
            None => self.enqueue_read(reader, name, range, location),
            Some(memory) => self.read_into(reader, name, range, location, memory),
        }
    }

    /// Reads into the reader's own memory, at once.
    fn read_into(
        &mut self,
        reader: ReadPurpose<T>,
        name: EntryName,
        range: Option<Range<u64>>,
        location: Location,
        memory: Buffer,
    ) {
        let pending = self.pending_read(reader, name, range, location);
        match parts_of(&pending).filter(|parts| total(parts) <= memory.len()) {
            Some(parts) => self.begin_read(pending, parts, memory),
            None => self.answer_read(pending.reader, Err(RequestError::Range)),
        }
    }

    pub(super) fn enqueue_read(
        &mut self,
        reader: ReadPurpose<T>,
        name: EntryName,
        range: Option<Range<u64>>,
        location: Location,
    ) {
        let pending = self.pending_read(reader, name, range, location);
        self.pending_reads.push_back(pending);
    }

    fn pending_read(
        &self,
        reader: ReadPurpose<T>,
        name: EntryName,
        range: Option<Range<u64>>,
        location: Location,
    ) -> PendingRead<T> {
        let generation = self.generation_at(location);
        let deadline = self.now.saturating_add(self.settings.read_deadline);
        PendingRead { reader, name, range, location, generation, deadline }
    }

    /// Starts the reads for which there is memory.
    pub(super) fn pump_reads(&mut self) {
        while let Some(pending) = self.pending_reads.front() {
            let region = &self.regions[pending.location.region().0 as usize];
            let gone = region.generation != pending.generation
                || matches!(region.state, RegionState::Freeing { .. } | RegionState::Free);
            if gone {
                let pending = self.pending_reads.pop_front().expect("just seen");
                self.answer_read(pending.reader, Ok(ShardAnswer::Read(None)));
                continue;
            }
            let Some(parts) = parts_of(pending) else {
                let pending = self.pending_reads.pop_front().expect("just seen");
                self.answer_read(pending.reader, Err(RequestError::Range));
                continue;
            };
            let pool = &self.pools.read;
            if total(&parts) > pool.size() / 2 {
                let pending = self.pending_reads.pop_front().expect("just seen");
                self.answer_read(pending.reader, Err(RequestError::Range));
                continue;
            }
            // One allocation for all parts: releasing a part because another one failed would wake
            // the shard again.
            let Some(memory) = pool.take(total(&parts)) else { return };
            let pending = self.pending_reads.pop_front().expect("just seen");
            self.begin_read(pending, parts, memory);
        }
    }

    fn begin_read(&mut self, pending: PendingRead<T>, parts: Vec<Range<u64>>, memory: Buffer) {
        let mut rest = memory;
        let mut buffers = Vec::with_capacity(parts.len());
        for part in &parts[..parts.len() - 1] {
            let after = rest.split_off(length(part));
            buffers.push(std::mem::replace(&mut rest, after));
        }
        buffers.push(rest);
        let PendingRead { reader, name, range, location, generation, deadline } = pending;
        let id = self.reads_begun;
        self.reads_begun += 1;
        let region_id = location.region();
        let start = self.geometry().region_offset(region_id);
        let key = self.key_of(&name);
        let mut unverified = UnverifiedRead {
            name,
            location,
            generation,
            device: self.geometry().device,
            key,
            range,
            parts: Vec::with_capacity(parts.len()),
        };
        let mut parts_pending = 0;
        for (part, mut buffer) in parts.into_iter().zip(buffers) {
            let open = self.regions[region_id.0 as usize].open();
            // Staged writes begin at block boundaries, so memory and device meet at one.
            let split =
                open.map_or(part.end, |open| open.staged_from().clamp(part.start, part.end));
            let on_device = usize::try_from(split - part.start).expect("in memory");
            if let Some(open) = open.filter(|_| split < part.end) {
                copy_staged(open, split, &mut buffer[on_device..length(&part)]);
            }
            if on_device == 0 {
                unverified.parts.push(Part { offset: part.start, bytes: buffer.freeze() });
                continue;
            }
            let purpose = Purpose::Read { read: id, offset: part.start };
            parts_pending += 1;
            let id = self.begin(purpose);
            let offset = start + part.start;
            self.commands.push(IoCommand::Read { id, offset, buffer, length: on_device });
        }
        let active =
            ActiveRead { reader: Some(reader), unverified, parts_pending, failed: false, deadline };
        self.region(region_id).readers += 1;
        self.active_reads.insert(id, active);
        self.answer_if_complete(id);
    }

    pub(super) fn on_part_read(
        &mut self,
        id: u64,
        offset: u64,
        buffer: Option<Buffer>,
        result: Result<(), IoFault>,
    ) {
        let active = self.active_reads.get_mut(&id).expect("kept until its last part is read");
        active.parts_pending -= 1;
        active.failed |= result.is_err();
        let bytes = buffer.expect("a read gives its buffer back").freeze();
        active.unverified.parts.push(Part { offset, bytes });
        self.answer_if_complete(id);
    }

    /// Answers a read when all its parts have been read.
    fn answer_if_complete(&mut self, id: u64) {
        if self.active_reads[&id].parts_pending > 0 {
            return;
        }
        let active = self.active_reads.remove(&id).expect("just seen");
        let region = active.unverified.location.region();
        self.region(region).readers -= 1;
        if let Some(reader) = active.reader {
            let outcome = if active.failed {
                Err(RequestError::Failed)
            } else {
                Ok(ShardAnswer::Read(Some(active.unverified)))
            };
            self.answer_read(reader, outcome);
        }
        self.try_finish_free(region);
    }

    fn answer_read(&mut self, reader: ReadPurpose<T>, outcome: RequestResult) {
        match reader {
            ReadPurpose::Caller(token) => self.answers.push((token, outcome)),
            ReadPurpose::Scrub => self.on_scrub_read(outcome),
        }
    }

    /// Promise 5: no cache fault hangs a job.
    pub(super) fn time_out_reads(&mut self) {
        let mut late = Vec::new();
        for active in
            self.active_reads.values_mut().take_while(|active| active.deadline <= self.now)
        {
            late.extend(active.reader.take());
        }
        let device_is_slow = !late.is_empty();
        while self.pending_reads.front().is_some_and(|pending| pending.deadline <= self.now) {
            late.push(self.pending_reads.pop_front().expect("just seen").reader);
        }
        if device_is_slow {
            self.record(Direction::Read, false);
        }
        for reader in late {
            self.counters.reads_timed_out += 1;
            self.answer_read(reader, Err(RequestError::TimedOut));
        }
    }

    /// An entry's key on the device.
    /// Where an entry of a dense group lies.
    pub(super) fn extent(&self, group: GroupId, ordinal: u64) -> Option<Extent> {
        let name = EntryName::Ordinal(group, ordinal);
        let location = self.locate(&name)?;
        let (key, generation) = (self.key_of(&name), self.generation_at(location));
        Some(Extent { key, location, generation })
    }

    fn key_of(&self, name: &EntryName) -> EntryKey {
        match name {
            EntryName::Key(key) => *key,
            EntryName::Ordinal(group, ordinal) => {
                self.groups.get(group).map_or(EntryKey([0; 32]), |group| group.key_of(*ordinal))
            }
        }
    }

    pub(super) fn forget(&mut self, key: &EntryKey) {
        let mut index = self.index.write();
        let Some(location) = index.find(key) else { return };
        index.remove(key, location);
        drop(index);
        self.subtract_entry(location);
        self.free_if_empty(location.region());
    }

    /// A reader has found that an entry is damaged.
    pub(super) fn on_damage_reported(
        &mut self,
        name: &EntryName,
        location: Location,
        generation: Generation,
    ) {
        let region = location.region();
        if self.region(region).generation != generation {
            return;
        }
        let mut index = self.index.write();
        let was_there = match name {
            EntryName::Key(key) => index.remove(key, location),
            EntryName::Ordinal(group, ordinal) => index.remove_ordinal(*group, *ordinal, location),
        };
        drop(index);
        if was_there {
            self.count_damaged_entry(region);
            self.subtract_entry(location);
            self.free_if_empty(region);
        }
    }

    /// Verifies a read and handles damage. For callers that do not verify elsewhere.
    pub fn verify(&mut self, unverified: &UnverifiedRead) -> Option<super::VerifiedRead> {
        let verified = unverified.verify();
        if verified.as_ref().is_err_and(|mismatch| *mismatch == Mismatch::Damaged) {
            self.on_damage_reported(&unverified.name, unverified.location, unverified.generation);
        }
        verified.ok()
    }
}

fn length(part: &Range<u64>) -> usize {
    usize::try_from(part.end - part.start).expect("in memory")
}

/// Memory for these parts.
fn total(parts: &[Range<u64>]) -> usize {
    parts.iter().map(length).sum()
}

/// The block ranges of the region to read; `None` if the range exceeds the entry.
fn parts_of<T>(pending: &PendingRead<T>) -> Option<Vec<Range<u64>>> {
    let (start, shape) = (pending.location.offset(), EntryShape::of_size(pending.location.size()));
    let range = pending.range.clone().unwrap_or(0..shape.length());
    if range.start > range.end || range.end > shape.length() {
        return None;
    }
    let covering = shape.covering(&range);
    let blocks = |range: Range<u64>| {
        let block = BLOCK_SIZE as u64;
        round_down(start + range.start, block)..round_up(start + range.end, block)
    };
    Some(if covering.start <= shape.payload() + GAP_MAX {
        vec![blocks(0..covering.end.max(shape.payload()))]
    } else {
        vec![blocks(0..shape.payload()), blocks(covering)]
    })
}

/// Copies a region's staged bytes from offset `from` on.
fn copy_staged(open: &OpenRegion, from: u64, into: &mut [u8]) {
    for staged in &open.staged_writes {
        let bytes: &[u8] = match &staged.state {
            WriteState::Filling(buffer, filled) => &buffer[..*filled],
            WriteState::Ready(view) | WriteState::Writing(view) | WriteState::Written(view) => view,
        };
        let (start, end) = (staged.offset, staged.offset + bytes.len() as u64);
        let (first, last) = (start.max(from), end.min(from + into.len() as u64));
        if first < last {
            let at = |offset: u64, base: u64| usize::try_from(offset - base).expect("in memory");
            into[at(first, from)..at(last, from)]
                .copy_from_slice(&bytes[at(first, start)..at(last, start)]);
        }
    }
}

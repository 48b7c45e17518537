//! From a name to bytes: one read where header and range are near each other, else two at once. What is
//! still in memory is copied from there.

use std::{ops::Range, time::Duration};

use super::{
    Answer, Fetched, Life, Mismatch, Name, Outcome, Purpose, Refusal, RegionState, Shard,
    fetched::Part,
    health::Direction,
    region::{Open, Stage},
};
use crate::{
    arena::Buffer,
    index::{Key, Location},
    io::{Command, Fault},
    layout::{BLOCK_SIZE, EntryShape, Generation, round_down, round_up},
};

/// Up to so much is read for nothing rather than reading twice.
const GAP_MAX: u64 = 32 << 10;

/// A read that has not begun.
#[derive(Debug)]
pub struct Wanting<T> {
    reader: Reader<T>,
    name: Name,
    range: Option<Range<u64>>,
    location: Location,
    generation: Generation,
    pub(super) deadline: Duration,
}

/// Who reads.
#[derive(Debug)]
pub enum Reader<T> {
    /// Somebody who is to be answered.
    Caller(T),
    /// The scrubber.
    Scrub,
}

/// A read under way.
#[derive(Debug)]
pub struct Reading<T> {
    /// Nobody, once it took too long.
    reader: Option<Reader<T>>,
    fetched: Fetched,
    /// Parts that are still being read.
    missing: usize,
    failed: bool,
    pub(super) deadline: Duration,
}

impl<T> Reading<T> {
    pub(super) fn is_awaited(&self) -> bool {
        self.reader.is_some()
    }
}

impl<T> Shard<T> {
    pub(super) fn read(&mut self, token: T, name: Name, range: Option<Range<u64>>, leased: bool) {
        let location = self.locate(&name);
        let open_to = |location: &Location| {
            let group = self.regions[location.region().0 as usize].group;
            let life = group.and_then(|group| self.groups.get(&group)).map(|group| group.life);
            match life {
                Some(Life::Filling | Life::Sealed) => true,
                Some(Life::Marked) => leased,
                Some(Life::Draining) | None => false,
            }
        };
        let Some(location) = location.filter(open_to) else {
            return self.answers.push((token, Ok(Answer::Read(None))));
        };
        if !self.health.is_well(Direction::Read) {
            return self.answers.push((token, Err(Refusal::Unstable)));
        }
        self.want(Reader::Caller(token), name, range, location);
    }

    pub(super) fn want(
        &mut self,
        reader: Reader<T>,
        name: Name,
        range: Option<Range<u64>>,
        location: Location,
    ) {
        let generation = self.region(location.region()).generation;
        let deadline = self.now.saturating_add(self.settings.read_deadline);
        self.wanting.push_back(Wanting { reader, name, range, location, generation, deadline });
    }

    /// Begins the reads for which there is memory.
    pub(super) fn pump_reads(&mut self) {
        while let Some(wanting) = self.wanting.front() {
            let region = &self.regions[wanting.location.region().0 as usize];
            let gone = region.generation != wanting.generation
                || matches!(region.state, RegionState::Leaving { .. } | RegionState::Free);
            if gone {
                let wanting = self.wanting.pop_front().expect("just seen");
                self.read_ended(wanting.reader, Ok(Answer::Read(None)));
                continue;
            }
            let Some(parts) = parts_of(wanting) else {
                let wanting = self.wanting.pop_front().expect("just seen");
                self.read_ended(wanting.reader, Err(Refusal::Range));
                continue;
            };
            let arena = &self.memory.reading;
            let length =
                |part: &Range<u64>| usize::try_from(part.end - part.start).expect("in memory");
            if parts.iter().map(length).sum::<usize>() > arena.size() / 2 {
                let wanting = self.wanting.pop_front().expect("just seen");
                self.read_ended(wanting.reader, Err(Refusal::Range));
                continue;
            }
            // All or nothing: a part that is given back would wake us, for nothing.
            let Some(mut rest) = arena.take(parts.iter().map(length).sum()) else { return };
            let mut buffers = Vec::with_capacity(parts.len());
            for part in &parts[1..] {
                let after = rest.len() - length(part);
                buffers.insert(0, rest.split_off(after));
            }
            buffers.insert(0, rest);
            let wanting = self.wanting.pop_front().expect("just seen");
            self.begin_reading(wanting, parts, buffers);
        }
    }

    fn begin_reading(&mut self, wanting: Wanting<T>, parts: Vec<Range<u64>>, buffers: Vec<Buffer>) {
        let Wanting { reader, name, range, location, generation, deadline } = wanting;
        let id = self.readings_begun;
        self.readings_begun += 1;
        let region_id = location.region();
        let start = self.geometry().region_offset(region_id);
        let key = self.key_of(&name);
        let mut fetched = Fetched {
            name,
            location,
            generation,
            device: self.geometry().device,
            key,
            range,
            parts: Vec::with_capacity(parts.len()),
        };
        let mut missing = 0;
        for (part, mut buffer) in parts.into_iter().zip(buffers) {
            let open = self.regions[region_id.0 as usize].open();
            // The pieces begin at blocks, so what is in memory and what is not meet at one.
            let split =
                open.map_or(part.end, |open| open.staged_from().clamp(part.start, part.end));
            let on_device = usize::try_from(split - part.start).expect("in memory");
            if let Some(open) = open.filter(|_| split < part.end) {
                copy_staged(open, split, &mut buffer[on_device..]);
            }
            if on_device == 0 {
                fetched.parts.push(Part { offset: part.start, bytes: buffer.freeze() });
                continue;
            }
            let purpose = Purpose::Read { reading: id, offset: part.start };
            missing += 1;
            let id = self.begin(purpose);
            let offset = start + part.start;
            self.commands.push(Command::Read { id, offset, buffer, length: on_device });
        }
        let reading = Reading { reader: Some(reader), fetched, missing, failed: false, deadline };
        self.region(region_id).readers += 1;
        self.readings.insert(id, reading);
        self.end_reading(id);
    }

    pub(super) fn part_read(
        &mut self,
        id: u64,
        offset: u64,
        buffer: Option<Buffer>,
        result: Result<(), Fault>,
    ) {
        let reading = self.readings.get_mut(&id).expect("until all parts are there");
        reading.missing -= 1;
        reading.failed |= result.is_err();
        let bytes = buffer.expect("a read gives its buffer back").freeze();
        reading.fetched.parts.push(Part { offset, bytes });
        self.end_reading(id);
    }

    /// Answers a read whose parts are all there.
    fn end_reading(&mut self, id: u64) {
        if self.readings[&id].missing > 0 {
            return;
        }
        let reading = self.readings.remove(&id).expect("just seen");
        let region = reading.fetched.location.region();
        self.region(region).readers -= 1;
        if let Some(reader) = reading.reader {
            let outcome = if reading.failed {
                Err(Refusal::Failed)
            } else {
                Ok(Answer::Read(Some(reading.fetched)))
            };
            self.read_ended(reader, outcome);
        }
        self.try_leave(region);
    }

    fn read_ended(&mut self, reader: Reader<T>, outcome: Outcome) {
        match reader {
            Reader::Caller(token) => self.answers.push((token, outcome)),
            Reader::Scrub => self.scrubbed(outcome),
        }
    }

    /// Promise 5: no cache fault hangs a job.
    pub(super) fn time_out_reads(&mut self) {
        let mut late = Vec::new();
        for reading in self.readings.values_mut().take_while(|reading| reading.deadline <= self.now)
        {
            late.extend(reading.reader.take());
        }
        let device_is_slow = !late.is_empty();
        while self.wanting.front().is_some_and(|wanting| wanting.deadline <= self.now) {
            late.push(self.wanting.pop_front().expect("just seen").reader);
        }
        if device_is_slow {
            self.observe(Direction::Read, false);
        }
        for reader in late {
            self.counters.reads_timed_out += 1;
            self.read_ended(reader, Err(Refusal::TimedOut));
        }
    }

    /// The name of an entry as it stands on the device.
    fn key_of(&self, name: &Name) -> Key {
        match name {
            Name::Key(key) => *key,
            Name::Ordinal(group, ordinal) => {
                self.groups.get(group).map_or(Key([0; 32]), |group| group.key_of(*ordinal))
            }
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        let mut index = self.index.write();
        let Some(location) = index.find(key) else { return };
        index.remove(key, location);
        drop(index);
        self.uncount(location);
        self.leave_if_dead(location.region());
    }

    /// An entry is not what was written.
    pub(super) fn damaged(&mut self, name: &Name, location: Location, generation: Generation) {
        let region = location.region();
        if self.region(region).generation != generation {
            return;
        }
        let mut index = self.index.write();
        let was_there = match name {
            Name::Key(key) => index.remove(key, location),
            Name::Ordinal(group, ordinal) => index.remove_ordinal(*group, *ordinal, location),
        };
        drop(index);
        if was_there {
            self.entry_damaged(region);
            self.uncount(location);
            self.leave_if_dead(region);
        }
    }

    /// Proves what was read, and draws the conclusions. For those who do not prove it elsewhere.
    pub fn prove(&mut self, fetched: &Fetched) -> Option<super::Proved> {
        let proved = fetched.prove();
        if proved.as_ref().is_err_and(|mismatch| *mismatch == Mismatch::Damaged) {
            self.damaged(&fetched.name, fetched.location, fetched.generation);
        }
        proved.ok()
    }
}

/// The blocks of the region that have to be read; none if the range is not in the entry.
fn parts_of<T>(wanting: &Wanting<T>) -> Option<Vec<Range<u64>>> {
    let (start, shape) = (wanting.location.offset(), EntryShape::of_size(wanting.location.size()));
    let range = wanting.range.clone().unwrap_or(0..shape.length());
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

/// Copies what is in memory of a region, from an offset on, as far as there is any.
fn copy_staged(open: &Open, from: u64, into: &mut [u8]) {
    for piece in &open.pieces {
        let bytes: &[u8] = match &piece.stage {
            Stage::Filling(buffer, filled) => &buffer[..*filled],
            Stage::Ready(view) | Stage::Writing(view) | Stage::Written(view) => view,
        };
        let (start, end) = (piece.offset, piece.offset + bytes.len() as u64);
        let (first, last) = (start.max(from), end.min(from + into.len() as u64));
        if first < last {
            let at = |offset: u64, base: u64| usize::try_from(offset - base).expect("in memory");
            into[at(first, from)..at(last, from)]
                .copy_from_slice(&bytes[at(first, start)..at(last, start)]);
        }
    }
}

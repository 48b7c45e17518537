//! From an entry to the pieces of a region. An entry is copied once, into memory that is written as it
//! fills; it can be read as soon as all of it is there, and that is when it is answered.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Answer, Group, Life, Name, Open, Outcome, Refusal, RegionState, Shard,
    health::Direction,
    region::{Piece, Stage},
};
use crate::{
    index::{Fingerprint, GroupId, Key, Location, ORDINALS_MAX},
    layout::{BLOCK_SIZE, Descriptor, EntryHeader, EntryShape, Footer, Generation, RegionId, UNIT},
};

/// What an append counts for beside its bytes: there may be many without any.
const QUEUED: u64 = 512;

/// What is done in the order in which it was asked for.
#[derive(Debug)]
pub enum Queued<T> {
    /// An entry.
    Append(Append<T>),
    /// The end of a group.
    Seal(T, GroupId),
    /// The end of all regions that are being filled.
    Flush(T),
}

/// An entry on its way into a region.
#[derive(Debug)]
pub struct Append<T> {
    token: T,
    group: GroupId,
    name: Name,
    tag: u32,
    payload: Bytes,
    checksums: Vec<u32>,
    deadline: Duration,
    placed: Option<Box<Placed>>,
}

/// Where an entry goes, and how much of it is there.
#[derive(Debug)]
struct Placed {
    region: RegionId,
    generation: Generation,
    offset: u64,
    key: Key,
    head: Vec<u8>,
    done: u64,
}

/// What became of the first in the queue.
enum Turn {
    Done,
    Refused(Refusal),
    /// For memory, or for a region.
    Waits,
}

impl<T> Shard<T> {
    pub(super) fn append(
        &mut self,
        token: T,
        group: GroupId,
        name: Name,
        tag: u32,
        payload: Bytes,
        checksums: Vec<u32>,
    ) {
        let length = payload.len() as u64;
        let frames = EntryShape::of(length).frames();
        assert_eq!(checksums.len(), frames, "a checksum for each frame");
        let max = self.entry_length_max();
        let refusal = if length > max {
            Some(Refusal::TooLong { length, max })
        } else if self.queue_bytes + QUEUED + length > self.settings.queue_bytes_max {
            Some(Refusal::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.answers.push((token, Err(refusal)));
        }
        self.queue_bytes += QUEUED + length;
        let deadline = self.now.saturating_add(self.settings.append_deadline);
        let append = Append { token, group, name, tag, payload, checksums, deadline, placed: None };
        self.queue.push_back(Queued::Append(append));
    }

    pub(super) fn pump_queue(&mut self) {
        while let Some(mut first) = self.queue.pop_front() {
            let turn = match &mut first {
                Queued::Append(append) => self.place(append).unwrap_or_else(|turn| turn),
                Queued::Seal(_, group) => self.seal(*group),
                Queued::Flush(_) => Turn::Done,
            };
            match (turn, first) {
                (Turn::Waits, first) => return self.queue.push_front(first),
                (Turn::Refused(refusal), Queued::Append(append)) => {
                    self.append_ended(append, Err(refusal));
                }
                (Turn::Done, Queued::Append(append)) => {
                    self.append_ended(append, Ok(Answer::Done));
                }
                (Turn::Refused(refusal), Queued::Seal(token, _) | Queued::Flush(token)) => {
                    self.answers.push((token, Err(refusal)));
                }
                (Turn::Done, Queued::Seal(token, id)) => {
                    let group = self.groups.get_mut(&id).expect("just sealed");
                    group.sealers.push(token);
                    self.answer_sealers(id, None);
                }
                (Turn::Done, Queued::Flush(token)) => {
                    let open: Vec<_> =
                        self.groups.values().filter_map(|group| group.open).collect();
                    for region in open {
                        self.close_region(region, false);
                    }
                    let all = (0..).map(RegionId).zip(&self.regions);
                    let sealing = all.filter(|(_, region)| region.is_sealing());
                    let waits = sealing.map(|(id, region)| (id, region.generation)).collect();
                    self.flushers.push((token, waits));
                    self.answer_flushers();
                }
            }
        }
    }

    fn append_ended(&mut self, append: Append<T>, outcome: Outcome) {
        self.queue_bytes -= QUEUED + append.payload.len() as u64;
        self.answers.push((append.token, outcome));
    }

    /// Promise 5: nobody waits for a device that takes nothing. What has been begun is finished.
    pub(super) fn time_out_appends(&mut self) {
        if self.append_deadline().is_none_or(|at| at > self.now) {
            return;
        }
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Append(append)
                    if append.placed.is_none() && append.deadline <= self.now =>
                {
                    self.append_ended(append, Err(Refusal::TimedOut));
                }
                other => self.queue.push_back(other),
            }
        }
    }

    /// When the next of those that have not begun is late: they came in this order.
    pub(super) fn append_deadline(&self) -> Option<Duration> {
        self.queue.iter().find_map(|queued| match queued {
            Queued::Append(append) if append.placed.is_none() => Some(append.deadline),
            _ => None,
        })
    }

    /// Longer entries could be written, but not read whole.
    pub fn entry_length_max(&self) -> u64 {
        let memory = self.memory.reading.size() as u64 / 2;
        let readable = memory.saturating_sub(memory / 256 + 4 * BLOCK_SIZE as u64);
        self.geometry().entry_length_max().min(readable)
    }

    /// Copies as much of an entry as there is memory for.
    fn place(&mut self, append: &mut Append<T>) -> Result<Turn, Turn> {
        if append.placed.is_none() {
            append.placed = Some(Box::new(self.find_place(append)?));
        }
        let Append { placed: Some(placed), payload, .. } = append else { unreachable!("just set") };
        let length = payload.len() as u64;
        let size = EntryShape::of(length).size();
        while placed.done < size {
            let region = &mut self.regions[placed.region.0 as usize];
            let RegionState::Filling(open) = &mut region.state else {
                return Ok(Turn::Refused(Refusal::Failed));
            };
            if region.generation != placed.generation {
                return Ok(Turn::Refused(Refusal::Failed));
            }
            if let Some(Piece { stage: Stage::Filling(buffer, filled), .. }) =
                open.pieces.back_mut()
            {
                let room = &mut buffer[*filled..];
                let copied = copy_at(&placed.head, payload, size, placed.done, room);
                *filled += copied;
                placed.done += copied as u64;
                let full = *filled == buffer.len();
                open.fill += copied as u64;
                if full {
                    open.flush();
                    self.write_pieces(placed.region);
                }
            } else {
                let offset = open.fill;
                let left = self.superblock.geometry.region_size - offset;
                let length = left.min(self.settings.piece_size as u64);
                let length = usize::try_from(length).expect("fits into memory");
                if let Some(buffer) = self.memory.staging.take(length) {
                    open.waits_since = self.now;
                    let due = self.now.saturating_add(self.settings.flush_after);
                    self.flush_at.get_or_insert(due);
                    open.pieces.push_back(Piece { offset, stage: Stage::Filling(buffer, 0) });
                } else {
                    self.flush_idle(placed.region);
                    return Ok(Turn::Waits);
                }
            }
        }
        self.placed(append.name, append.tag, length, append.placed.as_ref().expect("just filled"));
        Ok(Turn::Done)
    }

    /// The region for an entry, and where in it.
    fn find_place(&mut self, append: &Append<T>) -> Result<Placed, Turn> {
        let refused = |refusal| Err(Turn::Refused(refusal));
        let Some(group) = self.groups.get(&append.group) else { return refused(Refusal::Gone) };
        match group.life {
            Life::Filling => {}
            Life::Sealed | Life::Marked => return refused(Refusal::Closed),
            Life::Draining => return refused(Refusal::Gone),
        }
        let key = match append.name {
            Name::Key(key) if !group.dense => key,
            Name::Ordinal(of, ordinal)
                if group.dense && of == group.id && ordinal < ORDINALS_MAX =>
            {
                group.key_of(ordinal)
            }
            _ => return refused(Refusal::Naming),
        };
        if !self.health.is_well(Direction::Write) {
            return refused(Refusal::Unstable);
        }
        let length = append.payload.len() as u64;
        let size = EntryShape::of(length).size();
        let region_size = self.superblock.geometry.region_size;
        let fits = |open: &Open| {
            let footer = Footer::size(open.descriptors.len() + 1);
            open.fill + size + footer <= region_size && footer <= self.memory.footer_max()
        };
        if let Some(open) = group.open
            && !self.regions[open.0 as usize].open().is_some_and(fits)
        {
            self.close_region(open, false);
        }
        let region = self.region_for(append.group)?;
        self.appends_begun += 1;
        let used = self.appends_begun;
        let generation = self.region(region).generation;
        let open = self.region(region).open_mut().expect("it is being filled");
        open.used = used;
        let header = EntryHeader {
            device: self.superblock.geometry.device,
            generation,
            key: key.0,
            length: u32::try_from(length).expect("at most a region"),
            tag: append.tag,
        };
        let offset = self.region(region).open().expect("just seen").fill;
        let head = header.encode(&append.checksums);
        Ok(Placed { region, generation, offset, key, head, done: 0 })
    }

    /// The region that a group fills; a new one if there is none.
    fn region_for(&mut self, group: GroupId) -> Result<RegionId, Turn> {
        if let Some(open) = self.groups[&group].open {
            return Ok(open);
        }
        let region = match self.take_region() {
            Ok(Some(region)) => region,
            Ok(None) => return Err(Turn::Waits),
            Err(refusal) => {
                // What others have begun to fill can be sealed, and then go.
                return if self.close_idle(group) {
                    Err(Turn::Waits)
                } else {
                    Err(Turn::Refused(refusal))
                };
            }
        };
        if !self.begin_region(region, group) {
            return Err(Turn::Waits);
        }
        let filling = self.groups.values().filter(|group| group.open.is_some()).count();
        if filling > self.settings.filling_max {
            self.close_idle(group);
        }
        Ok(region)
    }

    /// An entry is in memory, whole: from now on it is found.
    fn placed(&mut self, name: Name, tag: u32, length: u64, placed: &Placed) {
        let Placed { region: id, offset, key, .. } = placed;
        let size = EntryShape::of(length).size();
        let location = Location::new(*id, *offset, size);
        let region = self.region(*id);
        region.entries += 1;
        region.bytes += length;
        region.open_mut().expect("it is being filled").descriptors.push(Descriptor {
            key: key.0,
            offset: u32::try_from(offset / UNIT as u64).expect("inside a region"),
            length: u32::try_from(length).expect("inside a region"),
            tag,
        });
        self.counters.entries += 1;
        self.counters.bytes += length;
        self.counters.inserted_bytes += length;
        if let Some(before) = self.found(name, key, location) {
            self.leave_if_dead(before.region());
        }
    }

    /// Says where an entry is. Returns where one of this name was before, which is not found any more.
    pub(crate) fn found(&mut self, name: Name, key: &Key, location: Location) -> Option<Location> {
        let before = match name {
            Name::Key(_) => {
                self.region(location.region()).lows.push(Fingerprint::of(key).low());
                self.index.write().insert(key, location)
            }
            Name::Ordinal(group, ordinal) => {
                self.index.write().insert_ordinal(group, ordinal, location)
            }
        };
        before.inspect(|before| self.uncount(*before))
    }

    fn idle(&self, but: Option<RegionId>, wanted: impl Fn(&Open) -> bool) -> Option<RegionId> {
        let filling = self.groups.values().filter_map(|group: &Group<T>| group.open);
        let filling = filling.filter(|region| Some(*region) != but);
        let filling = filling.filter_map(|id| Some((id, self.regions[id.0 as usize].open()?)));
        let wanted = filling.filter(|(_, open)| wanted(open));
        wanted.min_by_key(|(_, open)| open.used).map(|(id, _)| id)
    }

    /// Writes the half-filled piece of the region that was idle longest, for the sake of its memory.
    fn flush_idle(&mut self, but: RegionId) {
        if let Some(idle) = self.idle(Some(but), is_half_filled) {
            self.region(idle).open_mut().expect("it is being filled").flush();
            self.write_pieces(idle);
        }
    }

    /// Writes the pieces that have waited for long enough, full or not.
    pub(super) fn flush_waiting(&mut self) {
        if self.flush_at.is_none_or(|at| at > self.now) {
            return;
        }
        let due = |open: &Open| open.waits_since.saturating_add(self.settings.flush_after);
        let filling = self.groups.values().filter_map(|group| group.open);
        let waiting: Vec<_> = filling
            .filter_map(|id| {
                Some((id, self.regions[id.0 as usize].open().filter(|open| is_half_filled(open))?))
            })
            .map(|(id, open)| (id, due(open)))
            .collect();
        self.flush_at = waiting.iter().map(|(_, due)| *due).filter(|due| *due > self.now).min();
        let now = self.now;
        // No entry is half copied into these: that one waits for a piece, and has filled its last.
        for (id, _) in waiting.into_iter().filter(|(_, due)| *due <= now) {
            self.region(id).open_mut().expect("it is being filled").flush();
            self.write_pieces(id);
        }
    }

    /// Seals the region that was idle longest.
    fn close_idle(&mut self, but: GroupId) -> bool {
        let but = self.groups[&but].open;
        let idle = self.idle(but, |open| open.used > 0);
        idle.map(|idle| self.close_region(idle, false)).is_some()
    }

    /// Ends a group. Its last region says so; if it has none to say it, one is begun for that.
    fn seal(&mut self, id: GroupId) -> Turn {
        let Some(group) = self.groups.get(&id) else { return Turn::Refused(Refusal::Gone) };
        match group.life {
            Life::Filling => {}
            Life::Sealed | Life::Marked => {
                if let Some(open) = group.open {
                    self.close_region(open, true);
                }
                return Turn::Done;
            }
            Life::Draining => return Turn::Refused(Refusal::Gone),
        }
        if !self.health.is_well(Direction::Write) {
            return Turn::Refused(Refusal::Unstable);
        }
        match self.region_for(id) {
            Err(turn) => turn,
            Ok(region) => {
                self.groups.get_mut(&id).expect("just seen").life = Life::Sealed;
                self.close_region(region, true);
                Turn::Done
            }
        }
    }
}

fn is_half_filled(open: &Open) -> bool {
    open.pieces.back().is_some_and(|piece| matches!(piece.stage, Stage::Filling(..)))
}

/// Copies the bytes of an entry from `from` on: head, payload and zeros up to its size.
fn copy_at(head: &[u8], payload: &[u8], size: u64, from: u64, into: &mut [u8]) -> usize {
    let from = usize::try_from(from).expect("inside a region");
    let size = usize::try_from(size).expect("inside a region");
    let length = into.len().min(size - from);
    let mut copied = 0;
    while copied < length {
        let at = from + copied;
        let source = if at < head.len() {
            &head[at..]
        } else if at < head.len() + payload.len() {
            &payload[at - head.len()..]
        } else {
            into[copied..length].fill(0);
            break;
        };
        let some = source.len().min(length - copied);
        into[copied..copied + some].copy_from_slice(&source[..some]);
        copied += some;
    }
    length
}

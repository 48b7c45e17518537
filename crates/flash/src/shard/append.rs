//! Appends: from an entry to a region's staged writes.
//!
//! An entry is copied once, into buffers that are written as they fill. An entry that its caller
//! filled in place is not copied at all: its buffer is written. When all of an entry is staged, it
//! is readable and the append is answered.

use std::time::Duration;

use bytes::Bytes;

use super::{
    EntryName, GroupState, OpenRegion, RegionRef, RegionState, RequestError, RequestResult, Shard,
    ShardAnswer, ShardGroup,
    region::{BarrierEnd, StagedWrite, WriteState},
};
use crate::{
    format::{
        BLOCK_SIZE, Descriptor, EntryHeader, EntryShape, Footer, Generation, RegionId, UNIT,
        round_up,
    },
    index::{EntryKey, Fingerprint, GroupId, Location, ORDINALS_MAX},
    reservation::FilledEntry,
};

/// What an append counts towards `queue_bytes_max` beside its payload, so that empty entries are
/// bounded too.
const APPEND_OVERHEAD: u64 = 512;

/// A request that is handled in the order of arrival.
#[derive(Debug)]
pub enum QueuedRequest<T> {
    /// Appends an entry.
    Append(Append<T>),
    /// Seals a group.
    Seal(T, GroupId),
    /// Makes a group's entries durable.
    Sync(T, GroupId, BarrierEnd),
    /// Seals all regions that are being filled.
    Flush(T),
}

/// An append in the queue.
#[derive(Debug)]
pub struct Append<T> {
    token: T,
    group: GroupId,
    name: EntryName,
    tag: u32,
    deadline: Duration,
    source: Source,
}

/// Where an entry's bytes are.
#[derive(Debug)]
pub enum Source {
    /// To be copied, with the checksums of their frames.
    Copied { payload: Bytes, checksums: Vec<u32>, copy: Option<Box<EntryCopy>> },
    /// In the memory that is written; `None` once it is staged.
    InPlace(Option<FilledEntry>),
}

/// An entry that is being copied into a region.
#[derive(Debug)]
pub struct EntryCopy {
    place: Place,
    head: Vec<u8>,
    copied: u64,
}

/// The place of an entry in a region.
#[derive(Debug)]
struct Place {
    region: RegionId,
    generation: Generation,
    offset: u64,
    key: EntryKey,
}

/// Result of an attempt at the first request in the queue.
enum Progress {
    Done,
    Appended(RegionRef),
    Rejected(RequestError),
    /// Waits for memory or for a region.
    Blocked,
}

impl Place {
    fn region_ref(&self) -> RegionRef {
        RegionRef { region: self.region, generation: self.generation }
    }
}

impl<T> Append<T> {
    fn length(&self) -> u64 {
        match &self.source {
            Source::Copied { payload, .. } => payload.len() as u64,
            Source::InPlace(entry) => entry.as_ref().map_or(0, FilledEntry::length),
        }
    }

    /// What it counts towards `queue_bytes_max`. An entry in place has its own memory.
    fn queue_bytes(&self) -> u64 {
        APPEND_OVERHEAD
            + match &self.source {
                Source::Copied { payload, .. } => payload.len() as u64,
                Source::InPlace(_) => 0,
            }
    }

    fn has_begun(&self) -> bool {
        matches!(&self.source, Source::Copied { copy: Some(_), .. })
    }
}

impl<T> Shard<T> {
    pub(super) fn append(
        &mut self,
        token: T,
        group: GroupId,
        name: EntryName,
        tag: u32,
        source: Source,
    ) {
        let deadline = self.now.saturating_add(self.settings.append_deadline);
        let append = Append { token, group, name, tag, deadline, source };
        let (length, max) = (append.length(), self.entry_length_max());
        if let Source::Copied { checksums, .. } = &append.source {
            let frames = EntryShape::of(length).frames();
            assert_eq!(checksums.len(), frames, "a checksum for each frame");
        }
        self.queue_bytes += append.queue_bytes();
        if length > max {
            self.answer_append(append, Err(RequestError::TooLong { length, max }));
        } else if self.queue_bytes > self.settings.queue_bytes_max {
            self.answer_append(append, Err(RequestError::Busy));
        } else {
            self.queue.push_back(QueuedRequest::Append(append));
        }
    }

    pub(super) fn pump_queue(&mut self) {
        while let Some(mut first) = self.queue.pop_front() {
            let progress = match &mut first {
                QueuedRequest::Append(append) => {
                    let progress = match &append.source {
                        Source::Copied { .. } => self.copy_entry(append),
                        Source::InPlace(_) => self.stage_in_place(append),
                    };
                    progress.unwrap_or_else(|progress| progress)
                }
                QueuedRequest::Seal(_, group) => self.seal(*group),
                QueuedRequest::Sync(..) | QueuedRequest::Flush(_) => Progress::Done,
            };
            match (progress, first) {
                (Progress::Blocked, first) => return self.queue.push_front(first),
                (Progress::Rejected(error), QueuedRequest::Append(append)) => {
                    self.answer_append(append, Err(error));
                }
                (Progress::Appended(region), QueuedRequest::Append(append)) => {
                    self.answer_append(append, Ok(ShardAnswer::Appended { region }));
                }
                (Progress::Done, QueuedRequest::Append(_)) | (Progress::Appended(_), _) => {
                    unreachable!("appends alone append")
                }
                (
                    Progress::Rejected(error),
                    QueuedRequest::Seal(token, _)
                    | QueuedRequest::Sync(token, ..)
                    | QueuedRequest::Flush(token),
                ) => {
                    self.answers.push((token, Err(error)));
                }
                (Progress::Done, QueuedRequest::Seal(token, id)) => {
                    let group = self.groups.get_mut(&id).expect("just sealed");
                    group.seal_waiters.push(token);
                    self.answer_seals(id, None);
                }
                (Progress::Done, QueuedRequest::Sync(token, id, end)) => {
                    self.begin_barrier(token, id, end);
                }
                (Progress::Done, QueuedRequest::Flush(token)) => {
                    let open: Vec<_> =
                        self.groups.values().filter_map(|group| group.open).collect();
                    for region in open {
                        self.close_region(region, false);
                    }
                    let all = (0..).map(RegionId).zip(&self.regions);
                    let sealing = all.filter(|(_, region)| region.is_sealing());
                    let regions = sealing.map(|(id, region)| (id, region.generation)).collect();
                    self.pending_flushes.push((token, regions));
                    self.answer_flushes();
                }
            }
        }
    }

    fn answer_append(&mut self, append: Append<T>, outcome: RequestResult) {
        self.queue_bytes -= append.queue_bytes();
        let outcome = match (outcome, append.source) {
            (Err(error), Source::InPlace(Some(entry))) => {
                Ok(ShardAnswer::NotCommitted { error, entry })
            }
            (outcome, _) => outcome,
        };
        self.answers.push((append.token, outcome));
    }

    /// Promise 5: a device that accepts nothing blocks no caller. Appends whose copy has begun are
    /// finished.
    pub(super) fn time_out_appends(&mut self) {
        if self.append_deadline().is_none_or(|at| at > self.now) {
            return;
        }
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                QueuedRequest::Append(append)
                    if !append.has_begun() && append.deadline <= self.now =>
                {
                    self.answer_append(append, Err(RequestError::TimedOut));
                }
                other => self.queue.push_back(other),
            }
        }
    }

    /// Deadline of the first append whose copy has not begun. Deadlines are in queue order.
    pub(super) fn append_deadline(&self) -> Option<Duration> {
        self.queue.iter().find_map(|queued| match queued {
            QueuedRequest::Append(append) if !append.has_begun() => Some(append.deadline),
            _ => None,
        })
    }

    /// The longest payload: what fits into a region and can be read whole into memory.
    pub fn entry_length_max(&self) -> u64 {
        let memory = self.pools.read.size() as u64 / 2;
        let readable = memory.saturating_sub(memory / 256 + 4 * BLOCK_SIZE as u64);
        self.geometry().entry_length_max().min(readable)
    }

    /// Copies as much of an entry as there is memory for.
    fn copy_entry(&mut self, append: &mut Append<T>) -> Result<Progress, Progress> {
        let length = append.length();
        let Append {
            group, name, tag, source: Source::Copied { payload, checksums, copy }, ..
        } = append
        else {
            unreachable!("entries in place are not copied")
        };
        let copy = if let Some(copy) = copy {
            copy
        } else {
            let place = self.place(*group, name, length, UNIT)?;
            let head = self.header_at(&place, length, *tag).encode(checksums);
            copy.insert(Box::new(EntryCopy { place, head, copied: 0 }))
        };
        let Place { region: id, generation, .. } = copy.place;
        let size = EntryShape::of(length).size();
        while copy.copied < size {
            let region = &mut self.regions[id.0 as usize];
            let RegionState::Filling(open) = &mut region.state else {
                return Ok(Progress::Rejected(RequestError::Failed));
            };
            if region.generation != generation {
                return Ok(Progress::Rejected(RequestError::Failed));
            }
            if let Some(StagedWrite { state: WriteState::Filling(buffer, filled), .. }) =
                open.staged_writes.back_mut()
            {
                let room = &mut buffer[*filled..];
                let copied = copy_at(&copy.head, payload, size, copy.copied, room);
                *filled += copied;
                copy.copied += copied as u64;
                let full = *filled == buffer.len();
                open.fill += copied as u64;
                if full {
                    open.flush();
                    self.write_staged(id);
                }
            } else {
                let offset = open.fill;
                let left = self.superblock.geometry.region_size - offset;
                let length = left.min(self.settings.write_size as u64);
                let length = usize::try_from(length).expect("fits into memory");
                if let Some(buffer) = self.pools.staging.take(length) {
                    open.waiting_since = self.now;
                    let due = self.now.saturating_add(self.settings.flush_after);
                    self.flush_at.get_or_insert(due);
                    open.staged_writes
                        .push_back(StagedWrite { offset, state: WriteState::Filling(buffer, 0) });
                } else {
                    self.flush_idle(id);
                    return Ok(Progress::Blocked);
                }
            }
        }
        let (name, tag) = (*name, *tag);
        let appended = copy.place.region_ref();
        self.on_entry_staged(name, tag, length, &copy.place);
        self.prepare_region(*group);
        Ok(Progress::Appended(appended))
    }

    /// Stages an entry in the memory that its caller filled.
    fn stage_in_place(&mut self, append: &mut Append<T>) -> Result<Progress, Progress> {
        let length = append.length();
        let place = self.place(append.group, &append.name, length, BLOCK_SIZE)?;
        let header = self.header_at(&place, length, append.tag);
        let Source::InPlace(entry) = &mut append.source else { unreachable!("the caller's case") };
        let bytes = entry.take().expect("staged once").encode(&header);
        let open = self.region(place.region).open_mut().expect("the region is being filled");
        open.fill += bytes.len() as u64;
        let state = WriteState::Ready(bytes);
        open.staged_writes.push_back(StagedWrite { offset: place.offset, state });
        self.on_entry_staged(append.name, append.tag, length, &place);
        self.write_staged(place.region);
        self.prepare_region(append.group);
        Ok(Progress::Appended(place.region_ref()))
    }

    /// Chooses the place of an entry, at a multiple of `alignment`.
    fn place(
        &mut self,
        id: GroupId,
        name: &EntryName,
        length: u64,
        alignment: usize,
    ) -> Result<Place, Progress> {
        let rejected = |error| Err(Progress::Rejected(error));
        let Some(group) = self.groups.get(&id) else {
            return rejected(RequestError::Gone);
        };
        match group.state {
            GroupState::Filling => {}
            GroupState::Sealed | GroupState::Marked => return rejected(RequestError::Closed),
            GroupState::Draining => return rejected(RequestError::Gone),
        }
        let key = match name {
            EntryName::Key(key) if !group.dense => *key,
            EntryName::Ordinal(of, ordinal)
                if group.dense && *of == group.id && *ordinal < ORDINALS_MAX =>
            {
                group.key_of(*ordinal)
            }
            _ => return rejected(RequestError::InvalidName),
        };
        if !self.health.is_all_healthy() {
            return rejected(RequestError::Unhealthy);
        }
        let alignment = alignment as u64;
        let size = round_up(EntryShape::of(length).size(), alignment);
        let region_size = self.superblock.geometry.region_size;
        let fits = |open: &OpenRegion| {
            let footer = Footer::size(open.descriptors.len() + 1);
            let end = round_up(open.fill, alignment) + size;
            end + footer <= region_size && footer <= self.pools.footer_max()
        };
        if let Some(open) = group.open
            && !self.regions[open.0 as usize].open().is_some_and(fits)
        {
            self.close_region(open, false);
        }
        let region = self.region_for(id)?;
        self.appends_begun += 1;
        let last_append = self.appends_begun;
        let generation = self.region(region).generation;
        let open = self.region(region).open_mut().expect("the region is being filled");
        open.last_append = last_append;
        if alignment == BLOCK_SIZE as u64 {
            // The bytes before it are a write of their own.
            open.flush();
        }
        Ok(Place { region, generation, offset: open.fill, key })
    }

    fn header_at(&self, place: &Place, length: u64, tag: u32) -> EntryHeader {
        EntryHeader {
            device: self.superblock.geometry.device,
            generation: place.generation,
            key: place.key.0,
            length: u32::try_from(length).expect("at most a region"),
            tag,
        }
    }

    /// The region that a group fills; allocates one if there is none.
    fn region_for(&mut self, group: GroupId) -> Result<RegionId, Progress> {
        let owner = self.groups.get_mut(&group).expect("the caller's group exists");
        if owner.open.is_none() {
            owner.open = owner.prepared.take();
        }
        if let Some(open) = owner.open {
            return Ok(open);
        }
        let region = loop {
            match self.take_region() {
                Ok(Some(region)) => break region,
                Ok(None) => return Err(Progress::Blocked),
                // Other groups' regions can be sealed, and evicted then.
                Err(_) if self.close_idle_of_cache(group) => return Err(Progress::Blocked),
                // A prepared region of another group is empty.
                Err(_) if self.give_up_prepared(group) => {}
                Err(error) => return Err(Progress::Rejected(error)),
            }
        };
        if !self.begin_region(region, group) {
            return Err(Progress::Blocked);
        }
        self.groups.get_mut(&group).expect("just seen").open = Some(region);
        let filling = self.groups.values().filter(|group| group.open.is_some()).count();
        if filling > self.settings.filling_max {
            self.close_idle(group);
        }
        Ok(region)
    }

    /// All of an entry is in memory: indexes it.
    fn on_entry_staged(&mut self, name: EntryName, tag: u32, length: u64, place: &Place) {
        let Place { region: id, offset, key, .. } = place;
        let size = EntryShape::of(length).size();
        let location = Location::new(*id, *offset, size);
        let region = self.region(*id);
        region.entries += 1;
        region.bytes += length;
        region.open_mut().expect("the region is being filled").descriptors.push(Descriptor {
            key: key.0,
            offset: u32::try_from(offset / UNIT as u64).expect("inside a region"),
            length: u32::try_from(length).expect("inside a region"),
            tag,
        });
        self.counters.entries += 1;
        self.counters.bytes += length;
        self.counters.inserted_bytes += length;
        if let Some(before) = self.index_entry(name, key, location) {
            self.free_if_empty(before.region());
        }
    }

    /// Indexes an entry. Returns the location of the previous entry of this name, which it
    /// replaces.
    pub(crate) fn index_entry(
        &mut self,
        name: EntryName,
        key: &EntryKey,
        location: Location,
    ) -> Option<Location> {
        let before = match name {
            EntryName::Key(_) => {
                self.region(location.region()).lows.push(Fingerprint::of(key).low());
                self.index.write().insert(key, location)
            }
            EntryName::Ordinal(group, ordinal) => {
                self.index.write().insert_ordinal(group, ordinal, location)
            }
        };
        before.inspect(|before| self.subtract_entry(*before))
    }

    fn idle(
        &self,
        except: Option<RegionId>,
        is_candidate: impl Fn(&ShardGroup<T>, &OpenRegion) -> bool,
    ) -> Option<RegionId> {
        let filling = self.groups.values().filter_map(|group: &ShardGroup<T>| {
            let id = group.open.filter(|region| Some(*region) != except)?;
            let open = self.regions[id.0 as usize].open()?;
            is_candidate(group, open).then_some((id, open.last_append))
        });
        filling.min_by_key(|(_, last_append)| *last_append).map(|(id, _)| id)
    }

    /// Writes the partly filled write of the region that has been idle longest, to release its
    /// memory.
    fn flush_idle(&mut self, except: RegionId) {
        if let Some(idle) = self.idle(Some(except), |_, open| is_partly_filled(open)) {
            self.region(idle).open_mut().expect("the region is being filled").flush();
            self.write_staged(idle);
        }
    }

    /// Writes the partly filled writes that have waited for `flush_after`.
    pub(super) fn flush_waiting(&mut self) {
        if self.flush_at.is_none_or(|at| at > self.now) {
            return;
        }
        let due = |open: &OpenRegion| open.waiting_since.saturating_add(self.settings.flush_after);
        let filling = self.groups.values().filter_map(|group| group.open);
        let waiting: Vec<_> = filling
            .filter_map(|id| {
                Some((
                    id,
                    self.regions[id.0 as usize].open().filter(|open| is_partly_filled(open))?,
                ))
            })
            .map(|(id, open)| (id, due(open)))
            .collect();
        self.flush_at = waiting.iter().map(|(_, due)| *due).filter(|due| *due > self.now).min();
        let now = self.now;
        // No half-copied entry is affected: its region waits for memory after a full write.
        for (id, _) in waiting.into_iter().filter(|(_, due)| *due <= now) {
            self.region(id).open_mut().expect("the region is being filled").flush();
            self.write_staged(id);
        }
    }

    /// Seals the region that has been idle longest. False if there is none.
    fn close_idle(&mut self, except: GroupId) -> bool {
        let except = self.groups[&except].open;
        let idle = self.idle(except, |_, open| open.last_append > 0);
        idle.map(|idle| self.close_region(idle, false)).is_some()
    }

    /// Seals the region that has been idle longest of those that can be evicted afterwards.
    fn close_idle_of_cache(&mut self, except: GroupId) -> bool {
        let except = self.groups[&except].open;
        let idle = self.idle(except, |group, open| open.last_append > 0 && !group.is_stream());
        idle.map(|idle| self.close_region(idle, false)).is_some()
    }

    /// Seals a group. Its last region's footer records that; a group without an open region begins
    /// one for it.
    fn seal(&mut self, id: GroupId) -> Progress {
        let Some(group) = self.groups.get(&id) else {
            return Progress::Rejected(RequestError::Gone);
        };
        match group.state {
            GroupState::Filling => {}
            GroupState::Sealed | GroupState::Marked => {
                if let Some(open) = group.open {
                    self.close_region(open, true);
                }
                return Progress::Done;
            }
            GroupState::Draining => return Progress::Rejected(RequestError::Gone),
        }
        if !self.health.is_all_healthy() {
            return Progress::Rejected(RequestError::Unhealthy);
        }
        match self.region_for(id) {
            Err(progress) => progress,
            Ok(region) => {
                let group = self.groups.get_mut(&id).expect("just seen");
                group.state = GroupState::Sealed;
                let prepared = group.prepared;
                self.close_region(region, true);
                if let Some(prepared) = prepared {
                    self.free_region(prepared, None);
                }
                Progress::Done
            }
        }
    }
}

fn is_partly_filled(open: &OpenRegion) -> bool {
    open.staged_writes.back().is_some_and(|staged| matches!(staged.state, WriteState::Filling(..)))
}

/// Copies an entry's bytes from offset `from` on: head, payload, and zeros up to its size.
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

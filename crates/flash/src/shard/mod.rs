//! The shard: the engine of one device, without I/O. Requests, completions and the time go in;
//! commands and answers come out. The same code runs on `io_uring`, on threads, and on a simulated
//! disk under a seed.
//!
//! States of a region:
//!
//! 1. free;
//! 2. filling, as the open region of one group;
//! 3. sealing, until its footer is durable;
//! 4. sealed;
//! 5. freeing, until its last read and write have ended; then free again, or quarantined.
//!
//! **Invariant:** a region's header, with a generation that was never used before, is durable
//! before its first entry is written.
//!
//! **Invariant:** a region's entries are durable before its footer is written.

mod append;
mod eviction;
mod from_recovery;
mod group;
mod group_listing;
mod health;
mod read;
mod region;
mod region_fill;
mod region_free;
mod request;
mod scrub;
mod sync;
mod verified_read;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;

use crate::{
    buffers::{BufferPool, View},
    format::{Generation, Geometry, RegionId, Superblock},
    index::{GroupId, Index},
    io::{Completion, IoCommand, IoFault, IoId},
};

use self::{
    append::{QueuedRequest, Source},
    group::{Drain, ScheduledDrain},
    group_listing::{FooterReader, Listing},
    health::{Direction, Health},
    read::{ActiveRead, PendingRead},
    region::BarrierEnd,
    region_free::SpaceWaiter,
    scrub::Scrub,
    sync::{Barrier, SyncQueue},
};

pub use self::{
    eviction::{Candidate, Eviction, OldestFirst, RegionRef},
    group::{GroupInfo, GroupState, GuardKind, ShardGroup},
    region::{OpenRegion, Region, RegionState},
    request::{
        Counters, EntryName, RequestError, RequestResult, Settings, ShardAnswer, ShardRequest,
    },
    verified_read::{Mismatch, UnverifiedRead, VerifiedRead},
};

/// The engine of one device. `T` is the caller's token for a request.
pub struct Shard<T> {
    settings: Settings,
    superblock: Superblock,
    now: Duration,
    /// Generations begun since the device was opened.
    generations_begun: u32,
    regions: Vec<Region>,
    free: VecDeque<RegionId>,
    /// Sealing regions whose footers have yet to be written.
    footers: VecDeque<RegionId>,
    /// Regions whose free header could not be written for lack of memory.
    pending_free_headers: Vec<RegionId>,
    quarantined: Vec<(Duration, RegionId)>,
    groups: BTreeMap<GroupId, ShardGroup<T>>,
    names: BTreeMap<Vec<u8>, GroupId>,
    groups_opened: u32,
    scheduled_drains: Vec<ScheduledDrain>,
    drains: BTreeMap<u32, Drain<T>>,
    drains_begun: u32,
    /// Flush requests, with the regions that each waits for.
    pending_flushes: Vec<(T, Vec<(RegionId, Generation)>)>,
    /// Requests that wait for a free region.
    space_waiters: Vec<SpaceWaiter<T>>,
    barriers: BTreeMap<u32, Barrier<T>>,
    barriers_begun: u32,
    index: Arc<RwLock<Index>>,
    pools: BufferPools,
    eviction: Box<dyn Eviction>,

    running: BTreeMap<IoId, Purpose>,
    commands_begun: u64,
    syncs: SyncQueue,
    /// Appends, seals and flushes in the order of arrival.
    queue: VecDeque<QueuedRequest<T>>,
    /// Bytes of the appends in `queue`, with the overhead that each counts for.
    queue_bytes: u64,
    /// Appends begun so far, to find the group that has been idle longest.
    appends_begun: u64,
    /// Time at which staged bytes have waited for `flush_after`.
    flush_at: Option<Duration>,
    active_reads: BTreeMap<u64, ActiveRead<T>>,
    reads_begun: u64,
    /// Reads that wait for memory.
    pending_reads: VecDeque<PendingRead<T>>,
    listings: VecDeque<Listing<T>>,
    health: Health,
    scrub: Scrub,
    counters: Counters,

    commands: Vec<IoCommand>,
    answers: Vec<(T, RequestResult)>,
}

/// Memory for I/O. Each direction has its own pool, so that callers that keep read buffers cannot
/// block writes.
#[derive(Debug, Clone)]
pub struct BufferPools {
    /// Bytes on their way to the device.
    pub staging: Arc<BufferPool>,
    /// Carved out of `staging`: entries that callers fill in place. The rest is the shard's own, so
    /// that callers that keep reservations cannot block headers and footers.
    pub in_place: Arc<BufferPool>,
    /// Bytes read from the device.
    pub read: Arc<BufferPool>,
}

impl BufferPools {
    /// Allocates the pools. `in_place` bytes are a part of `staging`.
    pub fn new(staging: usize, in_place: usize, read: usize) -> std::io::Result<Self> {
        let staging = BufferPool::new(staging)?;
        let in_place = staging.carve(in_place).expect("a part of a new pool");
        Ok(Self { staging, in_place, read: BufferPool::new(read)? })
    }

    /// Size limit of a footer: an eighth of the smaller pool, so that there is always room for it
    /// eventually.
    pub(crate) fn footer_max(&self) -> u64 {
        self.staging.size().min(self.read.size()) as u64 / 8
    }
}

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A part of an active read.
    Read {
        read: u64,
        offset: u64,
    },
    /// The header of a region that begins to be filled.
    Header(RegionId),
    /// Staged bytes of a region, at this offset.
    Data(RegionId, u64),
    /// The footer of a region.
    Footer(RegionId),
    /// The header that says that a region is free.
    FreeHeader(RegionId),
    /// A footer read for a listing or for the scrubber.
    ReadFooter(RegionId, FooterReader),
    Sync,
    /// The contents of a freed region.
    Discard(RegionId),
    /// Whether an unhealthy device has recovered.
    Probe(Direction),
    /// The write that a sync probe makes durable.
    SyncProbeWrite,
}

impl<T> Shard<T> {
    /// A shard on which all regions are free. Recovery adds the rest.
    pub(crate) fn new(
        settings: Settings,
        superblock: Superblock,
        pools: BufferPools,
        eviction: Box<dyn Eviction>,
    ) -> Self {
        let regions = superblock.geometry.regions;
        Self {
            scrub: Scrub::new(settings.scrub_rate),
            settings,
            superblock,
            now: Duration::ZERO,
            generations_begun: 0,
            regions: (0..regions).map(|_| Region::free()).collect(),
            free: (0..regions).map(RegionId).collect(),
            footers: VecDeque::new(),
            pending_free_headers: Vec::new(),
            quarantined: Vec::new(),
            groups: BTreeMap::new(),
            names: BTreeMap::new(),
            groups_opened: 0,
            scheduled_drains: Vec::new(),
            drains: BTreeMap::new(),
            drains_begun: 0,
            pending_flushes: Vec::new(),
            space_waiters: Vec::new(),
            barriers: BTreeMap::new(),
            barriers_begun: 0,
            index: Arc::default(),
            pools,
            eviction,
            running: BTreeMap::new(),
            commands_begun: 0,
            syncs: SyncQueue::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            appends_begun: 0,
            flush_at: None,
            active_reads: BTreeMap::new(),
            reads_begun: 0,
            pending_reads: VecDeque::new(),
            listings: VecDeque::new(),
            health: Health::default(),
            counters: Counters::default(),
            commands: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// The device's geometry.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The index. Only the shard writes to it.
    pub fn index(&self) -> Arc<RwLock<Index>> {
        Arc::clone(&self.index)
    }

    /// Counters and gauges. Cheap.
    pub fn counters(&self) -> Counters {
        Counters {
            healthy: self.health.is_all_healthy(),
            regions_free: self.free.len() as u64,
            entry_length_max: self.entry_length_max(),
            regions_quarantined: self.quarantined.len() as u64,
            ..self.counters
        }
    }

    /// Memory of the index and of the regions' fingerprint lists.
    pub fn index_memory(&self) -> u64 {
        let lows = self.regions.iter().map(|region| region.lows.capacity() * size_of::<u32>());
        (self.index.read().memory() + lows.sum::<usize>()) as u64
    }

    /// Moves the pending commands and answers into these lists.
    pub fn take(&mut self, commands: &mut Vec<IoCommand>, answers: &mut Vec<(T, RequestResult)>) {
        commands.append(&mut self.commands);
        answers.append(&mut self.answers);
    }

    /// Whether nothing is running or queued.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.commands.is_empty() && self.queue.is_empty()
    }

    /// Accepts a request. It is answered now or later.
    pub fn submit(&mut self, token: T, request: ShardRequest) {
        match request {
            ShardRequest::Open { name, class, dense } => {
                let outcome = self.open_group(name, class, dense).map(ShardAnswer::Group);
                self.answers.push((token, outcome));
            }
            ShardRequest::Append { group, name, tag, payload, checksums } => {
                let source = Source::Copied { payload, checksums, copy: None };
                self.append(token, group, name, tag, source);
            }
            ShardRequest::Commit { group, name, tag, entry } => {
                self.append(token, group, name, tag, Source::InPlace(Some(entry)));
            }
            ShardRequest::AwaitSpace { timeout } => self.await_space(token, timeout),
            ShardRequest::ReleaseOrdinals { group, ordinals } => {
                let outcome = self.release_ordinals(group, ordinals);
                self.answers.push((token, outcome));
            }
            ShardRequest::Read { name, range, leased, into } => {
                self.read(token, name, range, leased, into);
            }
            // After the appends before it.
            ShardRequest::Seal { group } => self.queue.push_back(QueuedRequest::Seal(token, group)),
            ShardRequest::Sync { group } => {
                self.queue.push_back(QueuedRequest::Sync(token, group, BarrierEnd::Durable));
            }
            ShardRequest::Write { group } => {
                self.queue.push_back(QueuedRequest::Sync(token, group, BarrierEnd::Written));
            }
            ShardRequest::Locate { group, ordinals } => {
                let extents = ordinals.into_iter().map(|ordinal| self.extent(group, ordinal));
                let extents = extents.collect();
                self.answers.push((token, Ok(ShardAnswer::Extents(extents))));
            }
            ShardRequest::Flush => self.queue.push_back(QueuedRequest::Flush(token)),
            ShardRequest::Mark { group } => {
                let outcome = self.mark_group(group);
                self.answers.push((token, outcome));
            }
            ShardRequest::Free { group, lease_timeout } => {
                self.free_group(token, group, lease_timeout);
            }
            ShardRequest::Acquire { group, guard } => {
                let outcome = self.acquire_guard(group, guard);
                self.answers.push((token, outcome));
            }
            ShardRequest::Release { group, guard } => {
                self.release_guard(group, guard);
                self.answers.push((token, Ok(ShardAnswer::Done)));
            }
            ShardRequest::Groups => {
                let infos = self.groups.values().map(|group| self.group_info(group)).collect();
                self.answers.push((token, Ok(ShardAnswer::Groups(infos))));
            }
            ShardRequest::IndexMemory => {
                let memory = self.index_memory();
                self.answers.push((token, Ok(ShardAnswer::Memory(memory))));
            }
            ShardRequest::Entries { group } => self.list(token, group),
            ShardRequest::Forget { key } => {
                self.forget(&key);
                self.answers.push((token, Ok(ShardAnswer::Done)));
            }
            ShardRequest::ReportDamage { name, location, generation } => {
                self.on_damage_reported(&name, location, generation);
                self.answers.push((token, Ok(ShardAnswer::Done)));
            }
        }
        self.pump();
    }

    /// A command has completed or failed.
    pub fn on_completion(&mut self, completion: Completion) {
        let Completion { id, buffer, result } = completion;
        let purpose = self.running.remove(&id).expect("every command completes once");
        self.record_completion(purpose, result);
        match purpose {
            Purpose::Read { read, offset } => self.on_part_read(read, offset, buffer, result),
            Purpose::Header(region) => self.on_header_written(region, result),
            Purpose::Data(region, offset) => self.on_data_written(region, offset, result),
            Purpose::Footer(region) => self.on_footer_written(region, result),
            Purpose::FreeHeader(region) => self.on_free_header_written(region, result),
            Purpose::ReadFooter(region, reader) => {
                self.on_footer_read(region, reader, buffer, result);
            }
            Purpose::Sync => self.on_synced(result),
            Purpose::Discard(region) => self.on_discarded(region),
            Purpose::Probe(_) => {}
            Purpose::SyncProbeWrite => self.on_sync_probe_written(result),
        }
        self.pump();
    }

    /// Time has passed, or memory has been released.
    pub fn advance(&mut self, now: Duration) {
        assert!(now >= self.now, "time does not run backwards");
        self.now = now;
        self.time_out_reads();
        self.time_out_appends();
        self.time_out_space_waiters();
        self.start_due_drains();
        self.end_quarantines();
        self.probe();
        self.scrub();
        self.flush_waiting();
        self.pump();
    }

    /// Time of the next [`Shard::advance`], if no request or completion comes earlier.
    pub fn wake_at(&self) -> Option<Duration> {
        // All reads have the same timeout, so the first one with a reader is due first.
        let mut active_reads = self.active_reads.values();
        let others = [
            active_reads.find(|active| active.is_awaited()).map(|active| active.deadline),
            self.append_deadline(),
            self.space_waiters.iter().filter_map(|waiter| waiter.until).min(),
            self.pending_reads.front().map(|pending| pending.deadline),
            self.quarantined.first().map(|(until, _)| *until),
            self.scheduled_drains.iter().map(|scheduled| scheduled.forced_at).min(),
            self.health.probe_at(),
            self.flush_at,
            self.scrub.wake_at(),
        ];
        others.into_iter().flatten().min()
    }

    /// Continues everything that waited for memory, for a region, or for a queue.
    fn pump(&mut self) {
        self.pump_free_headers();
        self.pump_regions();
        self.pump_queue();
        self.pump_reads();
        self.pump_listings();
        self.pump_syncs();
    }

    fn begin(&mut self, purpose: Purpose) -> IoId {
        let id = IoId(self.commands_begun);
        self.commands_begun += 1;
        self.running.insert(id, purpose);
        id
    }

    fn write(&mut self, purpose: Purpose, offset: u64, bytes: View) {
        self.counters.device_bytes_written += bytes.len() as u64;
        let id = self.begin(purpose);
        self.commands.push(IoCommand::Write { id, offset, bytes });
    }

    /// A generation that no region of this device has had.
    fn next_generation(&mut self) -> Generation {
        self.generations_begun =
            self.generations_begun.checked_add(1).expect("fewer than 2^32 generations per run");
        Generation(u64::from(self.superblock.epoch) << 32 | u64::from(self.generations_begun))
    }

    /// Updates the device's health with a command's result.
    fn record_completion(&mut self, purpose: Purpose, result: Result<(), IoFault>) {
        let direction = match purpose {
            Purpose::Read { .. } | Purpose::ReadFooter(..) => Direction::Read,
            Purpose::Probe(direction) => direction,
            Purpose::Sync => Direction::Sync,
            Purpose::Discard(_) => return,
            _ => Direction::Write,
        };
        if result.is_err() {
            self.counters.commands_failed += 1;
        }
        self.record(direction, result.is_ok());
    }
}

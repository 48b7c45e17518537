//! The engine of one device, without the device: requests and completions and the time go in, commands and
//! answers come out. Whatever carries the commands out, a ring, threads or a simulated disk under a seed,
//! runs this very code.
//!
//! The life of a region: free; filling, as the open region of one group; sealing, until its footer is
//! durable; sealed; leaving, until nobody reads or writes it any more; free again, or in quarantine. Its
//! header, with a generation that no region ever had, is durable before its first entry is written, and
//! its entries are durable before its footer is written.

mod append;
mod fetched;
mod filling;
mod group;
mod health;
mod leaving;
mod listing;
mod read;
mod recovered;
mod region;
mod request;
mod scrub;
mod sync;
mod victims;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;

use crate::{
    arena::{Arena, View},
    index::{GroupId, Index},
    io::{Command, Completion, Fault, IoId},
    layout::{Generation, Geometry, RegionId, Superblock},
};

use self::{
    append::Queued,
    group::{Drain, Draining},
    health::{Direction, Health},
    listing::{Listing, TailReader},
    read::{Reading, Wanting},
    scrub::Scrub,
    sync::Syncs,
};

pub use self::{
    fetched::{Fetched, Mismatch, Proved},
    group::{Group, GroupFacts, Hold, Life},
    region::{Open, Region, RegionState},
    request::{Answer, Counters, Name, Outcome, Refusal, Request, Settings},
    victims::{Candidate, Eviction, OldestFirst},
};

/// The engine of one device. `T` is whatever tells its caller's requests apart.
pub struct Shard<T> {
    settings: Settings,
    superblock: Superblock,
    now: Duration,
    /// Lives begun since the device was opened.
    lives: u32,
    regions: Vec<Region>,
    free: VecDeque<RegionId>,
    /// Sealing regions whose footers are to be written.
    footers: VecDeque<RegionId>,
    /// Regions given up for good whose headers do not say so yet, for want of memory.
    unfreed: Vec<RegionId>,
    quarantined: Vec<(Duration, RegionId)>,
    groups: BTreeMap<GroupId, Group<T>>,
    names: BTreeMap<Vec<u8>, GroupId>,
    groups_opened: u32,
    draining: Vec<Draining>,
    drains: BTreeMap<u32, Drain<T>>,
    drains_begun: u32,
    /// Who waits, and for which regions to be sealed.
    flushers: Vec<(T, Vec<(RegionId, Generation)>)>,
    index: Arc<RwLock<Index>>,
    memory: Memory,
    eviction: Box<dyn Eviction>,

    running: BTreeMap<IoId, Purpose>,
    commands_begun: u64,
    syncs: Syncs,
    /// In the order in which they came.
    queue: VecDeque<Queued<T>>,
    /// Payloads in that queue.
    queue_bytes: u64,
    /// Appends ever begun, to tell which group was used last.
    appends_begun: u64,
    /// When something in memory will have waited for long enough.
    flush_at: Option<Duration>,
    readings: BTreeMap<u64, Reading<T>>,
    readings_begun: u64,
    /// Reads that found no memory.
    wanting: VecDeque<Wanting<T>>,
    listings: VecDeque<Listing<T>>,
    health: Health,
    scrub: Scrub,
    counters: Counters,

    commands: Vec<Command>,
    answers: Vec<(T, Outcome)>,
}

/// Memory for I/O, apart for each direction, so that readers who hold on to what they read never keep
/// anybody from writing.
#[derive(Debug, Clone)]
pub struct Memory {
    /// What is being written.
    pub staging: Arc<Arena>,
    /// What has been read.
    pub reading: Arc<Arena>,
}

impl Memory {
    /// A longer footer might never find room.
    pub(crate) fn footer_max(&self) -> u64 {
        self.staging.size().min(self.reading.size()) as u64 / 8
    }
}

/// Why a command was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A part of a reading.
    Read {
        reading: u64,
        offset: u64,
    },
    /// The header of a region that begins to be filled.
    Header(RegionId),
    /// The bytes of a region from here on.
    Data(RegionId, u64),
    /// The footer of a region.
    Footer(RegionId),
    /// The header that says that a region is free.
    Freeing(RegionId),
    /// The tail of a region, for a listing or the scrubber.
    Tail(RegionId, TailReader),
    Sync,
    /// A region's bytes.
    Discard(RegionId),
    /// Is the device well again?
    Probe(Direction),
}

impl<T> Shard<T> {
    /// An engine for a device on which these regions were found (see `recovery`).
    pub(crate) fn new(
        settings: Settings,
        superblock: Superblock,
        memory: Memory,
        eviction: Box<dyn Eviction>,
    ) -> Self {
        let regions = superblock.geometry.regions;
        Self {
            scrub: Scrub::new(settings.scrub_rate),
            settings,
            superblock,
            now: Duration::ZERO,
            lives: 0,
            regions: (0..regions).map(|_| Region::free()).collect(),
            free: (0..regions).map(RegionId).collect(),
            footers: VecDeque::new(),
            unfreed: Vec::new(),
            quarantined: Vec::new(),
            groups: BTreeMap::new(),
            names: BTreeMap::new(),
            groups_opened: 0,
            draining: Vec::new(),
            drains: BTreeMap::new(),
            drains_begun: 0,
            flushers: Vec::new(),
            index: Arc::default(),
            memory,
            eviction,
            running: BTreeMap::new(),
            commands_begun: 0,
            syncs: Syncs::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            appends_begun: 0,
            flush_at: None,
            readings: BTreeMap::new(),
            readings_begun: 0,
            wanting: VecDeque::new(),
            listings: VecDeque::new(),
            health: Health::default(),
            counters: Counters::default(),
            commands: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// How the device is cut.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// Where everything is; others may look, only the shard changes it.
    pub fn index(&self) -> Arc<RwLock<Index>> {
        Arc::clone(&self.index)
    }

    /// What has been counted. Costs next to nothing.
    pub fn counters(&self) -> Counters {
        let directions = [Direction::Read, Direction::Write];
        Counters {
            well: directions.into_iter().all(|direction| self.health.is_well(direction)),
            regions_free: self.free.len() as u64,
            entry_length_max: self.entry_length_max(),
            regions_quarantined: self.quarantined.len() as u64,
            ..self.counters
        }
    }

    /// Memory that knowing where everything is takes.
    pub fn index_memory(&self) -> u64 {
        let lows = self.regions.iter().map(|region| region.lows.capacity() * size_of::<u32>());
        (self.index.read().memory() + lows.sum::<usize>()) as u64
    }

    /// Takes what is to be done and what is to be answered.
    pub fn take(&mut self, commands: &mut Vec<Command>, answers: &mut Vec<(T, Outcome)>) {
        commands.append(&mut self.commands);
        answers.append(&mut self.answers);
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.commands.is_empty() && self.queue.is_empty()
    }

    /// Takes a request. Its answer may be there at once, or come later.
    pub fn submit(&mut self, token: T, request: Request) {
        match request {
            Request::Open { name, class, dense } => {
                let outcome = self.open_group(name, class, dense).map(Answer::Group);
                self.answers.push((token, outcome));
            }
            Request::Append { group, name, tag, payload, checksums } => {
                self.append(token, group, name, tag, payload, checksums);
            }
            Request::Read { name, range, leased } => self.read(token, name, range, leased),
            // Behind the appends that came before.
            Request::Seal { group } => self.queue.push_back(Queued::Seal(token, group)),
            Request::Flush => self.queue.push_back(Queued::Flush(token)),
            Request::Mark { group } => {
                let outcome = self.mark_group(group);
                self.answers.push((token, outcome));
            }
            Request::Free { group, patience } => self.free_group(token, group, patience),
            Request::Hold { group, hold } => {
                let outcome = self.hold(group, hold);
                self.answers.push((token, outcome));
            }
            Request::LetGo { group, hold } => {
                self.let_go(group, hold);
                self.answers.push((token, Ok(Answer::Done)));
            }
            Request::Groups => {
                let facts = self.groups.values().map(|group| self.facts(group)).collect();
                self.answers.push((token, Ok(Answer::Groups(facts))));
            }
            Request::IndexMemory => {
                let memory = self.index_memory();
                self.answers.push((token, Ok(Answer::Memory(memory))));
            }
            Request::Entries { group } => self.list(token, group),
            Request::Forget { key } => {
                self.forget(&key);
                self.answers.push((token, Ok(Answer::Done)));
            }
            Request::Damaged { name, location, generation } => {
                self.damaged(&name, location, generation);
                self.answers.push((token, Ok(Answer::Done)));
            }
        }
        self.pump();
    }

    /// A command has been carried out, or has failed.
    pub fn completed(&mut self, completion: Completion) {
        let Completion { id, buffer, result } = completion;
        let purpose = self.running.remove(&id).expect("every command completes once");
        self.judge(purpose, result);
        match purpose {
            Purpose::Read { reading, offset } => self.part_read(reading, offset, buffer, result),
            Purpose::Header(region) => self.header_written(region, result),
            Purpose::Data(region, offset) => self.data_written(region, offset, result),
            Purpose::Footer(region) => self.footer_written(region, result),
            Purpose::Freeing(region) => self.freeing_written(region, result),
            Purpose::Tail(region, reader) => self.tail_read(region, reader, buffer, result),
            Purpose::Sync => self.synced(result),
            Purpose::Discard(region) => self.discarded(region),
            Purpose::Probe(_) => {}
        }
        self.pump();
    }

    /// Time has passed, or memory has come back.
    pub fn advance(&mut self, now: Duration) {
        assert!(now >= self.now, "time does not run backwards");
        self.now = now;
        self.time_out_reads();
        self.time_out_appends();
        self.force_drains();
        self.end_quarantines();
        self.probe();
        self.scrub();
        self.flush_waiting();
        self.pump();
    }

    /// When [`Shard::advance`] has something to do, if nothing happens until then.
    pub fn wake_at(&self) -> Option<Duration> {
        // All reads have equally long, so the first of them is over first; some are over for their readers.
        let mut readings = self.readings.values();
        let others = [
            readings.find(|reading| reading.is_awaited()).map(|reading| reading.deadline),
            self.append_deadline(),
            self.wanting.front().map(|wanting| wanting.deadline),
            self.quarantined.first().map(|(until, _)| *until),
            self.draining.iter().map(|draining| draining.forced_at).min(),
            self.health.probe_at(),
            self.flush_at,
            self.scrub.wake_at(),
        ];
        others.into_iter().flatten().min()
    }

    /// Goes on with whatever waited for memory, for a region, or for its turn.
    fn pump(&mut self) {
        self.pump_unfreed();
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
        self.commands.push(Command::Write { id, offset, bytes });
    }

    /// A life that no region of this device ever had.
    fn next_generation(&mut self) -> Generation {
        self.lives = self.lives.checked_add(1).expect("a run begins fewer lives");
        Generation(u64::from(self.superblock.epoch) << 32 | u64::from(self.lives))
    }

    /// Draws the conclusions for the device from how a command went.
    fn judge(&mut self, purpose: Purpose, result: Result<(), Fault>) {
        let direction = match purpose {
            Purpose::Read { .. } | Purpose::Tail(..) => Direction::Read,
            Purpose::Probe(direction) => direction,
            Purpose::Discard(_) => return,
            _ => Direction::Write,
        };
        if result.is_err() {
            self.counters.faults += 1;
        }
        self.observe(direction, result.is_ok());
    }
}

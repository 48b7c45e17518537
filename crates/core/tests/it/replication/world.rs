//! A simulated world of nodes, jobs and a network that loses, delays, repeats and reorders
//! messages, all from one seed.
//!
//! Nodes crash and keep only their flash, are paused and resume, and are cut off from each other.
//! The invariants are checked after every event.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use forebay_core::{
    ByteSize, DatasetId, HalfChunk, NodeName,
    cluster::replication::{
        Free, Handling, KeepSet, Readiness, Replicator, Reply, Request, Settings, Term,
    },
    train::{
        manager::{PlacementRule, Report, ReportAnswer},
        placement::Placement,
    },
    units::ByteRate,
};

use super::job::Job;

pub const LEASE: Duration = Duration::from_mins(1);
pub const ITEM: u64 = 100;
pub const ITEMS_PER_HALF_CHUNK: u64 = 4;
pub const HALF_CHUNKS: u32 = 20;

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn dataset(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 32])
}

pub fn half_chunk_sizes() -> Vec<ByteSize> {
    vec![ByteSize(ITEM * ITEMS_PER_HALF_CHUNK); HALF_CHUNKS as usize]
}

/// Items of a dataset.
pub const ITEMS: usize = 4 * HALF_CHUNKS as usize;

/// The index of a dataset.
pub fn index(dataset: DatasetId) -> usize {
    dataset.as_bytes()[0].into()
}

pub fn half_chunk_of(item: u64) -> HalfChunk {
    HalfChunk(u32::try_from(item / ITEMS_PER_HALF_CHUNK).unwrap())
}

/// Bytes of one dataset.
pub const DATASET: u64 = ITEM * ITEMS_PER_HALF_CHUNK * HALF_CHUNKS as u64;

pub fn name(node: usize) -> NodeName {
    ["a", "b", "c", "d", "e"][node].parse().unwrap()
}

/// An end of a network link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Node(usize),
    Job(usize),
}

#[derive(Debug, Clone)]
enum Packet {
    Request(Request),
    Reply(ByteSize, Reply),
    Report(usize, DatasetId, Report, u64),
    ReportAnswer(ReportAnswer, u64),
}

enum Event {
    Tick { node: usize, incarnation: u64 },
    Found { node: usize, incarnation: u64, dataset: DatasetId },
    Freed { node: usize, incarnation: u64, dataset: DatasetId, keep_set: KeepSet },
    Deliver { from: Party, to: Party, packet: Packet },
    Step(usize),
    Up(usize),
    Repair(Party, Party),
}

pub struct Node {
    pub replicator: Option<Replicator>,
    pub incarnation: u64,
    started_at: Duration,
    paused_until: Duration,
    tick_at: Duration,
    /// Resident items of each dataset; they survive a crash.
    pub flash: [[bool; ITEMS]; 2],
    /// The newest keep-set of each dataset that it has applied in this incarnation.
    newest: BTreeMap<DatasetId, (Term, u64)>,
}

impl Node {
    /// The half-chunks with a resident item.
    pub fn half_chunks(&self, dataset: DatasetId) -> Vec<HalfChunk> {
        let items = (0..).zip(&self.flash[index(dataset)]).filter(|(_, is_resident)| **is_resident);
        let mut half_chunks: Vec<HalfChunk> = items.map(|(item, _)| half_chunk_of(item)).collect();
        half_chunks.dedup();
        half_chunks
    }
}

/// Faults of the network.
#[derive(Debug, Clone, Copy)]
pub struct NetworkFaults {
    pub lost: f64,
    pub repeated: f64,
    pub delay_max: Duration,
}

pub const NO_FAULTS: NetworkFaults =
    NetworkFaults { lost: 0.0, repeated: 0.0, delay_max: Duration::from_millis(20) };

pub struct World {
    pub now: Duration,
    pub random: fastrand::Rng,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    pub network: NetworkFaults,
    /// Links that are cut.
    pub cuts: BTreeSet<(Party, Party)>,
    queue: BTreeMap<(Duration, u64), Event>,
    events: u64,
    /// The keep-set of each version of each term: one manager chose it.
    keep_sets: BTreeMap<(DatasetId, Term, u64), Vec<HalfChunk>>,
    /// Capacity of one node.
    pub capacity: ByteSize,
    /// Chunks loaded by crashed nodes.
    loaded_before: u64,
}

impl World {
    pub fn new(seed: u64, nodes: usize, jobs: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Two fifths of two datasets fit.
        let capacity = ByteSize(2 * DATASET * 2 / 5 / nodes as u64);
        let node = |_| Node {
            replicator: None,
            incarnation: 0,
            started_at: Duration::ZERO,
            paused_until: Duration::ZERO,
            tick_at: Duration::MAX,
            flash: [[false; ITEMS]; 2],
            newest: BTreeMap::new(),
        };
        let jobs: Vec<Job> = (0..jobs).map(|job| Job::new(job, nodes, random.u64(..))).collect();
        let mut world = Self {
            // Clocks do not start at 0.
            now: Duration::from_secs(1000),
            nodes: (0..nodes).map(node).collect(),
            random,
            jobs,
            network: NO_FAULTS,
            cuts: BTreeSet::new(),
            queue: BTreeMap::new(),
            events: 0,
            keep_sets: BTreeMap::new(),
            capacity,
            loaded_before: 0,
        };
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        for job in 0..world.jobs.len() {
            world.after(ms(10 * job as u64), Event::Step(job));
        }
        world
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.events += 1;
        self.queue.insert((self.now + delay, self.events), event);
    }

    /// Runs for `time`.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(((at, _), event)) = self
            .queue
            .first_key_value()
            .map(|(key, _)| *key)
            .and_then(|key| (key.0 <= end).then(|| self.queue.remove_entry(&key))?)
        {
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = end;
    }

    /// Runs until `holds`, at most `within`. Returns how long it took.
    pub fn until(
        &mut self,
        within: Duration,
        holds: impl Fn(&mut Self) -> bool,
    ) -> Option<Duration> {
        let began = self.now;
        while self.now < began + within {
            if holds(self) {
                return Some(self.now.saturating_sub(began));
            }
            self.run(ms(50));
        }
        None
    }

    // Faults of nodes and links.

    pub fn start(&mut self, node: usize) {
        let incarnation = self.random.u64(..);
        let settings = Settings {
            me: name(node),
            incarnation,
            peers: (0..self.nodes.len()).filter(|other| *other != node).map(name).collect(),
            placement_order: (0..self.nodes.len()).rev().map(name).collect(),
            rule: PlacementRule::Knapsack(Placement::default()),
            capacity: self.capacity,
            lease: LEASE,
            load_rate: ByteRate(ByteSize(4 * DATASET)),
        };
        let started = &mut self.nodes[node];
        if started.replicator.is_some() {
            return;
        }
        // Each node has its own clock.
        started.started_at = self.now.saturating_sub(Duration::from_secs(incarnation % 500));
        started.replicator =
            Some(Replicator::new(self.now.saturating_sub(started.started_at), settings));
        (started.incarnation, started.paused_until, started.tick_at) =
            (incarnation, Duration::ZERO, Duration::MAX);
        started.newest.clear();
        self.settle(node);
    }

    pub fn crash(&mut self, node: usize) {
        if let Some(replicator) = self.nodes[node].replicator.take() {
            self.loaded_before += replicator.counters().chunks_loaded;
        }
    }

    pub fn crash_for(&mut self, node: usize, time: Duration) {
        self.crash(node);
        self.after(time, Event::Up(node));
    }

    pub fn pause(&mut self, node: usize, time: Duration) {
        self.nodes[node].paused_until = self.now + time;
    }

    pub fn cut_for(&mut self, a: Party, b: Party, time: Duration) {
        self.cuts.insert((a.min(b), a.max(b)));
        self.after(time, Event::Repair(a.min(b), a.max(b)));
    }

    /// Ends all faults. Messages in flight still arrive.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.network = NO_FAULTS;
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = Duration::ZERO;
            self.start(node);
        }
    }

    pub fn reaches(&self, a: Party, b: Party) -> bool {
        !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    pub fn is_awake(&self, node: usize) -> bool {
        self.nodes[node].replicator.is_some() && self.nodes[node].paused_until <= self.now
    }

    /// The manager of a dataset, if exactly one node is it and all live nodes follow it.
    pub fn agreed(&self, dataset: DatasetId) -> Option<usize> {
        let is_alive = |node: &usize| self.nodes[*node].replicator.is_some();
        let replicator = |node: usize| self.nodes[node].replicator.as_ref().unwrap();
        let live: Vec<usize> = (0..self.nodes.len()).filter(is_alive).collect();
        let managers: Vec<usize> =
            live.iter().copied().filter(|node| replicator(*node).manages(&dataset)).collect();
        let [manager] = managers[..] else { return None };
        let keep_set = replicator(manager).follower().keep_set(&dataset)?;
        let agrees = |node: &usize| {
            replicator(*node)
                .follower()
                .keep_set(&dataset)
                .is_some_and(|applied| applied.term == keep_set.term)
        };
        (keep_set.term.manager == name(manager) && live.iter().all(agrees)).then_some(manager)
    }

    pub fn chunks_loaded(&self) -> u64 {
        let replicators = self.nodes.iter().filter_map(|node| node.replicator.as_ref());
        self.loaded_before
            + replicators.map(|replicator| replicator.counters().chunks_loaded).sum::<u64>()
    }

    fn clock(&self, node: usize) -> Duration {
        self.now.saturating_sub(self.nodes[node].started_at)
    }

    fn send(&mut self, from: Party, to: Party, packet: &Packet) {
        let times = 1 + usize::from(self.random.f64() < self.network.repeated);
        for _ in 0..times {
            if self.random.f64() < self.network.lost || !self.reaches(from, to) {
                continue;
            }
            let long = u64::try_from(self.network.delay_max.as_micros()).unwrap();
            let most = if self.random.u8(..10) == 0 { long } else { long.min(20_000) };
            let delay = Duration::from_micros(self.random.u64(100..=most));
            self.after(delay, Event::Deliver { from, to, packet: packet.clone() });
        }
    }

    pub fn report(&mut self, job: usize, node: usize, dataset: DatasetId, report: Report, id: u64) {
        let packet = Packet::Report(job, dataset, report, id);
        self.send(Party::Job(job), Party::Node(node), &packet);
    }

    fn happen(&mut self, event: Event) {
        let (node, incarnation) = match &event {
            Event::Tick { node, incarnation }
            | Event::Found { node, incarnation, .. }
            | Event::Freed { node, incarnation, .. } => (Some(*node), Some(*incarnation)),
            Event::Deliver { to: Party::Node(node), .. } => (Some(*node), None),
            _ => (None, None),
        };
        if let Some(node) = node {
            let target = &self.nodes[node];
            if target.replicator.is_none()
                || incarnation.is_some_and(|incarnation| incarnation != target.incarnation)
            {
                return;
            }
            if target.paused_until > self.now {
                // It is handled when the node resumes.
                let wait = target.paused_until.saturating_sub(self.now);
                return self.after(wait, event);
            }
        }
        match event {
            Event::Up(node) => self.start(node),
            Event::Repair(a, b) => drop(self.cuts.remove(&(a, b))),
            Event::Step(job) => {
                let pause = Job::step(self, job);
                self.after(pause, Event::Step(job));
            }
            Event::Tick { node, .. } => {
                let now = self.clock(node);
                self.nodes[node].tick_at = Duration::MAX;
                self.replicator(node).tick(now).unwrap();
                self.settle(node);
            }
            Event::Found { node, dataset, .. } => {
                let (now, found) = (self.clock(node), self.half_chunks_on(node, dataset));
                self.replicator(node).found(now, dataset, &found);
                self.settle(node);
            }
            Event::Freed { node, dataset, keep_set, .. } => {
                let now = self.clock(node);
                self.replicator(node).freed(now, dataset, &keep_set);
                self.settle(node);
            }
            Event::Deliver { from, to: Party::Node(node), packet } => {
                self.deliver(from, node, packet);
                self.settle(node);
            }
            Event::Deliver {
                from,
                to: Party::Job(job),
                packet: Packet::ReportAnswer(answer, id),
            } => {
                let Party::Node(node) = from else { unreachable!() };
                let now = self.now;
                self.jobs[job].answered(now, node, answer, id);
            }
            Event::Deliver { .. } => unreachable!("jobs receive answers only"),
        }
    }

    pub fn replicator(&mut self, node: usize) -> &mut Replicator {
        self.nodes[node].replicator.as_mut().expect("a live node")
    }

    fn half_chunks_on(&self, node: usize, dataset: DatasetId) -> Vec<HalfChunk> {
        self.nodes[node].half_chunks(dataset)
    }

    fn deliver(&mut self, from: Party, node: usize, packet: Packet) {
        let (now, me) = (self.clock(node), Party::Node(node));
        match packet {
            Packet::Request(request) => {
                let Party::Node(peer) = from else { unreachable!() };
                let is_replicate = matches!(request, Request::Replicate { .. });
                let before = self.nodes[node].newest.clone();
                let reply = match self.replicator(node).on_request(now, &name(peer), request) {
                    Handling::Reply(reply) => reply,
                    Handling::Find(dataset) => {
                        let found = self.half_chunks_on(node, dataset);
                        self.replicator(node).query_reply(now, dataset, found)
                    }
                    Handling::Free(dataset, keep_set, free) => {
                        self.free(node, dataset, &keep_set, &free);
                        self.replicator(node).replicate_reply(dataset, keep_set)
                    }
                };
                let is_refused = matches!(reply, Reply::Stale { .. });
                assert!(!(is_replicate && is_refused) || before == self.nodes[node].newest);
                self.send(me, from, &Packet::Reply(self.capacity, reply));
            }
            Packet::Reply(capacity, reply) => {
                let Party::Node(peer) = from else { unreachable!() };
                self.replicator(node).on_reply(now, &name(peer), capacity, reply).unwrap();
            }
            Packet::Report(job, dataset, report, id) => {
                let job_name = format!("job {job}");
                let replicator = self.replicator(node);
                let answer = match replicator.prepare(now, dataset, half_chunk_sizes) {
                    Readiness::Ready => replicator.report(now, dataset, &job_name, &report),
                    Readiness::Waiting | Readiness::TooMany => Ok(ReportAnswer::FullReportNeeded),
                    Readiness::Elsewhere(node) => Ok(ReportAnswer::Redirect(node)),
                };
                // A delayed report may contradict a later one: it is refused.
                let answer = answer.unwrap_or(ReportAnswer::FullReportNeeded);
                self.send(me, from, &Packet::ReportAnswer(answer, id));
            }
            Packet::ReportAnswer(..) => unreachable!("nodes do not report"),
        }
    }

    /// A job puts an item to a node. Returns whether the node keeps it.
    pub fn put(&mut self, node: usize, dataset: DatasetId, item: u64) -> bool {
        let (now, half_chunk) = (self.clock(node), half_chunk_of(item));
        if !self.replicator(node).keeps(&dataset, half_chunk) {
            return false;
        }
        let is_resident =
            &mut self.nodes[node].flash[index(dataset)][usize::try_from(item).unwrap()];
        if !std::mem::replace(is_resident, true) {
            self.replicator(node).arrived(now, dataset, half_chunk, ByteSize(ITEM)).unwrap();
            self.settle(node);
        }
        true
    }

    fn free(&mut self, node: usize, dataset: DatasetId, keep_set: &KeepSet, free: &Free) {
        for (item, is_resident) in (0..).zip(&mut self.nodes[node].flash[index(dataset)]) {
            *is_resident &= match free {
                Free::These(gone) => !gone.contains(&half_chunk_of(item)),
                Free::AllOthers => keep_set.kept.contains(&half_chunk_of(item)),
            };
        }
        self.check(node, dataset);
    }

    /// Invariants after a node has applied a keep-set.
    fn check(&mut self, node: usize, dataset: DatasetId) {
        let node_state = &mut self.nodes[node];
        let replicator = node_state.replicator.as_ref().expect("a live node");
        let Some(applied) = replicator.follower().keep_set(&dataset) else { return };
        let version = (applied.term.clone(), applied.version);
        // A keep-set of an older term changes nothing.
        let newest = node_state.newest.entry(dataset).or_insert_with(|| version.clone());
        assert!(version >= *newest, "node {node} went back from {newest:?} to {version:?}");
        *newest = version.clone();
        // One manager per term: its versions have one content.
        let known = self
            .keep_sets
            .entry((dataset, version.0, version.1))
            .or_insert_with(|| applied.kept.clone());
        assert_eq!(*known, applied.kept, "two managers of one term");
        // Nothing outside the keep-set is resident.
        for half_chunk in node_state.half_chunks(dataset) {
            assert!(applied.kept.contains(&half_chunk), "half-chunk {half_chunk} on node {node}");
        }
    }

    /// Carries out the effects of a node.
    fn settle(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let effects = self.replicator(node).effects();
        for (to, request) in effects.send {
            let to = (0..self.nodes.len()).find(|node| name(*node) == to).unwrap();
            self.send(Party::Node(node), Party::Node(to), &Packet::Request(request));
        }
        for dataset in effects.find {
            let delay = ms(self.random.u64(0..50));
            self.after(delay, Event::Found { node, incarnation, dataset });
        }
        for (dataset, keep_set, free) in effects.free {
            // A superseded keep-set: the newest one is applied at once.
            let newest = self.replicator(node).follower().keep_set(&dataset).cloned();
            let free = if newest.as_ref() == Some(&keep_set) { free } else { Free::AllOthers };
            if let Some(newest) = newest {
                self.free(node, dataset, &newest, &free);
            }
            let delay = ms(self.random.u64(0..50));
            self.after(delay, Event::Freed { node, incarnation, dataset, keep_set });
        }
        let deadline = self.replicator(node).next_deadline();
        if let Some(deadline) = deadline {
            let at = (deadline + self.nodes[node].started_at).max(self.now + ms(5));
            if at < self.nodes[node].tick_at {
                self.nodes[node].tick_at = at;
                self.after(at.saturating_sub(self.now), Event::Tick { node, incarnation });
            }
        }
    }
}

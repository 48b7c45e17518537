//! A small world of nodes, jobs and a network that loses, delays, repeats and reorders, all from one seed.
//!
//! Nodes crash and forget all but their flash, are stopped and wake up again, and cannot reach each other for a
//! while. After every event it is checked what must hold at any time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use forebay_core::{
    ByteSize, DatasetId, NodeName,
    council::{Council, Free, Handling, Places, Readiness, Reply, Request, Settings, Term},
    manager::{Answer, Report, Rule},
    placement::Placement,
    units::ByteRate,
};

use super::job::Job;

pub const LEASE: Duration = Duration::from_mins(1);
pub const ITEM: u64 = 100;
pub const ITEMS_PER_PIECE: u64 = 4;
pub const PIECES: u32 = 20;

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn dataset(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 32])
}

pub fn piece_sizes() -> Vec<ByteSize> {
    vec![ByteSize(ITEM * ITEMS_PER_PIECE); PIECES as usize]
}

/// Items of a dataset.
pub const ITEMS: usize = 4 * PIECES as usize;

/// The place of a dataset among all.
pub fn index(dataset: DatasetId) -> usize {
    dataset.as_bytes()[0].into()
}

pub fn piece_of(item: u64) -> u32 {
    u32::try_from(item / ITEMS_PER_PIECE).unwrap()
}

/// What all pieces of one dataset take up, and both datasets.
pub const DATASET: u64 = ITEM * ITEMS_PER_PIECE * PIECES as u64;

pub fn name(node: usize) -> NodeName {
    ["a", "b", "c", "d", "e"][node].parse().unwrap()
}

/// Who is at an end of the network.
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
    Answer(Answer, u64),
}

enum Event {
    Tick { node: usize, life: u64 },
    Found { node: usize, life: u64, dataset: DatasetId },
    Freed { node: usize, life: u64, dataset: DatasetId, places: Places },
    Deliver { from: Party, to: Party, packet: Packet },
    Step(usize),
    Up(usize),
    Mend(Party, Party),
}

pub struct Node {
    pub council: Option<Council>,
    pub life: u64,
    started_at: Duration,
    paused_until: Duration,
    tick_at: Duration,
    /// Which items of each dataset lie there, whatever happens to the node.
    pub flash: [[bool; ITEMS]; 2],
    /// The newest word of each dataset that it has obeyed in this life.
    newest: BTreeMap<DatasetId, (Term, u64)>,
}

impl Node {
    /// The pieces of which something lies there.
    pub fn pieces(&self, dataset: DatasetId) -> Vec<u32> {
        let items = (0..).zip(&self.flash[index(dataset)]).filter(|(_, there)| **there);
        let mut pieces: Vec<u32> = items.map(|(item, _)| piece_of(item)).collect();
        pieces.dedup();
        pieces
    }
}

/// How unreliable the network is.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub lost: f64,
    pub repeated: f64,
    pub delay_max: Duration,
}

pub const CALM: Weather =
    Weather { lost: 0.0, repeated: 0.0, delay_max: Duration::from_millis(20) };

pub struct World {
    pub now: Duration,
    pub random: fastrand::Rng,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    pub weather: Weather,
    /// Who cannot reach whom.
    pub cuts: BTreeSet<(Party, Party)>,
    queue: BTreeMap<(Duration, u64), Event>,
    events: u64,
    /// What was said in each version of each term: only one manager can have said it.
    words: BTreeMap<(DatasetId, Term, u64), Vec<u32>>,
    /// What one node can keep.
    pub capacity: ByteSize,
    /// Counted by nodes that are no more.
    loaded_before: u64,
}

impl World {
    pub fn new(seed: u64, nodes: usize, jobs: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Two fifths of two datasets fit.
        let capacity = ByteSize(2 * DATASET * 2 / 5 / nodes as u64);
        let node = |_| Node {
            council: None,
            life: 0,
            started_at: Duration::ZERO,
            paused_until: Duration::ZERO,
            tick_at: Duration::MAX,
            flash: [[false; ITEMS]; 2],
            newest: BTreeMap::new(),
        };
        let jobs: Vec<Job> = (0..jobs).map(|job| Job::new(job, nodes, random.u64(..))).collect();
        let mut world = Self {
            // Clocks do not begin at nought.
            now: Duration::from_secs(1000),
            nodes: (0..nodes).map(node).collect(),
            random,
            jobs,
            weather: CALM,
            cuts: BTreeSet::new(),
            queue: BTreeMap::new(),
            events: 0,
            words: BTreeMap::new(),
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

    /// Goes on for so long.
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

    /// Goes on until something holds; says how long that took, or that it took too long.
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

    // What happens to nodes.

    pub fn start(&mut self, node: usize) {
        let life = self.random.u64(..);
        let settings = Settings {
            me: name(node),
            life,
            peers: (0..self.nodes.len()).filter(|other| *other != node).map(name).collect(),
            placement_order: (0..self.nodes.len()).rev().map(name).collect(),
            rule: Rule::Knapsack(Placement::default()),
            capacity: self.capacity,
            lease: LEASE,
            load_rate: ByteRate(ByteSize(4 * DATASET)),
        };
        let started = &mut self.nodes[node];
        if started.council.is_some() {
            return;
        }
        // Each has a clock of its own.
        started.started_at = self.now.saturating_sub(Duration::from_secs(life % 500));
        started.council = Some(Council::new(self.now.saturating_sub(started.started_at), settings));
        (started.life, started.paused_until, started.tick_at) =
            (life, Duration::ZERO, Duration::MAX);
        started.newest.clear();
        self.settle(node);
    }

    pub fn crash(&mut self, node: usize) {
        if let Some(council) = self.nodes[node].council.take() {
            self.loaded_before += council.counters().chunks_loaded;
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
        self.after(time, Event::Mend(a.min(b), a.max(b)));
    }

    /// Everything is well from now on; what is under way still arrives.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.weather = CALM;
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = Duration::ZERO;
            self.start(node);
        }
    }

    pub fn reaches(&self, a: Party, b: Party) -> bool {
        !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    pub fn is_awake(&self, node: usize) -> bool {
        self.nodes[node].council.is_some() && self.nodes[node].paused_until <= self.now
    }

    /// The node that manages a dataset, if exactly one believes so and all that live obey it.
    pub fn agreed(&self, dataset: DatasetId) -> Option<usize> {
        let lives = |node: &usize| self.nodes[*node].council.is_some();
        let council = |node: usize| self.nodes[node].council.as_ref().unwrap();
        let live: Vec<usize> = (0..self.nodes.len()).filter(lives).collect();
        let managers: Vec<usize> =
            live.iter().copied().filter(|node| council(*node).manages(&dataset)).collect();
        let [manager] = managers[..] else { return None };
        let places = council(manager).obeying().places(&dataset)?;
        let agrees = |node: &usize| {
            council(*node)
                .obeying()
                .places(&dataset)
                .is_some_and(|obeyed| obeyed.term == places.term)
        };
        (places.term.manager == name(manager) && live.iter().all(agrees)).then_some(manager)
    }

    pub fn chunks_loaded(&self) -> u64 {
        let councils = self.nodes.iter().filter_map(|node| node.council.as_ref());
        self.loaded_before + councils.map(|council| council.counters().chunks_loaded).sum::<u64>()
    }

    fn clock(&self, node: usize) -> Duration {
        self.now.saturating_sub(self.nodes[node].started_at)
    }

    fn send(&mut self, from: Party, to: Party, packet: &Packet) {
        let times = 1 + usize::from(self.random.f64() < self.weather.repeated);
        for _ in 0..times {
            if self.random.f64() < self.weather.lost || !self.reaches(from, to) {
                continue;
            }
            let long = u64::try_from(self.weather.delay_max.as_micros()).unwrap();
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
        let (node, life) = match &event {
            Event::Tick { node, life }
            | Event::Found { node, life, .. }
            | Event::Freed { node, life, .. } => (Some(*node), Some(*life)),
            Event::Deliver { to: Party::Node(node), .. } => (Some(*node), None),
            _ => (None, None),
        };
        if let Some(node) = node {
            let there = &self.nodes[node];
            if there.council.is_none() || life.is_some_and(|life| life != there.life) {
                return;
            }
            if there.paused_until > self.now {
                // It takes it in when it wakes up.
                let wait = there.paused_until.saturating_sub(self.now);
                return self.after(wait, event);
            }
        }
        match event {
            Event::Up(node) => self.start(node),
            Event::Mend(a, b) => drop(self.cuts.remove(&(a, b))),
            Event::Step(job) => {
                let pause = Job::step(self, job);
                self.after(pause, Event::Step(job));
            }
            Event::Tick { node, .. } => {
                let now = self.clock(node);
                self.nodes[node].tick_at = Duration::MAX;
                self.council(node).tick(now).unwrap();
                self.settle(node);
            }
            Event::Found { node, dataset, .. } => {
                let (now, found) = (self.clock(node), self.pieces_on(node, dataset));
                self.council(node).found(now, dataset, &found);
                self.settle(node);
            }
            Event::Freed { node, dataset, places, .. } => {
                let now = self.clock(node);
                self.council(node).freed(now, dataset, &places);
                self.settle(node);
            }
            Event::Deliver { from, to: Party::Node(node), packet } => {
                self.deliver(from, node, packet);
                self.settle(node);
            }
            Event::Deliver { from, to: Party::Job(job), packet: Packet::Answer(answer, id) } => {
                let Party::Node(node) = from else { unreachable!() };
                let now = self.now;
                self.jobs[job].answered(now, node, answer, id);
            }
            Event::Deliver { .. } => unreachable!("jobs are answered, and nothing else"),
        }
    }

    pub fn council(&mut self, node: usize) -> &mut Council {
        self.nodes[node].council.as_mut().expect("it lives")
    }

    fn pieces_on(&self, node: usize, dataset: DatasetId) -> Vec<u32> {
        self.nodes[node].pieces(dataset)
    }

    fn deliver(&mut self, from: Party, node: usize, packet: Packet) {
        let (now, me) = (self.clock(node), Party::Node(node));
        match packet {
            Packet::Request(request) => {
                let Party::Node(peer) = from else { unreachable!() };
                let is_tell = matches!(request, Request::Tell { .. });
                let before = self.nodes[node].newest.clone();
                let reply = match self.council(node).on_request(now, &name(peer), request) {
                    Handling::Reply(reply) => reply,
                    Handling::Find(dataset) => {
                        let found = self.pieces_on(node, dataset);
                        self.council(node).answer_ask(now, dataset, found)
                    }
                    Handling::Free(dataset, places, free) => {
                        self.free(node, dataset, &places, &free);
                        self.council(node).answer_tell(dataset, places)
                    }
                };
                let is_refused = matches!(reply, Reply::Refused { .. });
                assert!(!(is_tell && is_refused) || before == self.nodes[node].newest);
                self.send(me, from, &Packet::Reply(self.capacity, reply));
            }
            Packet::Reply(capacity, reply) => {
                let Party::Node(peer) = from else { unreachable!() };
                self.council(node).on_reply(now, &name(peer), capacity, reply).unwrap();
            }
            Packet::Report(job, dataset, report, id) => {
                let job_name = format!("job {job}");
                let council = self.council(node);
                let answer = match council.prepare(now, dataset, piece_sizes) {
                    Readiness::Ready => council.report(now, dataset, &job_name, &report),
                    Readiness::Waiting | Readiness::TooMany => Ok(Answer::TellAll),
                    Readiness::Elsewhere(node) => Ok(Answer::Elsewhere(node)),
                };
                // A report that was delayed may contradict a later one: it is refused, and nothing else.
                let answer = answer.unwrap_or(Answer::TellAll);
                self.send(me, from, &Packet::Answer(answer, id));
            }
            Packet::Answer(..) => unreachable!("nodes do not report"),
        }
    }

    /// A job puts an item on a node, which keeps it or not. Says whether it does.
    pub fn put(&mut self, node: usize, dataset: DatasetId, item: u64) -> bool {
        let (now, piece) = (self.clock(node), piece_of(item));
        if !self.council(node).keeps(&dataset, piece) {
            return false;
        }
        let there = &mut self.nodes[node].flash[index(dataset)][usize::try_from(item).unwrap()];
        if !std::mem::replace(there, true) {
            self.council(node).arrived(now, dataset, piece, ByteSize(ITEM)).unwrap();
            self.settle(node);
        }
        true
    }

    fn free(&mut self, node: usize, dataset: DatasetId, places: &Places, free: &Free) {
        for (item, there) in (0..).zip(&mut self.nodes[node].flash[index(dataset)]) {
            *there &= match free {
                Free::These(gone) => !gone.contains(&piece_of(item)),
                Free::AllOthers => places.kept.contains(&piece_of(item)),
            };
        }
        self.check(node, dataset);
    }

    /// What must hold whenever a node has obeyed.
    fn check(&mut self, node: usize, dataset: DatasetId) {
        let there = &mut self.nodes[node];
        let council = there.council.as_ref().expect("it lives");
        let Some(obeyed) = council.obeying().places(&dataset) else { return };
        let word = (obeyed.term.clone(), obeyed.version);
        // No order of an old term changes anything.
        let newest = there.newest.entry(dataset).or_insert_with(|| word.clone());
        assert!(word >= *newest, "node {node} went back from {newest:?} to {word:?}");
        *newest = word.clone();
        // One manager for one term: nobody else can have said something else in it.
        let said =
            self.words.entry((dataset, word.0, word.1)).or_insert_with(|| obeyed.kept.clone());
        assert_eq!(*said, obeyed.kept, "two managers of one term");
        // What has no place is not there.
        for piece in there.pieces(dataset) {
            assert!(obeyed.kept.contains(&piece), "piece {piece} on node {node}");
        }
    }

    /// Carries out what a node wants to have done.
    fn settle(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let effects = self.council(node).effects();
        for (to, request) in effects.send {
            let to = (0..self.nodes.len()).find(|node| name(*node) == to).unwrap();
            self.send(Party::Node(node), Party::Node(to), &Packet::Request(request));
        }
        for dataset in effects.find {
            let delay = ms(self.random.u64(0..50));
            self.after(delay, Event::Found { node, life, dataset });
        }
        for (dataset, places, free) in effects.free {
            // What was superseded meanwhile is said at once, and freed at once: the last word counts.
            let newest = self.council(node).obeying().places(&dataset).cloned();
            let free = if newest.as_ref() == Some(&places) { free } else { Free::AllOthers };
            if let Some(newest) = newest {
                self.free(node, dataset, &newest, &free);
            }
            let delay = ms(self.random.u64(0..50));
            self.after(delay, Event::Freed { node, life, dataset, places });
        }
        let deadline = self.council(node).next_deadline();
        if let Some(deadline) = deadline {
            let at = (deadline + self.nodes[node].started_at).max(self.now + ms(5));
            if at < self.nodes[node].tick_at {
                self.nodes[node].tick_at = at;
                self.after(at.saturating_sub(self.now), Event::Tick { node, life });
            }
        }
    }
}

//! A small world in which a dataset rotates: jobs that draw single items, an origin that counts,
//! and an audit of every order.
//!
//! A step is a second, an item is [`ITEM`] bytes. Jobs draw from their draw set ([`ChunkDrawSet`]).
//! Missing items of it they fetch themselves, and others they read uncached. The rotation gets a
//! tick only at its own deadlines.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    dataset::chunking::ChunkOrdinal,
    train::rotation::{
        ChunkBytes, ChunkDrawSet, ChunkOrder, EvictionCause, JobNumber, Rotation, RotationEvent,
        RotationPolicy, RotationSettings,
    },
    units::ByteRate,
};

/// Large enough that slow jobs have a pace in whole bytes per second.
const ITEM: u64 = 1000;
pub const LEASE: Duration = Duration::from_secs(30);

/// Items of a chunk, as bits.
type Items = u128;

#[derive(Debug, Clone)]
pub struct WorldPlan {
    pub policy: RotationPolicy,
    pub chunks: u32,
    pub chunk_items: u32,
    /// The budget of chunks from each step on.
    pub budgets: Vec<(u64, u32)>,
    /// Items that the origin serves in a step.
    pub origin: f64,
    /// Steps between two reports of a job.
    pub report_every: u64,
    /// Steps that freeing a chunk takes.
    pub evict_steps: u64,
    pub jobs: Vec<JobPlan>,
}

#[derive(Debug, Clone)]
pub struct JobPlan {
    pub arrives: u64,
    /// Items that it draws in a step, from each step on.
    pub paces: Vec<(u64, f64)>,
    /// Epochs after which it leaves, unless it dies before.
    pub epochs: u64,
    pub dies: Option<u64>,
}

impl JobPlan {
    pub fn steady(arrives: u64, pace: f64) -> Self {
        Self { arrives, paces: vec![(0, pace)], epochs: u64::MAX, dies: None }
    }

    fn pace(&self, step: u64) -> f64 {
        at(&self.paces, step)
    }
}

fn at<T: Copy>(timeline: &[(u64, T)], step: u64) -> T {
    timeline.iter().rev().find(|(from, _)| *from <= step).expect("the timeline starts at 0").1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotYet,
    Live,
    /// It sends no more events.
    Dead,
    Done,
}

#[derive(Debug)]
struct Worker {
    plan: JobPlan,
    state: State,
    credit: f64,
    unread: Vec<Items>,
    referenced: Vec<bool>,
    /// Unread items, as last reported.
    reported: Vec<u32>,
    epoch: u64,
    /// Origin items in all when each of its epochs ended.
    turns: Vec<u64>,
}

#[derive(Debug)]
pub struct World {
    pub plan: WorldPlan,
    pub rotation: Rotation,
    rng: fastrand::Rng,
    pub step: u64,
    loaded: Vec<Items>,
    loading: Vec<ChunkOrdinal>,
    leaving: Vec<(u64, ChunkOrdinal)>,
    /// Readers of a chunk when it was marked, and their epochs.
    marked: Vec<Option<Vec<(usize, u64)>>>,
    first_done: Vec<Option<u64>>,
    tokens: f64,
    workers: Vec<Worker>,
    pub origin_items: u64,
    pub uncached: u64,
    pub draws: u64,
}

fn bits(count: u32) -> Items {
    if count == Items::BITS { Items::MAX } else { (1 << count) - 1 }
}

/// The pace of a job that draws `pace` items per second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few items")]
fn bytes(pace: f64) -> ByteRate {
    ByteRate(ByteSize((pace * ITEM as f64) as u64))
}

fn nth(mut items: Items, index: u32) -> Items {
    for _ in 0..index {
        items &= items - 1;
    }
    items & items.wrapping_neg()
}

impl World {
    pub fn new(plan: WorldPlan, seed: u64) -> Self {
        let size = ByteSize(u64::from(plan.chunk_items) * ITEM);
        let settings = RotationSettings {
            policy: plan.policy,
            lease: LEASE,
            load_time: Duration::from_secs_f64(f64::from(plan.chunk_items) / plan.origin),
            chunk_sizes: vec![size; plan.chunks as usize],
        };
        let chunks = plan.chunks as usize;
        let worker = |job: &JobPlan| Worker {
            plan: job.clone(),
            state: State::NotYet,
            credit: 0.0,
            unread: vec![bits(plan.chunk_items); chunks],
            referenced: vec![false; chunks],
            reported: vec![plan.chunk_items; chunks],
            epoch: 0,
            turns: Vec::new(),
        };
        let mut world = Self {
            rotation: Rotation::new(&settings),
            rng: fastrand::Rng::with_seed(seed),
            step: 0,
            loaded: vec![0; chunks],
            loading: Vec::new(),
            leaving: Vec::new(),
            marked: vec![None; chunks],
            first_done: vec![None; chunks],
            tokens: 0.0,
            workers: plan.jobs.iter().map(worker).collect(),
            origin_items: 0,
            uncached: 0,
            draws: 0,
            plan,
        };
        world.send(RotationEvent::Budget { chunks: world.budget() });
        world
    }

    /// Origin items in all at the end of each epoch of a job.
    pub fn turns(&self, job: usize) -> &[u64] {
        &self.workers[job].turns
    }

    /// Whether all jobs have finished.
    pub fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.state, State::Dead | State::Done))
    }

    /// Items that the jobs have yet to draw.
    pub fn items_left(&self) -> u64 {
        let items = u64::from(self.plan.chunks * self.plan.chunk_items);
        self.workers.iter().map(|worker| (worker.plan.epochs - worker.epoch) * items).sum()
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.step)
    }

    fn budget(&self) -> u32 {
        at(&self.plan.budgets, self.step)
    }

    fn send(&mut self, event: RotationEvent<'_>) {
        let orders =
            self.rotation.on_event(self.now(), event).expect("the world sends valid events");
        for order in orders {
            self.audit(order);
            match order {
                ChunkOrder::Load(chunk) => {
                    self.loading.push(chunk);
                    self.first_done[chunk.0 as usize] = None;
                }
                ChunkOrder::Mark(chunk) => {
                    let index = chunk.0 as usize;
                    let readers = self.workers.iter().enumerate();
                    let readers = readers
                        .filter(|(_, reader)| reader.reported[index] > 0 && self.is_known(reader));
                    self.marked[index] =
                        Some(readers.map(|(at, reader)| (at, reader.epoch)).collect());
                }
                ChunkOrder::Evict { chunk, .. } => {
                    let index = chunk.0 as usize;
                    self.loading.retain(|loading| *loading != chunk);
                    (self.loaded[index], self.marked[index]) = (0, None);
                    for worker in &mut self.workers {
                        worker.referenced[index] = false;
                    }
                    self.leaving.push((self.step + self.plan.evict_steps, chunk));
                }
            }
        }
    }

    /// Checks that evictions follow the rules, and that there are never more chunks than the
    /// budget.
    fn audit(&self, order: ChunkOrder) {
        let budget = self.budget() as usize;
        let resident = self.rotation.occupied().count();
        let is_quiver = matches!(self.plan.policy, RotationPolicy::Quiver { .. });
        if let ChunkOrder::Load(chunk) = order {
            assert!(resident <= budget, "{resident} chunks for {budget}, with {}", chunk.0);
            let is_whole = budget >= self.plan.chunks as usize;
            assert!(!is_quiver || is_whole || resident <= 2, "{resident} under Quiver's policy");
        }
        let ChunkOrder::Evict { chunk, cause } = order else { return };
        let index = chunk.0 as usize;
        let mut active = self.workers.iter().filter(|worker| self.is_active(worker));
        match (cause, self.plan.policy) {
            (EvictionCause::Exhausted, RotationPolicy::Demand) => {
                assert!(active.all(|worker| worker.reported[index] == 0), "an active job needs it");
            }
            (EvictionCause::Exhausted, RotationPolicy::Quiver { .. }) => {
                let readers = self.marked[index].as_ref().expect("marked before");
                let has_done = |(reader, epoch): &(usize, u64)| {
                    let reader = &self.workers[*reader];
                    reader.epoch > *epoch || reader.reported[index] == 0 || !self.is_known(reader)
                };
                assert!(readers.iter().all(has_done), "a job reads it");
            }
            (EvictionCause::Deadline, RotationPolicy::Quiver { deadline }) => {
                let done = self.first_done[index].expect("a job has exhausted it");
                assert!(self.marked[index].is_some(), "not marked before");
                assert!(self.now() >= Duration::from_secs(done) + deadline, "before the deadline");
            }
            (EvictionCause::Needed(job), RotationPolicy::Demand) => {
                let starving = &self.workers[usize::try_from(job.0).unwrap()];
                assert_eq!(starving.reported[index], 0, "the starving job needs it itself");
                assert!(!self.loading.contains(&chunk), "not even loaded");
                // A dead job counts until its lease ends.
                if starving.state == State::Live {
                    self.audit_starving(starving);
                }
            }
            (EvictionCause::Budget, _) => {
                assert!(resident > budget || is_quiver, "there is room");
            }
            (EvictionCause::Deadline | EvictionCause::Needed(_), _) => {
                panic!("no rule of this policy")
            }
        }
    }

    fn job(&self, worker: &Worker) -> JobNumber {
        JobNumber(self.workers.iter().position(|other| std::ptr::eq(other, worker)).unwrap() as u64)
    }

    /// Whether the rotation still knows a job.
    fn is_known(&self, worker: &Worker) -> bool {
        let job = self.job(worker);
        self.rotation.jobs().any(|known| known == job)
    }

    /// Whether the rotation takes a job into account.
    fn is_active(&self, worker: &Worker) -> bool {
        self.rotation.inactive_at(self.job(worker)).is_some_and(|at| at > self.now())
    }

    /// Checks that a job's supply would last less long than loading a chunk takes.
    fn audit_starving(&self, starving: &Worker) {
        let pinned: Vec<ChunkOrdinal> = self.rotation.pinned().collect();
        let unread = |chunk: ChunkOrdinal| f64::from(starving.reported[chunk.0 as usize]);
        let total: f64 = starving.reported.iter().map(|items| f64::from(*items)).sum();
        let rest = total - pinned.iter().map(|chunk| unread(*chunk)).sum::<f64>();
        let ChunkDrawSet { first, then, .. } =
            self.rotation.draw_set(self.job(starving)).expect("the job is alive");
        let open: f64 = first.into_iter().chain(then).map(unread).sum();
        let pace = starving.plan.paces.iter().map(|(_, pace)| *pace).fold(0.0, f64::max);
        let lasts = open * total / (pace * rest);
        let slack = self.plan.report_every + 1;
        let load = self.rotation.load_time().as_secs_f64();
        assert!(lasts <= load + slack as f64, "{open} of {rest} last {lasts} s, loading {load} s");
    }

    /// Simulates a step.
    pub fn step(&mut self) {
        let budget = self.budget();
        self.step += 1;
        if self.budget() != budget {
            self.send(RotationEvent::Budget { chunks: self.budget() });
        }
        while let Some(place) = self.leaving.iter().position(|(due, _)| *due <= self.step) {
            let (_, chunk) = self.leaving.remove(place);
            self.send(RotationEvent::Evicted { chunk });
        }
        if self.rotation.next_deadline().is_some_and(|due| due <= self.now()) {
            self.send(RotationEvent::Tick);
        }
        for index in 0..self.workers.len() {
            let plan = &self.workers[index].plan;
            if plan.arrives == self.step {
                self.workers[index].state = State::Live;
                self.send(RotationEvent::Joined { job: JobNumber(index as u64) });
                self.report(index);
            } else if plan.dies == Some(self.step) && self.workers[index].state == State::Live {
                self.workers[index].state = State::Dead;
            }
        }
        self.tokens = (self.tokens + self.plan.origin).min(self.plan.origin.max(1.0) * 2.0);
        self.load();
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        self.rng.shuffle(&mut order);
        for index in order {
            if self.workers[index].state == State::Live {
                self.work(index);
            }
        }
    }

    /// Items of a chunk that any live job has not read.
    fn wanted(&self, chunk: usize) -> Items {
        let live = self.workers.iter().filter(|worker| worker.state == State::Live);
        live.fold(0, |wanted, worker| wanted | worker.unread[chunk])
    }

    fn load(&mut self) {
        while let Some(chunk) = self.loading.first().copied() {
            let index = chunk.0 as usize;
            let mut missing = self.wanted(index) & !self.loaded[index];
            while missing != 0 && self.tokens >= 1.0 {
                let item = missing & missing.wrapping_neg();
                missing &= !item;
                self.loaded[index] |= item;
                self.fetched();
            }
            let bytes = ByteSize(u64::from(self.loaded[index].count_ones()) * ITEM);
            self.send(RotationEvent::Loading { chunk, bytes });
            if missing != 0 {
                return;
            }
            self.loading.remove(0);
            self.send(RotationEvent::Loaded { chunk });
        }
    }

    fn fetched(&mut self) {
        self.tokens -= 1.0;
        self.origin_items += 1;
    }

    fn work(&mut self, index: usize) {
        let step = self.step;
        let worker = &mut self.workers[index];
        worker.credit += worker.plan.pace(step);
        while self.workers[index].credit >= 1.0 {
            let open = self.rotation.draw_set(JobNumber(index as u64)).expect("the job is alive");
            if !self.draw(index, &open) {
                // The origin is too slow for it; it goes on when there are more tokens.
                self.workers[index].credit = 1.0;
                break;
            }
            self.workers[index].credit -= 1.0;
            if self.workers[index].state == State::Done {
                return;
            }
        }
        if step.is_multiple_of(self.plan.report_every) {
            self.report(index);
        }
    }

    fn unread(&self, index: usize, chunk: ChunkOrdinal) -> Items {
        self.workers[index].unread[chunk.0 as usize]
    }

    /// Draws an item from the job's draw set. Returns false if the origin serves no more in this
    /// step.
    fn draw(&mut self, index: usize, open: &ChunkDrawSet) -> bool {
        let pinned = open.pinned.iter().map(|chunk| self.unread(index, *chunk).count_ones()).sum();
        let total = self.workers[index].unread.iter().map(|items| items.count_ones()).sum();
        let mut groups: Vec<&[ChunkOrdinal]> = Vec::new();
        if self.rng.u32(0..total) < pinned {
            groups.push(&open.pinned);
        }
        groups.push(&open.first);
        groups.extend(open.then.iter().map(std::slice::from_ref));
        if pinned == total {
            groups.push(&open.pinned);
        }
        // Loaded items go before those that have to be fetched.
        let there = groups.iter().find_map(|group| self.pick(index, group, true));
        let picked =
            there.or_else(|| groups.iter().find_map(|group| self.pick(index, group, false)));
        let is_there = there.is_some();
        if !is_there && self.tokens < 1.0 {
            return false;
        }
        if let Some((chunk, items)) = picked {
            let item = nth(items, self.rng.u32(0..items.count_ones()));
            if !is_there {
                self.loaded[chunk.0 as usize] |= item;
                self.fetched();
            }
            self.take(index, chunk, item, true);
            return true;
        }
        let absent = (0..self.plan.chunks).map(ChunkOrdinal);
        let absent: Vec<ChunkOrdinal> = absent
            .filter(|chunk| self.unread(index, *chunk) != 0 && !open.pinned.contains(chunk))
            .collect();
        let chunk = self.rng.choice(absent).expect("otherwise an item would have been drawn");
        let items = self.unread(index, chunk);
        let item = nth(items, self.rng.u32(0..items.count_ones()));
        self.fetched();
        self.uncached += 1;
        self.take(index, chunk, item, false);
        true
    }

    /// One of these chunks, with the items that a job may draw from it.
    fn pick(
        &mut self,
        index: usize,
        chunks: &[ChunkOrdinal],
        is_there: bool,
    ) -> Option<(ChunkOrdinal, Items)> {
        let items = |world: &Self, chunk: ChunkOrdinal| {
            let loaded = if is_there { world.loaded[chunk.0 as usize] } else { Items::MAX };
            world.unread(index, chunk) & loaded
        };
        let total: u32 = chunks.iter().map(|chunk| items(self, *chunk).count_ones()).sum();
        let mut place = self.rng.u32(0..total.max(1));
        chunks.iter().map(|chunk| (*chunk, items(self, *chunk))).find(|(_, items)| {
            let found = place < items.count_ones();
            place = place.saturating_sub(items.count_ones());
            found
        })
    }

    fn take(&mut self, index: usize, chunk: ChunkOrdinal, item: Items, is_open: bool) {
        let job = JobNumber(index as u64);
        let place = chunk.0 as usize;
        self.draws += 1;
        if is_open && !self.workers[index].referenced[place] {
            self.workers[index].referenced[place] = true;
            self.send(RotationEvent::Referenced { job, chunk });
        }
        let worker = &mut self.workers[index];
        assert!(worker.unread[place] & item != 0, "drawn twice");
        worker.unread[place] &= !item;
        let is_last = worker.unread.iter().all(|items| *items == 0);
        if worker.unread[place] == 0 && worker.referenced[place] {
            worker.referenced[place] = false;
            worker.reported[place] = 0;
            self.first_done[place] = self.first_done[place].or(Some(self.step));
            self.send(RotationEvent::Exhausted { job, chunk });
        }
        if is_last {
            self.next_epoch(index);
        }
    }

    fn next_epoch(&mut self, index: usize) {
        let job = JobNumber(index as u64);
        let items = self.plan.chunk_items;
        let origin_items = self.origin_items;
        let worker = &mut self.workers[index];
        worker.epoch += 1;
        worker.turns.push(origin_items);
        if worker.epoch == worker.plan.epochs {
            worker.state = State::Done;
            return self.send(RotationEvent::Left { job });
        }
        worker.unread.fill(bits(items));
        worker.referenced.fill(false);
        worker.reported.fill(items);
        self.send(RotationEvent::NextEpoch { job });
        self.report(index);
    }

    fn report(&mut self, index: usize) {
        let step = self.step;
        let worker = &mut self.workers[index];
        let mut unread = Vec::new();
        for (chunk, items) in (0..).map(ChunkOrdinal).zip(&worker.unread) {
            let reported = &mut worker.reported[chunk.0 as usize];
            if *reported != items.count_ones() {
                *reported = items.count_ones();
                let bytes = ByteSize(u64::from(*reported) * ITEM);
                unread.push(ChunkBytes { chunk, bytes });
            }
        }
        let pace = bytes(worker.plan.pace(step));
        self.send(RotationEvent::Progress { job: JobNumber(index as u64), unread: &unread, pace });
    }
}

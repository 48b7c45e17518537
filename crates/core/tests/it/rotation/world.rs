//! A small world in which a dataset rotates: jobs that draw single items, an origin that counts, and an
//! auditor who watches every order.
//!
//! A step is a second, an item is [`ITEM`] bytes. Jobs draw as they are told ([`Open`]); what nobody has
//! fetched yet they fetch themselves, and what is not open they read through. A rotation is only woken
//! when it asked to be.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    chunking::ChunkOrdinal,
    rotation::{Eviction, Fact, Job, Open, Order, Policy, Rotation, Settings},
    units::ByteRate,
};

/// Large enough that slow jobs have a pace in whole bytes a second.
const ITEM: u64 = 1000;
pub const LEASE: Duration = Duration::from_secs(30);

/// Items of a chunk, as bits.
type Items = u128;

#[derive(Debug, Clone)]
pub struct Plan {
    pub policy: Policy,
    pub chunks: u32,
    pub chunk_items: u32,
    /// From which step on there is room for how many chunks.
    pub budgets: Vec<(u64, u32)>,
    /// Items that the origin gives in a step.
    pub origin: f64,
    /// Jobs say every so many steps how far they are.
    pub report_every: u64,
    /// Freeing a chunk takes so many steps.
    pub evict_steps: u64,
    pub jobs: Vec<JobPlan>,
}

#[derive(Debug, Clone)]
pub struct JobPlan {
    pub arrives: u64,
    /// From which step on it draws how many items in a step.
    pub paces: Vec<(u64, f64)>,
    /// It leaves after so many, unless it dies before.
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
    timeline.iter().rev().find(|(from, _)| *from <= step).expect("begins at nought").1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotYet,
    Live,
    /// It no longer says anything.
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
    /// What it has said to be unread.
    reported: Vec<u32>,
    epoch: u64,
    /// Origin items in all when each of its epochs ended.
    turns: Vec<u64>,
}

#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub rotation: Rotation,
    rng: fastrand::Rng,
    pub step: u64,
    loaded: Vec<Items>,
    loading: Vec<ChunkOrdinal>,
    leaving: Vec<(u64, ChunkOrdinal)>,
    /// Who was reading a chunk when it was marked, and in which epoch.
    marked: Vec<Option<Vec<(usize, u64)>>>,
    first_done: Vec<Option<u64>>,
    tokens: f64,
    workers: Vec<Worker>,
    pub origin_items: u64,
    pub outside: u64,
    pub draws: u64,
}

fn bits(count: u32) -> Items {
    if count == Items::BITS { Items::MAX } else { (1 << count) - 1 }
}

/// Of so many items a second.
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
    pub fn new(plan: Plan, seed: u64) -> Self {
        let size = ByteSize(u64::from(plan.chunk_items) * ITEM);
        let settings = Settings {
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
            outside: 0,
            draws: 0,
            plan,
        };
        world.tell(Fact::Budget { chunks: world.budget() });
        world
    }

    /// Origin items in all at the end of each epoch of a job.
    pub fn turns(&self, job: usize) -> &[u64] {
        &self.workers[job].turns
    }

    /// Whether all jobs have done what they planned.
    pub fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.state, State::Dead | State::Done))
    }

    /// How many items the jobs still have to draw.
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

    fn tell(&mut self, fact: Fact<'_>) {
        let orders = self.rotation.on(self.now(), fact).expect("the world tells the truth");
        for order in orders {
            self.audit(order);
            match order {
                Order::Load(chunk) => {
                    self.loading.push(chunk);
                    self.first_done[chunk.0 as usize] = None;
                }
                Order::Mark(chunk) => {
                    let index = chunk.0 as usize;
                    let readers = self.workers.iter().enumerate();
                    let readers = readers
                        .filter(|(_, reader)| reader.reported[index] > 0 && self.is_known(reader));
                    self.marked[index] =
                        Some(readers.map(|(at, reader)| (at, reader.epoch)).collect());
                }
                Order::Evict { chunk, .. } => {
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

    /// Chunks go by the rule, and there are never more than there is room for.
    fn audit(&self, order: Order) {
        let budget = self.budget() as usize;
        let resident = self.rotation.resident().count();
        let is_paper = matches!(self.plan.policy, Policy::Paper { .. });
        if let Order::Load(chunk) = order {
            assert!(resident <= budget, "{resident} chunks for {budget}, with {}", chunk.0);
            let is_whole = budget >= self.plan.chunks as usize;
            assert!(!is_paper || is_whole || resident <= 2, "{resident} under the paper's policy");
        }
        let Order::Evict { chunk, why } = order else { return };
        let index = chunk.0 as usize;
        let mut awake = self.workers.iter().filter(|worker| self.is_awake(worker));
        match (why, self.plan.policy) {
            (Eviction::Exhausted, Policy::ByNeed) => {
                assert!(awake.all(|worker| worker.reported[index] == 0), "somebody needs it");
            }
            (Eviction::Exhausted, Policy::Paper { .. }) => {
                let readers = self.marked[index].as_ref().expect("marked before");
                let has_done = |(reader, epoch): &(usize, u64)| {
                    let reader = &self.workers[*reader];
                    reader.epoch > *epoch || reader.reported[index] == 0 || !self.is_known(reader)
                };
                assert!(readers.iter().all(has_done), "somebody reads it");
            }
            (Eviction::Forced, Policy::Paper { deadline }) => {
                let done = self.first_done[index].expect("somebody has done with it");
                assert!(self.marked[index].is_some(), "not marked before");
                assert!(self.now() >= Duration::from_secs(done) + deadline, "before the deadline");
            }
            (Eviction::Needed(job), Policy::ByNeed) => {
                let needy = &self.workers[usize::try_from(job.0).unwrap()];
                assert_eq!(needy.reported[index], 0, "it needs it itself");
                assert!(!self.loading.contains(&chunk), "not even loaded");
                // One that has died is thought to go on until its lease ends.
                if needy.state == State::Live {
                    self.audit_need(needy);
                }
            }
            (Eviction::Budget, _) => {
                assert!(resident > budget || is_paper, "there is room");
            }
            (Eviction::Forced | Eviction::Needed(_), _) => panic!("no rule of this policy"),
        }
    }

    fn job(&self, worker: &Worker) -> Job {
        Job(self.workers.iter().position(|other| std::ptr::eq(other, worker)).unwrap() as u64)
    }

    /// Whether the rotation still believes in a job.
    fn is_known(&self, worker: &Worker) -> bool {
        let job = self.job(worker);
        self.rotation.jobs().any(|known| known == job)
    }

    /// And whether it reckons with it.
    fn is_awake(&self, worker: &Worker) -> bool {
        self.rotation.silent_at(self.job(worker)).is_some_and(|at| at > self.now())
    }

    /// What is open to a job would last less long than loading a chunk takes.
    fn audit_need(&self, needy: &Worker) {
        let held: Vec<ChunkOrdinal> = self.rotation.held().collect();
        let unread = |chunk: ChunkOrdinal| f64::from(needy.reported[chunk.0 as usize]);
        let total: f64 = needy.reported.iter().map(|items| f64::from(*items)).sum();
        let rest = total - held.iter().map(|chunk| unread(*chunk)).sum::<f64>();
        let Open { first, then, .. } = self.rotation.open(self.job(needy)).expect("it lives");
        let open: f64 = first.into_iter().chain(then).map(unread).sum();
        let pace = needy.plan.paces.iter().map(|(_, pace)| *pace).fold(0.0, f64::max);
        let lasts = open * total / (pace * rest);
        let slack = self.plan.report_every + 1;
        let load = self.rotation.load_time().as_secs_f64();
        assert!(lasts <= load + slack as f64, "{open} of {rest} last {lasts} s, loading {load} s");
    }

    /// Lets a step pass.
    pub fn step(&mut self) {
        let budget = self.budget();
        self.step += 1;
        if self.budget() != budget {
            self.tell(Fact::Budget { chunks: self.budget() });
        }
        while let Some(place) = self.leaving.iter().position(|(due, _)| *due <= self.step) {
            let (_, chunk) = self.leaving.remove(place);
            self.tell(Fact::Evicted { chunk });
        }
        if self.rotation.next_deadline().is_some_and(|due| due <= self.now()) {
            self.tell(Fact::Tick);
        }
        for index in 0..self.workers.len() {
            let plan = &self.workers[index].plan;
            if plan.arrives == self.step {
                self.workers[index].state = State::Live;
                self.tell(Fact::Joined { job: Job(index as u64) });
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

    /// What any live job has not read of a chunk.
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
            self.tell(Fact::Loading { chunk, bytes });
            if missing != 0 {
                return;
            }
            self.loading.remove(0);
            self.tell(Fact::Loaded { chunk });
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
            let open = self.rotation.open(Job(index as u64)).expect("it lives");
            if !self.draw(index, &open) {
                // The origin is too slow for it; it goes on when there is more.
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

    /// Draws an item, as the job is told to. False: the origin has nothing more to give in this step.
    fn draw(&mut self, index: usize, open: &Open) -> bool {
        let held = open.held.iter().map(|chunk| self.unread(index, *chunk).count_ones()).sum();
        let total = self.workers[index].unread.iter().map(|items| items.count_ones()).sum();
        let mut groups: Vec<&[ChunkOrdinal]> = Vec::new();
        if self.rng.u32(0..total) < held {
            groups.push(&open.held);
        }
        groups.push(&open.first);
        groups.extend(open.then.iter().map(std::slice::from_ref));
        if held == total {
            groups.push(&open.held);
        }
        // What is there goes before what must be fetched.
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
            .filter(|chunk| self.unread(index, *chunk) != 0 && !open.held.contains(chunk))
            .collect();
        let chunk = self.rng.choice(absent).expect("else it would have been drawn");
        let items = self.unread(index, chunk);
        let item = nth(items, self.rng.u32(0..items.count_ones()));
        self.fetched();
        self.outside += 1;
        self.take(index, chunk, item, false);
        true
    }

    /// One of these chunks, with what a job may draw from it.
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
        let job = Job(index as u64);
        let place = chunk.0 as usize;
        self.draws += 1;
        if is_open && !self.workers[index].referenced[place] {
            self.workers[index].referenced[place] = true;
            self.tell(Fact::Referenced { job, chunk });
        }
        let worker = &mut self.workers[index];
        assert!(worker.unread[place] & item != 0, "given twice");
        worker.unread[place] &= !item;
        let is_last = worker.unread.iter().all(|items| *items == 0);
        if worker.unread[place] == 0 && worker.referenced[place] {
            worker.referenced[place] = false;
            worker.reported[place] = 0;
            self.first_done[place] = self.first_done[place].or(Some(self.step));
            self.tell(Fact::Exhausted { job, chunk });
        }
        if is_last {
            self.next_epoch(index);
        }
    }

    fn next_epoch(&mut self, index: usize) {
        let job = Job(index as u64);
        let items = self.plan.chunk_items;
        let origin_items = self.origin_items;
        let worker = &mut self.workers[index];
        worker.epoch += 1;
        worker.turns.push(origin_items);
        if worker.epoch == worker.plan.epochs {
            worker.state = State::Done;
            return self.tell(Fact::Left { job });
        }
        worker.unread.fill(bits(items));
        worker.referenced.fill(false);
        worker.reported.fill(items);
        self.tell(Fact::NextEpoch { job });
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
                unread.push((chunk, ByteSize(u64::from(*reported) * ITEM)));
            }
        }
        let pace = bytes(worker.plan.pace(step));
        self.tell(Fact::Progress { job: Job(index as u64), unread: &unread, pace });
    }
}

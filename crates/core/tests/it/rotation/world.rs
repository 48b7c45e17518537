//! A small world in which a dataset rotates: jobs that draw single items, an origin that counts, and an
//! auditor who watches every order.
//!
//! A step is a second, an item is [`ITEM`] bytes. Jobs draw as they are told ([`Open`]); what nobody has
//! fetched yet they fetch themselves, and what is not open they read through.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    chunking::ChunkOrdinal,
    rotation::{Eviction, Fact, Job, Open, Order, Policy, Rotation, Settings},
    units::ByteRate,
};

/// Large enough that slow jobs have a pace in whole bytes a second.
pub const ITEM: u64 = 1000;
pub const LEASE: Duration = Duration::from_secs(30);

/// Items of a chunk, as bits.
type Items = u128;

#[derive(Debug, Clone)]
pub struct Plan {
    pub policy: Policy,
    pub chunks: u32,
    pub chunk_items: u32,
    pub budget: u32,
    /// Items that the origin gives in a step.
    pub origin: f64,
    pub report_every: u64,
    pub jobs: Vec<JobPlan>,
}

#[derive(Debug, Clone)]
pub struct JobPlan {
    pub arrives: u64,
    /// From when on it draws so many items in a step.
    pub paces: Vec<(u64, f64)>,
    /// It leaves after so many, unless it dies before.
    pub epochs: u64,
    pub dies: Option<u64>,
}

#[derive(Debug)]
struct Worker {
    plan: JobPlan,
    credit: f64,
    unread: Vec<Items>,
    referenced: Vec<bool>,
    reported: Vec<u32>,
    epoch: u64,
    joined: bool,
    gone: bool,
    outside: u64,
    /// Origin items in all when each of its epochs ended.
    turns: Vec<u64>,
}

#[derive(Debug)]
pub struct World {
    plan: Plan,
    pub rotation: Rotation,
    rng: fastrand::Rng,
    step: u64,
    loaded: Vec<Items>,
    loading: Vec<ChunkOrdinal>,
    tokens: f64,
    workers: Vec<Worker>,
    pub origin_items: u64,
    pub outside: u64,
    pub draws: u64,
    pub verbose: bool,
}

fn bits(count: u32) -> Items {
    if count == 128 { Items::MAX } else { (1 << count) - 1 }
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
        let workers = plan.jobs.iter().map(|job| Worker {
            plan: job.clone(),
            credit: 0.0,
            unread: vec![bits(plan.chunk_items); chunks],
            referenced: vec![false; chunks],
            reported: vec![plan.chunk_items; chunks],
            epoch: 0,
            joined: false,
            gone: false,
            outside: 0,
            turns: Vec::new(),
        });
        let mut world = Self {
            rotation: Rotation::new(&settings),
            rng: fastrand::Rng::with_seed(seed),
            step: 0,
            loaded: vec![0; chunks],
            loading: Vec::new(),
            tokens: 0.0,
            workers: workers.collect(),
            origin_items: 0,
            outside: 0,
            draws: 0,
            verbose: false,
            plan,
        };
        world.tell(Fact::Budget { chunks: world.plan.budget });
        world
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.step)
    }

    /// Origin items in all at the end of each epoch of a job.
    pub fn turns(&self, job: usize) -> &[u64] {
        &self.workers[job].turns
    }

    pub fn outside_of(&self, job: usize) -> u64 {
        self.workers[job].outside
    }

    pub fn tell(&mut self, fact: Fact<'_>) {
        let orders = self.rotation.on(self.now(), fact).expect("the world tells the truth");
        for order in orders {
            self.carry_out(order);
        }
    }

    fn carry_out(&mut self, order: Order) {
        self.audit(order);
        if self.verbose {
            eprintln!("{} {order:?} {}", self.step, self.show());
        }
        match order {
            Order::Load(chunk) => self.loading.push(chunk),
            Order::Mark(_) => {}
            Order::Evict { chunk, .. } => {
                self.loading.retain(|loading| *loading != chunk);
                self.loaded[chunk.0 as usize] = 0;
                for worker in &mut self.workers {
                    worker.referenced[chunk.0 as usize] = false;
                }
                self.tell(Fact::Evicted { chunk });
            }
        }
    }

    fn audit(&self, order: Order) {
        let resident = self.rotation.resident().count();
        assert!(resident <= self.plan.budget as usize, "{resident} chunks are resident");
        if let (Policy::Paper { .. }, true) =
            (self.plan.policy, self.plan.budget < self.plan.chunks)
        {
            assert!(resident <= 2, "{resident} chunks under the paper's policy");
        }
        let live = || self.workers.iter().filter(|worker| worker.joined && !worker.gone);
        match order {
            Order::Evict { chunk, why: Eviction::Exhausted } => match self.plan.policy {
                Policy::ByNeed => assert!(live().all(|w| w.reported[chunk.0 as usize] == 0)),
                Policy::Paper { .. } => assert!(live().all(|w| !w.referenced[chunk.0 as usize])),
            },
            _ => {}
        }
    }

    /// Lets a step pass. False: all jobs are done.
    pub fn step(&mut self) -> bool {
        self.step += 1;
        self.tell(Fact::Tick);
        for index in 0..self.workers.len() {
            let job = Job(index as u64);
            let plan = &self.workers[index].plan;
            if plan.arrives == self.step {
                self.workers[index].joined = true;
                self.tell(Fact::Joined { job });
                self.report(index);
            } else if plan.dies == Some(self.step) {
                self.workers[index].gone = true;
            }
        }
        self.tokens = (self.tokens + self.plan.origin).min(self.plan.origin.max(1.0) * 2.0);
        self.load();
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        self.rng.shuffle(&mut order);
        for index in order {
            self.work(index);
        }
        self.workers.iter().any(|worker| !worker.gone)
    }

    /// What any live job has not read of a chunk.
    fn wanted(&self, chunk: usize) -> Items {
        let live = self.workers.iter().filter(|worker| worker.joined && !worker.gone);
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
            if missing != 0 {
                let bytes = ByteSize(u64::from(self.loaded[index].count_ones()) * ITEM);
                return self.tell(Fact::Loading { chunk, bytes });
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
        let worker = &mut self.workers[index];
        if !worker.joined || worker.gone {
            return;
        }
        let step = self.step;
        let pace = worker.plan.paces.iter().rev().find(|(from, _)| *from <= step);
        worker.credit += pace.expect("paces begin at nought").1;
        while self.workers[index].credit >= 1.0 {
            let open = self.rotation.open(Job(index as u64)).expect("it lives");
            if !self.draw(index, &open) {
                // The origin is too slow for it; it goes on when there is more.
                self.workers[index].credit = 1.0;
                break;
            }
            self.workers[index].credit -= 1.0;
            if self.workers[index].gone {
                return;
            }
        }
        if self.step.is_multiple_of(self.plan.report_every) {
            self.report(index);
        }
    }

    fn unread(&self, index: usize, chunk: ChunkOrdinal) -> Items {
        self.workers[index].unread[chunk.0 as usize]
    }

    fn draw(&mut self, index: usize, open: &Open) -> bool {
        let count = |chunks: &[ChunkOrdinal]| -> u32 {
            chunks.iter().map(|c| self.unread(index, *c).count_ones()).sum()
        };
        let held = count(&open.held);
        let total: u32 = self.workers[index].unread.iter().map(|items| items.count_ones()).sum();
        let from_held = held > 0 && self.rng.u32(0..total) < held;
        let mut groups: Vec<&[ChunkOrdinal]> = Vec::new();
        if from_held {
            groups.push(&open.held);
        }
        groups.push(&open.first);
        groups.extend(open.then.iter().map(std::slice::from_ref));
        // What is there goes before what must be fetched.
        for resident in [true, false] {
            for group in &groups {
                let items: Vec<(ChunkOrdinal, Items)> = group
                    .iter()
                    .map(|chunk| match resident {
                        true => {
                            (*chunk, self.unread(index, *chunk) & self.loaded[chunk.0 as usize])
                        }
                        false => (*chunk, self.unread(index, *chunk)),
                    })
                    .collect();
                let total: u32 = items.iter().map(|(_, items)| items.count_ones()).sum();
                if total == 0 {
                    continue;
                }
                if !resident && self.tokens < 1.0 {
                    return false;
                }
                let mut pick = self.rng.u32(0..total);
                for (chunk, items) in items {
                    if pick < items.count_ones() {
                        let item = nth(items, pick);
                        if !resident {
                            self.loaded[chunk.0 as usize] |= item;
                            self.fetched();
                        }
                        self.take(index, chunk, item, true);
                        return true;
                    }
                    pick -= items.count_ones();
                }
            }
        }
        // Nothing is open: it reads through.
        if self.tokens < 1.0 {
            return false;
        }
        let not_held: Vec<ChunkOrdinal> = (0..self.plan.chunks)
            .map(ChunkOrdinal)
            .filter(|c| self.unread(index, *c) != 0 && !open.held.contains(c))
            .collect();
        let Some(chunk) = self.rng.choice(not_held) else {
            // All that is unread is held.
            return self.draw(index, &Open { first: open.held.clone(), ..Open::default() });
        };
        let items = self.unread(index, chunk);
        let item = nth(items, self.rng.u32(0..items.count_ones()));
        self.fetched();
        self.outside += 1;
        self.workers[index].outside += 1;
        self.take(index, chunk, item, false);
        true
    }

    fn take(&mut self, index: usize, chunk: ChunkOrdinal, item: Items, is_open: bool) {
        let job = Job(index as u64);
        let at = chunk.0 as usize;
        self.draws += 1;
        if !self.workers[index].referenced[at] && is_open {
            self.workers[index].referenced[at] = true;
            self.tell(Fact::Referenced { job, chunk });
        }
        let worker = &mut self.workers[index];
        assert!(worker.unread[at] & item != 0, "given twice");
        worker.unread[at] &= !item;
        let is_over = worker.unread.iter().all(|items| *items == 0);
        if worker.unread[at] == 0 && worker.referenced[at] {
            worker.referenced[at] = false;
            worker.reported[at] = 0;
            self.tell(Fact::Exhausted { job, chunk });
        }
        if is_over {
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
            worker.gone = true;
            return self.tell(Fact::Left { job });
        }
        worker.unread.fill(bits(items));
        worker.referenced.fill(false);
        worker.reported.fill(items);
        self.tell(Fact::NextEpoch { job });
        self.report(index);
    }

    fn report(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let mut unread = Vec::new();
        for (chunk, items) in worker.unread.iter().enumerate() {
            if worker.reported[chunk] != items.count_ones() {
                worker.reported[chunk] = items.count_ones();
                let left = ByteSize(u64::from(items.count_ones()) * ITEM);
                unread.push((ChunkOrdinal(u32::try_from(chunk).unwrap()), left));
            }
        }
        let step = self.step;
        let pace = worker.plan.paces.iter().rev().find(|(from, _)| *from <= step).unwrap().1;
        let pace = ByteRate(ByteSize((pace * ITEM as f64) as u64));
        self.tell(Fact::Progress { job: Job(index as u64), unread: &unread, pace });
    }
}

fn nth(items: Items, index: u32) -> Items {
    let mut items = items;
    for _ in 0..index {
        items &= items - 1;
    }
    items & items.wrapping_neg()
}

impl World {
    pub fn show(&self) -> String {
        let mut text = String::new();
        for c in self.rotation.resident() {
            let held = self.rotation.held().any(|h| h == c);
            if held {
                continue;
            }
            text += &format!(
                "[{} {}{}]",
                c.0,
                self.loaded[c.0 as usize].count_ones(),
                if self.loading.contains(&c) { "L" } else { "" }
            );
        }
        for (i, w) in self.workers.iter().enumerate() {
            if !w.joined || w.gone {
                continue;
            }
            let total: u32 = w.unread.iter().map(|x| x.count_ones()).sum();
            let o = self.rotation.open(Job(i as u64)).unwrap();
            text +=
                &format!(" j{i} f{:?} t{total} ", o.first.iter().map(|c| c.0).collect::<Vec<_>>());
            for c in self.rotation.resident() {
                if self.rotation.held().any(|h| h == c) {
                    continue;
                }
                text += &format!("{}:{} ", c.0, w.unread[c.0 as usize].count_ones());
            }
            let whole = w.unread.iter().filter(|u| u.count_ones() == 48).count();
            let part =
                w.unread.iter().filter(|u| u.count_ones() < 48 && u.count_ones() > 0).count();
            text += &format!("w{whole} p{part}");
        }
        text
    }
}

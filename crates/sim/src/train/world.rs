//! The simulated cluster: one loop that moves from event to event.
//!
//! Jobs draw mini-batches, as the sampler decides; what is resident comes over their links to flash, what
//! is not over their links to the origin, a few items at a time, so that what another job has brought
//! meanwhile need not be fetched again. When items have arrived, the store keeps them or not.

mod faults;

use std::{sync::Arc, time::Duration};

use forebay_core::units::ByteRate;

use super::{
    events::Events,
    job::{Fetching, Running, State, Wanted, number},
    links::Links,
    manager::{Manager, Waiting},
    outcome::Outcome,
    pipeline::BatchNumber,
    policy::Policy,
    record::Recorder,
    scenario::{Scenario, Setup},
    store::{Fetched, Store},
    time::Nanos,
};

/// How often whoever watches is told how far we are.
const STEPS_PER_TELLING: u64 = 1 << 14;

/// What happens at a moment. `life` tells a job's lives apart.
#[derive(Debug, Clone, Copy)]
enum Event {
    Starts { job: usize },
    Prepared { job: usize, life: u32, batch: BatchNumber },
    Computed { job: usize, life: u32 },
    Dies { job: usize, back_after: Option<Nanos> },
    NodeLost { node: u32 },
    OriginSlows { to: ByteRate },
    OriginRecovers { from: ByteRate },
    WarmedUp,
}

/// A transfer from flash: for which mini-batch, and how many of the items that it lacks.
type FlashRead = (BatchNumber, u32);

/// Runs one setup under one policy. `watch` is told now and then which share is done.
pub fn simulate(
    scenario: &Scenario,
    setup: &Setup,
    policy: Policy,
    seed: u64,
    watch: &mut dyn FnMut(f64),
) -> Outcome {
    let mut world = World::new(setup, policy, seed);
    world.run(watch);
    let World { now, jobs, store, origin, flash, mut recorder, .. } = world;
    let carried = [origin.carried(), flash.carried()];
    if now < setup.warm_up.into() {
        // It was over before anything counted.
        recorder.warmed_up(now, &jobs, carried);
    }
    for late in setup.faults.iter().map(|fault| Nanos::from(fault.at)).filter(|at| *at > now) {
        recorder.note(late, "a fault was to come, but all jobs had ended".to_owned());
    }
    let mut outcome = recorder.finish(setup, now, &jobs, carried);
    outcome.scenario.clone_from(&scenario.name);
    (outcome.policy, outcome.seed) = (policy, seed);
    if let Store::Chunks(manager) = &store {
        outcome.residency = manager.residency(now);
        outcome.decisions = manager.decisions();
    }
    outcome
}

struct World<'a> {
    setup: &'a Setup,
    now: Nanos,
    stop: Nanos,
    events: Events<Event>,
    origin: Links<()>,
    flash: Links<FlashRead>,
    jobs: Vec<Running>,
    store: Store,
    /// When the store's manager wants to be asked.
    deadline: Nanos,
    recorder: Recorder,
    /// How slow the origin is, for each reason; the slowest counts.
    slowed: Vec<ByteRate>,
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, policy: Policy, seed: u64) -> Self {
        let store = Store::new(setup, policy, seed);
        let layouts = (0..setup.datasets.len()).map(|at| Arc::new(store.layout(setup, at)));
        let layouts: Vec<_> = layouts.collect();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut running = |job| Running::new(job, &layouts[job.dataset], random.u64(..));
        let jobs: Vec<Running> = setup.jobs.iter().map(&mut running).collect();
        let limits = setup.jobs.iter().map(|job| job.origin_limit(setup));
        let flash_total = setup.cache.read_bandwidth.0.0.saturating_mul(setup.cache.nodes.into());
        let network = setup.cache.network.map_or(flash_total, |rate| rate.0.0);
        let mut world = Self {
            setup,
            now: Nanos(0),
            stop: setup.duration.map_or(Nanos::MAX, Nanos::from),
            events: Events::new(),
            origin: Links::new(setup.origin.bandwidth.0.0, limits),
            flash: Links::new(flash_total, setup.jobs.iter().map(|_| network)),
            jobs,
            store,
            deadline: Nanos::MAX,
            recorder: Recorder::new(setup),
            slowed: Vec::new(),
        };
        world.plan_all();
        world
    }

    fn plan_all(&mut self) {
        if self.setup.warm_up > Duration::ZERO {
            self.events.plan(self.setup.warm_up.into(), Event::WarmedUp);
        }
        for (job, said) in self.setup.jobs.iter().enumerate() {
            self.events.plan(said.starts.into(), Event::Starts { job });
        }
        self.plan_faults();
    }

    fn run(&mut self, watch: &mut dyn FnMut(f64)) {
        for step in 0_u64.. {
            if step.is_multiple_of(STEPS_PER_TELLING) {
                watch(self.share_done());
            }
            let arrivals = [self.origin.next_arrival(), self.flash.next_arrival()];
            let arrival = arrivals.into_iter().flatten().min().unwrap_or(Nanos::MAX);
            let event = self.events.next_at().unwrap_or(Nanos::MAX);
            let next = arrival.min(event).min(self.deadline);
            if next >= self.stop {
                break;
            }
            self.now = next;
            // First of all: whatever else falls on this moment would make the deadline look like one that is past.
            if self.deadline == next {
                self.managed(|manager, now, _| manager.tick(now));
                (0..self.jobs.len()).for_each(|job| self.fetch(job));
            } else if arrival == next {
                self.arrive();
            } else {
                let (_, event) = self.events.next().expect("it was there");
                self.happen(event);
            }
            if self.jobs.iter().all(|job| job.state == State::Done) {
                return;
            }
        }
        // Those who are left would have gone on until the end.
        if self.stop < Nanos::MAX {
            self.now = self.stop;
        }
    }

    fn share_done(&self) -> f64 {
        if self.stop < Nanos::MAX {
            return self.now.seconds() / self.stop.seconds();
        }
        let shares = self.jobs.iter().zip(&self.setup.jobs).map(|(running, job)| {
            let all = job.batches_in_all(&self.setup.datasets[job.dataset]);
            running.counts.batches as f64 / all.unwrap_or(u64::MAX).max(1) as f64
        });
        shares.sum::<f64>() / self.jobs.len() as f64
    }

    /// Tells the manager something, if there is one, and asks when it wants to be woken.
    fn managed(&mut self, tell: impl FnOnce(&mut Manager, Nanos, &[Running])) {
        if let Some(manager) = self.store.manager() {
            tell(manager, self.now, &self.jobs);
            self.deadline = manager.next_deadline(self.now);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Starts { job } => self.start(job),
            Event::Prepared { job, life, batch } if self.jobs[job].life == life => {
                self.jobs[job].pipeline.prepare(self.now, batch);
                self.go_on(job);
            }
            Event::Computed { job, life } if self.jobs[job].life == life => self.computed(job),
            // Of a life that has ended.
            Event::Prepared { .. } | Event::Computed { .. } => {}
            Event::Dies { job, back_after } => self.die(job, back_after),
            Event::NodeLost { node } => self.lose_node(node),
            Event::OriginSlows { to } => self.slow_down(to),
            Event::OriginRecovers { from } => self.recover(from),
            Event::WarmedUp => {
                let carried = [self.origin.carried(), self.flash.carried()];
                self.recorder.warmed_up(self.now, &self.jobs, carried);
            }
        }
    }

    fn start(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        assert_eq!(running.state, State::Away, "a job starts when it is away");
        running.state = State::Training;
        running.counts.began.get_or_insert(self.now);
        self.managed(|manager, now, jobs| manager.joined(now, job, jobs));
        self.go_on(job);
    }

    fn end(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        running.state = State::Done;
        running.counts.ended = Some(self.now);
    }

    /// Computes, draws and fetches whatever the job can now.
    fn go_on(&mut self, job: usize) {
        self.compute(job);
        while self.jobs[job].may_draw() {
            self.draw(job);
        }
        self.fetch(job);
    }

    fn draw(&mut self, job: usize) {
        let size = self.setup.jobs[job].batch.into();
        let running = &mut self.jobs[job];
        let dataset = running.dataset;
        let mut is_probe = false;
        if let Some(manager) = self.store.manager() {
            is_probe = manager.forces_miss(self.now, job, &running.epoch);
            manager.direct(job, &mut running.epoch, size);
        }
        let drawn = match self.store.manager().filter(|_| !is_probe) {
            None => running.draw(|_| false),
            Some(manager) => {
                let cached = &manager.shelves[dataset];
                running.draw(|item| cached.is_resident(item))
            }
        };
        let drawn: Vec<u32> = drawn.items().iter().map(|item| number(*item)).collect();
        let items = narrow(drawn.len());
        let batch = running.pipeline.draw(self.now, items);
        let lacking: Vec<u32> = drawn
            .iter()
            .copied()
            .filter(|item| is_probe || !self.store.read(dataset, *item))
            .collect();
        let hits = items - narrow(lacking.len());
        running.counts.reads.hit(hits.into());
        let mode = self
            .store
            .manager()
            .and_then(|manager| manager.drawn(self.now, job, &running.epoch, &drawn, is_probe));
        running.modes.push_back(mode);
        if !lacking.is_empty() {
            running.wanted.push_back(Wanted { batch, items: lacking, asked: 0, is_probe });
        }
        self.read_flash(job, batch, hits);
        self.managed(|_, _, _| {});
    }

    /// Resident items come over the job's link to flash.
    fn read_flash(&mut self, job: usize, batch: BatchNumber, items: u32) {
        if items > 0 {
            let item_bytes = self.setup.datasets[self.jobs[job].dataset].item_bytes;
            self.flash.send(self.now, job, u64::from(items) * item_bytes, (batch, items));
        }
    }

    /// Keeps the job's link to the origin busy: with what its mini-batches lack, or else ahead.
    fn fetch(&mut self, job: usize) {
        // As many as there are connections, so that it is decided late who fetches what.
        let piece = self.setup.jobs[job].connections as usize;
        while self.jobs[job].state == State::Training && self.jobs[job].fetching.is_none() {
            let fetching = match self.next_wanted(job, piece) {
                Some(fetching) => fetching,
                None => match self.next_ahead(job, piece) {
                    Some(fetching) => fetching,
                    None => return,
                },
            };
            if !fetching.items.is_empty() {
                let dataset = self.jobs[job].dataset;
                let bytes = fetching.items.len() as u64 * self.setup.datasets[dataset].item_bytes;
                self.origin.send(self.now, job, bytes, ());
                if let Some(manager) = self.store.manager() {
                    fetching.items.iter().for_each(|item| manager.shelves[dataset].fetch(*item));
                }
                self.jobs[job].fetching = Some(fetching);
            }
        }
    }

    /// The next items that mini-batches of this job lack, without those that others have brought, or are
    /// bringing, meanwhile.
    fn next_wanted(&mut self, job: usize, piece: usize) -> Option<Fetching> {
        let running = &mut self.jobs[job];
        let dataset = running.dataset;
        let wanted = running.wanted.front_mut()?;
        let Wanted { batch, is_probe, .. } = *wanted;
        let asked = wanted.asked..wanted.items.len().min(wanted.asked + piece);
        wanted.asked = asked.end;
        let mut brought = 0;
        let mut items = Vec::with_capacity(asked.len());
        for item in wanted.items[asked].iter().copied() {
            if !is_probe && self.store.read(dataset, item) {
                brought += 1;
            } else if !is_probe && self.store.is_claimed(dataset, item) {
                let manager = self.store.manager().expect("claims have a manager");
                manager.shelves[dataset].wait(Waiting { item, job, batch });
            } else {
                items.push(item);
            }
        }
        if wanted.asked == wanted.items.len() {
            running.wanted.pop_front();
        }
        running.counts.reads.wait(brought.into());
        self.read_flash(job, batch, brought);
        Some(Fetching { batch: Some(batch), items, is_probe })
    }

    /// What some job will want of the chunks that are being filled.
    fn next_ahead(&mut self, job: usize, piece: usize) -> Option<Fetching> {
        let dataset = self.jobs[job].dataset;
        let manager = self.store.manager().filter(|manager| manager.has_claims())?;
        let readers = manager.readers(dataset, &self.jobs);
        let items = manager.shelves[dataset].ahead(piece, &readers);
        (!items.is_empty()).then_some(Fetching { batch: None, items, is_probe: false })
    }

    /// Everything that has arrived by now.
    fn arrive(&mut self) {
        while let Some((job, (batch, items))) = self.flash.arrived(self.now) {
            self.read(job, batch, items);
        }
        while let Some((job, ())) = self.origin.arrived(self.now) {
            self.fetched(job);
        }
    }

    fn fetched(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let dataset = running.dataset;
        let Fetching { batch, items, is_probe } =
            running.fetching.take().expect("what arrives was sent for");
        let reads = &mut running.counts.reads;
        for item in &items {
            match self.store.fetched(self.now, dataset, *item) {
                Fetched::Duplicate if !is_probe => reads.duplicates += 1,
                Fetched::Outside if !is_probe => reads.outside += 1,
                Fetched::Kept | Fetched::Duplicate | Fetched::Outside => {}
            }
        }
        let count = items.len() as u64;
        self.recorder.fetched(dataset, count, batch.is_none());
        if let Some(batch) = batch {
            reads.miss(count);
            reads.probes += if is_probe { count } else { 0 };
            self.read(job, batch, narrow(items.len()));
        }
        if let Some(manager) = self.store.manager() {
            for waiting in
                manager.shelves[dataset].take_waiting(|waiting| items.contains(&waiting.item))
            {
                self.jobs[waiting.job].counts.reads.wait(1);
                self.read_flash(waiting.job, waiting.batch, 1);
            }
            self.managed(|manager, now, jobs| {
                let readers = manager.readers(dataset, jobs);
                manager.shelves[dataset].check_fills(now, &readers);
            });
        }
        self.fetch(job);
    }

    /// So many items of a mini-batch are there.
    fn read(&mut self, job: usize, batch: BatchNumber, items: u32) {
        let running = &mut self.jobs[job];
        if let Some(at) = running.pipeline.read(self.now, batch, items) {
            let life = running.life;
            self.events.plan(at, Event::Prepared { job, life, batch });
        }
    }

    /// The GPUs take the next mini-batch, if they are free and it is prepared.
    fn compute(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let Some(done_at) = running.pipeline.compute(self.now) else { return };
        let life = running.life;
        self.events.plan(done_at, Event::Computed { job, life });
    }

    fn computed(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let number = running.counts.batches;
        let stages = running.pipeline.finish(self.now);
        let busy = stages.computed - stages.taken;
        let took = self.now - running.last_computed.replace(self.now).unwrap_or(stages.taken);
        let mode = running.modes.pop_front().expect("one for each mini-batch");
        running.counts.batches += 1;
        running.counts.busy = running.counts.busy + busy;
        self.recorder.computed(job, number, stages);
        self.managed(|manager, now, _| {
            manager.computed(now, job, mode, [took, took - busy]);
        });
        self.checkpoint(job);
        if self.jobs[job].is_done() {
            self.end(job);
            self.managed(|manager, now, _| manager.left(now, job));
        } else {
            self.go_on(job);
        }
    }

    /// What was computed is never drawn again, whatever becomes of the job.
    fn checkpoint(&mut self, job: usize) {
        let released = self.jobs[job].epoch.yield_next();
        if !released.is_empty() {
            self.managed(|manager, now, _| manager.released(now, job, &released));
        }
        let running = &mut self.jobs[job];
        if running.epoch.is_over() {
            running.counts.epochs += 1;
            if running.wants_epoch() {
                running.epoch.begin_next();
                self.managed(|manager, now, _| manager.next_epoch(now, job));
            }
        }
    }
}

fn narrow(items: usize) -> u32 {
    u32::try_from(items).expect("a mini-batch is as long as the scenario says")
}

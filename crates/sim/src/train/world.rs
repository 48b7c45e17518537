//! The simulated cluster: an event loop.
//!
//! Jobs draw mini-batches through the sampler. Resident items come over their links to flash, the
//! others over their links to the origin, a few items at a time, so that items which another job
//! has brought meanwhile are not fetched again. The store decides whether fetched items are kept.

mod faults;

use std::{sync::Arc, time::Duration};

use forebay_core::{train::benefit::BatchTime, units::ByteRate};

use super::{
    events::Events,
    job::{OriginFetch, SimJob, State, Wanted, number},
    links::Links,
    manager::{Manager, Waiter},
    outcome::Outcome,
    pipeline::BatchNumber,
    policy::Policy,
    record::Recorder,
    scenario::{Scenario, Setup},
    store::{Fetched, Store},
    time::Nanos,
};

/// Steps between calls of `on_progress`.
const PROGRESS_EVERY: u64 = 1 << 14;

/// An event. `incarnation` is that of the job when the event was scheduled.
#[derive(Debug, Clone, Copy)]
enum Event {
    Starts { job: usize },
    Prepared { job: usize, incarnation: u32, batch: BatchNumber },
    Computed { job: usize, incarnation: u32 },
    Killed { job: usize, restart_after: Option<Nanos> },
    NodeLost { node: u32 },
    OriginSlows { to: ByteRate },
    OriginRecovers { from: ByteRate },
    WarmedUp,
}

/// A transfer from flash: the mini-batch, and the number of its items.
type FlashRead = (BatchNumber, u32);

/// Simulates one setup under one policy. `on_progress` is called with the share that is done.
pub fn simulate(
    scenario: &Scenario,
    setup: &Setup,
    policy: Policy,
    seed: u64,
    on_progress: &mut dyn FnMut(f64),
) -> Outcome {
    let mut world = World::new(setup, policy, seed);
    world.run(on_progress);
    let World { now, jobs, store, origin, flash, mut recorder, .. } = world;
    let carried = [origin.carried(), flash.carried()];
    if now < setup.warm_up.into() {
        // The run ended before the warm-up did.
        recorder.on_warmed_up(now, &jobs, carried);
    }
    for late in setup.faults.iter().map(|fault| Nanos::from(fault.at)).filter(|at| *at > now) {
        recorder.on_fault(late, "no fault: all jobs have ended".to_owned());
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
    jobs: Vec<SimJob>,
    store: Store,
    /// Next deadline of the store's manager.
    deadline: Nanos,
    recorder: Recorder,
    /// Bandwidths of all current slow-downs of the origin; the lowest counts.
    slow_downs: Vec<ByteRate>,
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, policy: Policy, seed: u64) -> Self {
        let store = Store::new(setup, policy, seed);
        let layouts = (0..setup.datasets.len()).map(|at| Arc::new(store.layout(setup, at)));
        let layouts: Vec<_> = layouts.collect();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut running = |job| SimJob::new(job, &layouts[job.dataset], random.u64(..));
        let jobs: Vec<SimJob> = setup.jobs.iter().map(&mut running).collect();
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
            slow_downs: Vec::new(),
        };
        world.schedule_all();
        world
    }

    fn schedule_all(&mut self) {
        if self.setup.warm_up > Duration::ZERO {
            self.events.schedule(self.setup.warm_up.into(), Event::WarmedUp);
        }
        for (job, settings) in self.setup.jobs.iter().enumerate() {
            self.events.schedule(settings.starts.into(), Event::Starts { job });
        }
        self.schedule_faults();
    }

    fn run(&mut self, on_progress: &mut dyn FnMut(f64)) {
        for step in 0_u64.. {
            if step.is_multiple_of(PROGRESS_EVERY) {
                on_progress(self.share_done());
            }
            let arrivals = [self.origin.next_arrival(), self.flash.next_arrival()];
            let arrival = arrivals.into_iter().flatten().min().unwrap_or(Nanos::MAX);
            let event = self.events.next_at().unwrap_or(Nanos::MAX);
            let next = arrival.min(event).min(self.deadline);
            if next >= self.stop {
                break;
            }
            self.now = next;
            // The deadline comes first: another event at this time would make it look overdue.
            if self.deadline == next {
                self.with_manager(|manager, now, _| manager.tick(now));
                (0..self.jobs.len()).for_each(|job| self.fetch(job));
            } else if arrival == next {
                self.on_arrivals();
            } else {
                let (_, event) = self.events.next().expect("an event is next");
                self.on_event(event);
            }
            if self.jobs.iter().all(|job| job.state == State::Done) {
                return;
            }
        }
        // The remaining jobs run until the end.
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

    /// Calls the manager, if there is one, and updates the deadline.
    fn with_manager(&mut self, call: impl FnOnce(&mut Manager, Nanos, &[SimJob])) {
        if let Some(manager) = self.store.manager() {
            call(manager, self.now, &self.jobs);
            manager.split_if_needed(self.now);
            self.deadline = manager.next_deadline(self.now);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Starts { job } => self.start(job),
            Event::Prepared { job, incarnation, batch }
                if self.jobs[job].incarnation == incarnation =>
            {
                self.jobs[job].pipeline.on_prepared(self.now, batch);
                self.advance(job);
            }
            Event::Computed { job, incarnation } if self.jobs[job].incarnation == incarnation => {
                self.on_computed(job);
            }
            // Of an earlier incarnation.
            Event::Prepared { .. } | Event::Computed { .. } => {}
            Event::Killed { job, restart_after } => self.kill(job, restart_after),
            Event::NodeLost { node } => self.lose_node(node),
            Event::OriginSlows { to } => self.slow_down(to),
            Event::OriginRecovers { from } => self.recover(from),
            Event::WarmedUp => {
                let carried = [self.origin.carried(), self.flash.carried()];
                self.recorder.on_warmed_up(self.now, &self.jobs, carried);
            }
        }
    }

    fn start(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        assert_eq!(running.state, State::Away, "a job that starts is away");
        running.state = State::Training;
        running.counts.began.get_or_insert(self.now);
        self.with_manager(|manager, now, jobs| manager.on_started(now, job, jobs));
        self.advance(job);
    }

    fn end(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        running.state = State::Done;
        running.counts.ended = Some(self.now);
    }

    /// Starts all computations, draws and fetches that are possible now.
    fn advance(&mut self, job: usize) {
        self.compute(job);
        while self.jobs[job].can_draw() {
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
            manager.set_draw_set(job, &mut running.epoch, size);
        }
        let drawn = match self.store.manager().filter(|_| !is_probe) {
            None => running.draw(|_| false),
            Some(manager) => {
                let cached = &manager.datasets[dataset];
                running.draw(|item| cached.is_resident(item))
            }
        };
        let drawn: Vec<u32> = drawn.items().iter().map(|item| number(*item)).collect();
        let items = narrow(drawn.len());
        let batch = running.pipeline.on_drawn(self.now, items);
        let missing: Vec<u32> = drawn
            .iter()
            .copied()
            .filter(|item| is_probe || !self.store.read(dataset, *item))
            .collect();
        let hits = items - narrow(missing.len());
        running.counts.reads.hit(hits.into());
        let mode = self
            .store
            .manager()
            .and_then(|manager| manager.on_drawn(self.now, job, &running.epoch, &drawn, is_probe));
        running.modes.push_back(mode);
        if !missing.is_empty() {
            running.wanted.push_back(Wanted { batch, items: missing, requested: 0, is_probe });
        }
        self.read_flash(job, batch, hits);
        self.with_manager(|_, _, _| {});
    }

    /// Sends resident items over the job's link to flash.
    fn read_flash(&mut self, job: usize, batch: BatchNumber, items: u32) {
        if items > 0 {
            let item_bytes = self.setup.datasets[self.jobs[job].dataset].item_bytes;
            self.flash.send(self.now, job, u64::from(items) * item_bytes, (batch, items));
        }
    }

    /// Keeps the job's link to the origin busy: with items that its mini-batches lack, or with
    /// prefetching.
    fn fetch(&mut self, job: usize) {
        // One item per connection, so that jobs decide late which of them fetches an item.
        let count = self.setup.jobs[job].connections as usize;
        while self.jobs[job].state == State::Training && self.jobs[job].fetching.is_none() {
            let fetching = match self.next_wanted(job, count) {
                Some(fetching) => fetching,
                None => match self.next_prefetch(job, count) {
                    Some(fetching) => fetching,
                    None => return,
                },
            };
            if !fetching.items.is_empty() {
                let dataset = self.jobs[job].dataset;
                let bytes = fetching.items.len() as u64 * self.setup.datasets[dataset].item_bytes;
                self.origin.send(self.now, job, bytes, ());
                if let Some(manager) = self.store.manager() {
                    fetching
                        .items
                        .iter()
                        .for_each(|item| manager.datasets[dataset].on_fetch(*item));
                }
                self.jobs[job].fetching = Some(fetching);
            }
        }
    }

    /// The next items that mini-batches of this job lack, without those that other jobs have
    /// fetched or are fetching.
    fn next_wanted(&mut self, job: usize, count: usize) -> Option<OriginFetch> {
        let running = &mut self.jobs[job];
        let dataset = running.dataset;
        let wanted = running.wanted.front_mut()?;
        let Wanted { batch, is_probe, .. } = *wanted;
        let range = wanted.requested..wanted.items.len().min(wanted.requested + count);
        wanted.requested = range.end;
        let mut brought = 0;
        let mut items = Vec::with_capacity(range.len());
        for item in wanted.items[range].iter().copied() {
            if !is_probe && self.store.read(dataset, item) {
                brought += 1;
            } else if !is_probe && self.store.is_claimed(dataset, item) {
                let manager = self.store.manager().expect("a store with claims has a manager");
                manager.datasets[dataset].add_waiter(Waiter { item, job, batch });
            } else {
                items.push(item);
            }
        }
        if wanted.requested == wanted.items.len() {
            running.wanted.pop_front();
        }
        running.counts.reads.wait(brought.into());
        self.read_flash(job, batch, brought);
        Some(OriginFetch { batch: Some(batch), items, is_probe })
    }

    /// Items of the chunks being loaded that some job will need.
    fn next_prefetch(&mut self, job: usize, count: usize) -> Option<OriginFetch> {
        let dataset = self.jobs[job].dataset;
        let manager = self.store.manager().filter(|manager| manager.has_claims())?;
        let readers = manager.readers(dataset, &self.jobs);
        let items = manager.datasets[dataset].prefetch_items(count, &readers);
        (!items.is_empty()).then_some(OriginFetch { batch: None, items, is_probe: false })
    }

    /// Handles all arrivals.
    fn on_arrivals(&mut self) {
        while let Some((job, (batch, items))) = self.flash.arrived(self.now) {
            self.on_read(job, batch, items);
        }
        while let Some((job, ())) = self.origin.arrived(self.now) {
            self.on_fetched(job);
        }
    }

    fn on_fetched(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let dataset = running.dataset;
        let OriginFetch { batch, items, is_probe } =
            running.fetching.take().expect("an arrival was requested");
        let reads = &mut running.counts.reads;
        for item in &items {
            match self.store.on_fetched(self.now, dataset, *item) {
                Fetched::Duplicate if !is_probe => reads.duplicates += 1,
                Fetched::Uncached if !is_probe => reads.uncached += 1,
                Fetched::Kept | Fetched::Duplicate | Fetched::Uncached => {}
            }
        }
        let count = items.len() as u64;
        self.recorder.on_fetched(dataset, count, batch.is_none());
        if let Some(batch) = batch {
            reads.miss(count);
            reads.probes += if is_probe { count } else { 0 };
            self.on_read(job, batch, narrow(items.len()));
        }
        if let Some(manager) = self.store.manager() {
            for waiting in
                manager.datasets[dataset].take_waiters(|waiting| items.contains(&waiting.item))
            {
                self.jobs[waiting.job].counts.reads.wait(1);
                self.read_flash(waiting.job, waiting.batch, 1);
            }
            self.with_manager(|manager, now, jobs| {
                let readers = manager.readers(dataset, jobs);
                manager.datasets[dataset].check_fills(now, &readers);
            });
        }
        self.fetch(job);
    }

    /// `items` items of a mini-batch have arrived.
    fn on_read(&mut self, job: usize, batch: BatchNumber, items: u32) {
        let running = &mut self.jobs[job];
        if let Some(at) = running.pipeline.on_read(self.now, batch, items) {
            let incarnation = running.incarnation;
            self.events.schedule(at, Event::Prepared { job, incarnation, batch });
        }
    }

    /// Starts the next mini-batch, if the GPUs are free and it is transformed.
    fn compute(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let Some(done_at) = running.pipeline.compute(self.now) else { return };
        let incarnation = running.incarnation;
        self.events.schedule(done_at, Event::Computed { job, incarnation });
    }

    fn on_computed(&mut self, job: usize) {
        let running = &mut self.jobs[job];
        let number = running.counts.batches;
        let stages = running.pipeline.on_computed(self.now);
        let busy = stages.computed - stages.taken;
        let took = self.now - running.last_computed.replace(self.now).unwrap_or(stages.taken);
        let mode = running.modes.pop_front().expect("a mode per mini-batch");
        running.counts.batches += 1;
        running.counts.busy = running.counts.busy + busy;
        self.recorder.on_computed(job, number, stages);
        self.with_manager(|manager, now, _| {
            let time = BatchTime { took: took.duration(), stalled: (took - busy).duration() };
            manager.on_computed(now, job, mode, time);
        });
        self.checkpoint(job);
        if self.jobs[job].is_done() {
            self.end(job);
            self.with_manager(|manager, now, _| manager.on_ended(now, job));
        } else {
            self.advance(job);
        }
    }

    /// Yields a computed mini-batch, which is never drawn again.
    fn checkpoint(&mut self, job: usize) {
        let released = self.jobs[job].epoch.yield_next();
        if !released.is_empty() {
            self.with_manager(|manager, now, _| manager.on_released(now, job, &released));
        }
        let running = &mut self.jobs[job];
        if running.epoch.is_over() {
            running.counts.epochs += 1;
            if running.needs_epoch() {
                running.epoch.begin_next();
                self.with_manager(|manager, now, _| manager.on_next_epoch(now, job));
            }
        }
    }
}

fn narrow(items: usize) -> u32 {
    u32::try_from(items).expect("scenarios limit mini-batches")
}

//! The manager of the simulated cache: carries out what the core's state machines decide.
//!
//! Nothing is decided here. [`Benefit`] says what a job gains and when it is probed, [`Placement`] or
//! [`greedy`] how much of the cache a dataset gets, and each dataset's rotation which chunks that is.

mod fill;
mod shelf;

use std::time::Duration;

use forebay_core::{
    ByteSize,
    benefit::{Benefit, Mode},
    placement::{Choice, Dataset as Wish, Job as Reader, Placement, Share, greedy},
    rotation::{Cut, Policy as Rule},
    sampler::Layout,
};

use super::{
    job::{Epoch, Running, State},
    outcome::{Decision, Residency},
    policy::Policy,
    scenario::Setup,
    time::Nanos,
};
pub(super) use shelf::{Shelf, Waiting};

/// How long after a first job has exhausted a chunk it is evicted by force. The paper says "a threshold".
const DEADLINE: Duration = Duration::from_mins(1);
/// Space is split anew when jobs come and go, and so often.
const PLACE_EVERY: Nanos = Nanos(30_000_000_000);

/// Who manages the cache.
#[derive(Debug)]
pub(super) struct Manager {
    policy: Policy,
    capacity: ByteSize,
    /// The datasets, each with its size in chunks.
    pub shelves: Vec<Shelf>,
    sizes: Vec<(u32, ByteSize)>,
    jobs: Vec<Known>,
    placement: Placement,
    place_at: Nanos,
    /// What was decided last about each dataset.
    choices: Vec<Choice>,
    /// What was decided when, with the number of jobs that it was decided for.
    decisions: Vec<(usize, Decision)>,
    names: Vec<String>,
}

/// A job, as far as the manager is concerned.
#[derive(Debug)]
struct Known {
    name: String,
    gpus: u32,
    dataset: usize,
    /// Bytes per second that it would draw if nothing held it up.
    pace: u64,
    benefit: Benefit,
    /// Mini-batches that are still to be drawn as forced misses.
    forced: u32,
    is_here: bool,
}

impl Manager {
    pub fn new(setup: &Setup, policy: Policy, seed: u64) -> Self {
        let rule = match policy {
            Policy::Forebay => Rule::ByNeed,
            _ => Rule::Paper { deadline: DEADLINE },
        };
        let shelf = |(at, dataset)| {
            let readers = setup.jobs.iter().filter(|job| job.dataset == at);
            let together = readers.map(|job| job.origin_limit(setup)).fold(0, u64::saturating_add);
            let load_rate = together.min(setup.origin.bandwidth.0.0);
            Shelf::new(dataset, setup.jobs.len(), rule, load_rate, seed)
        };
        let jobs = setup.jobs.iter().map(|job| {
            let dataset = &setup.datasets[job.dataset];
            let slowest = job.compute.max(job.transform / job.workers).max(Duration::from_nanos(1));
            let bytes = u128::from(job.batch) * u128::from(dataset.item_bytes);
            let pace = bytes * 1_000_000_000 / slowest.as_nanos();
            Known {
                name: job.name.clone(),
                gpus: job.gpus,
                dataset: job.dataset,
                pace: u64::try_from(pace).unwrap_or(u64::MAX),
                benefit: Benefit::new(dataset.items.div_ceil(job.batch.into())),
                forced: 0,
                is_here: false,
            }
        });
        let sizes = setup.datasets.iter();
        let sizes = sizes.map(|dataset| (dataset.chunking.chunks(), dataset.chunk_size()));
        Self {
            policy,
            capacity: setup.capacity,
            shelves: setup.datasets.iter().enumerate().map(shelf).collect(),
            sizes: sizes.collect(),
            jobs: jobs.collect(),
            placement: Placement::default(),
            place_at: Nanos(0),
            choices: vec![Choice::Nothing; setup.datasets.len()],
            decisions: Vec::new(),
            names: setup.datasets.iter().map(|dataset| dataset.name.clone()).collect(),
        }
    }

    pub fn layout(&self, dataset: usize) -> Layout {
        self.shelves[dataset].layout()
    }

    /// Whether jobs claim what they fetch, and fetch ahead. In the paper nobody knows what others fetch.
    pub fn has_claims(&self) -> bool {
        self.policy == Policy::Forebay
    }

    /// A job begins, or comes back.
    pub fn joined(&mut self, now: Nanos, job: usize, running: &[Running]) {
        self.jobs[job].is_here = true;
        self.join(now, job, running);
        self.place(now, running);
    }

    fn join(&mut self, now: Nanos, job: usize, running: &[Running]) {
        let Known { dataset, pace, .. } = self.jobs[job];
        self.shelves[dataset].join(now, job, &running[job].epoch, pace);
    }

    /// A job is done.
    pub fn left(&mut self, now: Nanos, job: usize, running: &[Running]) {
        self.jobs[job].is_here = false;
        self.shelves[self.jobs[job].dataset].leave(now, job);
        self.place(now, running);
    }

    pub fn next_epoch(&mut self, now: Nanos, job: usize) {
        self.jobs[job].benefit.next_epoch();
        self.shelves[self.jobs[job].dataset].next_epoch(now, job);
    }

    /// Whether the job's next mini-batch is to miss, whatever is resident.
    pub fn forces_miss(&mut self, now: Nanos, job: usize) -> bool {
        let known = &mut self.jobs[job];
        if known.forced == 0
            && let Some(probe) = known.benefit.probe(now.duration())
        {
            known.forced = probe.batches;
        }
        let is_forced = known.forced > 0;
        known.forced -= u32::from(is_forced);
        is_forced
    }

    /// Tells the sampler what to draw from.
    pub fn direct(&mut self, job: usize, epoch: &mut Epoch, batch: u64) {
        self.shelves[self.jobs[job].dataset].direct(job, epoch, batch);
    }

    /// A job has drawn these items. Returns where they come from, if that is one place.
    pub fn drawn(
        &mut self,
        now: Nanos,
        job: usize,
        epoch: &Epoch,
        items: &[u32],
        is_forced: bool,
    ) -> Option<Mode> {
        let Known { dataset, pace, .. } = self.jobs[job];
        let cached = &mut self.shelves[dataset];
        let mode = if is_forced { Some(Mode::Miss) } else { cached.mode(job, items) };
        cached.drawn(now, job, epoch, items, pace);
        mode
    }

    /// A mini-batch took so long, of which its GPUs waited `stalled`.
    pub fn computed(
        &mut self,
        now: Nanos,
        job: usize,
        mode: Option<Mode>,
        [took, stalled]: [Nanos; 2],
        running: &[Running],
    ) {
        let Some(mode) = mode else { return };
        let known = &mut self.jobs[job];
        let was_cached = known.benefit.is_cached();
        known.benefit.batch(mode, took.duration(), stalled.duration());
        let (is_cached, dataset) = (known.benefit.is_cached(), known.dataset);
        if is_cached != was_cached {
            if is_cached {
                self.join(now, job, running);
            } else {
                self.shelves[dataset].leave(now, job);
            }
            self.place(now, running);
        }
    }

    /// When something has to be done although nothing happens.
    pub fn next_deadline(&self, now: Nanos) -> Nanos {
        let rotations = self.shelves.iter().filter_map(Shelf::next_deadline);
        let all = rotations.chain([self.place_at]);
        // What is overdue has been looked at already.
        all.filter(|deadline| *deadline > now).min().unwrap_or(Nanos::MAX)
    }

    pub fn tick(&mut self, now: Nanos, running: &[Running]) {
        self.shelves.iter_mut().for_each(|shelf| shelf.tick(now));
        if now >= self.place_at {
            self.place(now, running);
        }
    }

    /// Splits the space between datasets.
    fn place(&mut self, now: Nanos, running: &[Running]) {
        self.place_at = now + PLACE_EVERY;
        if !self.jobs.iter().any(|job| job.is_here) {
            return;
        }
        let wishes: Vec<Wish> = (0..self.shelves.len()).map(|dataset| self.wish(dataset)).collect();
        let shares = match self.policy {
            Policy::Forebay => self.placement.split(self.capacity, &wishes),
            _ => greedy(self.capacity, &wishes),
        };
        self.write_down(now, &shares, &wishes);
        let paces: Vec<u64> = self.jobs.iter().map(|job| job.pace).collect();
        // Those that get less make room for those that get more.
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by_key(|at| {
            shares[*at].space.0.saturating_sub(wishes[*at].space(self.choices[*at]).0)
        });
        for dataset in order {
            let choice = shares[dataset].choice;
            self.choices[dataset] = choice;
            let cut = match choice {
                Choice::Nothing => Cut::Nothing,
                Choice::Halves => Cut::Halves(2),
                Choice::Chunks(chunks) => Cut::Chunks(chunks),
            };
            self.shelves[dataset].place(now, cut, running, &paces);
        }
        let taken: u64 = self.shelves.iter().map(Shelf::taken).sum();
        assert!(taken <= self.capacity.0, "{taken} bytes of {} are taken", self.capacity);
    }

    fn wish(&self, dataset: usize) -> Wish {
        let (chunks, chunk_size) = self.sizes[dataset];
        let readers = self.jobs.iter().filter(|job| job.is_here && job.dataset == dataset);
        let readers = readers.filter(|job| job.benefit.is_cached()).map(|job| Reader {
            name: job.name.clone(),
            gpus: job.gpus,
            times: job.benefit.times(),
        });
        let placed = self.shelves[dataset].placed();
        Wish { chunks, chunk_size, jobs: readers.collect(), placed }
    }

    /// Keeps what is decided, and the reason while most jobs were there to give one.
    fn write_down(&mut self, now: Nanos, shares: &[Share], wishes: &[Wish]) {
        for (dataset, (share, wish)) in shares.iter().zip(wishes).enumerate() {
            let name = &self.names[dataset];
            let readers = wish.jobs.len();
            let last = self.decisions.iter_mut().rev().find(|(_, said)| said.dataset == *name);
            let (text, seconds) = (share.why.clone(), now.seconds());
            match last {
                Some((most, last)) if share.choice == self.choices[dataset] => {
                    if readers >= *most {
                        (*most, last.text) = (readers, text);
                    }
                }
                _ => {
                    let said = Decision { seconds, dataset: name.clone(), text };
                    self.decisions.push((readers, said));
                }
            }
        }
    }

    pub fn decisions(&self) -> Vec<Decision> {
        self.decisions.iter().map(|(_, said)| said.clone()).collect()
    }

    pub fn residency(&self, end: Nanos) -> Vec<Residency> {
        self.shelves.iter().flat_map(|shelf| shelf.residency(end)).collect()
    }

    /// Those who draw from a dataset's shelf.
    pub fn readers<'a>(&self, dataset: usize, running: &'a [Running]) -> Vec<&'a Epoch> {
        let all = running.iter().enumerate().filter(|(_, running)| running.dataset == dataset);
        let training = all.filter(|(job, running)| {
            running.state == State::Training && self.shelves[dataset].is_member(*job)
        });
        training.map(|(_, running)| &running.epoch).collect()
    }
}

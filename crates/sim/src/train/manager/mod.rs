//! The cache of the simulated cluster: one shelf for each dataset, and the space between them.
//!
//! Nothing is decided here: the core's `Manager` of each dataset says what comes and goes, its `Space` how
//! much of the cache a dataset gets.

mod fill;
mod shelf;

use std::time::Duration;

use forebay_core::{
    benefit::Mode,
    chunking::ChunkOrdinal,
    manager::{Rule as Split, Space, Who},
    placement::{Choice, Dataset as Wish, Placement, Share},
    rotation::Policy as Rule,
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

/// Who manages the cache.
#[derive(Debug)]
pub(super) struct Manager {
    policy: Policy,
    pub shelves: Vec<Shelf>,
    jobs: Vec<Known>,
    space: Space,
    /// The shelves' reasons to split the space that have been heard.
    reasons: u64,
    /// What was decided last about each dataset.
    choices: Vec<Choice>,
    /// What was decided when, with the number of jobs that it was decided for.
    decisions: Vec<(usize, Decision)>,
    names: Vec<String>,
}

/// A job, as far as the manager is concerned.
#[derive(Debug)]
struct Known {
    who: Who,
    dataset: usize,
    /// Bytes per second that it would draw if nothing held it up.
    pace: u64,
    /// Mini-batches that are still to be drawn as forced misses.
    forced: u32,
    is_here: bool,
}

impl Manager {
    pub fn new(setup: &Setup, policy: Policy, seed: u64) -> Self {
        let (rule, split) = match policy {
            Policy::Forebay => (Rule::ByNeed, Split::Knapsack(Placement::default())),
            _ => (Rule::Paper { deadline: DEADLINE }, Split::Greedy),
        };
        let shelf = |(at, dataset)| {
            let readers = setup.jobs.iter().filter(|job| job.dataset == at);
            let together = readers.map(|job| job.origin_limit(setup)).fold(0, u64::saturating_add);
            let load_rate = together.min(setup.origin.bandwidth.0.0);
            Shelf::new(dataset, rule, load_rate, seed)
        };
        let jobs = setup.jobs.iter().map(|job| {
            let dataset = &setup.datasets[job.dataset];
            let slowest = job.compute.max(job.transform / job.workers).max(Duration::from_nanos(1));
            let bytes = u128::from(job.batch) * u128::from(dataset.item_bytes);
            let pace = bytes * 1_000_000_000 / slowest.as_nanos();
            Known {
                who: Who {
                    name: job.name.clone(),
                    gpus: job.gpus,
                    epoch_batches: dataset.items.div_ceil(job.batch.into()),
                },
                dataset: job.dataset,
                pace: u64::try_from(pace).unwrap_or(u64::MAX),
                forced: 0,
                is_here: false,
            }
        });
        Self {
            policy,
            shelves: setup.datasets.iter().enumerate().map(shelf).collect(),
            jobs: jobs.collect(),
            space: Space::new(split, setup.capacity),
            reasons: 0,
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
        self.join(now, job, &running[job].epoch);
    }

    fn join(&mut self, now: Nanos, job: usize, epoch: &Epoch) {
        let Known { who, dataset, pace, .. } = &self.jobs[job];
        self.shelves[*dataset].join(now, job, who.clone(), epoch, *pace);
        self.split_if_needed(now);
    }

    /// A job was killed without a word: its lease will end, or it comes back.
    pub fn killed(&mut self, job: usize) {
        self.jobs[job].is_here = false;
    }

    /// A job is done.
    pub fn left(&mut self, now: Nanos, job: usize) {
        self.jobs[job].is_here = false;
        if let Some(shelf) = self.shelf_of(now, job) {
            shelf.leave(now, job);
        }
        self.split_if_needed(now);
    }

    pub fn next_epoch(&mut self, now: Nanos, job: usize) {
        if let Some(shelf) = self.shelf_of(now, job) {
            shelf.next_epoch(now, job);
        }
    }

    /// The shelf that a job reads from, unless it was silent for so long that it is forgotten.
    fn shelf_of(&mut self, now: Nanos, job: usize) -> Option<&mut Shelf> {
        Some(&mut self.shelves[self.jobs[job].dataset]).filter(|shelf| shelf.knows(now, job))
    }

    /// The last items of these pieces were given to a job.
    pub fn released(&mut self, now: Nanos, job: usize, pieces: &[ChunkOrdinal]) {
        if let Some(shelf) = self.shelf_of(now, job) {
            shelf.released(now, job, pieces);
        }
    }

    /// Whether the job's next mini-batch is to miss, whatever is resident.
    pub fn forces_miss(&mut self, now: Nanos, job: usize, epoch: &Epoch) -> bool {
        if self.shelf_of(now, job).is_none() {
            self.join(now, job, epoch);
        }
        let Known { dataset, forced, .. } = &mut self.jobs[job];
        if *forced == 0 {
            *forced = self.shelves[*dataset].probe(now, job);
        }
        let is_forced = *forced > 0;
        *forced -= u32::from(is_forced);
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
    ) {
        if let (Some(mode), Some(shelf)) = (mode, self.shelf_of(now, job)) {
            shelf.computed(now, job, mode, [took, stalled]);
            self.split_if_needed(now);
        }
    }

    /// When something has to be done although nothing happens.
    pub fn next_deadline(&self, now: Nanos) -> Nanos {
        let shelves = self.shelves.iter().filter_map(Shelf::next_deadline);
        let all = shelves.chain([self.space.next_deadline().into()]);
        // What is overdue has been looked at already.
        all.filter(|deadline| *deadline > now).min().unwrap_or(Nanos::MAX)
    }

    /// Time has passed. Whoever lives says so now and then, however long it waits for its next mini-batch.
    pub fn tick(&mut self, now: Nanos) {
        self.shelves.iter_mut().for_each(|shelf| shelf.tick(now));
        for (job, known) in self.jobs.iter().enumerate().filter(|(_, known)| known.is_here) {
            let cached = &mut self.shelves[known.dataset];
            if cached.knows(now, job) {
                cached.renew(now, job);
            }
        }
        if now >= self.space.next_deadline().into() {
            self.split(now);
        } else {
            self.split_if_needed(now);
        }
    }

    fn split_if_needed(&mut self, now: Nanos) {
        let reasons = self.shelves.iter().map(Shelf::reasons).sum();
        if std::mem::replace(&mut self.reasons, reasons) != reasons {
            self.split(now);
        }
    }

    /// Splits the space between datasets.
    fn split(&mut self, now: Nanos) {
        let wishes: Vec<Wish> = self.shelves.iter().map(|shelf| shelf.wish(now)).collect();
        let shares = self.space.split(now.duration(), &wishes);
        if !self.jobs.iter().any(|job| job.is_here) {
            return;
        }
        for (dataset, share) in &shares {
            let Wish { jobs, others, .. } = &wishes[*dataset];
            self.write_down(now, *dataset, share, jobs.len() + others.len());
            self.choices[*dataset] = share.choice;
            self.shelves[*dataset].place(now, share.choice);
        }
        let taken: u64 = self.shelves.iter().map(Shelf::taken).sum();
        let capacity = self.space.capacity();
        assert!(taken <= capacity.0, "{taken} bytes of {capacity} are taken");
    }

    /// Keeps what is decided, and the reason while most jobs were there to give one.
    fn write_down(&mut self, now: Nanos, dataset: usize, share: &Share, readers: usize) {
        let name = &self.names[dataset];
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

    pub fn decisions(&self) -> Vec<Decision> {
        self.decisions.iter().map(|(_, said)| said.clone()).collect()
    }

    pub fn residency(&self, end: Nanos) -> Vec<Residency> {
        self.shelves.iter().flat_map(|shelf| shelf.residency(end)).collect()
    }

    /// Those who draw from a dataset's shelf.
    pub fn readers<'a>(&self, dataset: usize, running: &'a [Running]) -> Vec<(usize, &'a Epoch)> {
        let all = running.iter().enumerate().filter(|(_, running)| running.dataset == dataset);
        let training = all.filter(|(job, running)| {
            running.state == State::Training && self.shelves[dataset].is_member(*job)
        });
        training.map(|(job, running)| (job, &running.epoch)).collect()
    }
}

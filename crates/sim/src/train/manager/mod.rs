//! Manager of the simulated cache: a cache per dataset, and the split of space between them.
//!
//! Nothing is decided here. The core's `Manager` of each dataset decides what is loaded and
//! evicted, and its `Space` decides how much space a dataset gets.

mod dataset_cache;
mod fill;

use std::time::Duration;

use forebay_core::{
    HalfChunk,
    train::{
        benefit::{BatchTime, Mode},
        manager::{JobProfile, PlacementRule as Split, Space},
        placement::{Allocation, DatasetDemand, Placement, Share},
        rotation::RotationPolicy as Rule,
        sampler::HalfChunkMap,
    },
};

use super::{
    job::{Epoch, SimJob, State},
    outcome::{Decision, Residency},
    policy::Policy,
    scenario::Setup,
    time::Nanos,
};
pub(super) use dataset_cache::{DatasetCache, Waiter};

/// Time from when a first job has exhausted a chunk to its forced eviction. The paper says "a
/// threshold".
const DEADLINE: Duration = Duration::from_mins(1);

/// The manager of all datasets.
#[derive(Debug)]
pub(super) struct Manager {
    policy: Policy,
    pub datasets: Vec<DatasetCache>,
    jobs: Vec<JobEntry>,
    space: Space,
    /// Sum of the datasets' reasons to split the space, as of the last split.
    reasons: u64,
    /// Last choice for each dataset.
    choices: Vec<Allocation>,
    /// Decisions, with the number of jobs that they were made for.
    decisions: Vec<(usize, Decision)>,
    names: Vec<String>,
}

/// The manager's state of a job.
#[derive(Debug)]
struct JobEntry {
    who: JobProfile,
    dataset: usize,
    /// Bytes per second that it would draw without waiting.
    pace: u64,
    /// Mini-batches still to be drawn as forced misses.
    forced: u32,
    is_live: bool,
}

impl Manager {
    pub fn new(setup: &Setup, policy: Policy, seed: u64) -> Self {
        let (rule, split) = match policy {
            Policy::Forebay => (Rule::Demand, Split::Knapsack(Placement::default())),
            _ => (Rule::Quiver { deadline: DEADLINE }, Split::Greedy),
        };
        let cache = |(at, dataset)| {
            let readers = setup.jobs.iter().filter(|job| job.dataset == at);
            let together = readers.map(|job| job.origin_limit(setup)).fold(0, u64::saturating_add);
            let load_rate = together.min(setup.origin.bandwidth.0.0);
            DatasetCache::new(dataset, rule, load_rate, seed)
        };
        let jobs = setup.jobs.iter().map(|job| {
            let dataset = &setup.datasets[job.dataset];
            let slowest = job.compute.max(job.transform / job.workers).max(Duration::from_nanos(1));
            let bytes = u128::from(job.batch) * u128::from(dataset.item_bytes);
            let pace = bytes * 1_000_000_000 / slowest.as_nanos();
            JobEntry {
                who: JobProfile {
                    name: job.name.clone(),
                    gpus: job.gpus,
                    epoch_batches: dataset.items.div_ceil(job.batch.into()),
                },
                dataset: job.dataset,
                pace: u64::try_from(pace).unwrap_or(u64::MAX),
                forced: 0,
                is_live: false,
            }
        });
        Self {
            policy,
            datasets: setup.datasets.iter().enumerate().map(cache).collect(),
            jobs: jobs.collect(),
            space: Space::new(split, setup.capacity),
            reasons: 0,
            choices: vec![Allocation::Nothing; setup.datasets.len()],
            decisions: Vec::new(),
            names: setup.datasets.iter().map(|dataset| dataset.name.clone()).collect(),
        }
    }

    pub fn layout(&self, dataset: usize) -> HalfChunkMap {
        self.datasets[dataset].layout()
    }

    /// Whether jobs claim what they fetch, and prefetch. In Algorithm 1 of the paper, fetches are
    /// not co-ordinated.
    pub fn has_claims(&self) -> bool {
        matches!(self.policy, Policy::Forebay | Policy::QuiverPreload)
    }

    /// A job starts or restarts.
    pub fn on_started(&mut self, now: Nanos, job: usize, running: &[SimJob]) {
        self.jobs[job].is_live = true;
        self.join(now, job, &running[job].epoch);
    }

    fn join(&mut self, now: Nanos, job: usize, epoch: &Epoch) {
        let JobEntry { who, dataset, pace, .. } = &self.jobs[job];
        self.datasets[*dataset].join(now, job, who.clone(), epoch, *pace);
        self.split_if_needed(now);
    }

    /// A job was killed. Its lease ends, unless it restarts before.
    pub fn on_killed(&mut self, job: usize) {
        self.jobs[job].is_live = false;
    }

    /// A job has ended.
    pub fn on_ended(&mut self, now: Nanos, job: usize) {
        self.jobs[job].is_live = false;
        if let Some(cache) = self.cache_of(now, job) {
            cache.leave(now, job);
        }
    }

    pub fn on_next_epoch(&mut self, now: Nanos, job: usize) {
        if let Some(cache) = self.cache_of(now, job) {
            cache.on_next_epoch(now, job);
        }
    }

    /// The cache of a job's dataset, unless the job's lease has ended.
    fn cache_of(&mut self, now: Nanos, job: usize) -> Option<&mut DatasetCache> {
        Some(&mut self.datasets[self.jobs[job].dataset]).filter(|cache| cache.has_job(now, job))
    }

    /// A job has yielded the last items of these half-chunks.
    pub fn on_released(&mut self, now: Nanos, job: usize, half_chunks: &[HalfChunk]) {
        if let Some(cache) = self.cache_of(now, job) {
            cache.on_released(now, job, half_chunks);
        }
    }

    /// Whether the job's next mini-batch must miss, for a probe.
    pub fn forces_miss(&mut self, now: Nanos, job: usize, epoch: &Epoch) -> bool {
        if self.cache_of(now, job).is_none() {
            self.join(now, job, epoch);
        }
        let JobEntry { dataset, forced, .. } = &mut self.jobs[job];
        if *forced == 0 {
            *forced = self.datasets[*dataset].probe(now, job);
        }
        let is_forced = *forced > 0;
        *forced -= u32::from(is_forced);
        is_forced
    }

    /// Gives the sampler its draw set.
    pub fn set_draw_set(&mut self, job: usize, epoch: &mut Epoch, batch: u64) {
        self.datasets[self.jobs[job].dataset].set_draw_set(job, epoch, batch);
    }

    /// A job has drawn these items. Returns their mode, if they have one.
    pub fn on_drawn(
        &mut self,
        now: Nanos,
        job: usize,
        epoch: &Epoch,
        items: &[u32],
        is_forced: bool,
    ) -> Option<Mode> {
        let JobEntry { dataset, pace, .. } = self.jobs[job];
        let cached = &mut self.datasets[dataset];
        let mode = if is_forced { Some(Mode::Miss) } else { cached.mode(job, items) };
        cached.on_drawn(now, job, epoch, items, pace);
        mode
    }

    /// A job has computed a mini-batch.
    pub fn on_computed(&mut self, now: Nanos, job: usize, mode: Option<Mode>, time: BatchTime) {
        if let (Some(mode), Some(cache)) = (mode, self.cache_of(now, job)) {
            cache.on_computed(now, job, mode, time);
        }
    }

    /// Next deadline of a dataset or of the space.
    pub fn next_deadline(&self, now: Nanos) -> Nanos {
        let datasets = self.datasets.iter().filter_map(DatasetCache::next_deadline);
        let all = datasets.chain([self.space.next_deadline().into()]);
        // Overdue deadlines have been handled already.
        all.filter(|deadline| *deadline > now).min().unwrap_or(Nanos::MAX)
    }

    /// Handles deadlines, and renews the leases of live jobs, even of those that wait.
    pub fn tick(&mut self, now: Nanos) {
        self.datasets.iter_mut().for_each(|cache| cache.tick(now));
        for (job, known) in self.jobs.iter().enumerate().filter(|(_, known)| known.is_live) {
            let cached = &mut self.datasets[known.dataset];
            if cached.has_job(now, job) {
                cached.renew(now, job);
            }
        }
        if now >= self.space.next_deadline().into() {
            self.split(now);
        }
    }

    /// Splits the space again, if an event gave a reason to.
    pub fn split_if_needed(&mut self, now: Nanos) {
        let reasons = self.datasets.iter().map(DatasetCache::reasons).sum();
        if std::mem::replace(&mut self.reasons, reasons) != reasons {
            self.split(now);
        }
    }

    /// Splits the space between datasets.
    fn split(&mut self, now: Nanos) {
        let demands: Vec<DatasetDemand> =
            self.datasets.iter().map(|cache| cache.demand(now)).collect();
        let shares = self.space.split(now.duration(), &demands);
        if !self.jobs.iter().any(|job| job.is_live) {
            return;
        }
        for (dataset, share) in &shares {
            let DatasetDemand { jobs, compute_bound: others, .. } = &demands[*dataset];
            self.record_decision(now, *dataset, share, jobs.len() + others.len());
            self.choices[*dataset] = share.allocation;
            self.datasets[*dataset].set_share(now, share.allocation);
        }
        let taken: u64 = self.datasets.iter().map(DatasetCache::taken).sum();
        let capacity = self.space.capacity();
        assert!(taken <= capacity.0, "{taken} bytes exceed the capacity of {capacity}");
    }

    /// Records a decision, with the reason given when most jobs were present.
    fn record_decision(&mut self, now: Nanos, dataset: usize, share: &Share, readers: usize) {
        let name = &self.names[dataset];
        let last = self.decisions.iter_mut().rev().find(|(_, decision)| decision.dataset == *name);
        let (text, seconds) = (share.why.clone(), now.seconds());
        match last {
            Some((most, last)) if share.allocation == self.choices[dataset] => {
                if readers >= *most {
                    (*most, last.text) = (readers, text);
                }
            }
            _ => {
                let decision = Decision { seconds, dataset: name.clone(), text };
                self.decisions.push((readers, decision));
            }
        }
    }

    pub fn decisions(&self) -> Vec<Decision> {
        self.decisions.iter().map(|(_, decision)| decision.clone()).collect()
    }

    pub fn residency(&self, end: Nanos) -> Vec<Residency> {
        self.datasets.iter().flat_map(|cache| cache.residency(end)).collect()
    }

    /// Jobs that draw from a dataset.
    pub fn readers<'a>(&self, dataset: usize, running: &'a [SimJob]) -> Vec<(usize, &'a Epoch)> {
        let all = running.iter().enumerate().filter(|(_, running)| running.dataset == dataset);
        let training = all.filter(|(job, running)| {
            running.state == State::Training && self.datasets[dataset].is_member(*job)
        });
        training.map(|(job, running)| (job, &running.epoch)).collect()
    }
}

//! Writes down what happens, from the end of the warm-up on, and makes an outcome of it.

use super::{
    job::{Counts, Running},
    outcome::{DatasetOutcome, Incident, JobOutcome, Outcome, Progress, StageTimes},
    pipeline::Stages,
    policy::Policy,
    scenario::{Job, Setup},
    time::Nanos,
};

/// Progress is kept in so many steps, at least.
const STEPS: usize = 200;
/// As many as in Quiver's figures 4 and 5.
const STAGES: usize = 20;

#[derive(Debug)]
pub(super) struct Recorder {
    warm_up: Nanos,
    at_warm_up: Vec<Counts>,
    carried_at_warm_up: [u64; 2],
    incidents: Vec<Incident>,
    /// Items that the origin delivered of each dataset, and how many of them ahead.
    fetched: Vec<(u64, u64)>,
    /// Mini-batches in each step; when there are too many steps, they become twice as long.
    progress: Vec<u64>,
    step: Nanos,
    stages: Vec<StageTimes>,
}

impl Recorder {
    pub fn new(setup: &Setup) -> Self {
        Self {
            warm_up: setup.warm_up.into(),
            at_warm_up: vec![Counts::default(); setup.jobs.len()],
            carried_at_warm_up: [0; 2],
            incidents: Vec::new(),
            fetched: vec![(0, 0); setup.datasets.len()],
            progress: Vec::new(),
            step: Nanos(1_000_000_000),
            stages: Vec::new(),
        }
    }

    /// From now on it counts; so many bytes have come from the origin and from flash before.
    pub fn warmed_up(&mut self, now: Nanos, jobs: &[Running], carried: [u64; 2]) {
        let counts = jobs.iter().map(|job| Counts { busy: job.busy(now), ..job.counts });
        self.at_warm_up = counts.collect();
        self.carried_at_warm_up = carried;
        self.fetched.fill((0, 0));
    }

    /// Something went wrong.
    pub fn note(&mut self, now: Nanos, text: String) {
        self.incidents.push(Incident { seconds: now.seconds(), text });
    }

    /// The origin delivered so many items.
    pub fn fetched(&mut self, dataset: usize, items: u64, is_ahead: bool) {
        let (all, ahead) = &mut self.fetched[dataset];
        *all += items;
        *ahead += if is_ahead { items } else { 0 };
    }

    /// A job has computed a mini-batch.
    pub fn computed(&mut self, job: usize, number: u64, stages: Stages) {
        let mut place = step_of(stages.computed, self.step);
        while place >= 2 * STEPS {
            self.step = self.step + self.step;
            self.progress = self.progress.chunks(2).map(|pair| pair.iter().sum()).collect();
            place = step_of(stages.computed, self.step);
        }
        if self.progress.len() <= place {
            self.progress.resize(place + 1, 0);
        }
        self.progress[place] += 1;
        if job == 0 && stages.drawn >= self.warm_up && self.stages.len() < STAGES {
            self.stages.push(StageTimes {
                batch: number,
                read_from: stages.drawn.seconds(),
                transform_from: stages.read.seconds(),
                ready_from: stages.prepared.seconds(),
                compute_from: stages.taken.seconds(),
                compute_to: stages.computed.seconds(),
            });
        }
    }

    /// All that was written down; the rest is for others to say.
    pub fn finish(self, setup: &Setup, now: Nanos, jobs: &[Running], carried: [u64; 2]) -> Outcome {
        let outcomes = setup.jobs.iter().zip(jobs).zip(&self.at_warm_up);
        let outcomes =
            outcomes.map(|((said, running), before)| self.job(now, said, running, *before));
        let outcomes: Vec<JobOutcome> = outcomes.collect();
        let datasets = setup.datasets.iter().zip(&self.fetched).enumerate();
        let datasets = datasets.map(|(at, (dataset, (fetched, ahead)))| {
            let readers = setup.jobs.iter().zip(&outcomes).filter(|(job, _)| job.dataset == at);
            let read: u64 = readers.map(|(_, outcome)| outcome.reads.items).sum();
            let [origin_bytes, ahead_bytes, read_bytes] =
                [*fetched, *ahead, read].map(|items| items.saturating_mul(dataset.item_bytes));
            DatasetOutcome {
                name: dataset.name.clone(),
                bytes: dataset.size().0,
                chunks: dataset.chunking.chunks(),
                chunk_bytes: dataset.chunk_size().0,
                origin_bytes,
                ahead_bytes,
                read_bytes,
            }
        });
        let [origin_bytes, flash_bytes] =
            [0, 1].map(|at| carried[at] - self.carried_at_warm_up[at]);
        Outcome {
            scenario: String::new(),
            variant: setup.variant.clone(),
            policy: Policy::None,
            seed: 0,
            seconds: now.seconds(),
            datasets: datasets.collect(),
            capacity_bytes: setup.capacity.0,
            warm_up_seconds: self.warm_up.seconds(),
            item_reads: outcomes.iter().map(|job| job.reads.items).sum(),
            item_reads_in_all: jobs.iter().map(|job| job.counts.reads.items).sum(),
            jobs: outcomes,
            origin_bytes,
            flash_bytes,
            faults: self.incidents,
            residency: Vec::new(),
            progress: Progress { step_seconds: self.step.seconds(), batches: self.progress },
            stages: self.stages,
            decisions: Vec::new(),
        }
    }

    fn job(&self, now: Nanos, said: &Job, running: &Running, before: Counts) -> JobOutcome {
        let counts = running.counts;
        let ended = counts.ended.unwrap_or(now);
        let began = counts.began.unwrap_or(now).max(self.warm_up);
        let seconds = Nanos(ended.0.saturating_sub(began.0)).seconds();
        let busy = Nanos(running.busy(now).0.saturating_sub(before.busy.0)).seconds();
        let batches = busy / Nanos::from(said.compute).seconds();
        JobOutcome {
            name: said.name.clone(),
            group: said.group.clone(),
            gpus: said.gpus,
            batches: counts.batches - before.batches,
            epochs: counts.epochs - before.epochs,
            seconds,
            gpu_busy: if seconds > 0.0 { busy / seconds } else { 0.0 },
            batch_seconds: (batches > 0.0 && seconds > 0.0).then(|| seconds / batches),
            hit_share: counts.reads.since(before.reads).hit_rate(),
            reads: counts.reads.since(before.reads),
        }
    }
}

fn step_of(moment: Nanos, step: Nanos) -> usize {
    usize::try_from(moment.0 / step.0).expect("a few steps")
}

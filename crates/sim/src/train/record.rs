//! Recorder: counts from the end of the warm-up on, and builds the outcome.

use super::{
    job::{Counts, SimJob},
    outcome::{DatasetOutcome, Incident, JobOutcome, Outcome, Progress, StageTimes},
    pipeline::Stages,
    policy::Policy,
    scenario::{Job, Setup},
    time::Nanos,
};

/// Fewest steps of progress; at most twice this number.
const STEPS: usize = 200;
/// Mini-batches whose stages are recorded, as in Quiver's figures 4 and 5.
const STAGES: usize = 20;

#[derive(Debug)]
pub(super) struct Recorder {
    warm_up: Nanos,
    at_warm_up: Vec<Counts>,
    carried_at_warm_up: [u64; 2],
    incidents: Vec<Incident>,
    /// Per dataset: items that the origin delivered, and those of them fetched ahead.
    fetched: Vec<(u64, u64)>,
    /// Mini-batches per step. With too many steps, the length of a step is doubled.
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

    /// Starts counting; `carried` are the bytes from the origin and from flash so far.
    pub fn on_warmed_up(&mut self, now: Nanos, jobs: &[SimJob], carried: [u64; 2]) {
        let counts = jobs.iter().map(|job| Counts { busy: job.busy(now), ..job.counts });
        self.at_warm_up = counts.collect();
        self.carried_at_warm_up = carried;
        self.fetched.fill((0, 0));
    }

    /// Records a fault.
    pub fn on_fault(&mut self, now: Nanos, text: String) {
        self.incidents.push(Incident { seconds: now.seconds(), text });
    }

    /// The origin delivered `items` items.
    pub fn on_fetched(&mut self, dataset: usize, items: u64, is_ahead: bool) {
        let (all, ahead) = &mut self.fetched[dataset];
        *all += items;
        *ahead += if is_ahead { items } else { 0 };
    }

    /// A job has computed a mini-batch.
    pub fn on_computed(&mut self, job: usize, number: u64, stages: Stages) {
        let mut step = step_of(stages.computed, self.step);
        while step >= 2 * STEPS {
            self.step = self.step + self.step;
            self.progress = self.progress.chunks(2).map(|pair| pair.iter().sum()).collect();
            step = step_of(stages.computed, self.step);
        }
        if self.progress.len() <= step {
            self.progress.resize(step + 1, 0);
        }
        self.progress[step] += 1;
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

    /// The outcome, without the fields that the recorder does not know.
    pub fn finish(self, setup: &Setup, now: Nanos, jobs: &[SimJob], carried: [u64; 2]) -> Outcome {
        let outcomes = setup.jobs.iter().zip(jobs).zip(&self.at_warm_up);
        let outcomes =
            outcomes.map(|((job, running), before)| self.job(now, job, running, *before));
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

    fn job(&self, now: Nanos, job: &Job, running: &SimJob, before: Counts) -> JobOutcome {
        let counts = running.counts;
        let ended = counts.ended.unwrap_or(now);
        let began = counts.began.unwrap_or(now).max(self.warm_up);
        let seconds = Nanos(ended.0.saturating_sub(began.0)).seconds();
        let busy = Nanos(running.busy(now).0.saturating_sub(before.busy.0)).seconds();
        let batches = busy / Nanos::from(job.compute).seconds();
        JobOutcome {
            name: job.name.clone(),
            group: job.group.clone(),
            gpus: job.gpus,
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

fn step_of(time: Nanos, step: Nanos) -> usize {
    usize::try_from(time.0 / step.0).expect("fewer than 2^64 steps")
}

//! Writes down what happens, from the end of the warm-up on, and makes an outcome of it.

use super::{
    job::{Counts, Running},
    outcome::{DatasetOutcome, JobOutcome, Outcome, Progress, StageTimes},
    pipeline::Stages,
    policy::Policy,
    scenario::Setup,
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
            fetched: vec![(0, 0); setup.datasets.len()],
            progress: Vec::new(),
            step: Nanos(1_000_000_000),
            stages: Vec::new(),
        }
    }

    /// From now on it counts.
    pub fn warmed_up(&mut self, jobs: &[Running]) {
        self.at_warm_up = jobs.iter().map(|job| job.counts).collect();
        self.fetched.fill((0, 0));
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
    pub fn finish(self, setup: &Setup, now: Nanos, jobs: &[Running]) -> Outcome {
        let outcomes = setup.jobs.iter().zip(jobs).zip(&self.at_warm_up);
        let outcomes = outcomes.map(|((said, running), before)| {
            let counts = running.counts;
            let ended = counts.ended.unwrap_or(now);
            let counted = Nanos(ended.0.saturating_sub(counts.began.max(self.warm_up).0));
            let busy = counts.busy - before.busy;
            JobOutcome {
                name: said.name.clone(),
                group: said.group.clone(),
                gpus: said.gpus,
                batches: counts.batches - before.batches,
                epochs: counts.epochs,
                seconds: counted.seconds(),
                gpu_busy: busy.seconds() / counted.seconds().max(1e-9),
                reads: counts.reads.since(before.reads),
            }
        });
        let outcomes = outcomes.collect();
        let datasets = setup.datasets.iter().zip(&self.fetched);
        let datasets = datasets.map(|(dataset, (fetched, ahead))| DatasetOutcome {
            name: dataset.name.clone(),
            bytes: dataset.size().0,
            origin_bytes: fetched * dataset.item_bytes,
            ahead_bytes: ahead * dataset.item_bytes,
        });
        Outcome {
            scenario: String::new(),
            variant: setup.variant.clone(),
            policy: Policy::None,
            seed: 0,
            seconds: now.seconds(),
            jobs: outcomes,
            datasets: datasets.collect(),
            item_reads: jobs.iter().map(|job| job.counts.reads.items).sum(),
            origin_bytes: 0,
            flash_bytes: 0,
            residency: Vec::new(),
            progress: Progress { step_seconds: self.step.seconds(), batches: self.progress },
            stages: self.stages,
            decisions: Vec::new(),
        }
    }
}

fn step_of(moment: Nanos, step: Nanos) -> usize {
    usize::try_from(moment.0 / step.0).expect("a few steps")
}

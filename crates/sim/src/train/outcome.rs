//! Outcomes: the results of a simulation, for tables, pictures and scripts.

use serde::Serialize;

use super::policy::Policy;

/// Outcome of one setup under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the variant.
    pub variant: Option<String>,
    /// The policy.
    pub policy: Policy,
    /// Seed of all random choices.
    pub seed: u64,
    /// Simulated duration.
    pub seconds: f64,
    /// All jobs.
    pub jobs: Vec<JobOutcome>,
    /// All datasets.
    pub datasets: Vec<DatasetOutcome>,
    /// Size of the cache.
    pub capacity_bytes: u64,
    /// Simulated time at which counting began.
    pub warm_up_seconds: f64,
    /// Items that jobs read after the warm-up.
    pub item_reads: u64,
    /// Items that jobs read, including the warm-up.
    pub item_reads_in_all: u64,
    /// Bytes that the origin delivered after the warm-up, kept or not.
    pub origin_bytes: u64,
    /// Bytes that flash delivered after the warm-up.
    pub flash_bytes: u64,
    /// Faults in time order.
    pub faults: Vec<Incident>,
    /// Residency of chunks over time.
    pub residency: Vec<Residency>,
    /// Mini-batches of all jobs per step of time.
    pub progress: Progress,
    /// Stages of 20 mini-batches of the first job.
    pub stages: Vec<StageTimes>,
    /// Decisions of placement, with reasons.
    pub decisions: Vec<Decision>,
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Simulated time.
    pub seconds: f64,
    /// Description.
    pub text: String,
}

/// Outcome of one job after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Name.
    pub name: String,
    /// Name of the `[[job]]` table that it comes from.
    pub group: String,
    /// GPUs that it occupied.
    pub gpus: u32,
    /// Mini-batches that it finished.
    pub batches: u64,
    /// Epochs that it finished.
    pub epochs: u64,
    /// Time from its start, or the end of the warm-up, to its end.
    pub seconds: f64,
    /// Share of that time in which its GPUs computed mini-batches that were not lost.
    pub gpu_busy: f64,
    /// Mean time of a mini-batch, with partial ones at both ends; `None` if none was computed.
    pub batch_seconds: Option<f64>,
    /// Share of its items that were not fetched from the origin for the mini-batch that needed
    /// them.
    pub hit_share: f64,
    /// Sources of its items.
    pub reads: Reads,
}

/// Sources of items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// All items: hits, waited and misses. Items lost by a killed job are read and counted again.
    pub items: u64,
    /// From flash, resident when the mini-batch was drawn.
    pub hits: u64,
    /// From flash, after another job or an idle link had fetched them.
    pub waited: u64,
    /// Fetched from the origin for the mini-batch that needed them.
    pub misses: u64,
    /// Fetched items, ahead or not, that were resident already when they arrived.
    pub duplicates: u64,
    /// Fetched items of no resident chunk, which were not kept.
    pub uncached: u64,
    /// Misses that a probe forced.
    pub probes: u64,
}

impl Reads {
    pub(super) fn hit(&mut self, items: u64) {
        self.hits += items;
        self.items += items;
    }

    pub(super) fn wait(&mut self, items: u64) {
        self.waited += items;
        self.items += items;
    }

    pub(super) fn miss(&mut self, items: u64) {
        self.misses += items;
        self.items += items;
    }

    /// Share that was not fetched from the origin for the mini-batch that needed it.
    pub fn hit_rate(&self) -> f64 {
        (self.hits + self.waited) as f64 / self.items.max(1) as f64
    }

    /// Sum with others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            hits: self.hits + other.hits,
            waited: self.waited + other.waited,
            misses: self.misses + other.misses,
            duplicates: self.duplicates + other.duplicates,
            uncached: self.uncached + other.uncached,
            probes: self.probes + other.probes,
        }
    }

    /// Difference to an earlier state.
    #[must_use]
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            items: self.items - earlier.items,
            hits: self.hits - earlier.hits,
            waited: self.waited - earlier.waited,
            misses: self.misses - earlier.misses,
            duplicates: self.duplicates - earlier.duplicates,
            uncached: self.uncached - earlier.uncached,
            probes: self.probes - earlier.probes,
        }
    }
}

/// Outcome of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DatasetOutcome {
    /// Name.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Number of chunks.
    pub chunks: u32,
    /// Size of the largest chunk.
    pub chunk_bytes: u64,
    /// Bytes that the origin delivered after the warm-up.
    pub origin_bytes: u64,
    /// Part of `origin_bytes` that idle links fetched ahead; no job's miss.
    pub ahead_bytes: u64,
    /// Bytes that jobs read after the warm-up.
    pub read_bytes: u64,
}

/// Residency of a chunk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Residency {
    /// Name of the dataset.
    pub dataset: String,
    /// Number of the chunk.
    pub chunk: u32,
    /// Start of loading.
    pub from_seconds: f64,
    /// Eviction, or end of the simulation.
    pub to_seconds: f64,
}

/// Mini-batches over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Length of a step.
    pub step_seconds: f64,
    /// Mini-batches computed in each step.
    pub batches: Vec<u64>,
}

/// Starts of the stages of a mini-batch, and the end of the last, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StageTimes {
    /// Number of the mini-batch in the job.
    pub batch: u64,
    /// Items drawn, reading begins.
    pub read_from: f64,
    /// All items read, transformation begins.
    pub transform_from: f64,
    /// Transformed, waits for the GPUs.
    pub ready_from: f64,
    /// Computation begins.
    pub compute_from: f64,
    /// Computation ends.
    pub compute_to: f64,
}

/// A decision of placement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Simulated time.
    pub seconds: f64,
    /// Name of the dataset.
    pub dataset: String,
    /// Decision and reason.
    pub text: String,
}

impl Outcome {
    /// Reads of all jobs.
    pub fn reads(&self) -> Reads {
        self.jobs.iter().fold(Reads::default(), |sum, job| sum.and(job.reads))
    }

    /// The decision about a dataset that was in force for longest.
    pub fn decision(&self, dataset: &str) -> Option<&Decision> {
        let decisions: Vec<&Decision> =
            self.decisions.iter().filter(|decision| decision.dataset == dataset).collect();
        let ends = decisions.iter().skip(1).map(|next| next.seconds).chain([self.seconds]);
        let longest = decisions.iter().zip(ends).max_by(|(one, one_end), (other, other_end)| {
            (one_end - one.seconds).total_cmp(&(other_end - other.seconds))
        });
        longest.map(|(decision, _)| *decision)
    }

    /// Mean speed-up of the jobs over those of another run (Quiver's cluster throughput). Jobs that
    /// computed nothing in one of the runs do not count; `None` if none counts.
    pub fn speed_up(&self, baseline: &Self) -> Option<f64> {
        let pairs = self.jobs.iter().zip(&baseline.jobs);
        mean(pairs.filter_map(|(job, base)| Some(base.batch_seconds? / job.batch_seconds?)))
    }

    /// Whether a dataset was never cached because a chunk is larger than the cache.
    pub fn has_no_room_for(&self, dataset: &DatasetOutcome) -> bool {
        self.policy.is_chunked() && dataset.chunk_bytes > self.capacity_bytes
    }

    /// Bytes that the origin delivered per byte that jobs read; `None` if they read nothing.
    pub fn origin_share(&self) -> Option<f64> {
        let read = self.datasets.iter().map(|dataset| dataset.read_bytes as f64).sum::<f64>();
        (read > 0.0).then(|| self.origin_bytes as f64 / read)
    }
}

/// The mean; `None` without values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

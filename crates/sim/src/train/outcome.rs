//! What a simulation found out, for tables, pictures and scripts.

use serde::Serialize;

use super::policy::Policy;

/// One setup under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: String,
    /// Which variant of it.
    pub variant: Option<String>,
    /// Under which policy.
    pub policy: Policy,
    /// What decided everything else.
    pub seed: u64,
    /// When it was over, in simulated seconds.
    pub seconds: f64,
    /// Every job.
    pub jobs: Vec<JobOutcome>,
    /// Every dataset.
    pub datasets: Vec<DatasetOutcome>,
    /// Items that jobs read, from the very beginning.
    pub item_reads: u64,
    /// Bytes that the origin delivered, from the very beginning, whatever became of them.
    pub origin_bytes: u64,
    /// Bytes that flash delivered.
    pub flash_bytes: u64,
    /// Which chunk was resident when.
    pub residency: Vec<Residency>,
    /// Mini-batches of all jobs together, in equal steps of time.
    pub progress: Progress,
    /// The stages of twenty mini-batches of the first job.
    pub stages: Vec<StageTimes>,
    /// What placement decided, in its own words.
    pub decisions: Vec<Decision>,
}

/// What one job did. Counts and times are those after the warm-up, unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// It and its twins.
    pub group: String,
    /// GPUs that it occupied.
    pub gpus: u32,
    /// Mini-batches.
    pub batches: u64,
    /// Epochs that it finished, from the very beginning.
    pub epochs: u64,
    /// From when it started, or was first counted, to its end.
    pub seconds: f64,
    /// The share of that time in which its GPUs computed.
    pub gpu_busy: f64,
    /// Where its items came from.
    pub reads: Reads,
}

/// Where items came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// All of them.
    pub items: u64,
    /// From flash, without waiting for the origin.
    pub hits: u64,
    /// From flash, once somebody else had fetched them.
    pub waited: u64,
    /// From the origin.
    pub misses: u64,
    /// Of these, what was resident or on its way already: fetched in vain.
    pub duplicates: u64,
    /// Of the misses, what belonged to no resident chunk and was not kept.
    pub outside: u64,
    /// Of the misses, what a probe forced.
    pub probes: u64,
}

impl JobOutcome {
    /// What a mini-batch took.
    pub fn batch_seconds(&self) -> f64 {
        self.seconds / self.batches.max(1) as f64
    }

    /// Mini-batches in a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.batches as f64 / self.seconds } else { 0.0 }
    }
}

impl Reads {
    /// The share that did not come from the origin.
    pub fn hit_rate(&self) -> f64 {
        (self.hits + self.waited) as f64 / self.items.max(1) as f64
    }

    /// These and others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            hits: self.hits + other.hits,
            waited: self.waited + other.waited,
            misses: self.misses + other.misses,
            duplicates: self.duplicates + other.duplicates,
            outside: self.outside + other.outside,
            probes: self.probes + other.probes,
        }
    }

    /// What has been added since.
    #[must_use]
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            items: self.items - earlier.items,
            hits: self.hits - earlier.hits,
            waited: self.waited - earlier.waited,
            misses: self.misses - earlier.misses,
            duplicates: self.duplicates - earlier.duplicates,
            outside: self.outside - earlier.outside,
            probes: self.probes - earlier.probes,
        }
    }
}

/// What became of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DatasetOutcome {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// What the origin delivered of it after the warm-up.
    pub origin_bytes: u64,
    /// What of that was fetched ahead, before any job waited for it.
    pub ahead_bytes: u64,
}

/// A chunk in the cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Residency {
    /// Of which dataset.
    pub dataset: String,
    /// Which.
    pub chunk: u32,
    /// From when on it was being filled.
    pub from_seconds: f64,
    /// Until it was evicted, or the end.
    pub to_seconds: f64,
}

/// Mini-batches over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Progress {
    /// How long a step is.
    pub step_seconds: f64,
    /// Mini-batches that were computed in each.
    pub batches: Vec<u64>,
}

/// When the stages of a mini-batch began, and when the last ended, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StageTimes {
    /// Its place in the job.
    pub batch: u64,
    /// Its items were chosen, and reading began.
    pub read_from: f64,
    /// All were there, and preparing began.
    pub transform_from: f64,
    /// It was prepared, and waited for the GPUs.
    pub ready_from: f64,
    /// The GPUs took it.
    pub compute_from: f64,
    /// They were done.
    pub compute_to: f64,
}

/// What placement decided when.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// When.
    pub seconds: f64,
    /// About which dataset.
    pub dataset: String,
    /// What, and why.
    pub text: String,
}

impl Outcome {
    /// What all jobs read together.
    pub fn reads(&self) -> Reads {
        self.jobs.iter().fold(Reads::default(), |sum, job| sum.and(job.reads))
    }

    /// What held for the longest time about a dataset.
    pub fn decision(&self, dataset: &str) -> Option<&Decision> {
        let said: Vec<&Decision> =
            self.decisions.iter().filter(|said| said.dataset == dataset).collect();
        let ends = said.iter().skip(1).map(|next| next.seconds).chain([self.seconds]);
        let longest = said.iter().zip(ends).max_by(|(one, one_end), (other, other_end)| {
            (one_end - one.seconds).total_cmp(&(other_end - other.seconds))
        });
        longest.map(|(said, _)| *said)
    }

    /// How fast the jobs of this run were beside those of another, on average (Quiver's cluster
    /// throughput).
    pub fn speed_up(&self, baseline: &Self) -> f64 {
        let pairs = self.jobs.iter().zip(&baseline.jobs);
        let sum: f64 = pairs.map(|(job, base)| job.rate() / base.rate()).sum();
        sum / self.jobs.len().max(1) as f64
    }
}

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
    /// Bytes of cache.
    pub capacity_bytes: u64,
    /// When counting began, in simulated seconds.
    pub warm_up_seconds: f64,
    /// Items that jobs read after the warm-up.
    pub item_reads: u64,
    /// Items that jobs read, the warm-up included: what was simulated.
    pub item_reads_in_all: u64,
    /// Bytes that the origin delivered after the warm-up, whatever became of them.
    pub origin_bytes: u64,
    /// Bytes that flash delivered after the warm-up.
    pub flash_bytes: u64,
    /// What went wrong, as it happened.
    pub faults: Vec<Incident>,
    /// Which chunk was resident when.
    pub residency: Vec<Residency>,
    /// Mini-batches of all jobs together, in equal steps of time.
    pub progress: Progress,
    /// The stages of twenty mini-batches of the first job.
    pub stages: Vec<StageTimes>,
    /// What placement decided, in its own words.
    pub decisions: Vec<Decision>,
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// When.
    pub seconds: f64,
    /// What.
    pub text: String,
}

/// What one job did after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// It and its twins.
    pub group: String,
    /// GPUs that it occupied.
    pub gpus: u32,
    /// Mini-batches that it finished.
    pub batches: u64,
    /// Epochs that it finished.
    pub epochs: u64,
    /// From when it started, or was first counted, to its end.
    pub seconds: f64,
    /// The share of that time in which its GPUs computed what was not lost.
    pub gpu_busy: f64,
    /// What a mini-batch took, those at both ends counted in part; nothing if none was computed.
    pub batch_seconds: Option<f64>,
    /// The share of its items that did not come from the origin for the mini-batch that wanted them.
    pub hit_share: f64,
    /// Where its items came from.
    pub reads: Reads,
}

/// Where items came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// All of them: hits, waited and misses. What a job lost when it was killed it reads, and counts, again.
    pub items: u64,
    /// From flash, where they were when the mini-batch was drawn.
    pub hits: u64,
    /// From flash, once somebody, or an idle link, had fetched them.
    pub waited: u64,
    /// Fetched from the origin for the mini-batch that wanted them.
    pub misses: u64,
    /// Of what was fetched, ahead or not, what was there already when it came: fetched in vain.
    pub duplicates: u64,
    /// Of what was fetched, what belonged to no resident chunk and was not kept.
    pub outside: u64,
    /// Of the misses, what a probe forced.
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

    /// The share that was not fetched from the origin for the mini-batch that wanted it.
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
    /// How many chunks it is cut into.
    pub chunks: u32,
    /// Bytes of the largest.
    pub chunk_bytes: u64,
    /// What the origin delivered of it after the warm-up.
    pub origin_bytes: u64,
    /// What of that idle links fetched ahead, before a mini-batch wanted it: no job's miss.
    pub ahead_bytes: u64,
    /// What jobs read of it after the warm-up.
    pub read_bytes: u64,
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
    /// throughput). Jobs that did nothing in one of them do not count; nothing if that is all.
    pub fn speed_up(&self, baseline: &Self) -> Option<f64> {
        let pairs = self.jobs.iter().zip(&baseline.jobs);
        mean(pairs.filter_map(|(job, base)| Some(base.batch_seconds? / job.batch_seconds?)))
    }

    /// Whether a dataset was never cached because a chunk of it is larger than all of the cache.
    pub fn has_no_room_for(&self, dataset: &DatasetOutcome) -> bool {
        let is_chunked = matches!(self.policy, Policy::Quiver | Policy::Forebay);
        is_chunked && dataset.chunk_bytes > self.capacity_bytes
    }

    /// What the origin delivered for each byte that jobs read; nothing if they read nothing.
    pub fn origin_share(&self) -> Option<f64> {
        let read = self.datasets.iter().map(|dataset| dataset.read_bytes as f64).sum::<f64>();
        (read > 0.0).then(|| self.origin_bytes as f64 / read)
    }
}

/// The mean, of any at all.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

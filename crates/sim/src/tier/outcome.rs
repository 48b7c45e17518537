//! Outcomes: the counts of a simulation, for tables, pictures and scripts.

use forebay_core::tier::{Counters, Decision, Place, PolicyKind};
use serde::Serialize;

/// Outcome of one setup under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the variant.
    pub variant: Option<String>,
    /// The policy.
    pub policy: PolicyKind,
    /// Segments of a region; 1 if segments are evicted one by one.
    pub region_segments: u32,
    /// Seed of all random choices.
    pub seed: u64,
    /// Simulated duration.
    pub seconds: f64,
    /// Requested segments.
    pub requests: u64,
    /// Requested bytes.
    pub read_bytes: u64,
    /// Bytes served from memory.
    pub dram_hit_bytes: u64,
    /// Bytes served from flash.
    pub flash_hit_bytes: u64,
    /// Bytes that the tier fetched from the origin.
    pub fill_bytes: u64,
    /// Bytes that readers fetched from the origin themselves.
    pub passed_bytes: u64,
    /// Bytes written to flash.
    pub written_bytes: u64,
    /// Highest write rate over ten seconds, in bytes per second.
    pub write_rate_max: f64,
    /// Bytes that Belady's MIN with bypass absorbs.
    pub optimum_bytes: u64,
    /// Absorbed bytes per step of time.
    pub absorbed_over_time: Vec<u64>,
    /// Length of a step.
    pub step_seconds: f64,
    /// Counters of unusual events that are not zero, by name.
    pub events: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Absorbed bytes: bytes answered by the tier minus bytes that it fetched for them.
    pub fn absorbed(&self) -> u64 {
        self.dram_hit_bytes + self.flash_hit_bytes
    }

    /// Absorbed bytes as a share of the optimum.
    pub fn of_optimum(&self) -> f64 {
        ratio(self.absorbed() as f64, self.optimum_bytes as f64)
    }

    /// Share of requested bytes that hit.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.absorbed() as f64, self.read_bytes as f64)
    }

    /// Mean flash write rate, in bytes per second.
    pub fn write_rate(&self) -> f64 {
        ratio(self.written_bytes as f64, self.seconds)
    }

    pub(super) fn count(&mut self, decision: Decision, place: Place, bytes: u64) {
        self.requests += 1;
        self.read_bytes += bytes;
        *match (decision, place) {
            (Decision::Hit, Place::Memory) => &mut self.dram_hit_bytes,
            (Decision::Hit, _) => &mut self.flash_hit_bytes,
            (Decision::Memory | Decision::Flash(_), _) => &mut self.fill_bytes,
            (Decision::Pass, _) => &mut self.passed_bytes,
        } += bytes;
    }
}

/// A quotient; 1 if the divisor is 0.
pub(super) fn ratio(value: f64, divisor: f64) -> f64 {
    if divisor > 0.0 { value / divisor } else { 1.0 }
}

/// Counters that are not zero, by their names in JSON.
pub(super) fn nonzero_counters(counters: &[Counters]) -> Vec<(&'static str, u64)> {
    let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).sum::<u64>();
    let all = [
        ("jobs_inferred", sum(|c| c.jobs.inferred)),
        ("requests_untagged", sum(|c| c.jobs.untagged)),
        ("reads_unannounced", sum(|c| c.jobs.unannounced_reads)),
        ("specifications_refuted", sum(|c| c.jobs.refuted)),
        ("jobs_expired", sum(|c| c.jobs.expired)),
        ("readers_untracked", sum(|c| c.jobs.untracked)),
        ("invalid_events", sum(|c| c.jobs.invalid_events)),
        ("time_went_back", sum(|c| c.time_went_back)),
        ("lru_takeovers", sum(|c| c.lru_takeovers)),
        ("reads_unmarked", sum(|c| c.jobs.unmarked)),
        ("segments_not_stored", sum(|c| c.not_stored)),
        ("history_one_in", counters.iter().map(|c| c.history_one_in).max().unwrap_or(1)),
    ];
    all.into_iter().filter(|(name, count)| *count > u64::from(*name == "history_one_in")).collect()
}

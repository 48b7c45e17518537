//! What a simulation found out, for tables, pictures and scripts.

use forebay_core::tier::{Answer, Counters, PolicyKind};
use serde::Serialize;

/// One setup under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: String,
    /// Which variant of it.
    pub variant: Option<String>,
    /// Under which policy.
    pub policy: PolicyKind,
    /// What decided everything else.
    pub seed: u64,
    /// When it was over, in simulated seconds.
    pub seconds: f64,
    /// Segments that were asked for.
    pub requests: u64,
    /// Their bytes,
    pub read_bytes: u64,
    /// of which so many came from memory
    pub dram_hit_bytes: u64,
    /// and so many from flash.
    pub flash_hit_bytes: u64,
    /// What the tier fetched from the origin.
    pub fill_bytes: u64,
    /// What readers had to fetch from the origin themselves.
    pub passed_bytes: u64,
    /// What was written to flash.
    pub written_bytes: u64,
    /// The most that was written to flash in any ten seconds, in bytes a second.
    pub write_rate_max: f64,
    /// What would have been absorbed at best: by Belady's MIN with bypass, knowing everything.
    pub optimum_bytes: u64,
    /// Absorbed bytes, in equal steps of time.
    pub absorbed_over_time: Vec<u64>,
    /// How long such a step is, in seconds.
    pub step_seconds: f64,
    /// What happened that should not have.
    pub events: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Bytes answered by the tier, minus those that it fetched for that: what the origin was spared.
    pub fn absorbed(&self) -> u64 {
        self.dram_hit_bytes + self.flash_hit_bytes
    }

    /// The same as a share of the optimum.
    pub fn of_optimum(&self) -> f64 {
        ratio(self.absorbed() as f64, self.optimum_bytes as f64)
    }

    /// The share of all bytes that were there.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.absorbed() as f64, self.read_bytes as f64)
    }

    /// What was written to flash in a second, on average.
    pub fn write_rate(&self) -> f64 {
        ratio(self.written_bytes as f64, self.seconds)
    }

    pub(super) fn count(&mut self, answer: Answer, bytes: u64) {
        self.requests += 1;
        self.read_bytes += bytes;
        *match answer {
            Answer::HitDram => &mut self.dram_hit_bytes,
            Answer::HitFlash => &mut self.flash_hit_bytes,
            Answer::Kept | Answer::Filled => &mut self.fill_bytes,
            Answer::Passed => &mut self.passed_bytes,
        } += bytes;
    }
}

/// Nothing of nothing is all of it.
pub(super) fn ratio(of: f64, by: f64) -> f64 {
    if by > 0.0 { of / by } else { 1.0 }
}

/// Counters with the names under which scripts see them, those that are not nought.
pub(super) fn named(counters: &[Counters]) -> Vec<(&'static str, u64)> {
    let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).sum::<u64>();
    let all = [
        ("jobs_inferred", sum(|c| c.jobs.inferred)),
        ("requests_untagged", sum(|c| c.jobs.untagged)),
        ("reads_unnamed", sum(|c| c.jobs.unnamed_reads)),
        ("specifications_refuted", sum(|c| c.jobs.refuted)),
        ("jobs_expired", sum(|c| c.jobs.expired)),
        ("readers_crowded", sum(|c| c.jobs.crowded)),
        ("contradictions", sum(|c| c.jobs.contradictions)),
        ("time_went_back", sum(|c| c.time_went_back)),
        ("lru_overruled", sum(|c| c.overruled)),
        ("history_one_in", counters.iter().map(|c| c.history_one_in).max().unwrap_or(1)),
    ];
    all.into_iter().filter(|(name, count)| *count > u64::from(*name == "history_one_in")).collect()
}

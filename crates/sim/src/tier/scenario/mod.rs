//! Tier scenarios: partitions, jobs that read them, and the flash in front
//! (`docs/reference/scenarios.md`).

mod builtin;
mod check;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use forebay_core::{
    ByteSize,
    tier::{Bucket, Disks, HistorySettings, PolicyKind, Settings, WriteSettings},
    units::ByteRate,
};

use super::workload::Workload;
use crate::scenario_file::{ScenarioError, Source};
pub use builtin::{BUILT_IN, BuiltIn};

/// A scenario that can be run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// What it shows, in one line.
    pub about: String,
    /// Default policy.
    pub policy: PolicyKind,
    /// One setup per variant, or a single one.
    pub setups: Vec<Setup>,
}

impl Scenario {
    /// Parses the text of a file; `file` is its name in errors.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Self, ScenarioError> {
        Self::parse_seeded(text, file, name, None)
    }

    /// Parses with a seed that overrides the file's.
    pub fn parse_seeded(
        text: &str,
        file: &str,
        name: &str,
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        check::check(&Source { file, text, hints: file::HINTS }, name, seed)
    }

    /// A built-in scenario; `seed` overrides its own.
    pub fn built_in(name: &str, seed: Option<u64>) -> Option<Self> {
        let found = BUILT_IN.iter().find(|built_in| built_in.name == name)?;
        let file = format!("scenarios/{name}.toml");
        let read = Self::parse_seeded(found.text, &file, name, seed);
        Some(read.expect("built-in scenarios are valid"))
    }
}

/// One variant of a scenario, ready to simulate.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Name of the variant.
    pub variant: Option<String>,
    /// Parts and jobs.
    pub workload: Workload,
    /// Number of nodes; segments are spread evenly over them.
    pub nodes: u32,
    /// Memory of all nodes together.
    pub dram: ByteSize,
    /// Flash of all nodes together.
    pub flash: ByteSize,
    /// Segments of a region. Flash is evicted by the region.
    pub region_segments: u32,
    /// Limits on flash writes; the rate is that of all nodes together.
    pub writes: WriteSettings,
    /// Size of the request history.
    pub history: HistorySettings,
    /// Whether a segment that leaves flash may be written again.
    pub reinsertion: bool,
    /// Buckets that the policy `expert` admits.
    pub expert: BTreeSet<Bucket>,
    /// Disks of the origin. If set, tables that the disks can serve bypass the tier.
    pub disks: Option<Disks>,
}

impl Setup {
    /// Settings of the policy of each node.
    pub fn settings(&self) -> Settings {
        let nodes = u64::from(self.nodes);
        let (segment, flash) = (self.workload.segment, self.flash.0 / nodes);
        let region_segments = u64::from(self.region_segments);
        // The first block of a region and the headers of its entries take one part in 256, unless
        // segments are evicted one by one.
        let usable = if region_segments > 1 { flash / 256 * 255 } else { flash };
        let regions = (usable / (region_segments * segment.0)).max(1);
        let regions = u32::try_from(regions).expect("`check` limits the number of segments");
        let mut settings = Settings::new(ByteSize(self.dram.0 / nodes), regions);
        (settings.segment, settings.region) = (segment, ByteSize(region_segments * segment.0));
        settings.writes = self.writes;
        let share = |rate: ByteRate| ByteRate(ByteSize((rate.0.0 / nodes).max(1)));
        settings.writes.limit = self.writes.limit.map(share);
        settings.history = self.history;
        // More than all segments need is not reserved.
        let segments = usize::try_from(2 * self.workload.segments()).expect("64 bits");
        let each = self.history.segments_max / usize::try_from(nodes).expect("at most 1000");
        settings.history.segments_max = each.min(segments.max(1024));
        settings.reinsertion = self.reinsertion;
        settings.expert.clone_from(&self.expert);
        settings
    }

    /// Estimated duration in simulated seconds.
    pub fn seconds_about(&self) -> f64 {
        let ends = self.workload.jobs.iter().map(|job| job.starts + self.workload.duration(job));
        ends.max().unwrap_or_default().as_secs_f64()
    }
}

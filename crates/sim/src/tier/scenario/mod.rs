//! Scenarios: who reads which partitions, with how much flash in front (`docs/scenarios.md`).

mod builtin;
mod check;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use forebay_core::{
    ByteSize,
    tier::{Bucket, Disks, HistorySettings, PolicyKind, WriteSettings},
};

use super::workload::Workload;
use crate::written::{ScenarioError, Source};
pub use builtin::{BUILT_IN, BuiltIn};

/// A scenario that can be run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows, in a line.
    pub about: String,
    /// The policy that it runs under unless another is asked for.
    pub policy: PolicyKind,
    /// What is run: one for each variant, or just one.
    pub setups: Vec<Setup>,
}

impl Scenario {
    /// Reads the text of a file; `file` is how errors call it.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Self, ScenarioError> {
        Self::parse_seeded(text, file, name, None)
    }

    /// The same, with another seed than the file's.
    pub fn parse_seeded(
        text: &str,
        file: &str,
        name: &str,
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        check::check(&Source { file, text, words: file::WORDS }, name, seed)
    }

    /// A scenario of this project, with its own seed or another.
    pub fn built_in(name: &str, seed: Option<u64>) -> Option<Self> {
        let found = BUILT_IN.iter().find(|built_in| built_in.name == name)?;
        let file = format!("scenarios/{name}.toml");
        let read = Self::parse_seeded(found.text, &file, name, seed);
        Some(read.expect("our own scenarios are right"))
    }
}

/// One thing to simulate.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Which variant of the scenario it is.
    pub variant: Option<String>,
    /// What is read.
    pub workload: Workload,
    /// How many nodes there are; segments are spread evenly over them.
    pub nodes: u32,
    /// Memory of all nodes together.
    pub dram: ByteSize,
    /// Flash of all nodes together.
    pub flash: ByteSize,
    /// How writes to it are held back; the limit is that of all nodes together.
    pub writes: WriteSettings,
    /// How much of the past is remembered.
    pub history: HistorySettings,
    /// Whether what leaves flash may be written again.
    pub reinsertion: bool,
    /// What an expert would admit.
    pub expert: BTreeSet<Bucket>,
    /// The disks of the origin, if tables that these can serve are kept from the tier.
    pub disks: Option<Disks>,
}

impl Setup {
    /// How long it will take, in simulated seconds, more or less.
    pub fn seconds_about(&self) -> f64 {
        let ends = self.workload.jobs.iter().map(|job| job.starts + self.workload.duration(job));
        ends.max().unwrap_or_default().as_secs_f64()
    }
}

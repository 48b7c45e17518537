//! Training scenarios: origin, cache, datasets, jobs and faults.
//!
//! A scenario is a TOML file (`docs/reference/scenarios.md`). The files under `scenarios/` are
//! built into the binary. An error in a scenario names the line and the remedy.

mod builtin;
mod check;
mod file;
#[cfg(test)]
mod tests;

use std::{ops::Range, time::Duration};

use forebay_core::{
    ByteSize, DatasetId, HalfChunk,
    dataset::chunking::{ChunkOrdinal, Chunking},
    train::sampler::HalfChunkMap,
    units::ByteRate,
};

use super::policy::Policy;
use crate::scenario_file::{ScenarioError, Source};
pub use builtin::{BUILT_IN, BuiltIn};

/// A checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// What it shows, in one line.
    pub about: String,
    /// Default policy.
    pub policy: Policy,
    /// Seed of all random choices.
    pub seed: u64,
    /// One setup per variant, or a single one.
    pub setups: Vec<Setup>,
}

impl Scenario {
    /// Parses the text of a file; `file` is its name in errors.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Self, ScenarioError> {
        let source = Source { file, text, hints: file::HINTS };
        check::check(&source, name)
    }

    /// A built-in scenario.
    pub fn built_in(name: &str) -> Option<Self> {
        let found = BUILT_IN.iter().find(|built_in| built_in.name == name)?;
        let file = format!("scenarios/{name}.toml");
        Some(Self::parse(found.text, &file, name).expect("built-in scenarios are valid"))
    }
}

/// One variant of a scenario, ready to simulate.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Name of the variant.
    pub variant: Option<String>,
    /// Time before counting begins.
    pub warm_up: Duration,
    /// End of the simulation; `None` if all jobs end by themselves.
    pub duration: Option<Duration>,
    /// The origin.
    pub origin: Origin,
    /// The nodes.
    pub cache: Cache,
    /// Capacity of all nodes together.
    pub capacity: ByteSize,
    /// The datasets that are read.
    pub datasets: Vec<Dataset>,
    /// The jobs, one entry each.
    pub jobs: Vec<Job>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// The store that owns the data.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Bandwidth of all readers together.
    pub bandwidth: ByteRate,
    /// Bandwidth of one connection.
    pub per_connection: ByteRate,
    /// Time to the first byte of a request.
    pub latency: Duration,
}

/// The nodes. Cached items are spread evenly over them.
#[derive(Debug, Clone, Copy)]
pub struct Cache {
    /// Number of nodes.
    pub nodes: u32,
    /// Read bandwidth of one node's flash.
    pub read_bandwidth: ByteRate,
    /// Bandwidth of one job from all nodes together.
    pub network: Option<ByteRate>,
}

/// A dataset of items of equal length.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Name.
    pub name: String,
    /// Number of items.
    pub items: u64,
    /// Length of an item.
    pub item_bytes: u64,
    /// Its chunking.
    pub chunking: Chunking,
}

impl Dataset {
    /// Size.
    pub fn size(&self) -> ByteSize {
        ByteSize(self.items * self.item_bytes)
    }

    /// Size of the largest chunk; the others have one or two items less.
    pub fn chunk_size(&self) -> ByteSize {
        let chunks = (0..self.chunking.chunks()).map(ChunkOrdinal);
        let items = |chunk| self.items_of(chunk).map(|run| run.end - run.start).sum::<u64>();
        ByteSize(chunks.map(items).max().unwrap_or(0) * self.item_bytes)
    }

    /// Layout for samplers.
    pub(super) fn layout(&self) -> HalfChunkMap {
        let id = DatasetId::from_bytes([0; 32]);
        // A whole chunk counts as one half-chunk here.
        let chunk_of = |item| {
            let chunk = self.chunking.chunk_of(item * self.item_bytes, self.size());
            HalfChunk(chunk.0)
        };
        HalfChunkMap::new(id, self.chunking.chunks(), (0..self.items).map(chunk_of))
            .expect("scenarios limit items and chunks")
    }

    /// The items of a chunk, run by run.
    pub fn items_of(&self, chunk: ChunkOrdinal) -> impl Iterator<Item = Range<u64>> {
        let item_at = |byte: u64| byte.div_ceil(self.item_bytes).min(self.items);
        let units = self.chunking.units_of(chunk, self.size());
        units.map(move |unit| item_at(unit.start)..item_at(unit.end))
    }
}

/// A training job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Name.
    pub name: String,
    /// Name in the file, shared by all jobs of its `count`.
    pub group: String,
    /// Index of its dataset in the setup.
    pub dataset: usize,
    /// Number of GPUs.
    pub gpus: u32,
    /// Items of a mini-batch, over all its GPUs.
    pub batch: u32,
    /// Time of a mini-batch on the GPUs.
    pub compute: Duration,
    /// Time of a worker to transform a mini-batch.
    pub transform: Duration,
    /// Mini-batches that are read and transformed at once.
    pub workers: u32,
    /// Mini-batches in flight, including the one on the GPUs.
    pub depth: u32,
    /// Concurrent requests to the origin.
    pub connections: u32,
    /// Start.
    pub starts: Duration,
    /// End.
    pub end: End,
}

impl Job {
    /// Rate of all its connections to the origin: each waits for the first byte of every item, and
    /// gets the rest at the rate of a connection.
    pub(super) fn origin_limit(&self, setup: &Setup) -> u64 {
        let item_bytes = u128::from(setup.datasets[self.dataset].item_bytes);
        let rate = u128::from(setup.origin.per_connection.0.0);
        let item_nanos =
            setup.origin.latency.as_nanos() + (item_bytes * 1_000_000_000).div_ceil(rate);
        let limit = u128::from(self.connections) * item_bytes * 1_000_000_000 / item_nanos;
        u64::try_from(limit).unwrap_or(u64::MAX).max(1)
    }

    /// Number of mini-batches that it computes; `None` if it does not end by itself.
    pub(super) fn batches_in_all(&self, dataset: &Dataset) -> Option<u64> {
        match self.end {
            End::Epochs(epochs) => {
                Some(u64::from(epochs) * dataset.items.div_ceil(self.batch.into()))
            }
            End::Batches(batches) => Some(batches),
            End::Never => None,
        }
    }
}

/// End of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After this number of epochs.
    Epochs(u32),
    /// After this number of mini-batches.
    Batches(u64),
    /// When the simulation stops.
    Never,
}

/// A fault.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Time.
    pub at: Duration,
    /// Kind.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Debug, Clone)]
pub enum FaultKind {
    /// A job is killed, and may restart from its last checkpoint.
    JobDies {
        /// Name of the job.
        job: String,
        /// Time until it restarts; `None` if it does not.
        back_after: Option<Duration>,
    },
    /// A node loses its data (counted from 1).
    NodeLost(u32),
    /// The origin is slow for a while.
    OriginSlow {
        /// Bandwidth of all readers together in this time.
        bandwidth: ByteRate,
        /// Duration.
        lasting: Duration,
    },
}

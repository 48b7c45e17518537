//! Scenarios: who trains on what, from where, with how much cache (`docs/scenarios.md`).
//!
//! A scenario is a TOML file. Those of this project lie under `scenarios/` and are part of the binary;
//! anybody can write another. Whatever is wrong in one is refused with its line and the remedy.

mod builtin;
mod check;
mod file;
#[cfg(test)]
mod tests;

use std::{ops::Range, time::Duration};

use forebay_core::{
    ByteSize, DatasetId,
    chunking::{ChunkOrdinal, Chunking},
    sampler::Layout,
    units::ByteRate,
};

use super::policy::Policy;
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
    pub policy: Policy,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// What is run: one for each variant, or just one.
    pub setups: Vec<Setup>,
}

impl Scenario {
    /// Reads the text of a file; `file` is how errors call it.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Self, ScenarioError> {
        let source = Source { file, text, words: file::WORDS };
        check::check(&source, name)
    }

    /// A scenario of this project.
    pub fn built_in(name: &str) -> Option<Self> {
        let found = BUILT_IN.iter().find(|built_in| built_in.name == name)?;
        let file = format!("scenarios/{name}.toml");
        Some(Self::parse(found.text, &file, name).expect("our own scenarios are right"))
    }
}

/// One thing to simulate.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Which variant of the scenario it is.
    pub variant: Option<String>,
    /// Nothing before this is counted.
    pub warm_up: Duration,
    /// When to stop, if jobs do not end by themselves.
    pub duration: Option<Duration>,
    /// The store that owns the data.
    pub origin: Origin,
    /// The nodes.
    pub cache: Cache,
    /// How much they hold together.
    pub capacity: ByteSize,
    /// The datasets that are read.
    pub datasets: Vec<Dataset>,
    /// The jobs, each on its own.
    pub jobs: Vec<Job>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// The store that owns the data.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// What all readers get together.
    pub bandwidth: ByteRate,
    /// What one connection gets while bytes flow.
    pub per_connection: ByteRate,
    /// What every request waits for its first byte.
    pub latency: Duration,
}

/// The nodes; what is cached is spread evenly over them.
#[derive(Debug, Clone, Copy)]
pub struct Cache {
    /// How many.
    pub nodes: u32,
    /// What the flash of one delivers.
    pub read_bandwidth: ByteRate,
    /// What one job can take from all of them.
    pub network: Option<ByteRate>,
}

/// A dataset of equally long items.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// What jobs call it.
    pub name: String,
    /// How many items it has.
    pub items: u64,
    /// How long each is.
    pub item_bytes: u64,
    /// How it is cut.
    pub chunking: Chunking,
}

impl Dataset {
    /// All of it.
    pub fn size(&self) -> ByteSize {
        ByteSize(self.items * self.item_bytes)
    }

    /// What the largest chunk takes; the others have an item less, or two.
    pub fn chunk_size(&self) -> ByteSize {
        let chunks = (0..self.chunking.chunks()).map(ChunkOrdinal);
        let items = |chunk| self.items_of(chunk).map(|run| run.end - run.start).sum::<u64>();
        ByteSize(chunks.map(items).max().unwrap_or(0) * self.item_bytes)
    }

    /// As a sampler sees it.
    pub(super) fn layout(&self) -> Layout {
        let id = DatasetId::from_bytes([0; 32]);
        let chunk_of = |item| self.chunking.chunk_of(item * self.item_bytes, self.size());
        Layout::new(id, self.chunking.chunks(), (0..self.items).map(chunk_of))
            .expect("scenarios are checked")
    }

    /// The items of a chunk, run by run.
    pub fn items_of(&self, chunk: ChunkOrdinal) -> impl Iterator<Item = Range<u64>> {
        let place = |byte: u64| byte.div_ceil(self.item_bytes).min(self.items);
        let units = self.chunking.units_of(chunk, self.size());
        units.map(move |unit| place(unit.start)..place(unit.end))
    }
}

/// A training job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The name under which the file speaks of it and its twins.
    pub group: String,
    /// Which of the setup's datasets it reads.
    pub dataset: usize,
    /// How many GPUs it occupies.
    pub gpus: u32,
    /// Items in a mini-batch, over all its GPUs.
    pub batch: u32,
    /// What a mini-batch takes on the GPUs.
    pub compute: Duration,
    /// What preparing one takes a worker.
    pub transform: Duration,
    /// Mini-batches that are read and prepared at once.
    pub workers: u32,
    /// Mini-batches under way, the one on the GPUs included.
    pub depth: u32,
    /// Requests to the origin at once.
    pub connections: u32,
    /// When it arrives.
    pub starts: Duration,
    /// When it is done.
    pub end: End,
}

impl Job {
    /// What its connections to the origin can carry together: each waits for the first byte of every
    /// item, and gets the rest at its own rate.
    pub(super) fn origin_limit(&self, setup: &Setup) -> u64 {
        let item_bytes = u128::from(setup.datasets[self.dataset].item_bytes);
        let rate = u128::from(setup.origin.per_connection.0.0);
        let item_nanos =
            setup.origin.latency.as_nanos() + (item_bytes * 1_000_000_000).div_ceil(rate);
        let limit = u128::from(self.connections) * item_bytes * 1_000_000_000 / item_nanos;
        u64::try_from(limit).unwrap_or(u64::MAX).max(1)
    }

    /// How many mini-batches it computes, if it ends by itself.
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

/// When a job is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After so many epochs.
    Epochs(u32),
    /// After so many mini-batches.
    Batches(u64),
    /// When the simulation stops.
    Never,
}

/// Something that goes wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    /// When.
    pub at: Duration,
    /// What.
    pub kind: FaultKind,
}

/// What can go wrong.
#[derive(Debug, Clone)]
pub enum FaultKind {
    /// A job is killed without a word, and perhaps comes back from its last checkpoint.
    JobDies {
        /// Which.
        job: String,
        /// How long it stays away; for ever if it is not said.
        back_after: Option<Duration>,
    },
    /// A node loses all that it held (counted from 1).
    NodeLost(u32),
    /// The origin slows down for a while.
    OriginSlow {
        /// What all readers get together meanwhile.
        bandwidth: ByteRate,
        /// For how long.
        lasting: Duration,
    },
}

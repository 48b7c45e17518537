//! Whole epochs: what a job may rely on, whatever is resident and whoever fails.
//! `SEEDS=n` runs so many cases of each property, `SEED=n` a run of its own that can be repeated.

mod draws;
mod exactly_once;
mod hits;
mod like_length;
mod randomness;
mod replays;
mod states;

use std::collections::VecDeque;

use proptest::test_runner::{Config, RngSeed};

use super::*;
use crate::{ByteSize, DatasetId, chunking::Chunking};

/// Item bytes, where any will do.
const ITEM: u64 = 1000;

#[expect(clippy::disallowed_methods, reason = "whoever runs tests says how many")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

fn config(cases: u32) -> Config {
    let cases = number("SEEDS").map_or(cases, |seeds| u32::try_from(seeds).unwrap());
    let rng_seed = number("SEED").map_or(RngSeed::Random, RngSeed::Fixed);
    Config { cases, rng_seed, failure_persistence: None, ..Config::default() }
}

/// Striped chunks, as datasets are really cut.
fn striped(items: u64, chunks: u64) -> Layout {
    let chunking = Chunking::into_chunks(chunks, items).unwrap();
    let total = ByteSize(items * ITEM);
    let of_item = (0..items).map(|item| chunking.chunk_of(item * ITEM, total));
    let chunks = u32::try_from(chunks).unwrap();
    Layout::new(DatasetId::from_bytes([1; 32]), chunks, of_item).unwrap()
}

fn ordinals(items: impl IntoIterator<Item = ItemOrdinal>) -> Vec<u64> {
    items.into_iter().map(|item| item.0).collect()
}

/// Two chunks of all rotate: one is there, the other arrives while the first is read, in random order.
/// What is exhausted makes room for the next.
struct Rotation {
    chunk_of: Vec<u32>,
    open: Vec<ChunkOrdinal>,
    /// Rotating chunks that have not been open yet.
    to_come: VecDeque<u32>,
    held: Vec<ChunkOrdinal>,
    resident: Vec<bool>,
    /// Items of the chunk that is on its way.
    arriving: VecDeque<u32>,
    /// Whether chunks arrive in the order of the dataset, as they had better not.
    in_order: bool,
    layout: Layout,
}

impl Rotation {
    fn new(layout: &Layout, held: u32) -> Self {
        Self::arriving(layout, held, false)
    }

    fn arriving(layout: &Layout, held: u32, in_order: bool) -> Self {
        let chunk_of = layout.chunk_of_items();
        let mut rotation = Self {
            open: Vec::new(),
            to_come: (held..layout.chunks()).collect(),
            held: (0..held).map(ChunkOrdinal).collect(),
            resident: chunk_of.iter().map(|chunk| *chunk < held).collect(),
            chunk_of,
            arriving: VecDeque::new(),
            in_order,
            layout: layout.clone(),
        };
        rotation.next();
        rotation.arrive(usize::MAX);
        rotation.next();
        rotation
    }

    fn next(&mut self) {
        if let Some(chunk) = self.to_come.pop_front() {
            self.open.push(ChunkOrdinal(chunk));
            let mut members = self.layout.members(chunk).to_vec();
            if !self.in_order {
                fastrand::Rng::with_seed(chunk.into()).shuffle(&mut members);
            }
            self.arriving.extend(members);
        }
    }

    fn arrive(&mut self, count: usize) {
        for item in self.arriving.drain(..count.min(self.arriving.len())) {
            self.resident[item as usize] = true;
        }
    }

    /// One job's epoch; `see` is shown every batch.
    fn epoch(mut self, sampler: &mut Sampler, mut see: impl FnMut(&Batch, &[u32])) {
        self.tell(sampler);
        while let Some(batch) = sampler.draw(|item| self.resident[index(item)]) {
            see(&batch, &self.chunk_of);
            let released = sampler.yielded(batch.number()).unwrap();
            self.arrive(batch.items().len());
            self.open.retain(|open| !released.contains(open));
            for chunk in released.iter().filter(|chunk| !self.held.contains(chunk)) {
                for item in self.layout.members(chunk.0) {
                    self.resident[*item as usize] = false;
                }
            }
            while self.open.len() < 2 && !self.to_come.is_empty() {
                self.next();
            }
            self.tell(sampler);
        }
    }

    fn tell(&self, sampler: &mut Sampler) {
        sampler.open(&self.held, &self.open).unwrap();
        sampler.leaving(self.open.first().copied()).unwrap();
    }
}

fn index(item: ItemOrdinal) -> usize {
    usize::try_from(item.0).unwrap()
}

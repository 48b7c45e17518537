//! Whole epochs: what a job may rely on, whatever is resident and whatever fails. `SEEDS=n` runs
//! `n` cases of each property, `SEED=n` a run that can be repeated.

mod draws;
mod exactly_once;
mod hits;
mod like_length;
mod packs;
mod randomness;
mod replays;
mod states;

use std::collections::VecDeque;

use proptest::test_runner::{Config, RngSeed};

use super::*;
use crate::{ByteSize, DatasetId, dataset::chunking::Chunking};

/// Bytes of an item, where the size does not matter.
const ITEM: u64 = 1000;

#[expect(clippy::disallowed_methods, reason = "the environment sets the number of cases")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

fn config(cases: u32) -> Config {
    let cases = number("SEEDS").map_or(cases, |seeds| u32::try_from(seeds).unwrap());
    let rng_seed = number("SEED").map_or(RngSeed::Random, RngSeed::Fixed);
    Config { cases, rng_seed, failure_persistence: None, ..Config::default() }
}

fn draw_set(pinned: &[HalfChunk], rotating: &[HalfChunk]) -> BatchDrawSet {
    BatchDrawSet { pinned: pinned.to_vec(), rotating: rotating.to_vec(), leaving: None }
}

/// Striped half-chunks, as datasets are cut.
fn striped(items: u64, half_chunks: u64) -> HalfChunkMap {
    let chunking = Chunking::into_chunks(half_chunks, items).unwrap();
    let total = ByteSize(items * ITEM);
    let of_item = (0..items).map(|item| HalfChunk(chunking.chunk_of(item * ITEM, total).0));
    let half_chunks = u32::try_from(half_chunks).unwrap();
    HalfChunkMap::new(DatasetId::from_bytes([1; 32]), half_chunks, of_item).unwrap()
}

fn ordinals(items: impl IntoIterator<Item = ItemOrdinal>) -> Vec<u64> {
    items.into_iter().map(|item| item.0).collect()
}

/// Two half-chunks rotate: one is resident, the other arrives in random order while the first is
/// read. An exhausted one makes room for the next.
struct Rotation {
    half_chunk_of: Vec<u32>,
    open: Vec<HalfChunk>,
    /// Rotating half-chunks that were not in the draw set yet.
    to_come: VecDeque<u32>,
    pinned: Vec<HalfChunk>,
    resident: Vec<bool>,
    /// Items of the loading half-chunk.
    arriving: VecDeque<u32>,
    /// Whether items arrive in the order of the dataset, which is worse.
    in_order: bool,
    map: HalfChunkMap,
}

impl Rotation {
    fn new(map: &HalfChunkMap, pinned: u32) -> Self {
        Self::arriving(map, pinned, false)
    }

    fn arriving(map: &HalfChunkMap, pinned: u32, in_order: bool) -> Self {
        let half_chunk_of = map.half_chunk_of_items();
        let mut rotation = Self {
            open: Vec::new(),
            to_come: (pinned..map.half_chunks()).collect(),
            pinned: (0..pinned).map(HalfChunk).collect(),
            resident: half_chunk_of.iter().map(|half_chunk| *half_chunk < pinned).collect(),
            half_chunk_of,
            arriving: VecDeque::new(),
            in_order,
            map: map.clone(),
        };
        rotation.next();
        rotation.arrive(usize::MAX);
        rotation.next();
        rotation
    }

    fn next(&mut self) {
        if let Some(half_chunk) = self.to_come.pop_front() {
            self.open.push(HalfChunk(half_chunk));
            let mut items_of_half_chunk = self.map.items_of_half_chunk(half_chunk).to_vec();
            if !self.in_order {
                fastrand::Rng::with_seed(half_chunk.into()).shuffle(&mut items_of_half_chunk);
            }
            self.arriving.extend(items_of_half_chunk);
        }
    }

    fn arrive(&mut self, count: usize) {
        for item in self.arriving.drain(..count.min(self.arriving.len())) {
            self.resident[item as usize] = true;
        }
    }

    /// One job's epoch; `see` gets every batch.
    fn epoch(mut self, sampler: &mut Sampler, mut see: impl FnMut(&Batch, &[u32])) {
        self.announce(sampler);
        while let Some(batch) = sampler.draw(|item| self.resident[index(item)]) {
            see(&batch, &self.half_chunk_of);
            let released = sampler.on_yielded(batch.number()).unwrap();
            self.arrive(batch.items().len());
            self.open.retain(|open| !released.contains(open));
            for half_chunk in released.iter().filter(|half_chunk| !self.pinned.contains(half_chunk))
            {
                for item in self.map.items_of_half_chunk(half_chunk.0) {
                    self.resident[*item as usize] = false;
                }
            }
            while self.open.len() < 2 && !self.to_come.is_empty() {
                self.next();
            }
            self.announce(sampler);
        }
    }

    fn announce(&self, sampler: &mut Sampler) {
        let leaving = self.open.first().copied();
        let draw_set = BatchDrawSet { leaving, ..draw_set(&self.pinned, &self.open) };
        sampler.set_draw_set(&draw_set).unwrap();
    }
}

fn index(item: ItemOrdinal) -> usize {
    usize::try_from(item.0).unwrap()
}

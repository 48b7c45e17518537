//! Batches in flight: drawn and not yielded.
//!
//! Loaders draw ahead, and what was not yielded when a job stopped is drawn again. So a batch
//! counts when it is yielded. Only then its items leave their half-chunks, and a half-chunk is
//! released with the last of them.

use std::collections::VecDeque;

use super::{
    Batch, InvalidCall, ItemSource,
    draw::Pick,
    shuffle_quality::{PinnedShare, ShuffleMeter},
};
use crate::HalfChunk;

/// What was yielded since the sampler was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DrawCounts {
    /// Batches.
    pub batches: u64,
    /// Items, with padding.
    pub items: u64,
    /// Items that were resident when they were drawn.
    pub resident: u64,
    /// Items of the draw set that were not resident.
    pub claimed: u64,
    /// Items outside the draw set that were not resident.
    pub uncached: u64,
    /// Items that were repeated because other ranks have one more.
    pub padding: u64,
    /// Calls that were refused as invalid.
    pub invalid_calls: u64,
}

/// A batch in flight.
#[derive(Debug, Clone)]
pub(super) struct DrawnBatch {
    /// All items but padding.
    pub(super) picks: Vec<Pick>,
    pub(super) counts: DrawCounts,
    pub(super) pinned: PinnedShare,
}

#[derive(Debug, Clone)]
pub(super) struct InFlight {
    /// Batches of the epoch.
    pub(super) batches: u64,
    pub(super) yielded: u64,
    pub(super) drawn_batches: VecDeque<DrawnBatch>,
    /// Items of each half-chunk that are yet to be yielded.
    pub(super) unyielded: Vec<u32>,
    pub(super) counts: DrawCounts,
    pub(super) shuffle: ShuffleMeter,
}

impl InFlight {
    pub(super) fn new(batches: u64, unyielded: Vec<u32>, items: u32) -> Self {
        let (drawn_batches, counts) = (VecDeque::new(), DrawCounts::default());
        Self {
            batches,
            yielded: 0,
            drawn_batches,
            unyielded,
            counts,
            shuffle: ShuffleMeter::new(items),
        }
    }

    /// Number of the next batch; `None` if all are drawn.
    pub(super) fn next(&self) -> Option<u64> {
        let next = self.yielded + self.drawn_batches.len() as u64;
        (next < self.batches).then_some(next)
    }

    /// The oldest batch in flight was yielded; `time` is the share of the epoch that was over at
    /// its middle. Returns the half-chunks that have no items left.
    pub(super) fn on_yielded(&mut self, time: f64) -> Vec<HalfChunk> {
        let batch = self.drawn_batches.pop_front().expect("the caller has checked");
        self.yielded += 1;
        self.counts.add(&batch.counts);
        self.shuffle.on_batch(time, batch.picks.iter().map(|pick| pick.item), batch.pinned);
        let mut released = Vec::new();
        for pick in &batch.picks {
            let left = &mut self.unyielded[pick.half_chunk as usize];
            *left -= 1;
            if *left == 0 {
                released.push(HalfChunk(pick.half_chunk));
            }
        }
        if self.yielded == self.batches {
            // Items that the epoch leaves out must not delay the release of half-chunks.
            let dropped = (0..).map(HalfChunk).zip(&mut self.unyielded);
            let dropped = dropped.filter(|(_, left)| **left > 0);
            released.extend(dropped.map(|(half_chunk, left)| {
                *left = 0;
                half_chunk
            }));
        }
        released
    }

    /// Checks that a batch is the next to be yielded.
    pub(super) fn check(&mut self, number: u64) -> Result<(), InvalidCall> {
        let expected = self.yielded;
        if number != expected || self.drawn_batches.is_empty() {
            self.counts.invalid_calls += 1;
            return Err(InvalidCall::NotNext { number, expected, drawn: self.drawn_batches.len() });
        }
        Ok(())
    }
}

impl DrawCounts {
    pub(super) fn of(batch: &Batch) -> Self {
        let count = |source| batch.count(source).into();
        Self {
            batches: 1,
            items: batch.items().len() as u64,
            resident: count(ItemSource::Resident),
            claimed: count(ItemSource::Claimed),
            uncached: count(ItemSource::Uncached),
            padding: count(ItemSource::Padding),
            invalid_calls: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        self.items += other.items;
        self.resident += other.resident;
        self.claimed += other.claimed;
        self.uncached += other.uncached;
        self.padding += other.padding;
    }
}

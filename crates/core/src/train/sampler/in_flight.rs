//! What became of batches: drawn, on their way, yielded.
//!
//! Loaders draw ahead, and whatever was not yielded when a job stopped has to be drawn again. So a batch
//! counts when it is yielded: only then do its items leave their chunks, and a chunk is released with
//! the last of them.

use std::collections::VecDeque;

use super::{
    Batch, Contradiction, Source,
    draw::Pick,
    mixing::{HeldShare, Mixing},
};
use crate::chunking::ChunkOrdinal;

/// What was yielded since this sampler was made; `contradictions` are calls that were refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Batches.
    pub batches: u64,
    /// Items, padding and all.
    pub items: u64,
    /// Items that were resident when they were drawn.
    pub resident: u64,
    /// Items of open chunks that were not.
    pub claimed: u64,
    /// Items of other chunks that were not.
    pub outside: u64,
    /// Items that were repeated for the sake of other ranks.
    pub padding: u64,
    /// Calls that made no sense.
    pub contradictions: u64,
}

/// A batch on its way.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    /// All but padding.
    pub(super) picks: Vec<Pick>,
    pub(super) counts: Counts,
    pub(super) held: HeldShare,
}

#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// How many batches the epoch has.
    pub(super) batches: u64,
    pub(super) yielded: u64,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Items of each chunk that are still to be yielded.
    pub(super) unyielded: Vec<u32>,
    pub(super) counts: Counts,
    pub(super) mixing: Mixing,
}

impl Ledger {
    pub(super) fn new(batches: u64, unyielded: Vec<u32>, items: u32) -> Self {
        let (in_flight, counts) = (VecDeque::new(), Counts::default());
        Self { batches, yielded: 0, in_flight, unyielded, counts, mixing: Mixing::new(items) }
    }

    /// The number of the next batch, if there is one.
    pub(super) fn next(&self) -> Option<u64> {
        let next = self.yielded + self.in_flight.len() as u64;
        (next < self.batches).then_some(next)
    }

    /// The next batch that was drawn has been yielded; `time` is how much of the epoch was over by its
    /// middle. Says which chunks it leaves without items.
    pub(super) fn yielded(&mut self, time: f64) -> Vec<ChunkOrdinal> {
        let batch = self.in_flight.pop_front().expect("whoever calls has looked");
        self.yielded += 1;
        self.counts.add(&batch.counts);
        self.mixing.batch(time, batch.picks.iter().map(|pick| pick.item), batch.held);
        let mut released = Vec::new();
        for pick in &batch.picks {
            let left = &mut self.unyielded[pick.chunk as usize];
            *left -= 1;
            if *left == 0 {
                released.push(ChunkOrdinal(pick.chunk));
            }
        }
        if self.yielded == self.batches {
            // What is left out of this epoch must not keep chunks waiting.
            let dropped = (0..).map(ChunkOrdinal).zip(&mut self.unyielded);
            let dropped = dropped.filter(|(_, left)| **left > 0);
            released.extend(dropped.map(|(chunk, left)| {
                *left = 0;
                chunk
            }));
        }
        released
    }

    /// Whether this batch is the next to be yielded.
    pub(super) fn check(&mut self, number: u64) -> Result<(), Contradiction> {
        let expected = self.yielded;
        if number != expected || self.in_flight.is_empty() {
            self.counts.contradictions += 1;
            return Err(Contradiction::NotNext { number, expected, drawn: self.in_flight.len() });
        }
        Ok(())
    }
}

impl Counts {
    pub(super) fn of(batch: &Batch) -> Self {
        let count = |source| batch.count(source).into();
        Self {
            batches: 1,
            items: batch.items().len() as u64,
            resident: count(Source::Resident),
            claimed: count(Source::Claimed),
            outside: count(Source::Outside),
            padding: count(Source::Padding),
            contradictions: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        self.items += other.items;
        self.resident += other.resident;
        self.claimed += other.claimed;
        self.outside += other.outside;
        self.padding += other.padding;
    }
}

//! The sampler: which items make the next batch. Any unread ones will do, so resident ones go
//! first.
//!
//! Quiver's observation: a batch needs random items, not particular ones. A [`Sampler`] is one
//! rank's part in one epoch of one job. Every half-chunk has a seeded random order. A batch looks
//! at many candidates from the half-chunks of its draw set, takes the resident ones, and completes
//! the number with others (`draw.rs`). In all cases the ranks together yield every item exactly
//! once (promise 2), in equally many batches each.
//!
//! ```
//! use forebay_core::{
//!     DatasetId, HalfChunk,
//!     train::sampler::{BatchDrawSet, EpochPlan, HalfChunkMap, ItemSource, Sampler, SamplerState},
//! };
//!
//! let dataset = DatasetId::from_bytes([7; 32]);
//! let map = HalfChunkMap::new(dataset, 10, (0..1000).map(|item| HalfChunk(item % 10)))?;
//! let mut sampler = Sampler::new(&map, EpochPlan::new(42, 0, 32).on(0, 2))?;
//! sampler.set_draw_set(&BatchDrawSet {
//!     pinned: vec![HalfChunk(0)],
//!     rotating: vec![HalfChunk(1), HalfChunk(2)],
//!     leaving: None,
//! })?;
//! while let Some(batch) = sampler.draw(|item| item.0 % 10 < 2) {
//!     let missing = batch.of(ItemSource::Claimed).chain(batch.of(ItemSource::Uncached));
//!     let _to_fetch: Vec<_> = missing.collect();
//!     // Loaders draw ahead; a batch counts when it is yielded.
//!     let _released = sampler.on_yielded(batch.number())?;
//!     let checkpoint = sampler.state().encode();
//!     sampler = Sampler::resume(&map, &SamplerState::decode(&checkpoint)?)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod draw;
mod draw_set;
mod draw_state;
mod envelope;
mod error;
mod global_order;
mod half_chunk_map;
mod in_flight;
mod pack_window;
mod pending;
mod plan;
mod random;
mod rank_shares;
mod recording;
mod replay;
mod reshard;
mod run_set;
mod selection;
mod shuffle_quality;
mod state;
mod weighted_merge;

#[cfg(test)]
mod tests;

pub use batch::{Batch, ItemSource};
pub use draw_set::BatchDrawSet;
pub use envelope::FormatError;
pub use error::{InvalidCall, SamplerError};
pub use global_order::GlobalOrder;
pub use half_chunk_map::{HalfChunkMap, HalfChunkMapError};
pub use in_flight::DrawCounts;
pub use pack_window::packs_open_max;
pub use plan::{Ending, EpochPlan, EpochPlanError, OVER_ASK, WINDOW};
pub use recording::{Recording, RecordingError};
pub use selection::{SelectionError, split, weighted_counts};
pub use shuffle_quality::{PinnedShare, ShuffleMeter, ShuffleQuality};
pub use state::SamplerState;

use self::{
    draw_set::DrawSet,
    draw_state::{DrawState, PackWindow},
    in_flight::InFlight,
    rank_shares::RankShares,
    replay::Replay,
    run_set::RunSet,
    state::{DataIdentity, Progress},
};
use crate::{HalfChunk, ItemOrdinal};

/// One rank's part in one epoch of one job.
#[derive(Debug, Clone)]
pub struct Sampler {
    of: DataIdentity,
    plan: EpochPlan,
    /// Items of the dataset.
    items: u32,
    draw_set: DrawSet,
    order: BatchOrder,
    in_flight: InFlight,
    /// Share of the epoch that was over when it was last resharded.
    sharded_at: f64,
}

/// Where batches come from.
#[derive(Debug, Clone)]
enum BatchOrder {
    Drawn(DrawState),
    Replayed(Replay),
}

impl Sampler {
    /// The beginning of an epoch. All half-chunks rotate until [`Sampler::set_draw_set`].
    pub fn new(map: &HalfChunkMap, plan: EpochPlan) -> Result<Self, SamplerError> {
        Self::sharded(map, plan, 0, None)
    }

    /// What follows the batches that were yielded when the state was taken: the same batches as
    /// would have come then, if draw set and resident items are the same. Batches that were drawn
    /// and not yielded are drawn again. All ranks must have yielded equally many batches. If they
    /// have not, or their number has changed, use [`Sampler::reshard`].
    pub fn resume(map: &HalfChunkMap, state: &SamplerState) -> Result<Self, SamplerError> {
        let Progress::Drawn { base, unread } = &state.progress else {
            return Err(SamplerError::NeedsRecording);
        };
        state.of.check(map, &state.plan)?;
        let mut sampler = Self::sharded(map, state.plan, state.stage, base.clone())?;
        sampler.catch_up(state.yielded, unread)?;
        Ok(sampler)
    }

    fn sharded(
        map: &HalfChunkMap,
        plan: EpochPlan,
        stage: u32,
        base: Option<Vec<RunSet>>,
    ) -> Result<Self, SamplerError> {
        plan.check()?;
        let shares = RankShares::new(map, &plan, base.as_deref())?;
        let share = shares.share(&plan, stage);
        let items = u32::try_from(map.items()).expect("items are 32 bits wide");
        let (_, batches) = plan.length(shares.items());
        let similar = if plan.like_length { map.similarity()?.numbers.clone() } else { [].into() };
        let window = map.packs(&plan).map(|packs| PackWindow::new(packs, &plan, map.half_chunks()));
        let draw_state = DrawState::new(stage, base, share, similar, window);
        let left = f64::from(shares.items()) / f64::from(items.max(1));
        Ok(Self {
            of: DataIdentity::new(map, &plan),
            plan,
            items,
            draw_set: DrawSet::all(map.half_chunks()),
            in_flight: InFlight::new(batches.into(), draw_state.unread(), items),
            order: BatchOrder::Drawn(draw_state),
            sharded_at: 1.0 - left,
        })
    }

    /// Removes what was yielded before.
    fn catch_up(&mut self, yielded: u64, unread: &[RunSet]) -> Result<(), SamplerError> {
        let BatchOrder::Drawn(draw_state) = &mut self.order else { unreachable!("just dealt") };
        let share = draw_state.left();
        draw_state.resume(unread).ok_or(SamplerError::Inconsistent)?;
        let batches = share.min(yielded.saturating_mul(self.plan.batch.into()));
        if yielded > self.in_flight.batches || share - draw_state.left() != batches {
            return Err(SamplerError::Inconsistent);
        }
        self.in_flight.yielded = yielded;
        if yielded == self.in_flight.batches {
            self.in_flight.unyielded.fill(0);
        } else {
            self.in_flight.unyielded = draw_state.unread();
        }
        Ok(())
    }

    /// Sets what the next batches are drawn from. Batches that are already drawn stay unchanged.
    pub fn set_draw_set(&mut self, draw_set: &BatchDrawSet) -> Result<(), InvalidCall> {
        let half_chunks =
            u32::try_from(self.in_flight.unyielded.len()).expect("at most HALF_CHUNKS_MAX");
        let draw_set = DrawSet::new(half_chunks, draw_set);
        self.draw_set = draw_set.inspect_err(|_| self.in_flight.counts.invalid_calls += 1)?;
        Ok(())
    }

    /// The next batch; `None` when all are drawn.
    pub fn draw(&mut self, resident: impl Fn(ItemOrdinal) -> bool) -> Option<Batch> {
        let number = self.in_flight.next()?;
        let (batch, drawn_batches) = match &mut self.order {
            BatchOrder::Drawn(draw_state) => {
                draw_state.draw(&self.plan, &self.draw_set, number, resident)
            }
            BatchOrder::Replayed(replay) => replay.draw(&self.draw_set, number, resident),
        };
        self.in_flight.drawn_batches.push_back(drawn_batches);
        Some(batch)
    }

    /// This batch, the oldest drawn one, was yielded. Returns the half-chunks of which this rank
    /// has nothing left to yield. A half-chunk of which the rank has no items is never among them:
    /// see [`Sampler::unyielded`].
    pub fn on_yielded(&mut self, number: u64) -> Result<Vec<HalfChunk>, InvalidCall> {
        self.in_flight.check(number)?;
        let time = (number as f64 + 0.5) / self.in_flight.batches as f64;
        Ok(self.in_flight.on_yielded(self.sharded_at + (1.0 - self.sharded_at) * time))
    }

    /// State for a checkpoint. Batches that are drawn and not yielded are not part of it.
    pub fn state(&self) -> SamplerState {
        let (stage, progress) = match &self.order {
            BatchOrder::Drawn(draw_state) => {
                (draw_state.stage(), draw_state.progress(&self.in_flight.drawn_batches))
            }
            BatchOrder::Replayed(replay) => (0, Progress::Replayed { recording: replay.recording }),
        };
        let (of, plan, yielded) = (self.of, self.plan, self.in_flight.yielded);
        SamplerState { of, plan, stage, yielded, progress }
    }

    /// Whether batches are those of a recording.
    pub fn is_replay(&self) -> bool {
        matches!(self.order, BatchOrder::Replayed(_))
    }

    /// The plan of the epoch.
    pub fn plan(&self) -> EpochPlan {
        self.plan
    }

    /// Batches that this rank has yielded since the epoch began or was last resharded.
    pub fn batches_yielded(&self) -> u64 {
        self.in_flight.yielded
    }

    /// Batches of this rank since the epoch began or was last resharded.
    pub fn batches(&self) -> u64 {
        self.in_flight.batches
    }

    /// Items of a half-chunk that this rank has yet to draw.
    pub fn unread(&self, half_chunk: HalfChunk) -> u64 {
        if self.in_flight.next().is_none() {
            return 0; // and whatever is left is left out
        }
        match &self.order {
            BatchOrder::Drawn(draw_state) => draw_state.unread_of(half_chunk.0),
            BatchOrder::Replayed(_) => {
                let drawn_batches =
                    self.in_flight.drawn_batches.iter().flat_map(|batch| &batch.picks);
                let drawn_batches =
                    drawn_batches.filter(|pick| pick.half_chunk == half_chunk.0).count();
                self.unyielded(half_chunk) - drawn_batches as u64
            }
        }
    }

    /// Whether all items of a half-chunk that this rank has yet to draw are resident.
    pub fn is_all_resident(
        &self,
        half_chunk: HalfChunk,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> bool {
        self.missing(half_chunk, resident).next().is_none()
    }

    /// Items of a half-chunk that this rank has yet to draw and that are not resident.
    pub fn missing(
        &self,
        half_chunk: HalfChunk,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> impl Iterator<Item = ItemOrdinal> {
        let unread: Box<dyn Iterator<Item = u32>> = match &self.order {
            BatchOrder::Drawn(draw_state) => Box::new(draw_state.items_of(half_chunk.0)),
            BatchOrder::Replayed(replay) => {
                Box::new(replay.items_of(self.in_flight.next(), half_chunk.0))
            }
        };
        unread.map(|item| ItemOrdinal::new(item.into())).filter(move |item| !resident(*item))
    }

    /// Items of a half-chunk that this rank has yet to yield.
    pub fn unyielded(&self, half_chunk: HalfChunk) -> u64 {
        self.in_flight.unyielded.get(half_chunk.0 as usize).map_or(0, |left| (*left).into())
    }

    /// Items that come within about the next `count` and were not returned before, for the agent to
    /// prefetch; of a window of packs, one item of each pack that opens soon.
    pub fn upcoming(&mut self, count: usize) -> Vec<ItemOrdinal> {
        match &mut self.order {
            BatchOrder::Drawn(draw_state) => draw_state.upcoming(&self.plan, &self.draw_set, count),
            BatchOrder::Replayed(replay) => replay.upcoming(self.in_flight.next(), count),
        }
    }

    /// What was yielded since this sampler was made.
    pub fn counts(&self) -> DrawCounts {
        self.in_flight.counts
    }

    /// How random that was.
    pub fn shuffle_quality(&self) -> ShuffleQuality {
        self.in_flight.shuffle.measured()
    }
}

impl DataIdentity {
    fn new(map: &HalfChunkMap, plan: &EpochPlan) -> Self {
        Self { dataset: map.dataset(), map: map.fingerprint(plan) }
    }

    /// Refuses a state or a recording of another dataset or map.
    fn check(&self, map: &HalfChunkMap, plan: &EpochPlan) -> Result<(), SamplerError> {
        let (found, expected) = (self.dataset, map.dataset());
        if found != expected {
            return Err(SamplerError::WrongDataset { found, expected });
        }
        if self.map != map.fingerprint(plan) {
            return Err(SamplerError::OtherMap);
        }
        Ok(())
    }
}

//! Which items make the next batch: any unread ones will do, so those that are resident go first.
//!
//! Quiver's observation: a batch needs random items, not particular ones. A [`Sampler`] is one rank's part
//! in one epoch of one job. Every chunk has a seeded random order; a batch looks at many candidates from the
//! chunks that are open, takes what is resident and completes it by what is not (`draw.rs`). Whatever happens,
//! the ranks together yield every item exactly once (promise 2), equally many batches each.
//!
//! ```
//! use forebay_core::{DatasetId, chunking::ChunkOrdinal, sampler::{Layout, Plan, Sampler, Source, State}};
//!
//! let dataset = DatasetId::from_bytes([7; 32]);
//! let layout = Layout::new(dataset, 10, (0..1000).map(|item| ChunkOrdinal(item % 10)))?;
//! let mut sampler = Sampler::new(&layout, Plan::new(42, 0, 32).on(0, 2))?;
//! sampler.open(&[ChunkOrdinal(0)], &[ChunkOrdinal(1), ChunkOrdinal(2)])?;
//! while let Some(batch) = sampler.draw(|item| item.0 % 10 < 2) {
//!     let _to_fetch: Vec<_> = batch.of(Source::Claimed).chain(batch.of(Source::Outside)).collect();
//!     // Loaders draw ahead; a batch counts when the job is given it.
//!     let _released = sampler.yielded(batch.number())?;
//!     let checkpoint = sampler.state().encode();
//!     sampler = Sampler::resume(&layout, &State::decode(&checkpoint)?)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod deal;
mod draw;
mod drawing;
mod layout;
mod ledger;
mod mixing;
mod open;
mod pending;
mod plan;
mod random;
mod recording;
mod refusal;
mod replay;
mod resize;
mod runs;
mod sealed;
mod state;
mod urn;

#[cfg(test)]
mod tests;

pub use batch::{Batch, Source};
pub use layout::{Layout, LayoutError};
pub use ledger::Counts;
pub use mixing::{HeldShare, Mixed, Mixing};
pub use plan::{Ending, OVER_ASK, Plan, PlanError, WINDOW};
pub use recording::{Recording, RecordingError};
pub use refusal::{Contradiction, Refusal};
pub use sealed::FormatError;
pub use state::State;

use self::{
    deal::Deal,
    drawing::Drawing,
    ledger::Ledger,
    open::Open,
    replay::Replay,
    runs::Runs,
    state::{Of, Progress},
};
use crate::{ItemOrdinal, chunking::ChunkOrdinal};

/// One rank's part in one epoch of one job.
#[derive(Debug, Clone)]
pub struct Sampler {
    of: Of,
    plan: Plan,
    /// How many items the dataset has.
    items: u32,
    open: Open,
    order: Order,
    ledger: Ledger,
    /// How much of the epoch was over when it was last dealt.
    dealt_at: f64,
}

/// Where batches come from.
#[derive(Debug, Clone)]
enum Order {
    Drawn(Drawing),
    Replayed(Replay),
}

impl Sampler {
    /// The beginning of an epoch. All chunks count as open, and none as held, until
    /// [`Sampler::open`] says otherwise.
    pub fn new(layout: &Layout, plan: Plan) -> Result<Self, Refusal> {
        Self::dealt(layout, plan, 0, None)
    }

    /// What comes after the batches that were yielded when the state was taken: the same as would have
    /// come then, if the same chunks are open and the same items resident. Batches that were drawn and not
    /// yielded are drawn again. All ranks must have yielded equally many, or the rest is uneven: if they have
    /// not, or are more or fewer now, see [`Sampler::resize`].
    pub fn resume(layout: &Layout, state: &State) -> Result<Self, Refusal> {
        let Progress::Drawn { base, unread } = &state.progress else {
            return Err(Refusal::NeedsRecording);
        };
        state.of.check(layout)?;
        let mut sampler = Self::dealt(layout, state.plan, state.stage, base.clone())?;
        sampler.catch_up(state.yielded, unread)?;
        Ok(sampler)
    }

    fn dealt(
        layout: &Layout,
        plan: Plan,
        stage: u32,
        base: Option<Vec<Runs>>,
    ) -> Result<Self, Refusal> {
        plan.check()?;
        let deal = Deal::new(layout, &plan, base.as_deref())?;
        let share = deal.share(&plan, stage);
        let items = u32::try_from(layout.items()).expect("a layout counts in 32 bits");
        let (_, batches) = plan.length(deal.items());
        let alike = if plan.like_length { layout.likeness()?.numbers.clone() } else { [].into() };
        let drawing = Drawing::new(stage, base, share, alike);
        let left = f64::from(deal.items()) / f64::from(items.max(1));
        Ok(Self {
            of: Of::new(layout),
            plan,
            items,
            open: Open::all(layout.chunks()),
            ledger: Ledger::new(batches.into(), drawing.unread(), items),
            order: Order::Drawn(drawing),
            dealt_at: 1.0 - left,
        })
    }

    /// Makes good for batches that were yielded before.
    fn catch_up(&mut self, yielded: u64, unread: &[Runs]) -> Result<(), Refusal> {
        let Order::Drawn(drawing) = &mut self.order else { unreachable!("just dealt") };
        let share = drawing.left();
        drawing.resume(unread).ok_or(Refusal::Inconsistent)?;
        let batches = share.min(yielded.saturating_mul(self.plan.batch.into()));
        if yielded > self.ledger.batches || share - drawing.left() != batches {
            return Err(Refusal::Inconsistent);
        }
        self.ledger.yielded = yielded;
        if yielded == self.ledger.batches {
            self.ledger.unyielded.fill(0);
        } else {
            self.ledger.unyielded = drawing.unread();
        }
        Ok(())
    }

    /// Which chunks are cached for good, and which for a while or on their way; none of them is leaving.
    /// Batches that are already drawn stay as they are.
    pub fn open(
        &mut self,
        held: &[ChunkOrdinal],
        rotating: &[ChunkOrdinal],
    ) -> Result<(), Contradiction> {
        let chunks = u32::try_from(self.ledger.unyielded.len()).expect("few chunks");
        let open = Open::new(chunks, held, rotating);
        self.open = open.inspect_err(|_| self.ledger.counts.contradictions += 1)?;
        Ok(())
    }

    /// Which of the rotating chunks makes room for the next: it is read faster than the others. Without
    /// any, rotating chunks are read evenly, and exhausted at about the same time.
    pub fn leaving(&mut self, chunk: Option<ChunkOrdinal>) -> Result<(), Contradiction> {
        self.open.leave(chunk).inspect_err(|_| self.ledger.counts.contradictions += 1)
    }

    /// The next batch; `None` when all have been drawn.
    pub fn draw(&mut self, resident: impl Fn(ItemOrdinal) -> bool) -> Option<Batch> {
        let number = self.ledger.next()?;
        let (batch, in_flight) = match &mut self.order {
            Order::Drawn(drawing) => drawing.draw(&self.plan, &self.open, number, resident),
            Order::Replayed(replay) => replay.draw(&self.open, number, resident),
        };
        self.ledger.in_flight.push_back(in_flight);
        Some(batch)
    }

    /// The job was given this batch, the oldest that was drawn. Says which chunks have none left to yield
    /// on this rank. A chunk of which the rank has no items is never among them: see
    /// [`Sampler::unyielded`].
    pub fn yielded(&mut self, number: u64) -> Result<Vec<ChunkOrdinal>, Contradiction> {
        self.ledger.check(number)?;
        let time = (number as f64 + 0.5) / self.ledger.batches as f64;
        Ok(self.ledger.yielded(self.dealt_at + (1.0 - self.dealt_at) * time))
    }

    /// What a checkpoint keeps. Batches that were drawn and not yielded are not part of it.
    pub fn state(&self) -> State {
        let (stage, progress) = match &self.order {
            Order::Drawn(drawing) => (drawing.stage(), drawing.progress(&self.ledger.in_flight)),
            Order::Replayed(replay) => (0, Progress::Replayed { recording: replay.recording }),
        };
        let (of, plan, yielded) = (self.of, self.plan, self.ledger.yielded);
        State { of, plan, stage, yielded, progress }
    }

    /// How the epoch is drawn.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Batches that this rank has yielded, since the epoch began or was last dealt anew.
    pub fn batches_yielded(&self) -> u64 {
        self.ledger.yielded
    }

    /// How many batches this rank yields, since the epoch began or was last dealt anew.
    pub fn batches(&self) -> u64 {
        self.ledger.batches
    }

    /// Items of a chunk that this rank has yet to draw.
    pub fn unread(&self, chunk: ChunkOrdinal) -> u64 {
        if self.ledger.next().is_none() {
            return 0; // and whatever is left is left out
        }
        match &self.order {
            Order::Drawn(drawing) => drawing.unread_of(chunk.0),
            Order::Replayed(_) => {
                let in_flight = self.ledger.in_flight.iter().flat_map(|batch| &batch.picks);
                let in_flight = in_flight.filter(|pick| pick.chunk == chunk.0).count();
                self.unyielded(chunk) - in_flight as u64
            }
        }
    }

    /// Whether all items of a chunk that this rank has yet to draw are resident.
    pub fn has_all(&self, chunk: ChunkOrdinal, resident: impl Fn(ItemOrdinal) -> bool) -> bool {
        self.missing(chunk, resident).next().is_none()
    }

    /// Items of a chunk that this rank has yet to draw and that are not resident.
    pub fn missing(
        &self,
        chunk: ChunkOrdinal,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> impl Iterator<Item = ItemOrdinal> {
        let unread: Box<dyn Iterator<Item = u32>> = match &self.order {
            Order::Drawn(drawing) => Box::new(drawing.items_of(chunk.0)),
            Order::Replayed(replay) => Box::new(replay.items_of(self.ledger.next(), chunk.0)),
        };
        unread.map(|item| ItemOrdinal::new(item.into())).filter(move |item| !resident(*item))
    }

    /// Items of a chunk that this rank has yet to yield.
    pub fn unyielded(&self, chunk: ChunkOrdinal) -> u64 {
        self.ledger.unyielded.get(chunk.0 as usize).map_or(0, |left| (*left).into())
    }

    /// Items that come within the next `count` or so and have not been told of before: what an agent may
    /// fetch ahead.
    pub fn upcoming(&mut self, count: usize) -> Vec<ItemOrdinal> {
        match &mut self.order {
            Order::Drawn(drawing) => drawing.upcoming(&self.open, count),
            Order::Replayed(replay) => replay.upcoming(self.ledger.next(), count),
        }
    }

    /// What was yielded so far, since this sampler was made.
    pub fn counts(&self) -> Counts {
        self.ledger.counts
    }

    /// How well mixed that was.
    pub fn mixed(&self) -> Mixed {
        self.ledger.mixing.measured()
    }
}

impl Of {
    fn new(layout: &Layout) -> Self {
        Self { dataset: layout.dataset(), layout: layout.fingerprint() }
    }

    /// Refuses what was taken of anything else than this.
    fn check(&self, layout: &Layout) -> Result<(), Refusal> {
        let (found, expected) = (self.dataset, layout.dataset());
        if found != expected {
            return Err(Refusal::OtherDataset { found, expected });
        }
        if self.layout != layout.fingerprint() {
            return Err(Refusal::OtherLayout);
        }
        Ok(())
    }
}

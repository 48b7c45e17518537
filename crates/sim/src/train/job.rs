//! A simulated job: its epochs, its mini-batches, and what it has read and waits for.

use std::{collections::VecDeque, sync::Arc};

use forebay_core::{
    HalfChunk, ItemOrdinal,
    train::{
        benefit::Mode,
        sampler::{
            Batch, BatchDrawSet, EpochPlan, HalfChunkMap, Sampler, SamplerState as Checkpoint,
        },
    },
};

use super::{
    bits::Bits,
    outcome::Reads,
    pipeline::{BatchNumber, Pipeline},
    scenario::{End, Job},
    time::Nanos,
};

/// State of a simulated job.
#[derive(Debug)]
pub(super) struct SimJob {
    pub dataset: usize,
    pub pipeline: Pipeline,
    pub epoch: Epoch,
    /// Items that mini-batches lack, in the order of computation.
    pub wanted: VecDeque<Wanted>,
    /// Current transfer on its link to the origin.
    pub fetching: Option<OriginFetch>,
    /// Modes of the mini-batches in flight, in the order of drawing.
    pub modes: VecDeque<Option<Mode>>,
    /// End of the last computation.
    pub last_computed: Option<Nanos>,
    /// Changes when the job is killed, so that events of the old incarnation are ignored.
    pub incarnation: u32,
    pub state: State,
    pub counts: Counts,
    end: End,
    batches_drawn: u64,
}

/// Items that a mini-batch lacks.
#[derive(Debug)]
pub(super) struct Wanted {
    pub batch: BatchNumber,
    pub items: Vec<u32>,
    /// Number of items that have been requested.
    pub requested: usize,
    /// Whether a probe fetches them from the origin in any case.
    pub is_probe: bool,
}

/// Items in flight from the origin.
#[derive(Debug)]
pub(super) struct OriginFetch {
    /// The mini-batch that waits for them; `None` if they are fetched ahead.
    pub batch: Option<BatchNumber>,
    pub items: Vec<u32>,
    pub is_probe: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Not started yet, or killed.
    Away,
    Training,
    Done,
}

/// Counts since the start of the simulation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub batches: u64,
    pub epochs: u64,
    pub busy: Nanos,
    pub reads: Reads,
    /// First start.
    pub began: Option<Nanos>,
    pub ended: Option<Nanos>,
}

impl SimJob {
    pub fn new(job: &Job, layout: &Arc<HalfChunkMap>, seed: u64) -> Self {
        let plan = EpochPlan::new(seed, 0, job.batch);
        Self {
            dataset: job.dataset,
            pipeline: Pipeline::new(
                job.workers,
                job.depth,
                job.compute.into(),
                job.transform.into(),
            ),
            epoch: Epoch::new(layout, plan),
            wanted: VecDeque::new(),
            fetching: None,
            modes: VecDeque::new(),
            last_computed: None,
            incarnation: 0,
            state: State::Away,
            counts: Counts::default(),
            end: job.end,
            batches_drawn: 0,
        }
    }

    /// Whether another mini-batch can be drawn now.
    pub fn can_draw(&self) -> bool {
        let is_needed = match self.end {
            End::Batches(batches) => self.batches_drawn < batches,
            End::Epochs(_) | End::Never => true,
        };
        is_needed
            && self.state == State::Training
            && self.pipeline.has_capacity()
            && self.epoch.left() > 0
    }

    pub fn draw(&mut self, resident: impl Fn(u32) -> bool) -> Batch {
        self.batches_drawn += 1;
        self.epoch.draw(resident)
    }

    /// Whether it has computed all its mini-batches.
    pub fn is_done(&self) -> bool {
        match self.end {
            End::Batches(batches) => self.counts.batches >= batches,
            End::Epochs(epochs) => self.counts.epochs >= epochs.into() && self.pipeline.is_empty(),
            End::Never => false,
        }
    }

    /// Whether the epoch is over and another follows.
    pub fn needs_epoch(&self) -> bool {
        let is_last =
            matches!(self.end, End::Epochs(epochs) if self.counts.epochs >= epochs.into());
        self.epoch.is_over() && !is_last && !self.is_done()
    }

    /// Time that the GPUs have spent on mini-batches that were not lost.
    pub fn busy(&self, now: Nanos) -> Nanos {
        self.counts.busy + self.pipeline.unfinished(now)
    }

    /// Kills the job. Mini-batches that the GPUs had not computed are drawn again after a restart.
    pub fn kill(&mut self) {
        self.batches_drawn -= self.epoch.restore();
        self.pipeline.clear();
        self.wanted.clear();
        self.fetching = None;
        self.modes.clear();
        self.last_computed = None;
        self.incarnation += 1;
        self.state = State::Away;
    }
}

/// One pass over the dataset by the core's sampler. Asserts that each item is drawn exactly once
/// (promise 2).
#[derive(Debug)]
pub(super) struct Epoch {
    layout: Arc<HalfChunkMap>,
    plan: EpochPlan,
    sampler: Sampler,
    /// Drawn items.
    drawn: Bits,
    /// Yielded items.
    yielded: Bits,
    in_flight: VecDeque<Batch>,
}

impl Epoch {
    fn new(layout: &Arc<HalfChunkMap>, plan: EpochPlan) -> Self {
        let items = layout.items();
        Self {
            layout: Arc::clone(layout),
            plan,
            sampler: Sampler::new(layout, plan).expect("the plan is for one rank"),
            drawn: Bits::new(items),
            yielded: Bits::new(items),
            in_flight: VecDeque::new(),
        }
    }

    /// Number of items not drawn yet.
    pub fn left(&self) -> u64 {
        self.layout.items() - self.drawn.count()
    }

    pub fn is_over(&self) -> bool {
        self.yielded.count() == self.layout.items()
    }

    pub fn has_drawn(&self, item: u32) -> bool {
        self.drawn.contains(item)
    }

    /// Number of items of a half-chunk not drawn yet.
    pub fn unread(&self, half_chunk: HalfChunk) -> u64 {
        self.sampler.unread(half_chunk)
    }

    /// Sets the half-chunks to draw from, and which of them first.
    pub fn set_draw_set(&mut self, draw_set: &BatchDrawSet) {
        self.sampler.set_draw_set(draw_set).expect("half-chunks of this dataset, each once");
    }

    fn draw(&mut self, resident: impl Fn(u32) -> bool) -> Batch {
        let batch = self.sampler.draw(|item| resident(number(item))).expect("items are left");
        for item in batch.items() {
            assert!(self.drawn.insert(number(*item)), "item {item} was drawn twice (promise 2)");
        }
        self.in_flight.push_back(batch.clone());
        batch
    }

    /// Yields the next mini-batch after its computation, as if it were in a checkpoint. Returns the
    /// half-chunks without unread items left.
    pub fn yield_next(&mut self) -> Vec<HalfChunk> {
        let batch = self.in_flight.pop_front().expect("a computed mini-batch was drawn");
        for item in batch.items() {
            self.yielded.insert(number(*item));
        }
        self.sampler.on_yielded(batch.number()).expect("mini-batches are computed in order")
    }

    /// Begins the next epoch, with all items unread.
    pub fn begin_next(&mut self) {
        assert!(self.is_over(), "an epoch ended with unread items (promise 2)");
        self.plan.epoch += 1;
        self.sampler = Sampler::new(&self.layout, self.plan).expect("the plan is for one rank");
        self.drawn.clear();
        self.yielded.clear();
    }

    /// Restores the sampler from its checkpoint. Returns the number of drawn mini-batches that are
    /// lost.
    fn restore(&mut self) -> u64 {
        let checkpoint: Checkpoint = self.sampler.state();
        self.sampler =
            Sampler::resume(&self.layout, &checkpoint).expect("a checkpoint of this epoch");
        self.drawn = self.yielded.clone();
        let lost = self.in_flight.len() as u64;
        self.in_flight.clear();
        lost
    }
}

/// Number of an item in the simulator.
pub(super) fn number(item: ItemOrdinal) -> u32 {
    u32::try_from(item.0).expect("scenarios limit the number of items")
}

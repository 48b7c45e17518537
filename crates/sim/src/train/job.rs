//! One job in the simulated cluster: its epochs, its mini-batches, what it waits for, what it has read.

use std::{collections::VecDeque, sync::Arc};

use forebay_core::{
    ItemOrdinal,
    benefit::Mode,
    chunking::ChunkOrdinal,
    manager::Directions,
    sampler::{Batch, Layout, Plan, Sampler, State as Checkpoint},
};

use super::{
    bits::Bits,
    outcome::Reads,
    pipeline::{BatchNumber, Pipeline},
    scenario::{End, Job},
    time::Nanos,
};

/// A job and all that belongs to it.
#[derive(Debug)]
pub(super) struct Running {
    pub dataset: usize,
    pub pipeline: Pipeline,
    pub epoch: Epoch,
    /// What mini-batches lack, in the order in which they will be computed.
    pub wanted: VecDeque<Wanted>,
    /// What its link to the origin carries now.
    pub fetching: Option<Fetching>,
    /// Where the items of mini-batches under way come from, first drawn first.
    pub modes: VecDeque<Option<Mode>>,
    /// When its GPUs were last done.
    pub last_computed: Option<Nanos>,
    /// Changes when the job dies, so that nothing of its former life disturbs the next.
    pub life: u32,
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
    /// How many of them have been asked for.
    pub asked: usize,
    /// Whether a probe wants them from the origin, come what may.
    pub is_probe: bool,
}

/// Items on their way.
#[derive(Debug)]
pub(super) struct Fetching {
    /// Who waits for them; nobody, if they are fetched ahead.
    pub batch: Option<BatchNumber>,
    pub items: Vec<u32>,
    pub is_probe: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has not arrived yet, or has been killed.
    Away,
    Training,
    Done,
}

/// What is counted from the very beginning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub batches: u64,
    pub epochs: u64,
    pub busy: Nanos,
    pub reads: Reads,
    /// When it started for the first time.
    pub began: Option<Nanos>,
    pub ended: Option<Nanos>,
}

impl Running {
    pub fn new(job: &Job, layout: &Arc<Layout>, seed: u64) -> Self {
        let plan = Plan::new(seed, 0, job.batch);
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
            life: 0,
            state: State::Away,
            counts: Counts::default(),
            end: job.end,
            batches_drawn: 0,
        }
    }

    /// Whether another mini-batch can be drawn at once.
    pub fn may_draw(&self) -> bool {
        let is_needed = match self.end {
            End::Batches(batches) => self.batches_drawn < batches,
            End::Epochs(_) | End::Never => true,
        };
        is_needed
            && self.state == State::Training
            && self.pipeline.wants_batch()
            && self.epoch.left() > 0
    }

    pub fn draw(&mut self, resident: impl Fn(u32) -> bool) -> Batch {
        self.batches_drawn += 1;
        self.epoch.draw(resident)
    }

    /// Whether it has computed all that it came for.
    pub fn is_done(&self) -> bool {
        match self.end {
            End::Batches(batches) => self.counts.batches >= batches,
            End::Epochs(epochs) => self.counts.epochs >= epochs.into() && self.pipeline.is_empty(),
            End::Never => false,
        }
    }

    /// Whether the epoch is over and another wanted.
    pub fn wants_epoch(&self) -> bool {
        let is_last =
            matches!(self.end, End::Epochs(epochs) if self.counts.epochs >= epochs.into());
        self.epoch.is_over() && !is_last && !self.is_done()
    }

    /// Time in which the GPUs have computed what was not lost.
    pub fn busy(&self, now: Nanos) -> Nanos {
        self.counts.busy + self.pipeline.unfinished(now)
    }

    /// It was killed: what the GPUs had not computed is drawn again when it comes back.
    pub fn die(&mut self) {
        self.batches_drawn -= self.epoch.die();
        self.pipeline.clear();
        self.wanted.clear();
        self.fetching = None;
        self.modes.clear();
        self.last_computed = None;
        self.life += 1;
        self.state = State::Away;
    }
}

/// One pass over the dataset, by the core's sampler. Watches over it, too: no item comes twice, and none
/// is left out (promise 2).
#[derive(Debug)]
pub(super) struct Epoch {
    layout: Arc<Layout>,
    plan: Plan,
    sampler: Sampler,
    /// What was drawn, and what of it was yielded.
    drawn: Bits,
    yielded: Bits,
    under_way: VecDeque<Batch>,
}

impl Epoch {
    fn new(layout: &Arc<Layout>, plan: Plan) -> Self {
        let items = layout.items();
        Self {
            layout: Arc::clone(layout),
            plan,
            sampler: Sampler::new(layout, plan).expect("a plan for one rank"),
            drawn: Bits::new(items),
            yielded: Bits::new(items),
            under_way: VecDeque::new(),
        }
    }

    /// Items that are still to be drawn.
    pub fn left(&self) -> u64 {
        self.layout.items() - self.drawn.count()
    }

    pub fn is_over(&self) -> bool {
        self.yielded.count() == self.layout.items()
    }

    pub fn has_drawn(&self, item: u32) -> bool {
        self.drawn.contains(item)
    }

    /// Items of a chunk that are still to be drawn.
    pub fn unread(&self, chunk: ChunkOrdinal) -> u64 {
        self.sampler.unread(chunk)
    }

    /// Which chunks batches are drawn from, and which of them before the others.
    pub fn open(&mut self, directions: &Directions) {
        let Directions { held, rotating, leaving } = directions;
        self.sampler.open(held, rotating).expect("chunks of this dataset, each once");
        self.sampler.leaving(*leaving).expect("one of those that rotate");
    }

    fn draw(&mut self, resident: impl Fn(u32) -> bool) -> Batch {
        let batch = self.sampler.draw(|item| resident(number(item))).expect("some are left");
        for item in batch.items() {
            assert!(self.drawn.insert(number(*item)), "item {item} was drawn twice (promise 2)");
        }
        self.under_way.push_back(batch.clone());
        batch
    }

    /// The GPUs have computed the next mini-batch: a checkpoint has it. Returns the chunks that it leaves
    /// without unread items.
    pub fn yield_next(&mut self) -> Vec<ChunkOrdinal> {
        let batch =
            self.under_way.pop_front().expect("a mini-batch was computed that was not drawn");
        for item in batch.items() {
            self.yielded.insert(number(*item));
        }
        self.sampler.yielded(batch.number()).expect("mini-batches are computed in order")
    }

    /// Everything is unread again.
    pub fn begin_next(&mut self) {
        assert!(self.is_over(), "an epoch ended with unread items (promise 2)");
        self.plan.epoch += 1;
        self.sampler = Sampler::new(&self.layout, self.plan).expect("as before");
        self.drawn.clear();
        self.yielded.clear();
    }

    /// What was drawn and not yielded is lost. Returns how many mini-batches that is.
    fn die(&mut self) -> u64 {
        let checkpoint: Checkpoint = self.sampler.state();
        self.sampler =
            Sampler::resume(&self.layout, &checkpoint).expect("a checkpoint of this very epoch");
        self.drawn = self.yielded.clone();
        let lost = self.under_way.len() as u64;
        self.under_way.clear();
        lost
    }
}

/// Items as the simulator numbers them.
pub(super) fn number(item: ItemOrdinal) -> u32 {
    u32::try_from(item.0).expect("scenarios are checked")
}

//! One job's mini-batches under way: read, prepared, computed, in that order.
//!
//! Workers read and prepare several at once, each one at a time, as PyTorch's do; the GPUs take them one
//! by one, in the order in which they were drawn. So a mini-batch takes as long as the slowest stage, if
//! there are workers enough, and as the sum of all stages if nothing is done ahead.

use std::collections::VecDeque;

use super::time::Nanos;

/// A mini-batch, by its place in the job.
pub(super) type BatchNumber = u64;

/// When each stage of a mini-batch began, and when the last ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stages {
    pub drawn: Nanos,
    pub read: Nanos,
    pub prepared: Nanos,
    pub taken: Nanos,
    pub computed: Nanos,
}

#[derive(Debug)]
pub(super) struct Pipeline {
    workers: u32,
    depth: usize,
    compute: Nanos,
    transform: Nanos,
    /// From the one on the GPUs, or next to be, to the one drawn last.
    under_way: VecDeque<Batch>,
    first: BatchNumber,
    busy_workers: u32,
    computing: bool,
}

#[derive(Debug)]
struct Batch {
    /// Items that it waits for.
    lacks: u32,
    prepared: bool,
    stages: Stages,
}

impl Pipeline {
    pub fn new(workers: u32, depth: u32, compute: Nanos, transform: Nanos) -> Self {
        Self {
            workers,
            depth: depth as usize,
            compute,
            transform,
            under_way: VecDeque::new(),
            first: 0,
            busy_workers: 0,
            computing: false,
        }
    }

    /// Whether a worker is free, and the next mini-batch not too far ahead.
    pub fn wants_batch(&self) -> bool {
        self.busy_workers < self.workers && self.under_way.len() < self.depth
    }

    /// Whether all that was drawn has been computed.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A mini-batch of so many items was drawn.
    pub fn draw(&mut self, now: Nanos, items: u32) -> BatchNumber {
        assert!(self.wants_batch() && items > 0, "a mini-batch out of turn, or empty");
        let stages = Stages { drawn: now, ..Stages::default() };
        self.under_way.push_back(Batch { lacks: items, prepared: false, stages });
        self.busy_workers += 1;
        self.first + self.under_way.len() as u64 - 1
    }

    /// So many of its items have arrived. If these were the last: when the mini-batch is prepared.
    pub fn read(&mut self, now: Nanos, batch: BatchNumber, items: u32) -> Option<Nanos> {
        let transform = self.transform;
        let at = self.batch(batch);
        at.lacks = at.lacks.checked_sub(items).expect("no item arrives twice");
        if at.lacks > 0 {
            return None;
        }
        at.stages.read = now;
        Some(now + transform)
    }

    /// A mini-batch is prepared, and its worker free.
    pub fn prepare(&mut self, now: Nanos, batch: BatchNumber) {
        let at = self.batch(batch);
        at.stages.prepared = now;
        at.prepared = true;
        self.busy_workers -= 1;
    }

    /// If the GPUs are free and the next mini-batch is prepared: they take it, and are done then.
    pub fn compute(&mut self, now: Nanos) -> Option<Nanos> {
        let next = self.under_way.front_mut()?;
        if self.computing || !next.prepared {
            return None;
        }
        next.stages.taken = now;
        self.computing = true;
        Some(now + self.compute)
    }

    /// How long the GPUs have been computing the mini-batch that they have not finished.
    pub fn unfinished(&self, now: Nanos) -> Nanos {
        let computed = self.under_way.front().filter(|_| self.computing);
        computed.map_or(Nanos(0), |batch| now - batch.stages.taken)
    }

    /// The GPUs are done with a mini-batch.
    pub fn finish(&mut self, now: Nanos) -> Stages {
        assert!(self.computing, "the GPUs were idle");
        let done = self.under_way.pop_front().expect("what is computed is under way");
        self.first += 1;
        self.computing = false;
        Stages { computed: now, ..done.stages }
    }

    /// The job was killed: all that was under way is lost.
    pub fn clear(&mut self) {
        self.first += self.under_way.len() as u64;
        self.under_way.clear();
        self.busy_workers = 0;
        self.computing = false;
    }

    fn batch(&mut self, batch: BatchNumber) -> &mut Batch {
        let place = batch.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.under_way.get_mut(place)).expect("the mini-batch is under way")
    }
}

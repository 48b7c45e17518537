//! Pipeline of one job: its mini-batches in flight, which are read, transformed and computed.
//!
//! Workers read and transform one mini-batch each, as PyTorch's do. The GPUs compute mini-batches
//! one by one in the order in which they were drawn. So with enough workers a mini-batch takes as
//! long as its slowest stage, and without prefetching as long as all stages together.

use std::collections::VecDeque;

use super::time::Nanos;

/// Number of a mini-batch in its job.
pub(super) type BatchNumber = u64;

/// Start of each stage of a mini-batch, and the end of the last.
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
    /// From the one on the GPUs, or next on them, to the last drawn.
    in_flight: VecDeque<Batch>,
    first: BatchNumber,
    busy_workers: u32,
    computing: bool,
}

#[derive(Debug)]
struct Batch {
    /// Items that have not arrived.
    missing: u32,
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
            in_flight: VecDeque::new(),
            first: 0,
            busy_workers: 0,
            computing: false,
        }
    }

    /// Whether a worker is free and the depth allows another mini-batch.
    pub fn has_capacity(&self) -> bool {
        self.busy_workers < self.workers && self.in_flight.len() < self.depth
    }

    /// Whether all drawn mini-batches have been computed.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// A mini-batch of `items` items was drawn.
    pub fn on_drawn(&mut self, now: Nanos, items: u32) -> BatchNumber {
        assert!(self.has_capacity() && items > 0, "a mini-batch beyond the depth, or empty");
        let stages = Stages { drawn: now, ..Stages::default() };
        self.in_flight.push_back(Batch { missing: items, prepared: false, stages });
        self.busy_workers += 1;
        self.first + self.in_flight.len() as u64 - 1
    }

    /// `items` items of a mini-batch have arrived. If these were the last, returns when the
    /// transformation ends.
    pub fn on_read(&mut self, now: Nanos, batch: BatchNumber, items: u32) -> Option<Nanos> {
        let transform = self.transform;
        let at = self.batch(batch);
        at.missing = at.missing.checked_sub(items).expect("no item arrives twice");
        if at.missing > 0 {
            return None;
        }
        at.stages.read = now;
        Some(now + transform)
    }

    /// A mini-batch is transformed, and its worker is free.
    pub fn on_prepared(&mut self, now: Nanos, batch: BatchNumber) {
        let at = self.batch(batch);
        at.stages.prepared = now;
        at.prepared = true;
        self.busy_workers -= 1;
    }

    /// Starts the next mini-batch, if the GPUs are free and it is transformed. Returns its end.
    pub fn compute(&mut self, now: Nanos) -> Option<Nanos> {
        let next = self.in_flight.front_mut()?;
        if self.computing || !next.prepared {
            return None;
        }
        next.stages.taken = now;
        self.computing = true;
        Some(now + self.compute)
    }

    /// Time that the GPUs have spent on the unfinished mini-batch.
    pub fn unfinished(&self, now: Nanos) -> Nanos {
        let computed = self.in_flight.front().filter(|_| self.computing);
        computed.map_or(Nanos(0), |batch| now - batch.stages.taken)
    }

    /// The GPUs have finished a mini-batch.
    pub fn on_computed(&mut self, now: Nanos) -> Stages {
        assert!(self.computing, "the GPUs were idle");
        let done = self.in_flight.pop_front().expect("a computed mini-batch is in flight");
        self.first += 1;
        self.computing = false;
        Stages { computed: now, ..done.stages }
    }

    /// Drops all mini-batches in flight, when the job is killed.
    pub fn clear(&mut self) {
        self.first += self.in_flight.len() as u64;
        self.in_flight.clear();
        self.busy_workers = 0;
        self.computing = false;
    }

    fn batch(&mut self, batch: BatchNumber) -> &mut Batch {
        let index = batch.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.in_flight.get_mut(index)).expect("the mini-batch is in flight")
    }
}

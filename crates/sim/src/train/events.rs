//! Event queue. Events at the same time are processed in the order in which they were scheduled, so
//! that a run is deterministic.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::time::Nanos;

/// Future events.
#[derive(Debug)]
pub(super) struct Events<E> {
    heap: BinaryHeap<Reverse<(Nanos, u64, Scheduled<E>)>>,
    scheduled: u64,
}

/// An event, which is ignored in comparisons.
#[derive(Debug)]
struct Scheduled<E>(E);

impl<E> Events<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0 }
    }

    pub fn schedule(&mut self, at: Nanos, event: E) {
        self.heap.push(Reverse((at, self.scheduled, Scheduled(event))));
        self.scheduled += 1;
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub fn next(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse((at, _, Scheduled(event)))| (at, event))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

//! What happens next: a queue of moments. What falls on one moment happens in the order in which it was
//! planned, so that a run has only one course.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::time::Nanos;

/// Events that are still to come.
#[derive(Debug)]
pub(super) struct Events<E> {
    heap: BinaryHeap<Reverse<(Nanos, u64, Planned<E>)>>,
    planned: u64,
}

/// An event, which plays no part in the order.
#[derive(Debug)]
struct Planned<E>(E);

impl<E> Events<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub fn plan(&mut self, at: Nanos, event: E) {
        self.heap.push(Reverse((at, self.planned, Planned(event))));
        self.planned += 1;
    }

    /// When the next one comes.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub fn next(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse((at, _, Planned(event)))| (at, event))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

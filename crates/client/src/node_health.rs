//! What a process knows of nodes, with the clock that it is told by.
//!
//! Whoever asks takes a copy along, and what it has found out is taken over when it returns: no lock is held
//! while somebody waits, so that a fork finds none.

use std::time::{Duration, Instant};

use forebay_core::{
    Endpoint,
    patience::{Book, Failure},
};

/// What is known of nodes, and since when.
#[derive(Debug, Clone)]
pub struct Experience {
    clock: Instant,
    book: Book,
}

impl Default for Experience {
    fn default() -> Self {
        Self { clock: Instant::now(), book: Book::default() }
    }
}

impl Experience {
    /// Takes over what a copy of this has found out.
    pub fn learn(&mut self, copy: &Self) {
        debug_assert_eq!(self.clock, copy.clock, "it is no copy of this");
        self.book.learn(&copy.book);
    }

    /// The same for somebody who begins anew: nodes that were gone may have been started.
    #[must_use]
    pub fn for_a_beginning(&self) -> Self {
        let mut book = self.book.clone();
        book.forget_the_gone();
        Self { clock: self.clock, book }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Whether it is time to try this node, for a request that was begun then.
    pub(crate) fn is_due(&self, node: &Endpoint, request_began: Duration) -> bool {
        self.book.is_due(node, request_began, self.now())
    }

    pub(crate) fn has_failed(&self, node: &Endpoint) -> bool {
        self.book.has_failed(node)
    }

    /// A try that began then has failed, on a connection of that age. Says whether to start the node anew.
    pub(crate) fn failed(
        &mut self,
        node: &Endpoint,
        how: Failure,
        opened_at: Duration,
        began: Duration,
    ) -> bool {
        let now = self.now();
        self.book.failed(node, how, opened_at, (began, now))
    }

    pub(crate) fn succeeded(&mut self, node: &Endpoint) {
        let now = self.now();
        self.book.succeeded(node, now);
    }
}

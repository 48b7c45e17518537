//! Presence cache: what the nodes held when they were last asked. The budget of requests grows with
//! the items drawn.

use std::{sync::Arc, time::Duration};

use forebay_core::node::presence::{KnownPresence, PresenceBudget};

use crate::{ClientEnvironment, ThisMachine, environment::Clock};

/// What the nodes of one dataset held when they were last asked.
#[derive(Debug)]
pub struct PresenceCache {
    known: KnownPresence,
    /// The same bits for readers during a request. Empty without a node.
    bits: Arc<[u8]>,
    budget: PresenceBudget,
    clock: Clock,
}

/// A request for presence that is due.
#[derive(Debug)]
pub struct Asking {
    /// The presence known so far, for [`crate::Reader::presence`] to update.
    pub known: KnownPresence,
    began: Duration,
}

impl PresenceCache {
    /// For a dataset of `blobs` blobs. Nothing is known yet.
    pub fn new(blobs: u64) -> Self {
        Self::in_environment(&ThisMachine::shared(), blobs)
    }

    /// The same in another environment.
    pub fn in_environment(environment: &Arc<dyn ClientEnvironment>, blobs: u64) -> Self {
        // No node opens a dataset with more.
        let known = KnownPresence::new(u32::try_from(blobs).unwrap_or(0));
        let (bits, budget) = (Arc::default(), PresenceBudget::new(blobs));
        Self { known, bits, budget, clock: Clock::start(environment) }
    }

    /// One bit per blob, lowest first. Empty until a node has answered.
    pub fn bits(&self) -> Arc<[u8]> {
        Arc::clone(&self.bits)
    }

    /// A request, if one is due.
    pub fn asks(&self) -> Option<Asking> {
        let began = self.clock.elapsed();
        self.budget.is_due(began).then(|| Asking { known: self.known.clone(), began })
    }

    /// Takes the answer to a request, which took `bytes` bytes.
    pub fn answered(&mut self, Asking { known, began }: Asking, bytes: u64) {
        let now = self.clock.elapsed();
        self.budget.on_request(now, now.saturating_sub(began), bytes);
        self.bits = if known.version() == 0 { Arc::default() } else { known.bits().into() };
        self.known = known;
    }

    /// Adds to the budget: `items` items were drawn.
    pub fn drew(&mut self, items: usize) {
        self.budget.on_drawn(items as u64);
    }
}

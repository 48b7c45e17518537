//! Node health: which nodes of a process are dead or hung, with the clock that the times refer to.
//!
//! A connection works on a copy, and the copy is merged when the connection is returned. So no lock
//! is held during a wait, and a fork finds none held.

use std::{sync::Arc, time::Duration};

use forebay_core::{
    Endpoint,
    cluster::backoff::{BackoffTable, Elapsed, Failure},
};

use crate::{ClientEnvironment, ThisMachine, environment::Clock};

/// The health of all nodes that this process has used.
#[derive(Debug, Clone)]
pub struct NodeHealth {
    clock: Clock,
    backoff: BackoffTable,
}

impl Default for NodeHealth {
    fn default() -> Self {
        Self::in_environment(&ThisMachine::shared())
    }
}

impl NodeHealth {
    /// No node has failed yet. Times are those of this environment.
    pub(crate) fn in_environment(environment: &Arc<dyn ClientEnvironment>) -> Self {
        Self { clock: Clock::start(environment), backoff: BackoffTable::default() }
    }

    /// Merges what a copy of this has recorded since.
    pub fn merge(&mut self, copy: &Self) {
        debug_assert_eq!(self.clock.started(), copy.clock.started(), "not a copy of this");
        self.backoff.merge(&copy.backoff);
    }

    /// A copy for a new reader. Dead nodes are tried at once: they may have been restarted.
    #[must_use]
    pub fn without_dead(&self) -> Self {
        let mut backoff = self.backoff.clone();
        backoff.forget_dead();
        Self { clock: self.clock.clone(), backoff }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    pub(crate) fn since(&self, since: Duration) -> Elapsed {
        Elapsed { since, now: self.now() }
    }

    /// Whether the node may be tried now.
    pub(crate) fn is_due(&self, node: &Endpoint) -> bool {
        self.backoff.is_due(node, self.now())
    }

    /// How long a call that begins now waits for nodes that do not answer, all of them together.
    pub(crate) fn allowance(&self) -> Duration {
        self.backoff.allowance(self.now())
    }

    pub(crate) fn has_failed(&self, node: &Endpoint) -> bool {
        self.backoff.has_failed(node)
    }

    /// A request on this connection has failed. Returns whether to restart the node.
    pub(crate) fn on_failure(
        &mut self,
        node: &Endpoint,
        failure: Failure,
        request: RequestTimes,
    ) -> bool {
        let attempt = self.since(request.began);
        self.backoff.on_failure(node, failure, request.opened_at, attempt)
    }

    pub(crate) fn on_success(&mut self, node: &Endpoint) {
        let now = self.now();
        self.backoff.on_success(node, now);
    }
}

/// The times of a request, by the clock of [`NodeHealth`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimes {
    /// When its connection was opened.
    pub opened_at: Duration,
    /// When it began.
    pub began: Duration,
}

impl RequestTimes {
    /// Connecting began at this time.
    pub fn connect(began: Duration) -> Self {
        Self { opened_at: began, began }
    }
}

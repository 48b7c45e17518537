//! The role of a node for one dataset.

use std::time::Duration;

use super::{leader::Replication, takeover::Takeover, term::Term};

#[derive(Debug)]
pub(super) enum Role {
    /// A takeover is in progress.
    Takeover(Takeover),
    /// This node is the manager.
    Managing(Replication),
    /// Another node is the manager, and is assumed to be alive until then.
    Yielded { to: Term, until: Duration },
}

impl Role {
    pub fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Takeover(takeover) => Some(takeover.deadline()),
            Self::Managing(replication) => replication.next_deadline(),
            Self::Yielded { .. } => None,
        }
    }
}

//! A node's post with respect to a dataset.

use std::time::Duration;

use super::{asking::Asking, telling::Telling, term::Term};

#[derive(Debug)]
pub(super) enum Post {
    /// It is about to take over.
    Asking(Asking),
    /// It manages the dataset.
    Managing(Telling),
    /// Somebody else does, as was heard, and is believed to until then.
    Yielded { to: Term, until: Duration },
}

impl Post {
    pub fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Asking(asking) => Some(asking.deadline()),
            Self::Managing(telling) => telling.next_deadline(),
            Self::Yielded { .. } => None,
        }
    }
}

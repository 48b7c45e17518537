//! Taking a dataset over: all others are asked whom they obey and what they have.
//!
//! Whoever answers that it has just heard from a manager ends it: that one lives, even if it cannot be reached
//! from here. Those who do not answer in time are not waited for; what they know decides later, when terms meet.

use std::{collections::BTreeSet, time::Duration};

use super::{ASK_WITHIN, Standing};
use crate::{ByteSize, NodeName};

#[derive(Debug)]
pub(super) struct Asking {
    until: Duration,
    waiting: BTreeSet<NodeName>,
    piece_sizes: Vec<ByteSize>,
    found: BTreeSet<u32>,
    /// The newest term that was heard of, and how long its manager was silent at least.
    newest: Option<Standing>,
}

impl Asking {
    pub fn new(now: Duration, piece_sizes: Vec<ByteSize>, waiting: BTreeSet<NodeName>) -> Self {
        let (found, newest) = (BTreeSet::new(), None);
        Self { until: now.saturating_add(ASK_WITHIN), waiting, piece_sizes, found, newest }
    }

    /// Somebody has answered. Says whether all have.
    pub fn answered(&mut self, from: &NodeName, standing: Option<Standing>, found: &[u32]) -> bool {
        let pieces = self.piece_sizes.len();
        self.found.extend(found.iter().filter(|piece| (**piece as usize) < pieces));
        self.newest = newer(self.newest.take(), standing);
        self.waiting.remove(from);
        self.waiting.is_empty()
    }

    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    pub fn deadline(&self) -> Duration {
        self.until
    }

    /// The newest term that anybody knows.
    pub fn newest(&self, own: Option<Standing>) -> Option<Standing> {
        newer(self.newest.clone(), own)
    }

    /// The sizes of the dataset's pieces, and those of which something was found.
    pub fn into_parts(self) -> (Vec<ByteSize>, BTreeSet<u32>) {
        (self.piece_sizes, self.found)
    }
}

/// The newer of two, heard of as lately as either says.
fn newer(a: Option<Standing>, b: Option<Standing>) -> Option<Standing> {
    match (a, b) {
        (Some(a), Some(b)) if a.term == b.term => {
            let silent_for = a.silent_for.min(b.silent_for);
            Some(Standing { silent_for, ..a })
        }
        (Some(a), Some(b)) => Some(if a.term > b.term { a } else { b }),
        (a, b) => a.or(b),
    }
}

//! A takeover: a node asks all peers which manager they follow and what they hold.
//!
//! A peer that follows a live manager ends the takeover, even if this node cannot reach that
//! manager. A peer that does not answer in time is not waited for; its term is compared later.

use std::{collections::BTreeSet, time::Duration};

use super::{LeaderView, TAKEOVER_TIMEOUT};
use crate::{ByteSize, HalfChunk, NodeName};

#[derive(Debug)]
pub(super) struct Takeover {
    until: Duration,
    waiting: BTreeSet<NodeName>,
    half_chunk_sizes: Vec<ByteSize>,
    found: BTreeSet<HalfChunk>,
    /// The newest term that was reported, and the shortest silence of its manager.
    newest: Option<LeaderView>,
}

impl Takeover {
    pub fn new(
        now: Duration,
        half_chunk_sizes: Vec<ByteSize>,
        waiting: BTreeSet<NodeName>,
    ) -> Self {
        let (found, newest) = (BTreeSet::new(), None);
        Self {
            until: now.saturating_add(TAKEOVER_TIMEOUT),
            waiting,
            half_chunk_sizes,
            found,
            newest,
        }
    }

    /// Takes the answer of a node. Returns whether all have answered.
    pub fn on_follows(
        &mut self,
        from: &NodeName,
        leader: Option<LeaderView>,
        found: &[HalfChunk],
    ) -> bool {
        let half_chunks = self.half_chunk_sizes.len();
        self.found.extend(found.iter().filter(|half_chunk| half_chunk.index() < half_chunks));
        self.newest = newer(self.newest.take(), leader);
        self.waiting.remove(from);
        self.waiting.is_empty()
    }

    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    pub fn deadline(&self) -> Duration {
        self.until
    }

    /// The newest term of all answers and this node's own view.
    pub fn newest(&self, own: Option<LeaderView>) -> Option<LeaderView> {
        newer(self.newest.clone(), own)
    }

    /// The sizes of the half-chunks, and those of which a node holds blobs.
    pub fn into_parts(self) -> (Vec<ByteSize>, BTreeSet<HalfChunk>) {
        (self.half_chunk_sizes, self.found)
    }
}

/// The newer of two views; of equal terms, the shorter silence.
fn newer(a: Option<LeaderView>, b: Option<LeaderView>) -> Option<LeaderView> {
    match (a, b) {
        (Some(a), Some(b)) if a.term == b.term => {
            let silent_for = a.silent_for.min(b.silent_for);
            Some(LeaderView { silent_for, ..a })
        }
        (Some(a), Some(b)) => Some(if a.term > b.term { a } else { b }),
        (a, b) => a.or(b),
    }
}

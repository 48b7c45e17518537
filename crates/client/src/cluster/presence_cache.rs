//! What the nodes held a moment ago, asked for no more often than is paid for by what is drawn.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_core::presence::{Known, Thrift};

/// What the nodes of one dataset held when they were last asked.
#[derive(Debug)]
pub struct RecentPresence {
    known: Known,
    /// The same, for those who look at it while somebody asks; empty without a node.
    bits: Arc<[u8]>,
    thrift: Thrift,
    clock: Instant,
}

/// A question that is due.
#[derive(Debug)]
pub struct Asking {
    /// What is known so far: for [`crate::Reader::presence`].
    pub known: Known,
    began: Duration,
}

impl RecentPresence {
    /// Nothing is known yet of so many blobs.
    pub fn new(blobs: u64) -> Self {
        // No node opens a dataset with more.
        let known = Known::new(u32::try_from(blobs).unwrap_or(0));
        let (bits, thrift) = (Arc::default(), Thrift::new(blobs));
        Self { known, bits, thrift, clock: Instant::now() }
    }

    /// A bit for each blob, lowest first; nothing before a node has said anything.
    pub fn bits(&self) -> Arc<[u8]> {
        Arc::clone(&self.bits)
    }

    /// Whether it is time to ask again.
    pub fn asks(&self) -> Option<Asking> {
        let began = self.clock.elapsed();
        self.thrift.is_due(began).then(|| Asking { known: self.known.clone(), began })
    }

    /// That was answered, in so many bytes.
    pub fn answered(&mut self, Asking { known, began }: Asking, bytes: u64) {
        self.thrift.asked(began, self.clock.elapsed(), bytes);
        self.bits = if known.version() == 0 { Arc::default() } else { known.bits().into() };
        self.known = known;
    }

    /// So many items were drawn: they pay for the next question.
    pub fn drew(&mut self, items: usize) {
        self.thrift.drew(items as u64);
    }
}

//! Chunks that are to go, and that jobs are still given items of.
//!
//! Jobs draw ahead of what they read, so a chunk that nobody has anything left to draw from may be all on its
//! way to somebody. Freed at that moment, each of those jobs would have to fetch it from the origin for itself.
//! So it keeps its place until the last item was given; nobody draws from it meanwhile. Whoever is silent is
//! not waited for.

use std::time::Duration;

use super::{Manager, Order};
use crate::chunking::ChunkOrdinal;

impl Manager {
    /// Chunks that wait for somebody no more are free to go.
    pub(super) fn drained(&mut self, now: Duration) -> Vec<Order> {
        let awaited = |chunk: &ChunkOrdinal| self.is_awaited(now, *chunk);
        let over: Vec<ChunkOrdinal> =
            self.draining.iter().copied().filter(|chunk| !awaited(chunk)).collect();
        if over.is_empty() {
            return Vec::new();
        }
        for chunk in &over {
            self.draining.remove(chunk);
            self.pieces.of(*chunk).for_each(|piece| {
                self.here.remove(&piece);
            });
        }
        self.look();
        over.into_iter().map(|chunk| Order::Evict(self.pieces.of(chunk))).collect()
    }

    /// Whether a member that speaks has drawn all of a piece, and was not given all of it.
    fn is_awaited(&self, now: Duration, chunk: ChunkOrdinal) -> bool {
        self.awake_members(now)
            .any(|reader| self.pieces.of(chunk).any(|piece| reader.awaits(piece)))
    }
}

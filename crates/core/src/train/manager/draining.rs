//! Draining: evicted chunks whose last items are still on their way to jobs.
//!
//! Jobs draw ahead of what they read. When no job has anything left to draw from a chunk, its last
//! items may still be unread. If the chunk were freed at that moment, each job would fetch these
//! items from the origin by itself. So a draining chunk stays in the keep set, though in no draw
//! set, until its last item was yielded. Inactive jobs are not waited for.

use std::time::Duration;

use super::{HalfChunkOrder, Manager};
use crate::dataset::chunking::ChunkOrdinal;

impl Manager {
    /// Frees draining chunks of which no job has items in flight.
    pub(super) fn free_drained(&mut self, now: Duration) -> Vec<HalfChunkOrder> {
        let awaited = |chunk: &ChunkOrdinal| self.is_in_flight(now, *chunk);
        let over: Vec<ChunkOrdinal> =
            self.draining.iter().copied().filter(|chunk| !awaited(chunk)).collect();
        if over.is_empty() {
            return Vec::new();
        }
        for chunk in &over {
            self.draining.remove(chunk);
            for half_chunk in self.half_chunks.of(*chunk) {
                self.present.remove(&half_chunk);
            }
        }
        self.update_classes();
        over.into_iter().map(|chunk| HalfChunkOrder::Evict(self.half_chunks.of(chunk))).collect()
    }

    /// Whether an active member has drawn all of a half-chunk of this chunk, and not yielded all of
    /// it.
    fn is_in_flight(&self, now: Duration, chunk: ChunkOrdinal) -> bool {
        self.active_members(now).any(|reader| {
            self.half_chunks
                .of(chunk)
                .into_iter()
                .any(|half_chunk| reader.has_in_flight(half_chunk))
        })
    }
}

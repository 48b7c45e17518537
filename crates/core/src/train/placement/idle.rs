//! Idle datasets: those that no job gains from. They keep what they have until others need the
//! space.
//!
//! They save no GPU time now, so datasets that do come first, and idle ones get the rest: their
//! next jobs find what the last ones fetched. First, each keeps what is present of it, the most
//! recently read one first. So when space is needed, the least recently read one shrinks, chunk by
//! chunk. If space is left after that, each gets its former allocation back, for blobs that are put
//! later.

use super::{Allocation, DatasetDemand};
use crate::ByteSize;

/// Gives the space that `allocations` leave to idle datasets, which have nothing in `allocations`.
pub(super) fn give_rest_to_idle(
    space: ByteSize,
    datasets: &[DatasetDemand],
    allocations: &mut [Allocation],
) {
    let mut idle: Vec<usize> =
        (0..datasets.len()).filter(|at| datasets[*at].jobs.is_empty()).collect();
    idle.sort_by_key(|at| datasets[*at].idle_for);
    let taken = datasets
        .iter()
        .zip(&*allocations)
        .map(|(dataset, allocation)| dataset.space(*allocation).0);
    let mut free = space.0.saturating_sub(taken.fold(0, u64::saturating_add));
    for wanted in [DatasetDemand::cached, DatasetDemand::current] {
        for at in &idle {
            let (dataset, allocation) = (&datasets[*at], &mut allocations[*at]);
            let has = dataset.space(*allocation).0;
            *allocation =
                dataset.largest_within(ByteSize(free + has), wanted(dataset)).max(*allocation);
            free -= dataset.space(*allocation).0 - has;
        }
    }
}

impl DatasetDemand {
    /// What is present, as an allocation.
    pub(super) fn cached(&self) -> Allocation {
        match self.current() {
            Allocation::Chunks(allocated) if self.chunks_present > 0 => {
                Allocation::Chunks(allocated.min(self.chunks_present))
            }
            Allocation::Halves if self.chunks_present > 0 => Allocation::Halves,
            _ => Allocation::Nothing,
        }
    }

    /// The largest part of an allocation that fits.
    fn largest_within(&self, space: ByteSize, allocation: Allocation) -> Allocation {
        if self.space(allocation) <= space {
            return allocation;
        }
        // Count chunks of the largest size, and never all chunks.
        match (allocation, space.0.checked_div(self.chunk_size.0)) {
            (Allocation::Chunks(_), Some(chunks)) if chunks > 0 && self.chunks > 1 => {
                let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
                Allocation::Chunks(chunks.min(self.chunks - 1))
            }
            _ => Allocation::Nothing,
        }
    }
}

//! Memory plan: how a node divides the memory of its machine or container by default (promise 6).
//!
//! Every part has an upper limit that a large machine reaches. On a small one, parts are shares of
//! the memory, so that all of them together fit: of 1 GiB, less than 0.9 GiB is planned.

use crate::ByteSize;

/// Defaults for the sizes of a node's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Blobs in the memory cache.
    pub memory_cache: ByteSize,
    /// Memory shared with clients of the machine.
    pub shared_memory: ByteSize,
    /// Requests and replies that wait on connections.
    pub connection_memory: ByteSize,
    /// Buffers of blobs that are being put.
    pub write_buffers: ByteSize,
    /// Blob tables of open datasets.
    pub tables: ByteSize,
    /// State of jobs in the managers of datasets.
    pub jobs: ByteSize,
}

/// Memory of a machine that does not report it.
const UNKNOWN: ByteSize = ByteSize::mib(2 << 10);

impl MemoryPlan {
    /// The plan for a machine or container with this memory.
    pub fn new(memory: Option<ByteSize>) -> Self {
        let total = memory.unwrap_or(UNKNOWN).0;
        let part =
            |share: u64, min: u64, max: u64| ByteSize((total / share).clamp(min << 20, max << 20));
        // Small datasets then fit, and jobs keep most of the memory. On a small machine the minimum
        // is a larger share, up to an eighth.
        let memory_cache = part(16, 256, 16 << 10).min(ByteSize(total / 8));
        Self {
            memory_cache,
            shared_memory: part(8, 16, 512),
            connection_memory: part(8, 64, 1 << 10),
            write_buffers: part(16, 32, 512),
            tables: part(8, 16, 2560),
            jobs: part(16, 16, 192),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_cache_takes_a_small_share_of_the_memory() {
        let cases = [
            (64 << 10, 4 << 10),
            (16 << 10, 1 << 10),
            (2 << 10, 256),
            (1 << 10, 128),
            (320, 40),
            (1 << 20, 16 << 10),
        ];
        for (total, share) in cases {
            let plan = MemoryPlan::new(Some(ByteSize::mib(total)));
            assert_eq!(plan.memory_cache, ByteSize::mib(share));
        }
    }

    /// Promise 6: the parts together leave space for the program and its buffers.
    #[test]
    fn the_parts_fit_together() {
        for total in [1 << 10, 2 << 10, 8 << 10, 1 << 20] {
            let MemoryPlan {
                memory_cache,
                shared_memory,
                connection_memory,
                write_buffers,
                tables,
                jobs,
            } = MemoryPlan::new(Some(ByteSize::mib(total)));
            let parts =
                [memory_cache, shared_memory, connection_memory, write_buffers, tables, jobs];
            let sum: u64 = parts.iter().map(|part| part.0).sum();
            assert!(sum <= (total << 20) * 5 / 8, "{sum} of {total} MiB");
        }
    }
}

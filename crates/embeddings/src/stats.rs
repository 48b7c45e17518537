//! Stats: counters since the tables were opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counters since the tables were opened, and what is in memory now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Calls of lookup and gather.
    pub lookups: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples whose rows were all in memory: perfect hits.
    pub perfect: u64,
    /// Keys, without padding.
    pub keys: u64,
    /// Keys whose rows were in memory.
    pub hits: u64,
    /// Rows read from disk for lookups.
    pub rows_read: u64,
    /// Read operations, for lookups and prefetches.
    pub reads: u64,
    /// Bytes transferred by these reads.
    pub bytes_read: u64,
    /// Rows read from disk for prefetches.
    pub rows_prefetched: u64,
    /// Rows replaced, including all rows of replaced tables.
    pub rows_replaced: u64,
    /// Rows in memory.
    pub resident_rows: u64,
    /// Bytes of rows in memory.
    pub resident_bytes: u64,
    /// Bytes that say which rows are in memory, where, and in which rank.
    pub directory_bytes: u64,
    /// Bytes that the policy stores about rows that are not in memory.
    pub ghost_bytes: u64,
    /// Bytes from which the policy's settings and implications are learned.
    pub tuning_bytes: u64,
    /// Bytes of buffers that are kept for the next lookups.
    pub buffer_bytes: u64,
    /// Limit on all of these bytes together.
    pub memory_bytes: u64,
    /// Pinned tables: those kept whole in memory.
    pub pinned_tables: u64,
}

impl Stats {
    /// All bytes that count towards the memory.
    pub fn bytes(&self) -> u64 {
        self.resident_bytes
            + self.directory_bytes
            + self.ghost_bytes
            + self.tuning_bytes
            + self.buffer_bytes
    }
}

/// Counts of one lookup.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub samples: u64,
    pub perfect: u64,
    pub keys: u64,
    pub hits: u64,
    pub rows_read: u64,
    pub reads: u64,
    pub bytes_read: u64,
}

/// Counters, to which each thread adds once per lookup.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lookups: AtomicU64,
    samples: AtomicU64,
    perfect: AtomicU64,
    keys: AtomicU64,
    hits: AtomicU64,
    rows_read: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    rows_prefetched: AtomicU64,
    rows_replaced: AtomicU64,
}

impl Counters {
    pub fn add(&self, counts: &Counts) {
        for (counter, count) in [
            (&self.lookups, 1),
            (&self.samples, counts.samples),
            (&self.perfect, counts.perfect),
            (&self.keys, counts.keys),
            (&self.hits, counts.hits),
            (&self.rows_read, counts.rows_read),
            (&self.reads, counts.reads),
            (&self.bytes_read, counts.bytes_read),
        ] {
            counter.fetch_add(count, Relaxed);
        }
    }

    pub fn add_prefetch(&self, rows: u64, reads: u64, bytes: u64) {
        self.rows_prefetched.fetch_add(rows, Relaxed);
        self.reads.fetch_add(reads, Relaxed);
        self.bytes_read.fetch_add(bytes, Relaxed);
    }

    pub fn add_replaced(&self, rows: u64) {
        self.rows_replaced.fetch_add(rows, Relaxed);
    }

    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Stats {
            lookups: of(&self.lookups),
            samples: of(&self.samples),
            perfect: of(&self.perfect),
            keys: of(&self.keys),
            hits: of(&self.hits),
            rows_read: of(&self.rows_read),
            reads: of(&self.reads),
            bytes_read: of(&self.bytes_read),
            rows_prefetched: of(&self.rows_prefetched),
            rows_replaced: of(&self.rows_replaced),
            ..Stats::default()
        }
    }
}

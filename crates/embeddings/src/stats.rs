//! What has been counted since the tables were opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counts, and what is in memory now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Calls.
    pub lookups: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples all of whose rows were in memory when they were asked for.
    pub perfect: u64,
    /// Keys, without padding.
    pub keys: u64,
    /// Keys whose rows were in memory.
    pub hits: u64,
    /// Rows read from disk for lookups.
    pub rows_read: u64,
    /// Reads, for lookups and ahead of them.
    pub reads: u64,
    /// Bytes that they transferred.
    pub bytes_read: u64,
    /// Rows that were read ahead of lookups; their reads are counted above.
    pub rows_prefetched: u64,
    /// Rows that were replaced, and rows of tables that were.
    pub rows_replaced: u64,
    /// Rows in memory.
    pub resident_rows: u64,
    /// Bytes that they take.
    pub resident_bytes: u64,
    /// Bytes that they may take.
    pub memory_bytes: u64,
    /// Tables that are kept whole.
    pub whole_tables: u64,
}

/// What one lookup adds.
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

/// Counters that any thread adds to, once per lookup.
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

    pub fn prefetched(&self, rows: u64, reads: u64, bytes: u64) {
        self.rows_prefetched.fetch_add(rows, Relaxed);
        self.reads.fetch_add(reads, Relaxed);
        self.bytes_read.fetch_add(bytes, Relaxed);
    }

    pub fn replaced(&self, rows: u64) {
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

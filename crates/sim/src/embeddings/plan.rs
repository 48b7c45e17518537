//! Memory plans: what a memory size gives on a trace, bookkeeping included, and what a goal takes.

use forebay_core::{
    ByteSize,
    embeddings::{Bookkeeping, Budget, Capacity, PolicyKind, TableShape},
};
use serde::Serialize;

use super::{
    run::{Tally, single_pass},
    trace::Trace,
};

/// Bytes per row that the tables add to the policy's: the key by which a slot is checked.
const TABLES_BYTES_PER_ROW: u32 = 8;

/// Sizes tried in the search for a goal; each halves the remaining range of orders of magnitude.
const SEARCH_STEPS: u32 = 12;

/// What one memory size gives.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PlannedMemory {
    /// Bytes for rows and bookkeeping.
    pub memory_bytes: u64,
    /// Rows in memory at the end of the trace.
    pub rows: u64,
    /// Bytes of these rows.
    pub row_bytes: u64,
    /// Bytes of bookkeeping at the end of the trace.
    pub bookkeeping: Bookkeeping,
    /// Bytes of all rows of the trace.
    pub tables_bytes: u64,
    /// Hits, without the first fifth of the trace.
    pub hits: Tally,
}

/// Plans for rows of `row_bytes` bytes in every table, under the policy `group`.
#[derive(Debug, Clone, Copy)]
pub struct MemoryPlanner<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Bytes of a row.
    pub row_bytes: u32,
}

impl MemoryPlanner<'_> {
    /// Bytes of all rows of the trace.
    pub fn tables_bytes(&self) -> u64 {
        self.trace.rows() * u64::from(self.row_bytes)
    }

    /// What this memory gives; `None` if it is too little for a row and its bookkeeping.
    pub fn at(&self, memory: ByteSize) -> Option<PlannedMemory> {
        let shape = |rows| TableShape { rows, row_bytes: self.row_bytes };
        let tables = self.trace.tables().iter().map(|table| shape(table.rows)).collect();
        let budget =
            Budget::new(tables, Capacity::Memory(memory)).with_row_overhead(TABLES_BYTES_PER_ROW);
        let mut policy = PolicyKind::Group.build(&budget, 0);
        if policy.capacity() < u64::from(self.row_bytes + TABLES_BYTES_PER_ROW) + 64 {
            return None;
        }
        let hits = single_pass(&mut *policy, self.trace);
        let rows = policy.residents().len() as u64;
        let mut bookkeeping = policy.bookkeeping();
        bookkeeping.directory += rows * u64::from(TABLES_BYTES_PER_ROW);
        Some(PlannedMemory {
            memory_bytes: memory.0,
            rows,
            row_bytes: rows * u64::from(self.row_bytes),
            bookkeeping,
            tables_bytes: self.tables_bytes(),
            hits,
        })
    }

    /// The least memory, of those tried, that gives this share of perfect hits. `None` if all rows
    /// in memory do not.
    pub fn for_perfect(&self, goal: f64) -> Option<PlannedMemory> {
        let reaches = |plan: &PlannedMemory| plan.hits.perfect_rate() >= goal;
        // Everything fits into twice the tables, and some bookkeeping of small ones.
        let most = self.tables_bytes() * 2 + (4 << 20);
        let mut best = self.at(ByteSize(most)).filter(reaches)?;
        let (mut low, mut high) = ((16_u64 << 10) as f64, most as f64);
        for _ in 0..SEARCH_STEPS {
            let middle = (low * high).sqrt();
            match self.at(ByteSize(middle as u64)).filter(reaches) {
                Some(plan) => (best, high) = (plan, middle),
                None => low = middle,
            }
        }
        Some(best)
    }
}

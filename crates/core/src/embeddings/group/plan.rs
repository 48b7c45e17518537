//! Plan: how a budget divides into rows and bookkeeping.
//!
//! Where the budget is [`Capacity::Memory`], all structures of the policy count towards it. Those
//! that are allocated at the start (ghosts, index, tuning) are subtracted. A slot is counted with
//! the row that uses it.

use super::{
    super::{
        directory::index_bytes,
        policy::{Budget, Capacity},
    },
    ghost_table::GhostTable,
    rows::SLOT_BYTES,
    shadow_tuning::ShadowTuning,
};

/// Keys in the ghost table per row that fits: 16 bytes.
const GHOSTS_PER_ROW: u64 = 4;
/// Share of the capacity that associations may take, once prefetches need them.
const ASSOCIATIONS_DIVISOR: u64 = 8;
/// Scratch lists of requests.
const SCRATCH_BYTES: u64 = 8 << 10;
/// Bytes per row for the list of the window, which has a fifth of the rows at most.
const WINDOW_BYTES_PER_ROW: u64 = 1;
/// Shares of the memory that the tuning and the search for implications may take.
const TUNING_DIVISOR: u64 = 8;
const IMPLICATIONS_DIVISOR: u64 = 16;

/// Sizes of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows that fit, about.
    pub rows: u64,
    /// Keys of the ghost table.
    pub ghosts: u64,
    /// Limit on the weight of the residents.
    pub capacity: u64,
    /// Bytes of a slot that count towards the weight of its row.
    pub slot_weight: u32,
    /// Rows for which associations are recorded.
    pub association_rows: u64,
    /// Keys that the tuning tracks.
    pub tracked: u32,
    /// Limit on the bytes of the search for implications.
    pub implications_bytes: u64,
}

impl Plan {
    /// A plan for a policy with these implications.
    pub fn new(budget: &Budget, implications: impl Fn(u64) -> u64) -> Self {
        let Capacity::Memory(memory) = budget.limit() else {
            let rows = budget.rows_max();
            let tracked = ShadowTuning::keys(rows, u64::MAX);
            let implications_bytes = u64::MAX;
            let ghosts = rows.saturating_mul(GHOSTS_PER_ROW);
            let (capacity, association_rows) = (budget.capacity(), rows);
            return Self {
                rows,
                ghosts,
                capacity,
                slot_weight: 0,
                association_rows,
                tracked,
                implications_bytes,
            };
        };
        let implications_bytes = memory.0 / IMPLICATIONS_DIVISOR;
        let fixed = SCRATCH_BYTES + implications(implications_bytes);
        let tracked = |rows: u64| ShadowTuning::keys(rows, memory.0 / TUNING_DIVISOR);
        let others = |rows: u64| fixed + ShadowTuning::bytes_for(tracked(rows));
        // The tuning needs more for more rows, up to a limit.
        let least = rows_in(budget, memory.0.saturating_sub(others(u64::MAX)));
        let rows = rows_in(budget, memory.0.saturating_sub(others(least))).max(least);
        let rows = rows_in(budget, memory.0.saturating_sub(others(rows)));
        let ghosts = rows.saturating_mul(GHOSTS_PER_ROW);
        let allocated = others(rows)
            + index_bytes(rows)
            + GhostTable::bytes_for(ghosts)
            + rows * WINDOW_BYTES_PER_ROW;
        let capacity = memory.0.saturating_sub(allocated);
        let pairs_bytes = capacity / ASSOCIATIONS_DIVISOR;
        let association_rows = rows.min(pairs_bytes / (8 * size_of::<u64>() as u64));
        Self {
            rows,
            ghosts,
            capacity,
            slot_weight: SLOT_BYTES,
            association_rows,
            tracked: tracked(rows),
            implications_bytes,
        }
    }
}

/// Rows in this memory if each table has an equal share of it, and small tables leave the rest of
/// theirs to the others.
fn rows_in(budget: &Budget, memory: u64) -> u64 {
    // A bucket of 15 cells has 76 bytes; at a load of 0.8 that is less than 6.5 bytes a row.
    let per_row = f64::from(SLOT_BYTES) + (GHOSTS_PER_ROW * 4 + WINDOW_BYTES_PER_ROW) as f64 + 6.5;
    let mut tables: Vec<(f64, u64)> =
        budget.weights().map(|(weight, rows)| (f64::from(weight) + per_row, rows)).collect();
    tables.sort_by(|a, b| (a.0 * a.1 as f64).total_cmp(&(b.0 * b.1 as f64)));
    let (mut left, mut rows) = (memory as f64, 0);
    let count = tables.len();
    for (at, (cost, table_rows)) in tables.into_iter().enumerate() {
        let share = left / (count - at) as f64;
        let fitting = ((share / cost) as u64).min(table_rows);
        left -= fitting as f64 * cost;
        rows += fitting;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, embeddings::TableShape};

    fn plan(tables: &[(u64, u32)], memory: u64) -> Plan {
        let shape = |&(rows, row_bytes)| TableShape { rows, row_bytes };
        let tables = tables.iter().map(shape).collect();
        Plan::new(&Budget::new(tables, Capacity::Memory(ByteSize(memory))), |_| 0)
    }

    /// Bookkeeping of an exact row: at most 48 bytes, of which the rows themselves cost 8 more
    /// (`crates/embeddings`).
    #[test]
    fn a_row_costs_at_most_forty_bytes_of_bookkeeping() {
        let memory = 1_900_000_000;
        let plan = plan(&[(1 << 30, 144)], memory);
        let per_row = memory as f64 / plan.rows as f64 - 144.0;
        assert!(per_row < 40.0, "{per_row} in {plan:?}");
        let fitting = plan.capacity / u64::from(144 + SLOT_BYTES);
        assert!(fitting.abs_diff(plan.rows) < plan.rows / 100, "{fitting} fit in {plan:?}");
    }

    #[test]
    fn small_tables_leave_their_share_to_large_ones_and_too_little_memory_holds_no_row() {
        let rows = plan(&[(10, 16), (1 << 30, 144)], 100_000_000).rows;
        let alone = plan(&[(1 << 30, 144)], 100_000_000).rows;
        assert!(rows.abs_diff(alone) < 20, "{rows} and {alone}");
        let none = plan(&[(1 << 30, 144)], 1000);
        assert_eq!((none.rows, none.capacity), (0, 0));
    }
}

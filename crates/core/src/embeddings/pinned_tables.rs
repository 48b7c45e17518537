//! Pinned tables: tables that are kept whole in memory.
//!
//! Every request reads a table of a few rows, so its rows would stay under any sensible policy.
//! Pinned, they need no bookkeeping and are never evicted. Where all tables fit, all are pinned.

use super::{Budget, TableId};

/// If not all tables fit, pinned tables, smallest first, take at most 1/64 of the capacity.
const SHARE_DIVISOR: u64 = 64;

/// Whether each table is pinned: all of them if they fit together, else the smallest ones.
pub fn pinned_tables(budget: &Budget) -> Vec<bool> {
    let all: u64 = weights(budget).fold(0, |sum, (weight, _)| sum.saturating_add(weight));
    if all <= budget.capacity() {
        return vec![true; budget.tables().len()];
    }
    smallest_tables(budget)
}

/// Whether each table is among the smallest, which together stay within the share.
pub(super) fn smallest_tables(budget: &Budget) -> Vec<bool> {
    let mut left = budget.capacity() / SHARE_DIVISOR;
    let mut pinned = vec![false; budget.tables().len()];
    let mut by_weight: Vec<(u64, usize)> = weights(budget).collect();
    by_weight.sort_unstable();
    for (weight, index) in by_weight {
        if weight > left {
            break;
        }
        left -= weight;
        pinned[index] = true;
    }
    pinned
}

/// Weight and index of each table.
fn weights(budget: &Budget) -> impl Iterator<Item = (u64, usize)> {
    (0..budget.tables().len()).map(|index| {
        let table = TableId(u16::try_from(index).unwrap_or(u16::MAX));
        (budget.table_weight(table), index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;
    use crate::embeddings::{Capacity, TableShape};

    fn pinned(capacity: u64) -> Vec<bool> {
        let shape = |rows| TableShape { rows, row_bytes: 4 };
        let tables = [100, 3, 1_000_000, 10].map(shape).to_vec();
        pinned_tables(&Budget::new(tables, Capacity::Bytes(ByteSize(capacity))))
    }

    #[test]
    fn the_smallest_tables_are_pinned_and_all_of_them_if_they_fit() {
        assert_eq!(pinned(4 * 1_000_113), [true; 4]);
        assert_eq!(pinned(4 * 1_000_113 - 1), [true, true, false, true]);
        assert_eq!(pinned(64 * 4 * 13), [false, true, false, true], "13 rows are a 64th");
        assert_eq!(pinned(64 * 4 * 13 - 1), [false, true, false, false]);
        assert_eq!(pinned(0), [false; 4]);
    }
}

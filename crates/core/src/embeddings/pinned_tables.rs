//! Which tables are kept whole.
//!
//! A table of a few rows is asked for in every request: its rows would stay under any sensible policy, and
//! kept whole they cost neither a ranking nor a surprise. And where everything fits there is nothing to decide.

use super::{Budget, TableId};

/// Whole tables, smallest first, take at most this share of the capacity.
const SHARE_DIVISOR: u64 = 64;

/// The tables to keep whole: all of them if they fit together, else the smallest ones.
pub fn whole_tables(budget: &Budget) -> Vec<bool> {
    let all: u64 = weights(budget).fold(0, |sum, (weight, _)| sum.saturating_add(weight));
    if all <= budget.capacity() {
        return vec![true; budget.tables().len()];
    }
    smallest_tables(budget)
}

/// The smallest tables that together stay within the share.
pub(super) fn smallest_tables(budget: &Budget) -> Vec<bool> {
    let mut left = budget.capacity() / SHARE_DIVISOR;
    let mut whole = vec![false; budget.tables().len()];
    let mut by_weight: Vec<(u64, usize)> = weights(budget).collect();
    by_weight.sort_unstable();
    for (weight, index) in by_weight {
        if weight > left {
            break;
        }
        left -= weight;
        whole[index] = true;
    }
    whole
}

/// What each table weighs, with its place.
fn weights(budget: &Budget) -> impl Iterator<Item = (u64, usize)> {
    (0..budget.tables().len()).map(|index| {
        let table = TableId(u16::try_from(index).unwrap_or(u16::MAX));
        (budget.table_weight(table), index)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Capacity, TableShape},
        *,
    };
    use crate::ByteSize;

    fn whole(capacity: u64) -> Vec<bool> {
        let shape = |rows| TableShape { rows, row_bytes: 4 };
        let tables = [100, 3, 1_000_000, 10].map(shape).to_vec();
        whole_tables(&Budget::new(tables, Capacity::Bytes(ByteSize(capacity))))
    }

    #[test]
    fn the_smallest_are_kept_whole_and_all_of_them_where_they_fit() {
        assert_eq!(whole(4 * 1_000_113), [true; 4]);
        assert_eq!(whole(4 * 1_000_113 - 1), [true, true, false, true]);
        assert_eq!(whole(64 * 4 * 13), [false, true, false, true], "13 rows are a 64th");
        assert_eq!(whole(64 * 4 * 13 - 1), [false, true, false, false]);
        assert_eq!(whole(0), [false; 4]);
    }
}

//! Keys: a table and a row number in one word, totally ordered and cheap to hash.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::util::stable_hash::StableMap;
pub(super) use crate::util::stable_hash::mix;

/// Number of an embedding table.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct TableId(pub u16);

/// One row of one table. Both share a 64-bit word, so that a key hashes and compares as one number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// Rows that a table can have at most: 2^48.
    pub const ROWS_MAX: u64 = 1 << 48;

    /// The key of a row, or `None` if `row` is not below [`Key::ROWS_MAX`].
    pub const fn new(table: TableId, row: u64) -> Option<Self> {
        if row < Self::ROWS_MAX { Some(Self((table.0 as u64) << 48 | row)) } else { None }
    }

    /// The table.
    pub const fn table(self) -> TableId {
        TableId((self.0 >> 48) as u16)
    }

    /// The row within its table.
    pub const fn row(self) -> u64 {
        self.0 & (Self::ROWS_MAX - 1)
    }

    /// A 64-bit hash of this key, the same in every run.
    #[inline]
    pub const fn mixed(self) -> u64 {
        mix(self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.table().0, self.row())
    }
}

/// A map from keys whose iteration order is the same in every run.
pub type KeyMap<V> = StableMap<Key, V>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_its_table_and_row_and_rejects_rows_out_of_range() {
        let key = Key::new(TableId(7), Key::ROWS_MAX - 1).unwrap();
        assert_eq!((key.table(), key.row()), (TableId(7), Key::ROWS_MAX - 1));
        assert_eq!(Key::new(TableId(7), Key::ROWS_MAX), None);
    }
}

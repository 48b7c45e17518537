//! What a grouped lookup asks for: rows of tables, named by small, cheap, totally ordered keys.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stable::StableMap;
pub(super) use crate::stable::mix;

/// Which embedding table.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct TableId(pub u16);

/// One row of one table. Table and row share a word, so that a key hashes and compares as one number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// How many rows a table can name: 2^48.
    pub const ROWS_MAX: u64 = 1 << 48;

    /// The key of a row, or `None` where the row's number is beyond [`Key::ROWS_MAX`].
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

    /// A well-mixed 64-bit value of this key, the same in every run.
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

/// A map from keys that iterates and grows alike in every run.
pub type KeyMap<V> = StableMap<Key, V>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_its_table_and_row_and_refuses_rows_it_cannot_name() {
        let key = Key::new(TableId(7), Key::ROWS_MAX - 1).unwrap();
        assert_eq!((key.table(), key.row()), (TableId(7), Key::ROWS_MAX - 1));
        assert_eq!(Key::new(TableId(7), Key::ROWS_MAX), None);
    }
}

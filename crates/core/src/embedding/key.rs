//! What a grouped lookup asks for: rows of tables, named by small, cheap, totally ordered keys.

use std::{fmt, hash::Hasher};

use serde::{Deserialize, Serialize};

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

/// One folded multiplication: enough for hash tables and sketches, where nobody picks the keys to harm us.
#[inline]
pub(super) const fn mix(value: u64) -> u64 {
    let product = (value ^ 0x243f_6a88_85a3_08d3) as u128 * 0x9e37_79b9_7f4a_7c15_u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Hashes keys for hash tables, identically in every run: no decision may depend on a random seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map from keys that iterates and grows alike in every run.
pub type KeyMap<V> = hashbrown::HashMap<Key, V, std::hash::BuildHasherDefault<KeyHasher>>;

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

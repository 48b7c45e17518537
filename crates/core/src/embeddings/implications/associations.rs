//! Associations: which key of one table last came with which key of another, in a fixed table.
//!
//! Entries share buckets of four, the latest first, and are distinguished by 16 bits of a hash. A
//! lookup therefore returns a wrong row about once in ten thousand times, which costs a needless
//! read and nothing else.

use crate::embeddings::key::{Key, TableId, mix};

const WAYS: usize = 4;
const ROW_BITS: u32 = 48;

/// Pairs of keys that came together.
#[derive(Debug)]
pub(super) struct Associations {
    /// The upper bits of an entry are the tag, the lower ones the row. 0 is empty.
    buckets: Vec<[u64; WAYS]>,
}

impl Associations {
    /// A table for about `pairs` pairs.
    pub fn new(pairs: u64) -> Self {
        let buckets = (pairs / WAYS as u64).clamp(1, 1 << 26);
        let buckets = usize::try_from(buckets).expect("at most 2^26 buckets");
        Self { buckets: vec![[0; WAYS]; buckets] }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.buckets[..]) as u64
    }

    fn bucket_and_tag(&self, from: Key, to: TableId) -> (usize, u64) {
        let hash = mix(from.mixed() ^ (u64::from(to.0) + 1).rotate_right(16));
        let bucket = (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize;
        (bucket, (hash & 0xffff).max(1))
    }

    pub fn insert(&mut self, from: Key, to: Key) {
        let (bucket, tag) = self.bucket_and_tag(from, to.table());
        let bucket = &mut self.buckets[bucket];
        let at = bucket.iter().position(|entry| entry >> ROW_BITS == tag).unwrap_or(WAYS - 1);
        bucket[..=at].rotate_right(1);
        bucket[0] = tag << ROW_BITS | to.row();
    }

    pub fn get(&self, from: Key, to: TableId) -> Option<Key> {
        let (bucket, tag) = self.bucket_and_tag(from, to);
        let entry = self.buckets[bucket].iter().find(|entry| **entry >> ROW_BITS == tag)?;
        Key::new(to, entry & (Key::ROWS_MAX - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_pairs_are_found_with_few_false_positives() {
        let key = |table, row| Key::new(TableId(table), row).unwrap();
        let mut associations = Associations::new(4000);
        for row in 0..2000 {
            associations.insert(key(0, row), key(1, row + 7));
            associations.insert(key(0, row), key(2, row + 9));
            associations.insert(key(0, row), key(1, row + 8));
        }
        let found = |row| associations.get(key(0, row), TableId(1));
        let right = (0..2000).filter(|row| found(*row) == Some(key(1, row + 8))).count();
        assert!(right > 1400, "{right} of 2,000 in 4,000 entries");
        assert_eq!((1950..2000).filter(|row| found(*row) == Some(key(1, row + 8))).count(), 50);
        assert!((0..2000).all(|row| found(row).is_none_or(|to| to != key(1, row + 7))));
        let false_positives = (10_000..20_000).filter(|row| found(*row).is_some()).count();
        assert!(false_positives < 10, "{false_positives} of 10,000");
    }
}

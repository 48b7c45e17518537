//! Which key of one table came with which key of another, for as many as there is room for.
//!
//! Entries share buckets of four, the latest first; a few bits tell them apart. So a wrong row comes out of it now
//! and then (once in some ten thousand times), which costs a needless read and nothing else.

use super::super::key::{Key, TableId, mix};

const WAYS: usize = 4;
const ROW_BITS: u32 = 48;

/// Remembered pairs.
#[derive(Debug)]
pub(super) struct Recall {
    /// The upper bits of an entry tell whose it is, the lower ones are the row. Nought is none.
    buckets: Vec<[u64; WAYS]>,
}

impl Recall {
    /// For about so many pairs.
    pub fn new(pairs: u64) -> Self {
        let buckets = (pairs / WAYS as u64).clamp(1, 1 << 26);
        let buckets = usize::try_from(buckets).expect("at most 2^26 buckets");
        Self { buckets: vec![[0; WAYS]; buckets] }
    }

    fn place(&self, from: Key, to: TableId) -> (usize, u64) {
        let hash = mix(from.mixed() ^ (u64::from(to.0) + 1).rotate_right(16));
        let bucket = (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize;
        (bucket, (hash & 0xffff).max(1))
    }

    pub fn note(&mut self, from: Key, to: Key) {
        let (bucket, tag) = self.place(from, to.table());
        let bucket = &mut self.buckets[bucket];
        let at = bucket.iter().position(|entry| entry >> ROW_BITS == tag).unwrap_or(WAYS - 1);
        bucket[..=at].rotate_right(1);
        bucket[0] = tag << ROW_BITS | to.row();
    }

    pub fn find(&self, from: Key, to: TableId) -> Option<Key> {
        let (bucket, tag) = self.place(from, to);
        let entry = self.buckets[bucket].iter().find(|entry| **entry >> ROW_BITS == tag)?;
        Key::new(to, entry & (Key::ROWS_MAX - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_pairs_are_found_and_hardly_any_are_made_up() {
        let key = |table, row| Key::new(TableId(table), row).unwrap();
        let mut recall = Recall::new(4000);
        for row in 0..2000 {
            recall.note(key(0, row), key(1, row + 7));
            recall.note(key(0, row), key(2, row + 9));
            recall.note(key(0, row), key(1, row + 8));
        }
        let found = |row| recall.find(key(0, row), TableId(1));
        let right = (0..2000).filter(|row| found(*row) == Some(key(1, row + 8))).count();
        assert!(right > 1400, "{right} of 2,000 in 4,000 places");
        assert_eq!((1950..2000).filter(|row| found(*row) == Some(key(1, row + 8))).count(), 50);
        assert!((0..2000).all(|row| found(row).is_none_or(|to| to != key(1, row + 7))));
        let made_up = (10_000..20_000).filter(|row| found(*row).is_some()).count();
        assert!(made_up < 10, "{made_up} of 10,000");
    }
}

//! Directory: the resident keys of `group`, each in a slot, and a compact index from key to slot.
//!
//! A slot is a number that a row keeps while it is resident. Levels, flags and the row itself are
//! in arrays by slot, so that the cache has one index, not one for the policy and one for the rows.
//!
//! The index has buckets of [`CELLS`] cells. A cell is a tag of 8 bits and a slot of 32. A key that
//! finds its bucket full goes to the next one, and each bucket counts the keys that passed it, so
//! that a removal leaves no tombstone. At a load of [`LOAD`], a key costs 8 bytes for itself and
//! [`INDEX_BYTES_PER_KEY`] for the index; a hash map of keys and slots costs 20 to 39.

use super::{key::Key, slab_list::Slot};

/// Cells of a bucket.
const CELLS: usize = 15;
/// Words of a bucket: 15 tags and the count of passed keys in four words, then the slots.
const WORDS: usize = 4 + CELLS;
/// Byte of the first four words that counts the keys that passed a bucket because it was full.
const PASSED: usize = CELLS;
/// A count of passed keys that is not reduced any more, because it may be too low.
const PASSED_MAX: u8 = u8::MAX;

/// Share of the cells that the planned number of keys uses.
const LOAD: f64 = 0.8;
/// Share of the cells that may be used.
const LOAD_MAX: f64 = 0.95;

type Bucket = [u32; WORDS];

/// Keys by slot, and slots by key.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    /// Keys by slot. The key of a free slot is the last one that was there.
    keys: Vec<Key>,
    free: Vec<u32>,
    buckets: Vec<Bucket>,
}

/// Bytes of the index for a planned number of keys.
pub(super) fn index_bytes(planned: u64) -> u64 {
    bucket_count(planned) * size_of::<Bucket>() as u64
}

fn bucket_count(planned: u64) -> u64 {
    ((planned as f64 / LOAD / CELLS as f64).ceil() as u64).clamp(1, 1 << 28)
}

impl Directory {
    /// Bytes of a slot in the directory.
    pub const SLOT_BYTES: u32 = size_of::<Key>() as u32;

    /// An empty directory for a planned number of keys. It takes a few more.
    pub fn new(planned: u64) -> Self {
        let buckets = usize::try_from(bucket_count(planned)).expect("at most 2^28 buckets");
        Self { keys: Vec::new(), free: Vec::new(), buckets: vec![[0; WORDS]; buckets] }
    }

    /// Limit on the number of keys.
    pub fn keys_max(&self) -> usize {
        // A directory of one bucket may be full.
        let cells = self.buckets.len() * CELLS;
        ((cells as f64 * LOAD_MAX) as usize).max(CELLS.min(cells))
    }

    /// Number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len() - self.free.len()
    }

    /// Number of slots, including free ones.
    #[inline]
    pub fn slot_count(&self) -> usize {
        self.keys.len()
    }

    /// Bytes of keys and index. Memory that was never touched does not count.
    pub fn bytes(&self) -> u64 {
        let free = self.free.capacity() * size_of::<u32>();
        (self.keys.len() * size_of::<Key>() + self.buckets.len() * size_of::<Bucket>() + free)
            as u64
    }

    #[inline]
    pub fn key(&self, slot: Slot) -> Key {
        self.keys[slot.0 as usize]
    }

    #[inline]
    fn bucket_and_tag(&self, key: Key) -> (usize, u8) {
        let hash = key.mixed();
        // The upper half of the hash as a share of the buckets, whose number need not be a power of
        // two.
        let bucket = (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize;
        (bucket, (hash as u8).max(1))
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Slot of a key.
    #[inline]
    pub fn find(&self, key: Key) -> Option<Slot> {
        self.find_cell(key).map(|(bucket, cell)| Slot(self.buckets[bucket][4 + cell]))
    }

    #[inline]
    fn find_cell(&self, key: Key) -> Option<(usize, usize)> {
        let (mut at, tag) = self.bucket_and_tag(key);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut matches = cells_with(bucket, tag);
            while matches != 0 {
                let cell = (matches.trailing_zeros() / 8) as usize;
                if self.keys[bucket[4 + cell] as usize] == key {
                    return Some((at, cell));
                }
                matches &= matches - 1;
            }
            if byte(bucket, PASSED) == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a key that is not there. There must be fewer than [`Directory::keys_max`].
    pub fn insert(&mut self, key: Key) -> Slot {
        let slot = if let Some(slot) = self.free.pop() {
            self.keys[slot as usize] = key;
            slot
        } else {
            self.keys.push(key);
            u32::try_from(self.keys.len() - 1).expect("fewer than 2^32 rows are resident")
        };
        let (mut at, tag) = self.bucket_and_tag(key);
        for _ in 0..self.buckets.len() {
            let empty = cells_with(&self.buckets[at], 0);
            if empty != 0 {
                let cell = (empty.trailing_zeros() / 8) as usize;
                let bucket = &mut self.buckets[at];
                set_byte(bucket, cell, tag);
                bucket[4 + cell] = slot;
                return Slot(slot);
            }
            let passed = byte(&self.buckets[at], PASSED);
            set_byte(&mut self.buckets[at], PASSED, passed.saturating_add(1));
            at = self.after(at);
        }
        unreachable!("a directory with fewer than `keys_max` keys has an empty cell")
    }

    /// Removes the key of a slot, which is free from then on.
    pub fn remove(&mut self, slot: Slot) {
        let key = self.key(slot);
        let (found, cell) = self.find_cell(key).expect("the key of a used slot is in the index");
        set_byte(&mut self.buckets[found], cell, 0);
        let (mut at, _) = self.bucket_and_tag(key);
        while at != found {
            let passed = byte(&self.buckets[at], PASSED);
            if passed < PASSED_MAX {
                set_byte(&mut self.buckets[at], PASSED, passed - 1);
            }
            at = self.after(at);
        }
        self.free.push(slot.0);
    }

    /// Removes free slots from number `slots` on. All of these must be free.
    pub fn truncate(&mut self, slots: usize) {
        self.free.retain(|slot| (*slot as usize) < slots);
        self.keys.truncate(slots);
        self.keys.shrink_to_fit();
        assert!(self.free.len() <= self.keys.len(), "truncated slots are free");
    }
}

#[inline]
fn byte(bucket: &Bucket, at: usize) -> u8 {
    (bucket[at / 4] >> (at % 4 * 8)) as u8
}

#[inline]
fn set_byte(bucket: &mut Bucket, at: usize, value: u8) {
    let shift = at % 4 * 8;
    bucket[at / 4] = bucket[at / 4] & !(0xff << shift) | u32::from(value) << shift;
}

/// The cells with this tag: bit 7 of each one's byte.
#[inline]
fn cells_with(bucket: &Bucket, tag: u8) -> u128 {
    const ONES: u128 = u128::from_le_bytes([1; 16]);
    const LOW: u128 = ONES * 0x7f;
    const LAST: u128 = 0xff << (CELLS * 8);
    let tags = (0..4).fold(0, |tags, word| tags | u128::from(bucket[word]) << (word * 32));
    // A byte of `differing` is 0 in a cell with this tag; the count of passed keys never matches.
    let differing = (tags ^ (ONES * u128::from(tag))) | LAST;
    !(((differing & LOW) + LOW) | differing | LOW)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::embeddings::TableId;

    fn key(row: u64) -> Key {
        Key::new(TableId(3), row).unwrap()
    }

    #[test]
    fn keys_are_found_as_in_a_map_up_to_the_highest_load() {
        let mut random = fastrand::Rng::with_seed(1);
        for planned in [0, 1, 30, 1000] {
            let mut directory = Directory::new(planned);
            let most = directory.keys_max();
            assert!(most as u64 >= planned, "{most} for {planned}");
            let mut model: BTreeMap<u64, Slot> = BTreeMap::new();
            for _ in 0..40_000 {
                let row = random.u64(0..2 * most as u64);
                assert_eq!(directory.find(key(row)), model.get(&row).copied());
                let fills = random.u8(0..10) < 7;
                match model.get(&row).copied() {
                    Some(slot) if !fills => {
                        directory.remove(slot);
                        model.remove(&row);
                    }
                    None if fills && model.len() < most => {
                        let slot = directory.insert(key(row));
                        assert!(model.values().all(|other| *other != slot), "{slot:?} is used");
                        model.insert(row, slot);
                    }
                    _ => {}
                }
                assert_eq!(directory.len(), model.len());
            }
            for (row, slot) in model {
                assert_eq!((directory.find(key(row)), directory.key(slot)), (Some(slot), key(row)));
            }
        }
    }

    /// A removal leaves nothing behind: after any number of removals, missing keys are rejected at
    /// their first bucket.
    #[test]
    fn removals_leave_no_trace() {
        let mut directory = Directory::new(1000);
        for round in 0..200 {
            let slots: Vec<Slot> =
                (0..1000).map(|row| directory.insert(key(round * 1000 + row))).collect();
            for slot in slots {
                directory.remove(slot);
            }
        }
        assert!(directory.buckets.iter().all(|bucket| bucket[..4] == [0; 4]));
    }

    #[test]
    fn a_million_keys_take_less_than_fifteen_bytes_each() {
        let count = 1_000_000;
        let mut directory = Directory::new(count);
        (0..count).for_each(|row| _ = directory.insert(key(row)));
        let per_key = directory.bytes() as f64 / count as f64;
        assert!(per_key < 14.5, "{per_key}");
    }
}

//! LRU cache of items, the baseline: every item that is read is kept, and the least recently read
//! one is evicted.
//!
//! Items are numbered across all datasets, so the list is two arrays without a search.

/// No item.
const NONE: u32 = u32::MAX;

/// Items ordered by their last read.
#[derive(Debug)]
pub(super) struct Lru {
    newer: Vec<u32>,
    older: Vec<u32>,
    /// Length of each item; 0 if it is not resident.
    lengths: Vec<u64>,
    newest: u32,
    oldest: u32,
    used: u64,
    capacity: u64,
}

impl Lru {
    /// An empty cache of `capacity` bytes for `items` items.
    pub fn new(items: usize, capacity: u64) -> Self {
        assert!(items < NONE as usize, "items are numbered with 32 bits");
        Self {
            newer: vec![NONE; items],
            older: vec![NONE; items],
            lengths: vec![0; items],
            newest: NONE,
            oldest: NONE,
            used: 0,
            capacity,
        }
    }

    /// Reads an item. Returns whether it is resident.
    pub fn read(&mut self, item: u32) -> bool {
        let is_resident = self.lengths[item as usize] > 0;
        if is_resident {
            self.unlink(item);
            self.link(item);
        }
        is_resident
    }

    /// Inserts a fetched item, if it fits at all. Returns `false` if it was resident already.
    pub fn insert(&mut self, item: u32, bytes: u64) -> bool {
        assert!(bytes > 0, "an empty item");
        if self.read(item) {
            return false;
        }
        if bytes > self.capacity {
            return true;
        }
        while self.used > self.capacity - bytes {
            self.remove(self.oldest);
        }
        self.lengths[item as usize] = bytes;
        self.used += bytes;
        self.link(item);
        true
    }

    /// Removes an item, if it is resident.
    pub fn remove(&mut self, item: u32) {
        if self.lengths[item as usize] > 0 {
            self.unlink(item);
            self.used -= std::mem::take(&mut self.lengths[item as usize]);
        }
    }

    /// Number of items, resident or not.
    pub fn items(&self) -> u32 {
        u32::try_from(self.lengths.len()).expect("fewer than 2^32 items")
    }

    fn link(&mut self, item: u32) {
        let second = self.newest;
        self.older[item as usize] = second;
        self.newer[item as usize] = NONE;
        match second {
            NONE => self.oldest = item,
            second => self.newer[second as usize] = item,
        }
        self.newest = item;
    }

    fn unlink(&mut self, item: u32) {
        let (newer, older) = (self.newer[item as usize], self.older[item as usize]);
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a list that is searched and shifted.
    #[test]
    fn it_behaves_like_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut lru = Lru::new(50, 100);
        let mut plain: Vec<(u32, u64)> = Vec::new();
        for _ in 0..20_000 {
            let item = random.u32(..50);
            let index = plain.iter().position(|(known, _)| *known == item);
            match random.u8(..10) {
                0 => {
                    lru.remove(item);
                    index.map(|index| plain.remove(index));
                }
                1..5 => {
                    assert_eq!(lru.read(item), index.is_some());
                    if let Some(index) = index {
                        let entry = plain.remove(index);
                        plain.push(entry);
                    }
                }
                _ => {
                    let bytes = index.map_or_else(|| random.u64(1..20), |index| plain[index].1);
                    assert_eq!(lru.insert(item, bytes), index.is_none());
                    if let Some(index) = index {
                        plain.remove(index);
                    }
                    plain.push((item, bytes));
                    while plain.iter().map(|(_, bytes)| bytes).sum::<u64>() > 100 {
                        plain.remove(0);
                    }
                }
            }
            assert_eq!(lru.used, plain.iter().map(|(_, bytes)| bytes).sum::<u64>());
        }
    }

    #[test]
    fn an_item_larger_than_the_cache_is_not_kept() {
        let mut lru = Lru::new(1, 10);
        assert!(lru.insert(0, 11) && !lru.read(0) && lru.used == 0);
    }
}

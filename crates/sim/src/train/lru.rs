//! A general cache, for comparison: whatever is read comes in, whatever was read longest ago goes.
//!
//! Items are numbered across all datasets, so the list is two arrays and costs no search.

/// No item.
const NOBODY: u32 = u32::MAX;

/// Items by when they were last read.
#[derive(Debug)]
pub(super) struct Lru {
    newer: Vec<u32>,
    older: Vec<u32>,
    /// How long each item is; nought while it is away.
    lengths: Vec<u64>,
    newest: u32,
    oldest: u32,
    used: u64,
    capacity: u64,
}

impl Lru {
    /// An empty cache of `capacity` bytes for so many items.
    pub fn new(items: usize, capacity: u64) -> Self {
        assert!(items < NOBODY as usize, "items are numbered with 32 bits");
        Self {
            newer: vec![NOBODY; items],
            older: vec![NOBODY; items],
            lengths: vec![0; items],
            newest: NOBODY,
            oldest: NOBODY,
            used: 0,
            capacity,
        }
    }

    /// Reads an item; false if it is not there.
    pub fn read(&mut self, item: u32) -> bool {
        let there = self.lengths[item as usize] > 0;
        if there {
            self.unlink(item);
            self.link(item);
        }
        there
    }

    /// Keeps an item that was fetched, if it fits at all. False if it was there already.
    pub fn keep(&mut self, item: u32, bytes: u64) -> bool {
        assert!(bytes > 0, "an item without a byte");
        if self.read(item) {
            return false;
        }
        if bytes > self.capacity {
            return true;
        }
        while self.used > self.capacity - bytes {
            self.drop_item(self.oldest);
        }
        self.lengths[item as usize] = bytes;
        self.used += bytes;
        self.link(item);
        true
    }

    /// Drops an item, if it is there.
    pub fn drop_item(&mut self, item: u32) {
        if self.lengths[item as usize] > 0 {
            self.unlink(item);
            self.used -= std::mem::take(&mut self.lengths[item as usize]);
        }
    }

    /// How many items there are, here or away.
    pub fn items(&self) -> u32 {
        u32::try_from(self.lengths.len()).expect("fewer than NOBODY")
    }

    fn link(&mut self, item: u32) {
        let second = self.newest;
        self.older[item as usize] = second;
        self.newer[item as usize] = NOBODY;
        match second {
            NOBODY => self.oldest = item,
            second => self.newer[second as usize] = item,
        }
        self.newest = item;
    }

    fn unlink(&mut self, item: u32) {
        let (newer, older) = (self.newer[item as usize], self.older[item as usize]);
        match newer {
            NOBODY => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NOBODY => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list that is searched and shifted.
    #[test]
    fn like_the_plainest_list() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut lru = Lru::new(50, 100);
        let mut plain: Vec<(u32, u64)> = Vec::new();
        for _ in 0..20_000 {
            let item = random.u32(..50);
            let place = plain.iter().position(|(known, _)| *known == item);
            match random.u8(..10) {
                0 => {
                    lru.drop_item(item);
                    place.map(|place| plain.remove(place));
                }
                1..5 => {
                    assert_eq!(lru.read(item), place.is_some());
                    if let Some(place) = place {
                        let entry = plain.remove(place);
                        plain.push(entry);
                    }
                }
                _ => {
                    let bytes = place.map_or_else(|| random.u64(1..20), |place| plain[place].1);
                    assert_eq!(lru.keep(item, bytes), place.is_none());
                    if let Some(place) = place {
                        plain.remove(place);
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
    fn what_never_fits_is_not_kept() {
        let mut lru = Lru::new(1, 10);
        assert!(lru.keep(0, 11) && !lru.read(0) && lru.used == 0);
    }
}

//! A map with a fixed number of entries, for what the gateway may forget at any time.
//!
//! A full map evicts by second chance: an entry that was looked up since the hand last passed it
//! is spared once. Keys are hashes already, so the map hashes them quickly.

use std::hash::Hash;

use crate::util::stable_hash::StableMap;

/// The map. Inserting into a full map returns the entry that made room.
#[derive(Debug)]
pub struct BoundedMap<K, V> {
    slots: Vec<Slot<K, V>>,
    by_key: StableMap<K, usize>,
    hand: usize,
    entries_max: usize,
}

#[derive(Debug)]
struct Slot<K, V> {
    entry: Option<(K, V)>,
    is_used: bool,
}

impl<K: Copy + Eq + Hash, V> BoundedMap<K, V> {
    /// A map of at most this number of entries, and at least one.
    pub fn new(entries_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            by_key: StableMap::default(),
            hand: 0,
            entries_max: entries_max.max(1),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// An entry, which counts as used.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let slot = &mut self.slots[*self.by_key.get(key)?];
        slot.is_used = true;
        slot.entry.as_mut().map(|(_, value)| value)
    }

    /// Inserts or replaces an entry. Returns the one that was evicted for it.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        if let Some(at) = self.by_key.get(&key) {
            self.slots[*at] = Slot { entry: Some((key, value)), is_used: true };
            return None;
        }
        let new = Slot { entry: Some((key, value)), is_used: false };
        let (at, evicted) = if self.slots.len() < self.entries_max {
            self.slots.push(new);
            (self.slots.len() - 1, None)
        } else {
            let at = self.victim();
            let evicted = std::mem::replace(&mut self.slots[at], new).entry;
            if let Some((key, _)) = &evicted {
                self.by_key.remove(key);
            }
            (at, evicted)
        };
        self.by_key.insert(key, at);
        evicted
    }

    /// The next slot whose entry has not been used since the hand passed it. All slots are taken.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].is_used) {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_stays_bounded_and_spares_what_is_used() {
        let mut map = BoundedMap::new(4);
        for key in 0..4_u64 {
            assert_eq!(map.insert(key, key), None);
        }
        assert_eq!(map.get_mut(&0), Some(&mut 0));
        assert_eq!(map.insert(4, 4), Some((1, 1)));
        assert_eq!(map.insert(0, 7), None);
        for key in 10..1000 {
            map.insert(key, key);
            assert_eq!(map.len(), 4);
        }
        assert_eq!(map.get_mut(&999), Some(&mut 999));
    }
}

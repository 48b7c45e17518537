//! What is resident, within a capacity: the books of a store of whole blobs, oldest out first.
//!
//! Space is reserved before a byte is written, and what has to go for it is named then, so that the
//! capacity is never exceeded, not even briefly (promise 6). The flash engine will decide by region and
//! group; until then this is the whole policy.

use std::collections::{BTreeMap, VecDeque};

use crate::{Address, ByteSize};

/// The books.
#[derive(Debug)]
pub struct Shelf {
    capacity: ByteSize,
    /// Bytes resident and bytes promised to writers.
    taken: u64,
    blobs: BTreeMap<Address, Place>,
    /// Resident blobs in the order in which they came; those that left early leave a gap behind.
    order: VecDeque<(Stay, Address)>,
    resident: Stock,
    next: u64,
}

/// How much there is of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stock {
    /// How many.
    pub blobs: u64,
    /// How long they are together.
    pub bytes: u64,
}

/// One stay of a blob: once it has gone and come again, it is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay(u64);

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Space is kept for it.
    Reserved { length: u64 },
    /// It can be read.
    Resident { length: u64, stay: Stay },
}

/// There is no room, even if everything that can go goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a blob of {} does not fit into what is free of {capacity}", ByteSize(*length))]
pub struct NoSpace {
    length: u64,
    capacity: ByteSize,
}

impl Shelf {
    /// An empty one.
    pub fn new(capacity: ByteSize) -> Self {
        let (blobs, order) = (BTreeMap::new(), VecDeque::new());
        Self { capacity, taken: 0, blobs, order, resident: Stock::default(), next: 0 }
    }

    /// The most it may ever hold.
    pub fn capacity(&self) -> ByteSize {
        self.capacity
    }

    /// What can be read.
    pub fn resident(&self) -> Stock {
        self.resident
    }

    /// Whether this blob can be read.
    pub fn contains(&self, address: &Address) -> bool {
        self.stay(address).is_some()
    }

    /// This blob's stay, if it can be read.
    pub fn stay(&self, address: &Address) -> Option<Stay> {
        match self.blobs.get(address) {
            Some(Place::Resident { stay, .. }) => Some(*stay),
            _ => None,
        }
    }

    /// Keeps space for a blob. Returns what has to be removed from the disk before it is written.
    pub fn reserve(&mut self, address: Address, length: u64) -> Result<Vec<Address>, NoSpace> {
        assert!(!self.blobs.contains_key(&address), "{address} has its place already");
        let reserved = self.taken - self.resident.bytes;
        if reserved.saturating_add(length) > self.capacity.0 {
            return Err(NoSpace { length, capacity: self.capacity });
        }
        let mut leaving = Vec::new();
        while self.taken + length > self.capacity.0 {
            leaving.push(self.oldest().expect("what is not reserved is resident"));
            self.remove(leaving.last().expect("just pushed"));
        }
        self.taken += length;
        self.blobs.insert(address, Place::Reserved { length });
        Ok(leaving)
    }

    /// The blob has been written whole.
    pub fn commit(&mut self, address: &Address) {
        let place = self.blobs.get_mut(address).expect("reserved before");
        let Place::Reserved { length } = *place else { panic!("{address} was committed before") };
        let stay = Stay(self.next);
        *place = Place::Resident { length, stay };
        self.order.push_back((stay, *address));
        self.next += 1;
        self.resident.blobs += 1;
        self.resident.bytes += length;
    }

    /// The blob is gone, or was never finished. False if it was not here.
    pub fn remove(&mut self, address: &Address) -> bool {
        match self.blobs.remove(address) {
            None => return false,
            Some(Place::Reserved { length }) => self.taken -= length,
            Some(Place::Resident { length, .. }) => {
                self.taken -= length;
                self.resident.blobs -= 1;
                self.resident.bytes -= length;
            }
        }
        // Gaps are dropped from the front as they come there, and all at once when they prevail.
        if self.order.len() as u64 > 2 * self.resident.blobs + 64 {
            let blobs = &self.blobs;
            self.order.retain(|(stay, address)| is_stay(blobs.get(address), *stay));
        }
        true
    }

    fn oldest(&mut self) -> Option<Address> {
        while let Some((stay, address)) = self.order.front() {
            if is_stay(self.blobs.get(address), *stay) {
                return Some(*address);
            }
            self.order.pop_front();
        }
        None
    }
}

fn is_stay(place: Option<&Place>, wanted: Stay) -> bool {
    matches!(place, Some(Place::Resident { stay, .. }) if *stay == wanted)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob(index: u8) -> Address {
        Address::from_bytes([index; 32])
    }

    fn put(shelf: &mut Shelf, index: u8, length: u64) -> Vec<Address> {
        let leaving = shelf.reserve(blob(index), length).unwrap();
        shelf.commit(&blob(index));
        leaving
    }

    #[test]
    fn the_oldest_goes_first_and_only_when_it_must() {
        let mut shelf = Shelf::new(ByteSize(10));
        assert!(put(&mut shelf, 1, 4).is_empty() && put(&mut shelf, 2, 4).is_empty());
        assert!(shelf.remove(&blob(1)) && put(&mut shelf, 1, 4).is_empty(), "young again");
        assert_eq!(put(&mut shelf, 3, 3), [blob(2)]);
        assert!(shelf.contains(&blob(1)) && !shelf.contains(&blob(2)));
        assert_eq!(shelf.resident(), Stock { blobs: 2, bytes: 7 });
    }

    #[test]
    fn what_is_being_written_is_counted_and_stays() {
        let mut shelf = Shelf::new(ByteSize(10));
        shelf.reserve(blob(1), 8).unwrap();
        assert!(!shelf.contains(&blob(1)), "not before it is whole");
        assert!(shelf.reserve(blob(2), 3).is_err());
        shelf.remove(&blob(1));
        assert!(put(&mut shelf, 2, 10).is_empty());
        assert!(shelf.reserve(blob(3), 11).is_err());
        assert!(shelf.contains(&blob(2)), "nothing is thrown out for what never fits");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 6: capacity holds at every moment, and the books agree with a naive count.
        #[test]
        fn the_capacity_always_holds(steps in proptest::collection::vec((0_u8..3, 0_u8..12, 0_u64..7), 0..300)) {
            let mut shelf = Shelf::new(ByteSize(16));
            let mut known: BTreeMap<u8, (u64, bool)> = BTreeMap::new();
            for (what, index, length) in steps {
                match (what, known.get(&index).copied()) {
                    (0, None) => if let Ok(leaving) = shelf.reserve(blob(index), length) {
                        for address in leaving {
                            prop_assert_eq!(known.remove(&address.as_bytes()[0]).map(|(_, resident)| resident), Some(true));
                        }
                        known.insert(index, (length, false));
                    },
                    (1, Some((length, false))) => {
                        shelf.commit(&blob(index));
                        known.insert(index, (length, true));
                    }
                    (2, there) => {
                        prop_assert_eq!(shelf.remove(&blob(index)), there.is_some());
                        known.remove(&index);
                    }
                    _ => {}
                }
                let taken: u64 = known.values().map(|(length, _)| length).sum();
                prop_assert_eq!(shelf.taken, taken);
                prop_assert!(taken <= 16);
                let resident = known.values().filter(|(_, resident)| *resident);
                let stock = resident.fold(Stock::default(), |stock, (length, _)| Stock { blobs: stock.blobs + 1, bytes: stock.bytes + length });
                prop_assert_eq!(shelf.resident(), stock);
                prop_assert!(shelf.order.len() <= 2 * known.len() + 65);
            }
        }
    }
}

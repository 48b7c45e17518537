//! Where entries lie, in a few bytes each.
//!
//! In a group whose keys are dense ordinals that is an array of places, in pages, so that one high ordinal
//! costs a page. All other keys share one hash table
//! of places and 48 bits of the key; two keys with the same bits take each other's place there, which is a
//! miss for one of them and no more: what a key reads is proved by the key on the device.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::layout::{RegionId, UNIT};

/// An entry's name on a device: a hash, or a hash of a group's name and an ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u8; 32]);

/// A group, for as long as the device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// Ordinals of a dense group are below this.
pub const ORDINALS_MAX: u64 = 1 << 26;

/// A place on a device: region, offset and size in 64 bits. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location(u64);

const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;

impl Location {
    /// Offset and size are multiples of [`UNIT`].
    pub fn new(RegionId(region): RegionId, offset: u64, size: u64) -> Self {
        let (offset, size) = (offset / UNIT as u64, size / UNIT as u64);
        assert!(
            0 < offset && offset <= FIELD && size <= FIELD,
            "inside a region, behind its header"
        );
        Self(u64::from(region) << (2 * FIELD_BITS) | offset << FIELD_BITS | size)
    }

    /// The region.
    pub fn region(self) -> RegionId {
        RegionId(u32::try_from(self.0 >> (2 * FIELD_BITS)).expect("24 bits"))
    }

    /// Where the entry begins in it.
    pub fn offset(self) -> u64 {
        (self.0 >> FIELD_BITS & FIELD) * UNIT as u64
    }

    /// How long the whole entry is.
    pub fn size(self) -> u64 {
        (self.0 & FIELD) * UNIT as u64
    }
}

/// What the table keeps of a key. The lower half alone is enough to find it when its region goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    low: u32,
    high: u16,
}

impl Fingerprint {
    /// Keys are hashes, so their bits serve as they are; the same in every run.
    pub fn of(key: &Key) -> Self {
        let (low, rest) = key.0.split_first_chunk().expect("long enough");
        let high = rest.first_chunk().expect("long enough");
        Self { low: u32::from_le_bytes(*low), high: u16::from_le_bytes(*high) }
    }

    /// The lower half.
    pub fn low(self) -> u32 {
        self.low
    }
}

/// Fourteen bytes: a place and a fingerprint.
#[derive(Clone, Copy)]
struct Slot([u16; 7]);

impl Slot {
    fn new(fingerprint: Fingerprint, Location(location): Location) -> Self {
        let half = |word: u64, at: u32| u16::try_from(word >> (16 * at) & 0xffff).expect("masked");
        let low = u64::from(fingerprint.low);
        Self([
            half(location, 0),
            half(location, 1),
            half(location, 2),
            half(location, 3),
            half(low, 0),
            half(low, 1),
            fingerprint.high,
        ])
    }

    fn location(self) -> Location {
        Location((0..4).map(|at| u64::from(self.0[at]) << (16 * at)).sum())
    }

    fn low(self) -> u32 {
        u32::from(self.0[4]) | u32::from(self.0[5]) << 16
    }

    fn fingerprint(self) -> Fingerprint {
        Fingerprint { low: self.low(), high: self.0[6] }
    }
}

fn hash(low: u32) -> u64 {
    // Fibonacci hashing: the table wants its bits at both ends.
    u64::from(low).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Ordinals of one page.
const PAGE: usize = 512;

type Page = [u64; PAGE];

/// The places of a dense group, by ordinal; nought where there is none.
#[derive(Default)]
struct Places(Vec<Option<Box<Page>>>);

impl Places {
    fn split(ordinal: u64) -> Option<(usize, usize)> {
        let ordinal = usize::try_from(ordinal).ok()?;
        Some((ordinal / PAGE, ordinal % PAGE))
    }

    fn get(&self, ordinal: u64) -> Option<&u64> {
        let (page, at) = Self::split(ordinal)?;
        Some(&self.0.get(page)?.as_ref()?[at])
    }

    fn get_mut(&mut self, ordinal: u64) -> Option<&mut u64> {
        let (page, at) = Self::split(ordinal)?;
        Some(&mut self.0.get_mut(page)?.as_mut()?[at])
    }

    fn make(&mut self, ordinal: u64) -> &mut u64 {
        let (page, at) = Self::split(ordinal).expect("below ORDINALS_MAX");
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        &mut self.0[page].get_or_insert_with(|| Box::new([0; PAGE]))[at]
    }

    fn memory(&self) -> usize {
        let pages = self.0.iter().flatten().count();
        pages * size_of::<Page>() + self.0.capacity() * size_of::<Option<Box<Page>>>()
    }
}

/// All places of one device.
#[derive(Default)]
pub struct Index {
    hashed: HashTable<Slot>,
    dense: BTreeMap<GroupId, Places>,
    /// While the device cannot be read, nobody need ask for what is on it.
    unreadable: bool,
}

impl Index {
    /// Where this key was last written to, if that is still there.
    pub fn find(&self, key: &Key) -> Option<Location> {
        let wanted = Fingerprint::of(key);
        let slot = self.hashed.find(hash(wanted.low), |slot| slot.fingerprint() == wanted)?;
        Some(slot.location())
    }

    /// Where this ordinal of a dense group was last written to.
    pub fn find_ordinal(&self, group: GroupId, ordinal: u64) -> Option<Location> {
        let place = *self.dense.get(&group)?.get(ordinal)?;
        (place != 0).then_some(Location(place))
    }

    /// Says where a key is. Returns where it was.
    pub fn insert(&mut self, key: &Key, location: Location) -> Option<Location> {
        let fingerprint = Fingerprint::of(key);
        let new = Slot::new(fingerprint, location);
        let found = self
            .hashed
            .find_mut(hash(fingerprint.low), |slot| slot.fingerprint() == fingerprint)
            .map(|slot| std::mem::replace(slot, new).location());
        if found.is_none() {
            self.hashed.insert_unique(hash(fingerprint.low), new, |slot| hash(slot.low()));
        }
        found
    }

    /// Says where an ordinal is. Returns where it was.
    pub fn insert_ordinal(
        &mut self,
        group: GroupId,
        ordinal: u64,
        location: Location,
    ) -> Option<Location> {
        assert!(ordinal < ORDINALS_MAX, "checked before it was written");
        let places = self.dense.entry(group).or_default();
        let before = std::mem::replace(places.make(ordinal), location.0);
        (before != 0).then_some(Location(before))
    }

    /// Whether what is found can be read, as far as anybody knows.
    pub fn is_readable(&self) -> bool {
        !self.unreadable
    }

    /// The device can be read again, or cannot.
    pub fn set_readable(&mut self, readable: bool) {
        self.unreadable = !readable;
    }

    /// Forgets a key, if it is at this place.
    pub fn remove(&mut self, key: &Key, location: Location) -> bool {
        let wanted = Fingerprint::of(key);
        let is_it = |slot: &Slot| slot.fingerprint() == wanted && slot.location() == location;
        self.hashed
            .find_entry(hash(wanted.low), is_it)
            .map(hashbrown::hash_table::OccupiedEntry::remove)
            .is_ok()
    }

    /// Forgets an ordinal, if it is at this place.
    pub fn remove_ordinal(&mut self, group: GroupId, ordinal: u64, location: Location) -> bool {
        let place = self.dense.get_mut(&group).and_then(|places| places.get_mut(ordinal));
        let place = place.filter(|place| **place == location.0);
        place.map(|place| *place = 0).is_some()
    }

    /// Forgets what lies in a region, given the lower halves of the fingerprints that were written to it.
    pub fn remove_region(&mut self, region: RegionId, lows: &[u32]) {
        for &low in lows {
            let is_it = |slot: &Slot| slot.low() == low && slot.location().region() == region;
            if let Ok(entry) = self.hashed.find_entry(hash(low), is_it) {
                entry.remove();
            }
        }
    }

    /// Forgets what of a dense group lies in a region.
    pub fn remove_region_of(&mut self, group: GroupId, region: RegionId) {
        let pages = self.dense.get_mut(&group).into_iter().flat_map(|places| &mut places.0);
        for place in pages.flatten().flat_map(|page| page.iter_mut()) {
            if *place != 0 && Location(*place).region() == region {
                *place = 0;
            }
        }
    }

    /// Forgets a dense group.
    pub fn remove_group(&mut self, group: GroupId) {
        self.dense.remove(&group);
    }

    /// The ordinals of a dense group that are there.
    pub fn ordinals(&self, group: GroupId) -> impl Iterator<Item = u64> {
        let pages = self.dense.get(&group).map_or(&[][..], |places| &places.0);
        let pages = (0..).step_by(PAGE).zip(pages);
        let pages = pages.filter_map(|(first, page)| Some((first, page.as_deref()?)));
        pages.flat_map(|(first, page): (u64, &Page)| {
            let there = (first..).zip(page).filter(|(_, place)| **place != 0);
            there.map(|(ordinal, _)| ordinal)
        })
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let dense = self.dense.values().map(Places::memory);
        self.hashed.allocation_size() + dense.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(region: u32, at: u64) -> Location {
        Location::new(RegionId(region), 4096 + at * 64, 128)
    }

    fn key(number: u64) -> Key {
        let mut key = [0; 32];
        fastrand::Rng::with_seed(number).fill(&mut key);
        Key(key)
    }

    #[test]
    fn a_place_keeps_its_parts() {
        let last = Location::new(RegionId((1 << 24) - 1), (64 << 20) - 64, (64 << 20) - 4096);
        assert_eq!(last.region(), RegionId((1 << 24) - 1));
        assert_eq!((last.offset(), last.size()), ((64 << 20) - 64, (64 << 20) - 4096));
        let slot = Slot::new(Fingerprint { low: 0xdead_beef, high: 0x1234 }, last);
        assert_eq!(slot.location(), last);
        assert_eq!(slot.fingerprint(), Fingerprint { low: 0xdead_beef, high: 0x1234 });
    }

    #[test]
    fn a_region_goes_with_what_is_in_it_and_nothing_else() {
        let mut index = Index::default();
        let lows: Vec<u32> = (0..1000).map(|number| Fingerprint::of(&key(number)).low()).collect();
        for number in 0..1000 {
            assert_eq!(index.insert(&key(number), place(1, number)), None);
        }
        for number in 0..100 {
            assert_eq!(index.insert(&key(number), place(2, number)), Some(place(1, number)));
        }
        index.remove_region(RegionId(1), &lows);
        let left = (0..1000).filter_map(|number| index.find(&key(number)));
        assert!(left.eq((0..100).map(|number| place(2, number))));
        assert!(!index.remove(&key(1), place(1, 1)), "it is elsewhere now");
        assert!(index.remove(&key(1), place(2, 1)) && index.find(&key(1)).is_none());
    }

    #[test]
    fn ordinals_are_an_array() {
        let mut index = Index::default();
        let group = GroupId(3);
        index.insert_ordinal(group, 5, place(1, 0));
        index.insert_ordinal(group, 2, place(2, 0));
        assert_eq!(index.find_ordinal(group, 5), Some(place(1, 0)));
        assert_eq!(index.find_ordinal(group, 4), None);
        assert_eq!(index.find_ordinal(group, u64::MAX), None);
        assert_eq!(index.ordinals(group).collect::<Vec<_>>(), [2, 5]);
        index.remove_region_of(group, RegionId(1));
        assert_eq!(index.ordinals(group).collect::<Vec<_>>(), [2]);
        index.remove_group(group);
        assert_eq!(index.memory(), 0);
    }

    /// The target of a hashed key, index and region list together: at most 32 bytes.
    #[test]
    fn a_hashed_key_costs_few_bytes() {
        let mut index = Index::default();
        for number in 0..100_000_u64 {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            index.insert(&Key(bytes), place(1, number % 1000));
        }
        let each = index.memory() / 100_000 + size_of::<u32>();
        assert!(each <= 32, "{each} bytes");
    }
}

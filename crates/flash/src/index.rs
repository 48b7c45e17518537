//! The index: location of every entry of a device, in at most 32 bytes each.
//!
//! Dense groups, whose entries are named by ordinals, have an array of locations. The array is
//! split into pages, so that one high ordinal costs one page. All other keys share one hash table
//! of locations and 48-bit fingerprints. Keys with the same fingerprint overwrite each other, which
//! costs a miss: a read compares the whole key with the one on the device.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::format::{Geometry, RegionId, UNIT};

/// Name of an entry on a device: a hash, or the hash of a group's name followed by an ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryKey(pub [u8; 32]);

/// Number of a group while the device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// Limit of the ordinals of a dense group.
pub const ORDINALS_MAX: u64 = 1 << 26;

/// Region, offset and size of an entry, in 64 bits. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location(u64);

const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;

impl Location {
    /// `offset` and `size` are multiples of [`UNIT`].
    pub fn new(RegionId(region): RegionId, offset: u64, size: u64) -> Self {
        let (offset, size) = (offset / UNIT as u64, size / UNIT as u64);
        assert!(
            0 < offset && offset <= FIELD && size <= FIELD,
            "the entry lies inside a region, after its header"
        );
        Self(u64::from(region) << (2 * FIELD_BITS) | offset << FIELD_BITS | size)
    }

    /// The location as a number, for another process.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// A location that another process has sent. `None` unless it lies inside a region of this
    /// device, after its header.
    pub fn from_bits(bits: u64, geometry: &Geometry) -> Option<Self> {
        let location = Self(bits);
        let is_inside = location.region().0 < geometry.regions
            && location.offset() > 0
            && location.size() > 0
            && location.offset() + location.size() <= geometry.region_size;
        is_inside.then_some(location)
    }

    /// The region.
    pub fn region(self) -> RegionId {
        RegionId(u32::try_from(self.0 >> (2 * FIELD_BITS)).expect("24 bits"))
    }

    /// Offset of the entry in the region.
    pub fn offset(self) -> u64 {
        (self.0 >> FIELD_BITS & FIELD) * UNIT as u64
    }

    /// Size of the whole entry.
    pub fn size(self) -> u64 {
        (self.0 & FIELD) * UNIT as u64
    }
}

/// The 48 bits of a key that the hash table stores. The lower 32 bits are enough to find the entry
/// when its region is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    low: u32,
    high: u16,
}

impl Fingerprint {
    /// Keys are hashes, so their first bits are taken unchanged.
    pub fn of(key: &EntryKey) -> Self {
        let (low, rest) = key.0.split_first_chunk().expect("a key has 32 bytes");
        let high = rest.first_chunk().expect("a key has 32 bytes");
        Self { low: u32::from_le_bytes(*low), high: u16::from_le_bytes(*high) }
    }

    /// The lower 32 bits.
    pub fn low(self) -> u32 {
        self.low
    }
}

/// A location and a fingerprint, in 14 bytes.
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
    // Fibonacci hashing: the table uses the bits at both ends.
    u64::from(low).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Ordinals per page.
const PAGE: usize = 512;

type Page = [u64; PAGE];

/// Locations of a dense group, by ordinal; 0 if there is none.
#[derive(Default)]
struct OrdinalPages(Vec<Option<Box<Page>>>);

impl OrdinalPages {
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

    fn get_or_insert(&mut self, ordinal: u64) -> &mut u64 {
        let (page, at) = Self::split(ordinal).expect("below ORDINALS_MAX");
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        &mut self.0[page].get_or_insert_with(|| Box::new([0; PAGE]))[at]
    }

    /// Frees the page of an ordinal that was removed, if it was the last one there.
    fn free_if_empty(&mut self, ordinal: u64) {
        if let Some((page, _)) = Self::split(ordinal)
            && let Some(page) = self.0.get_mut(page)
            && page.as_ref().is_some_and(|page| page.iter().all(|location| *location == 0))
        {
            *page = None;
        }
    }

    fn memory(&self) -> usize {
        let pages = self.0.iter().flatten().count();
        pages * size_of::<Page>() + self.0.capacity() * size_of::<Option<Box<Page>>>()
    }
}

/// The index of one device.
#[derive(Default)]
pub struct Index {
    hashed: HashTable<Slot>,
    dense: BTreeMap<GroupId, OrdinalPages>,
    /// Set while the device cannot be read, so that lookups by key skip it.
    unreadable: bool,
}

impl Index {
    /// Location of a key.
    pub fn find(&self, key: &EntryKey) -> Option<Location> {
        let wanted = Fingerprint::of(key);
        let slot = self.hashed.find(hash(wanted.low), |slot| slot.fingerprint() == wanted)?;
        Some(slot.location())
    }

    /// Location of an ordinal of a dense group.
    pub fn find_ordinal(&self, group: GroupId, ordinal: u64) -> Option<Location> {
        let location = *self.dense.get(&group)?.get(ordinal)?;
        (location != 0).then_some(Location(location))
    }

    /// Sets a key's location. Returns the previous one.
    pub fn insert(&mut self, key: &EntryKey, location: Location) -> Option<Location> {
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

    /// Sets an ordinal's location. Returns the previous one.
    pub fn insert_ordinal(
        &mut self,
        group: GroupId,
        ordinal: u64,
        location: Location,
    ) -> Option<Location> {
        assert!(ordinal < ORDINALS_MAX, "checked by append and recovery");
        let pages = self.dense.entry(group).or_default();
        let before = std::mem::replace(pages.get_or_insert(ordinal), location.0);
        (before != 0).then_some(Location(before))
    }

    /// Whether the device can be read.
    pub fn is_readable(&self) -> bool {
        !self.unreadable
    }

    /// Records whether the device can be read.
    pub fn set_readable(&mut self, readable: bool) {
        self.unreadable = !readable;
    }

    /// Removes a key if it is at this location.
    pub fn remove(&mut self, key: &EntryKey, location: Location) -> bool {
        let wanted = Fingerprint::of(key);
        let matches = |slot: &Slot| slot.fingerprint() == wanted && slot.location() == location;
        self.hashed
            .find_entry(hash(wanted.low), matches)
            .map(hashbrown::hash_table::OccupiedEntry::remove)
            .is_ok()
    }

    /// Removes an ordinal if it is at this location.
    pub fn remove_ordinal(&mut self, group: GroupId, ordinal: u64, location: Location) -> bool {
        let Some(pages) = self.dense.get_mut(&group) else { return false };
        let Some(slot) = pages.get_mut(ordinal).filter(|slot| **slot == location.0) else {
            return false;
        };
        *slot = 0;
        pages.free_if_empty(ordinal);
        true
    }

    /// Removes the keys of a region, given the lower fingerprint halves that were written to it.
    pub fn remove_region(&mut self, region: RegionId, lows: &[u32]) {
        for &low in lows {
            let matches = |slot: &Slot| slot.low() == low && slot.location().region() == region;
            if let Ok(entry) = self.hashed.find_entry(hash(low), matches) {
                entry.remove();
            }
        }
    }

    /// Removes the ordinals of a dense group that lie in this region.
    pub fn remove_region_of(&mut self, group: GroupId, region: RegionId) {
        let pages = self.dense.get_mut(&group).into_iter().flat_map(|pages| &mut pages.0);
        for location in pages.flatten().flat_map(|page| page.iter_mut()) {
            if *location != 0 && Location(*location).region() == region {
                *location = 0;
            }
        }
    }

    /// Removes a dense group.
    pub fn remove_group(&mut self, group: GroupId) {
        self.dense.remove(&group);
    }

    /// The ordinals of a dense group that have a location.
    pub fn ordinals(&self, group: GroupId) -> impl Iterator<Item = u64> {
        let pages = self.dense.get(&group).map_or(&[][..], |pages| &pages.0);
        let pages = (0..).step_by(PAGE).zip(pages);
        let pages = pages.filter_map(|(first, page)| Some((first, page.as_deref()?)));
        pages.flat_map(|(first, page): (u64, &Page)| {
            let there = (first..).zip(page).filter(|(_, location)| **location != 0);
            there.map(|(ordinal, _)| ordinal)
        })
    }

    /// Memory of the index in bytes.
    pub fn memory(&self) -> usize {
        let dense = self.dense.values().map(OrdinalPages::memory);
        self.hashed.allocation_size() + dense.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(region: u32, at: u64) -> Location {
        Location::new(RegionId(region), 4096 + at * 64, 128)
    }

    fn key(number: u64) -> EntryKey {
        let mut key = [0; 32];
        fastrand::Rng::with_seed(number).fill(&mut key);
        EntryKey(key)
    }

    #[test]
    fn a_location_round_trips() {
        let last = Location::new(RegionId((1 << 24) - 1), (64 << 20) - 64, (64 << 20) - 4096);
        assert_eq!(last.region(), RegionId((1 << 24) - 1));
        assert_eq!((last.offset(), last.size()), ((64 << 20) - 64, (64 << 20) - 4096));
        let slot = Slot::new(Fingerprint { low: 0xdead_beef, high: 0x1234 }, last);
        assert_eq!(slot.location(), last);
        assert_eq!(slot.fingerprint(), Fingerprint { low: 0xdead_beef, high: 0x1234 });
    }

    #[test]
    fn removing_a_region_removes_its_entries_only() {
        let mut index = Index::default();
        let lows: Vec<u32> = (0..1000).map(|number| Fingerprint::of(&key(number)).low()).collect();
        for number in 0..1000 {
            assert_eq!(index.insert(&key(number), location(1, number)), None);
        }
        for number in 0..100 {
            assert_eq!(index.insert(&key(number), location(2, number)), Some(location(1, number)));
        }
        index.remove_region(RegionId(1), &lows);
        let left = (0..1000).filter_map(|number| index.find(&key(number)));
        assert!(left.eq((0..100).map(|number| location(2, number))));
        assert!(!index.remove(&key(1), location(1, 1)), "the key has moved");
        assert!(index.remove(&key(1), location(2, 1)) && index.find(&key(1)).is_none());
    }

    #[test]
    fn ordinals_are_indexed_by_number() {
        let mut index = Index::default();
        let group = GroupId(3);
        index.insert_ordinal(group, 5, location(1, 0));
        index.insert_ordinal(group, 2, location(2, 0));
        assert_eq!(index.find_ordinal(group, 5), Some(location(1, 0)));
        assert_eq!(index.find_ordinal(group, 4), None);
        assert_eq!(index.find_ordinal(group, u64::MAX), None);
        assert_eq!(index.ordinals(group).collect::<Vec<_>>(), [2, 5]);
        index.remove_region_of(group, RegionId(1));
        assert_eq!(index.ordinals(group).collect::<Vec<_>>(), [2]);
        index.remove_group(group);
        assert_eq!(index.memory(), 0);
    }

    /// Target for a hashed key, index and region list together: at most 32 bytes.
    #[test]
    fn a_hashed_key_takes_at_most_32_bytes() {
        let mut index = Index::default();
        for number in 0..100_000_u64 {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            index.insert(&EntryKey(bytes), location(1, number % 1000));
        }
        let each = index.memory() / 100_000 + size_of::<u32>();
        assert!(each <= 32, "{each} bytes");
    }
}

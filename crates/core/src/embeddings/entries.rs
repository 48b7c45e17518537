//! The books that every policy keeps: which keys it knows, which of them are resident, and in which
//! list each stands.
//!
//! Residents and ghosts share one slab and one map, so a policy moves an entry between its lists (and
//! between remembered and resident) without hashing again. The store alone counts what is used and
//! reports what comes and goes: a policy cannot lose a row or forget to say that it evicted one.

use super::{
    key::{Key, KeyMap},
    list::{Links, List, Slot},
    policy::Turn,
};

/// One of a policy's lists.
pub(super) type Place = usize;

/// In none of the store's lists: the policy links the entry into an order of its own.
pub(super) const UNLISTED: Place = u8::MAX as Place;

#[derive(Debug, Clone)]
struct Entry<Meta> {
    key: Key,
    place: u8,
    resident: bool,
    /// The request that last hit this entry.
    turn: u32,
    meta: Meta,
}

/// Keys, residents and lists; `Meta` is what a policy notes about each key.
#[derive(Debug, Clone)]
pub(super) struct Store<Meta> {
    slots: KeyMap<Slot>,
    entries: Vec<Entry<Meta>>,
    free: Vec<Slot>,
    pub links: Links,
    lists: Vec<List>,
    capacity: u64,
    used: u64,
    resident_count: u32,
}

impl<Meta> Store<Meta> {
    /// Books with so many lists, for residents that weigh at most `capacity` together.
    pub fn new(places: usize, capacity: u64) -> Self {
        Self {
            slots: KeyMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            lists: vec![List::default(); places],
            capacity,
            used: 0,
            resident_count: 0,
        }
    }

    #[inline]
    pub fn find(&self, key: Key) -> Option<Slot> {
        self.slots.get(&key).copied()
    }

    #[inline]
    pub fn find_resident(&self, key: Key) -> Option<Slot> {
        self.find(key).filter(|slot| self.resident(*slot))
    }

    #[inline]
    pub fn resident(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].resident
    }

    pub fn residents(&self) -> impl Iterator<Item = Key> + '_ {
        self.slots.iter().filter(|(_, slot)| self.resident(**slot)).map(|(key, _)| *key)
    }

    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    #[inline]
    pub fn resident_count(&self) -> u32 {
        self.resident_count
    }

    /// Whether another row of this weight fits.
    #[inline]
    pub fn fits(&self, weight: u32) -> bool {
        self.used + u64::from(weight) <= self.capacity
    }

    #[inline]
    pub fn meta(&self, slot: Slot) -> &Meta {
        &self.entries[slot.0 as usize].meta
    }

    #[inline]
    pub fn meta_mut(&mut self, slot: Slot) -> &mut Meta {
        &mut self.entries[slot.0 as usize].meta
    }

    /// The note about a resident that is in none of the lists.
    #[inline]
    pub fn unlisted_resident(&self, slot: Slot) -> Option<&Meta> {
        let entry = &self.entries[slot.0 as usize];
        (entry.resident && entry.place == u8::MAX).then_some(&entry.meta)
    }

    /// Every note, also of entries that are free.
    pub fn for_each_meta(&mut self, change: impl FnMut(&mut Meta)) {
        self.entries.iter_mut().map(|entry| &mut entry.meta).for_each(change);
    }

    /// Slots that have been in use so far, from 0.
    #[inline]
    pub fn slot_count(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("slots are counted in 32 bits")
    }

    #[inline]
    pub fn key(&self, slot: Slot) -> Key {
        self.entries[slot.0 as usize].key
    }

    #[inline]
    pub fn place(&self, slot: Slot) -> Place {
        usize::from(self.entries[slot.0 as usize].place)
    }

    #[inline]
    pub fn list(&self, place: Place) -> &List {
        &self.lists[place]
    }

    #[inline]
    pub fn oldest(&self, place: Place) -> Option<Slot> {
        self.lists[place].oldest()
    }

    /// The oldest entry of a list that the current request may evict.
    #[inline]
    pub fn oldest_free(&mut self, place: Place, turn: &Turn) -> Option<Slot> {
        let entries = &self.entries;
        let spared = |slot: Slot| entries[slot.0 as usize].turn == turn.number;
        self.lists[place].oldest_not(&self.links, spared)
    }

    /// The turn is over: nobody is protected any more.
    #[inline]
    pub fn end_turn(&mut self) {
        self.lists.iter_mut().for_each(List::look_anew);
    }

    /// Notes that the request `turn` hit this entry: it will not evict it. Returns the weight that this
    /// newly protects.
    #[inline]
    pub fn protect(&mut self, slot: Slot, turn: &Turn) -> u64 {
        let before = std::mem::replace(&mut self.entries[slot.0 as usize].turn, turn.number);
        if before == turn.number { 0 } else { self.links.weight(slot) }
    }

    #[inline]
    pub fn protected(&self, slot: Slot, turn: &Turn) -> bool {
        self.entries[slot.0 as usize].turn == turn.number
    }

    /// A new resident at the newest end of a list. There must be room for it.
    pub fn admit(
        &mut self,
        place: Place,
        key: Key,
        weight: u32,
        meta: Meta,
        turn: &mut Turn,
    ) -> Slot {
        let slot = self.remember(place, key, weight, meta);
        self.make_resident(slot, turn);
        slot
    }

    /// A ghost at the newest end of a list: known, not resident.
    pub fn remember(&mut self, place: Place, key: Key, weight: u32, meta: Meta) -> Slot {
        let place_u8 = u8::try_from(place).expect("policies have few lists");
        let entry = Entry { key, place: place_u8, resident: false, turn: 0, meta };
        let slot = if let Some(slot) = self.free.pop() {
            self.entries[slot.0 as usize] = entry;
            slot
        } else {
            self.entries.push(entry);
            Slot(
                u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 keys are remembered"),
            )
        };
        self.links.prepare(slot, weight);
        if place != UNLISTED {
            self.lists[place].push_newest(&mut self.links, slot);
        }
        let previous = self.slots.insert(key, slot);
        assert!(previous.is_none(), "{key:?} is known already");
        slot
    }

    /// A ghost becomes resident. There must be room for it.
    pub fn make_resident(&mut self, slot: Slot, turn: &mut Turn) {
        let weight = self.links.weight(slot);
        let entry = &mut self.entries[slot.0 as usize];
        assert!(!entry.resident, "{:?} is resident already", entry.key);
        entry.resident = true;
        self.used += weight;
        self.resident_count += 1;
        assert!(self.used <= self.capacity, "a policy must make room before it admits");
        turn.room = turn.room.saturating_sub(weight);
        turn.admitted.push(entry.key);
    }

    /// A resident becomes a ghost; its list stays the same.
    pub fn make_ghost(&mut self, slot: Slot, turn: &mut Turn) {
        let entry = &mut self.entries[slot.0 as usize];
        assert!(entry.resident, "{:?} is no resident", entry.key);
        entry.resident = false;
        self.used -= self.links.weight(slot);
        self.resident_count -= 1;
        turn.evicted.push(entry.key);
    }

    /// Moves an entry to the newest end of a list.
    #[inline]
    pub fn move_newest(&mut self, slot: Slot, place: Place) {
        self.unlink(slot);
        self.lists[place].push_newest(&mut self.links, slot);
        self.entries[slot.0 as usize].place = u8::try_from(place).expect("policies have few lists");
    }

    /// Moves an entry to the oldest end of a list.
    pub fn move_oldest(&mut self, slot: Slot, place: Place) {
        self.unlink(slot);
        self.lists[place].push_oldest(&mut self.links, slot);
        self.entries[slot.0 as usize].place = u8::try_from(place).expect("policies have few lists");
    }

    /// Takes an entry out of its list and into none.
    pub fn unlist(&mut self, slot: Slot) {
        self.unlink(slot);
        self.entries[slot.0 as usize].place = u8::MAX;
    }

    /// Puts an entry directly behind another one, on its older side, in the same list.
    pub fn move_behind(&mut self, slot: Slot, newer: Slot) {
        let place = self.entries[newer.0 as usize].place;
        self.unlink(slot);
        self.lists[usize::from(place)].push_behind(&mut self.links, newer, slot);
        self.entries[slot.0 as usize].place = place;
    }

    /// Evicts a resident into a list of ghosts.
    pub fn evict_to(&mut self, slot: Slot, ghosts: Place, turn: &mut Turn) {
        self.make_ghost(slot, turn);
        self.move_newest(slot, ghosts);
    }

    /// Forgets an entry, resident or not.
    pub fn forget(&mut self, slot: Slot, turn: &mut Turn) {
        if self.resident(slot) {
            self.make_ghost(slot, turn);
        }
        self.unlink(slot);
        let key = self.key(slot);
        self.slots.remove(&key).expect("a known entry is in the map");
        self.free.push(slot);
    }

    /// Forgets the oldest entries of a list until it weighs at most `weight_max`.
    pub fn trim(&mut self, place: Place, weight_max: u64, turn: &mut Turn) {
        while self.lists[place].weight() > weight_max {
            let oldest = self.oldest(place).expect("a list that weighs something has entries");
            self.forget(oldest, turn);
        }
    }

    #[inline]
    fn unlink(&mut self, slot: Slot) {
        let place = usize::from(self.entries[slot.0 as usize].place);
        if place != UNLISTED {
            self.lists[place].remove(&mut self.links, slot);
        }
    }
}

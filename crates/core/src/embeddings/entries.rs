//! Entries: the bookkeeping of every policy. Which keys are known, which of them are resident, and
//! which list each is in.
//!
//! Residents and ghosts share one slab and one map, so a policy moves an entry between its lists,
//! or between ghost and resident, without hashing again. Only this type counts the used weight and
//! reports admissions and evictions: a policy cannot lose a row or fail to report an eviction.

use super::{
    key::{Key, KeyMap},
    policy::{Evicted, RequestState},
    slab_list::{Links, List, Slot},
};

/// Number of one of a policy's lists.
pub(super) type ListId = usize;

/// In none of the lists: the policy links the entry into an order of its own.
pub(super) const UNLISTED: ListId = u8::MAX as ListId;

#[derive(Debug, Clone)]
struct Entry<Meta> {
    key: Key,
    list: u8,
    resident: bool,
    /// The request that last hit this entry.
    hit_by: u32,
    meta: Meta,
}

/// Keys, residents and lists; `Meta` is what a policy stores about each key.
#[derive(Debug, Clone)]
pub(super) struct Entries<Meta> {
    slots: KeyMap<Slot>,
    slab: Vec<Entry<Meta>>,
    free: Vec<Slot>,
    pub links: Links,
    lists: Vec<List>,
    capacity: u64,
    used: u64,
}

impl<Meta> Entries<Meta> {
    /// No entries, `lists` empty lists, and a limit of `capacity` on the weight of all residents.
    pub fn new(lists: usize, capacity: u64) -> Self {
        Self {
            slots: KeyMap::default(),
            slab: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            lists: vec![List::default(); lists],
            capacity,
            used: 0,
        }
    }

    #[inline]
    pub fn find(&self, key: Key) -> Option<Slot> {
        self.slots.get(&key).copied()
    }

    #[inline]
    pub fn find_resident(&self, key: Key) -> Option<Slot> {
        self.find(key).filter(|slot| self.is_resident(*slot))
    }

    #[inline]
    pub fn is_resident(&self, slot: Slot) -> bool {
        self.slab[slot.0 as usize].resident
    }

    pub fn residents(&self) -> impl Iterator<Item = Key> + '_ {
        self.slots.iter().filter(|(_, slot)| self.is_resident(**slot)).map(|(key, _)| *key)
    }

    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether another row of this weight fits.
    #[inline]
    pub fn fits(&self, weight: u32) -> bool {
        self.used + u64::from(weight) <= self.capacity
    }

    #[inline]
    pub fn meta(&self, slot: Slot) -> &Meta {
        &self.slab[slot.0 as usize].meta
    }

    #[inline]
    pub fn meta_mut(&mut self, slot: Slot) -> &mut Meta {
        &mut self.slab[slot.0 as usize].meta
    }

    /// Number of slots, used and free.
    #[inline]
    pub fn slot_count(&self) -> usize {
        self.slab.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        let slab = self.slab.capacity() * size_of::<Entry<Meta>>();
        let lists = self.free.capacity() * size_of::<Slot>();
        (self.slots.allocation_size() + slab + lists) as u64 + self.links.bytes()
    }

    #[inline]
    pub fn key(&self, slot: Slot) -> Key {
        self.slab[slot.0 as usize].key
    }

    #[inline]
    pub fn list_of(&self, slot: Slot) -> ListId {
        usize::from(self.slab[slot.0 as usize].list)
    }

    #[inline]
    pub fn list(&self, list: ListId) -> &List {
        &self.lists[list]
    }

    #[inline]
    pub fn oldest(&self, list: ListId) -> Option<Slot> {
        self.lists[list].oldest()
    }

    /// The oldest entry of a list that the current request may evict.
    #[inline]
    pub fn oldest_free(&mut self, list: ListId, request: &RequestState) -> Option<Slot> {
        let slab = &self.slab;
        let spared = |slot: Slot| slab[slot.0 as usize].hit_by == request.number;
        self.lists[list].oldest_not(&self.links, spared)
    }

    /// Ends a request: its hits are no longer protected.
    #[inline]
    pub fn end_request(&mut self) {
        self.lists.iter_mut().for_each(List::reset_passed);
    }

    /// Notes that `request` hit this entry and may not evict it. Returns the weight that becomes
    /// protected: 0 if the request had hit it before.
    #[inline]
    pub fn protect(&mut self, slot: Slot, request: &RequestState) -> u64 {
        let before = std::mem::replace(&mut self.slab[slot.0 as usize].hit_by, request.number);
        if before == request.number { 0 } else { self.links.weight(slot) }
    }

    #[inline]
    pub fn is_protected(&self, slot: Slot, request: &RequestState) -> bool {
        self.slab[slot.0 as usize].hit_by == request.number
    }

    /// Adds a resident at the newest end of a list. It must fit.
    pub fn admit(
        &mut self,
        list: ListId,
        key: Key,
        weight: u32,
        meta: Meta,
        request: &mut RequestState,
    ) -> Slot {
        let slot = self.remember(list, key, weight, meta);
        self.make_resident(slot, request);
        slot
    }

    /// Adds a ghost (known, not resident) at the newest end of a list.
    pub fn remember(&mut self, list: ListId, key: Key, weight: u32, meta: Meta) -> Slot {
        let list_u8 = u8::try_from(list).expect("policies have few lists");
        let entry = Entry { key, list: list_u8, resident: false, hit_by: 0, meta };
        let slot = if let Some(slot) = self.free.pop() {
            self.slab[slot.0 as usize] = entry;
            slot
        } else {
            self.slab.push(entry);
            Slot(u32::try_from(self.slab.len() - 1).expect("fewer than 2^32 keys are remembered"))
        };
        self.links.prepare(slot, weight);
        if list != UNLISTED {
            self.lists[list].push_newest(&mut self.links, slot);
        }
        let previous = self.slots.insert(key, slot);
        assert!(previous.is_none(), "{key:?} is known already");
        slot
    }

    /// Makes a ghost resident. It must fit.
    pub fn make_resident(&mut self, slot: Slot, request: &mut RequestState) {
        let weight = self.links.weight(slot);
        let entry = &mut self.slab[slot.0 as usize];
        assert!(!entry.resident, "{:?} is resident already", entry.key);
        entry.resident = true;
        self.used += weight;
        assert!(self.used <= self.capacity, "a policy evicts before it admits");
        request.room = request.room.saturating_sub(weight);
        request.admitted.push(entry.key);
    }

    /// Makes a resident a ghost, in the same list.
    pub fn make_ghost(&mut self, slot: Slot, request: &mut RequestState) {
        let entry = &mut self.slab[slot.0 as usize];
        assert!(entry.resident, "{:?} is not resident", entry.key);
        entry.resident = false;
        self.used -= self.links.weight(slot);
        request.evicted.push(Evicted { key: entry.key, slot });
    }

    /// Moves an entry to the newest end of a list.
    #[inline]
    pub fn move_newest(&mut self, slot: Slot, list: ListId) {
        self.unlink(slot);
        self.lists[list].push_newest(&mut self.links, slot);
        self.slab[slot.0 as usize].list = u8::try_from(list).expect("policies have few lists");
    }

    /// Moves an entry to the oldest end of a list.
    pub fn move_oldest(&mut self, slot: Slot, list: ListId) {
        self.unlink(slot);
        self.lists[list].push_oldest(&mut self.links, slot);
        self.slab[slot.0 as usize].list = u8::try_from(list).expect("policies have few lists");
    }

    /// Removes an entry from its list.
    pub fn unlist(&mut self, slot: Slot) {
        self.unlink(slot);
        self.slab[slot.0 as usize].list = u8::MAX;
    }

    /// Moves an entry to the older side of `newer`, in the same list.
    pub fn move_behind(&mut self, slot: Slot, newer: Slot) {
        let list = self.slab[newer.0 as usize].list;
        self.unlink(slot);
        self.lists[usize::from(list)].push_behind(&mut self.links, newer, slot);
        self.slab[slot.0 as usize].list = list;
    }

    /// Evicts a resident to the newest end of a list of ghosts.
    pub fn evict_to(&mut self, slot: Slot, ghosts: ListId, request: &mut RequestState) {
        self.make_ghost(slot, request);
        self.move_newest(slot, ghosts);
    }

    /// Removes an entry, resident or ghost.
    pub fn forget(&mut self, slot: Slot, request: &mut RequestState) {
        if self.is_resident(slot) {
            self.make_ghost(slot, request);
        }
        self.unlink(slot);
        let key = self.key(slot);
        self.slots.remove(&key).expect("a known entry is in the map");
        self.free.push(slot);
    }

    /// Removes the oldest entries of a list until it weighs at most `weight_max`.
    pub fn trim(&mut self, list: ListId, weight_max: u64, request: &mut RequestState) {
        while self.lists[list].weight() > weight_max {
            let oldest = self.oldest(list).expect("a list that weighs something has entries");
            self.forget(oldest, request);
        }
    }

    #[inline]
    fn unlink(&mut self, slot: Slot) {
        let list = usize::from(self.slab[slot.0 as usize].list);
        if list != UNLISTED {
            self.lists[list].remove(&mut self.links, slot);
        }
    }
}

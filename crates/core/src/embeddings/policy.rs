//! The contract between a cache of embedding rows and whoever decides what stays in it.
//!
//! A lookup of a recommendation model asks for one key per table (or a bag of them) at once, and it is
//! fast only if *all* of them are resident. So a policy is given whole requests. It first sees which
//! keys hit, all of them judged by the state before the request, then updates the hits, then decides
//! about the misses. What the dissertation leaves open is fixed here for every policy alike: a key that
//! a request hit is never evicted by that same request, and capacity is never exceeded, not even
//! between two keys.
//!
//! Not here: rows and their bytes (`crates/embed`); policies only name keys.

use serde::{Deserialize, Serialize};

use super::{
    bundles::Implication,
    key::{Key, KeyMap, TableId},
    list::Slot,
    store::Store,
};
use crate::units::ByteSize;

/// What a policy may know about a table beforehand: it is written in the table's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShape {
    /// Rows in the table.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u32,
}

/// How much may be resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// So many rows, whatever their tables.
    Rows(u64),
    /// So many bytes; rows of tables of different dimensions weigh differently.
    Bytes(ByteSize),
}

/// The tables of a model and the room for their rows.
#[derive(Debug, Clone)]
pub struct Budget {
    tables: Vec<TableShape>,
    capacity: Capacity,
}

impl Budget {
    /// Room for rows of these tables; the first is `TableId(0)`.
    pub fn new(tables: Vec<TableShape>, capacity: Capacity) -> Self {
        Self { tables, capacity }
    }

    /// The tables, in the order of their ids.
    pub fn tables(&self) -> &[TableShape] {
        &self.tables
    }

    /// The capacity in the unit that [`Budget::weight`] counts in.
    pub fn capacity(&self) -> u64 {
        match self.capacity {
            Capacity::Rows(rows) => rows,
            Capacity::Bytes(bytes) => bytes.0,
        }
    }

    /// What a row of this table takes of the capacity; `None` for a table that was never declared or
    /// whose rows are empty: its keys are misses and are not admitted.
    #[inline]
    pub fn weight(&self, table: TableId) -> Option<u32> {
        let shape = self.tables.get(usize::from(table.0))?;
        let weight = match self.capacity {
            Capacity::Rows(_) => 1,
            Capacity::Bytes(_) => shape.row_bytes,
        };
        (weight > 0).then_some(weight)
    }

    /// How many rows fit at most: those of the narrowest tables.
    pub fn rows_max(&self) -> u64 {
        let ids =
            (0..self.tables.len()).map(|table| TableId(u16::try_from(table).unwrap_or(u16::MAX)));
        let weighted = ids
            .zip(&self.tables)
            .filter_map(|(id, shape)| Some((u64::from(self.weight(id)?), shape.rows)));
        let mut narrowest_first: Vec<(u64, u64)> = weighted.collect();
        narrowest_first.sort_unstable();
        let (mut left, mut rows) = (self.capacity(), 0);
        for (weight, there) in narrowest_first {
            let fitting = (left / weight).min(there);
            left -= fitting * weight;
            rows += fitting;
        }
        rows
    }

    /// What a whole table would take.
    pub fn table_weight(&self, table: TableId) -> u64 {
        let rows = self.tables.get(usize::from(table.0)).map_or(0, |shape| shape.rows);
        rows.saturating_mul(u64::from(self.weight(table).unwrap_or(0)))
    }
}

/// What became of one request. Reused from request to request, so that serving one allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For each key of the request, in its order: was it resident when the request came?
    pub hits: Vec<bool>,
    /// Keys that became resident: misses to keep once they are read.
    pub admitted: Vec<Key>,
    /// Keys that are resident no longer. A large request may evict what it admitted: whoever applies the lists
    /// takes the admissions first.
    pub evicted: Vec<Key>,
}

impl Outcome {
    /// Was every key resident? A request without keys waits for nothing, and so is perfect.
    pub fn perfect(&self) -> bool {
        self.hits.iter().all(|hit| *hit)
    }

    pub(super) fn clear(&mut self) {
        self.hits.clear();
        self.admitted.clear();
        self.evicted.clear();
    }
}

/// Decides which rows stay resident.
pub trait Policy: Send {
    /// Serves one request and says what became of it.
    fn request(&mut self, keys: &[Key], outcome: &mut Outcome);

    /// Admits what is missing of these keys before anybody asks for it. For ours nothing counts as asked for; others
    /// know only misses.
    fn prefetch(&mut self, keys: &[Key], outcome: &mut Outcome);

    /// Adds the keys that these ones imply, as far as the policy has learned which came together. It remembers
    /// them from the first call on.
    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>);

    /// Which tables' keys determine others', as far as the policy has learned that.
    fn implications(&self) -> Vec<Implication>;

    /// Is this row resident?
    fn contains(&self, key: Key) -> bool;

    /// What the residents weigh together, in the unit of the capacity.
    fn used(&self) -> u64;

    /// What they may weigh at most.
    fn capacity(&self) -> u64;

    /// Every resident, in no particular order.
    fn residents(&self) -> Vec<Key>;
}

/// One request, as the policies below see it.
#[derive(Debug)]
pub(super) struct Turn {
    /// Counts requests, so that an entry can note which one hit it last.
    pub number: u32,
    /// How many keys the request has.
    pub keys: u32,
    /// How many of them hit.
    pub hits: u32,
    /// What there was room for, or could be, without the rows that it needs itself; less what it has admitted.
    pub room: u64,
    pub admitted: Vec<Key>,
    pub evicted: Vec<Key>,
}

impl Turn {
    /// Whether the request has admitted less than could make way for it. Policies that send rows round ask this first,
    /// which bounds their rounds: in each they would meet again all those that they may not evict.
    pub fn has_room(&self, weight: u32) -> bool {
        u64::from(weight) <= self.room
    }

    /// Nobody was found who could go, so nobody is looked for again.
    pub fn give_up(&mut self) {
        self.room = 0;
    }

    /// The dissertation's group score: how many keys of the request hit, scaled to `tables` where the
    /// request has more keys (bags) or fewer than one per table.
    pub fn group_score(&self, tables: u32) -> u32 {
        let scaled = u64::from(self.hits) * u64::from(tables) / u64::from(self.keys.max(1));
        u32::try_from(scaled).expect("no more hits than keys")
    }
}

/// A policy that judges key by key; [`Requests`] turns it into one that serves whole requests.
pub(super) trait Replacement {
    /// What it notes about each key.
    type Meta;

    fn store(&self) -> &Store<Self::Meta>;

    fn store_mut(&mut self) -> &mut Store<Self::Meta>;

    /// A request for these keys begins; it is known how many of them hit.
    fn begin(&mut self, _: &[Key], _: &Turn) {}

    /// A resident was asked for.
    fn hit(&mut self, slot: Slot, turn: &mut Turn);

    /// A key that is not resident was asked for: evict what must go and admit it, or leave it out.
    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn);

    /// A key that is not resident will be asked for: likewise. Whoever cannot tell that from asking does not.
    fn prefetch(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.miss(key, weight, turn);
    }

    /// The request is over: nobody is protected any more.
    fn end(&mut self) {}

    /// As in [`Policy::implied`].
    fn implied(&mut self, _: &[Key], _: &mut Vec<Key>) {}

    /// As in [`Policy::implications`].
    fn implications(&self) -> Vec<Implication> {
        Vec::new()
    }
}

/// Says that a [`Replacement`] keeps its books in the field `store`, with this note about each key.
macro_rules! keeps_books {
    ($meta:ty) => {
        type Meta = $meta;

        fn store(&self) -> &Store<$meta> {
            &self.store
        }

        fn store_mut(&mut self) -> &mut Store<$meta> {
            &mut self.store
        }
    };
}
pub(super) use keeps_books;

/// Keys of a request for which room is kept until the next.
const KEPT_MAX: usize = 4096;

/// Feeds whole requests to a [`Replacement`]: first all hits, then all misses.
#[derive(Debug)]
pub(super) struct Requests<R> {
    replacement: R,
    budget: Budget,
    turn: Turn,
    slots: Vec<Option<Slot>>,
    considered: KeyMap<()>,
}

impl<R: Replacement> Requests<R> {
    pub fn new(replacement: R, budget: Budget) -> Self {
        let (admitted, evicted) = (Vec::new(), Vec::new());
        let turn = Turn { number: 0, keys: 0, hits: 0, room: 0, admitted, evicted };
        Self { replacement, budget, turn, slots: Vec::new(), considered: KeyMap::default() }
    }

    #[cfg(test)]
    pub fn replacement_mut(&mut self) -> &mut R {
        &mut self.replacement
    }
}

impl<R: Replacement> Requests<R> {
    /// Finds the keys and begins a turn; `outcome` lends it its lists.
    fn begin(&mut self, keys: &[Key], outcome: &mut Outcome) {
        outcome.clear();
        self.slots.clear();
        let store = self.replacement.store();
        self.slots.extend(keys.iter().map(|key| store.find_resident(*key)));
        outcome.hits.extend(self.slots.iter().map(Option::is_some));

        let turn = &mut self.turn;
        // 0 is what a new entry notes, so no request has that number.
        turn.number = turn.number.wrapping_add(1).max(1);
        turn.keys = u32::try_from(keys.len()).expect("a request has fewer than 2^32 keys");
        let hits = self.slots.iter().filter(|slot| slot.is_some()).count();
        turn.hits = u32::try_from(hits).expect("no more hits than keys");
        std::mem::swap(&mut turn.admitted, &mut outcome.admitted);
        std::mem::swap(&mut turn.evicted, &mut outcome.evicted);
    }

    /// Hands every missing key that could have room to `admit`, each once, and ends the turn.
    fn admit(
        &mut self,
        keys: &[Key],
        protected: u64,
        outcome: &mut Outcome,
        admit: impl Fn(&mut R, Key, u32, &mut Turn),
    ) {
        let evictable = self.replacement.store().capacity() - protected;
        self.turn.room = evictable;
        // A bag may name a key twice; it is read, and considered, once.
        let may_repeat = !keys.is_sorted_by(|a, b| a.table() < b.table());
        for (key, _) in keys.iter().zip(&self.slots).filter(|(_, slot)| slot.is_none()) {
            let Some(weight) = self.budget.weight(key.table()) else { continue };
            let repeated = may_repeat && self.considered.insert(*key, ()).is_some();
            if !repeated && u64::from(weight) <= evictable {
                admit(&mut self.replacement, *key, weight, &mut self.turn);
            }
        }
        self.replacement.store_mut().end_turn();
        self.replacement.end();
        self.considered.clear();
        // Clearing a table costs as much as it is large, so one huge bag must not leave a huge one behind.
        if self.considered.capacity() > KEPT_MAX {
            (self.considered, self.slots) = Default::default();
        }
        std::mem::swap(&mut self.turn.admitted, &mut outcome.admitted);
        std::mem::swap(&mut self.turn.evicted, &mut outcome.evicted);
    }
}

impl<R: Replacement + Send> Policy for Requests<R> {
    fn request(&mut self, keys: &[Key], outcome: &mut Outcome) {
        self.begin(keys, outcome);
        self.replacement.begin(keys, &self.turn);
        let mut protected = 0;
        for slot in self.slots.iter().flatten() {
            protected += self.replacement.store_mut().protect(*slot, &self.turn);
            self.replacement.hit(*slot, &mut self.turn);
        }
        self.admit(keys, protected, outcome, R::miss);
    }

    fn prefetch(&mut self, keys: &[Key], outcome: &mut Outcome) {
        self.begin(keys, outcome);
        let store = self.replacement.store_mut();
        let slots = self.slots.iter().flatten();
        let protected = slots.map(|slot| store.protect(*slot, &self.turn)).sum();
        self.admit(keys, protected, outcome, R::prefetch);
    }

    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        self.replacement.implied(keys, into);
    }

    fn implications(&self) -> Vec<Implication> {
        self.replacement.implications()
    }

    fn contains(&self, key: Key) -> bool {
        self.replacement.store().find_resident(key).is_some()
    }

    fn used(&self) -> u64 {
        self.replacement.store().used()
    }

    fn capacity(&self) -> u64 {
        self.replacement.store().capacity()
    }

    fn residents(&self) -> Vec<Key> {
        self.replacement.store().residents().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rows_fit_as_there_are_of_the_narrowest() {
        let shape = |rows, row_bytes| TableShape { rows, row_bytes };
        let tables = vec![shape(1000, 100), shape(10, 4), shape(50, 0)];
        let rows = |capacity| Budget::new(tables.clone(), capacity).rows_max();
        assert_eq!(rows(Capacity::Bytes(ByteSize(39))), 9);
        assert_eq!(rows(Capacity::Bytes(ByteSize(1040))), 20);
        assert_eq!(rows(Capacity::Bytes(ByteSize(u64::MAX))), 1010);
        assert_eq!(rows(Capacity::Rows(60)), 60, "a row is a row");
    }
}

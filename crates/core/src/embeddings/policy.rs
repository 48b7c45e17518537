//! Policy: the contract between a cache of embedding rows and its replacement policy.
//!
//! A request of a recommendation model has one key per table (or a bag of keys), and it is fast
//! only if *all* of them are resident. A policy is therefore given whole requests:
//!
//! 1. It looks up all keys; hits and misses are judged by the state before the request.
//! 2. It updates the hits.
//! 3. It decides about the misses: which to admit, and which residents to evict for them.
//!
//! The dissertation leaves two points open; they are the same for every policy here.
//!
//! - **Invariant:** a key that a request hit is never evicted by that same request.
//! - **Invariant:** capacity is never exceeded, not even between two keys of a request.
//!
//! Not here: rows and their bytes (`crates/embeddings`). Policies see keys only.

use serde::{Deserialize, Serialize};

use super::{
    entries::Entries,
    implications::Implication,
    key::{Key, KeyMap, TableId},
    slab_list::Slot,
};
use crate::units::ByteSize;

/// Shape of a table, as written in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShape {
    /// Rows in the table.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u32,
}

/// Limit on the resident rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// A number of rows, whatever their tables.
    Rows(u64),
    /// A number of bytes; rows of tables of different dimensions weigh differently.
    Bytes(ByteSize),
    /// A number of bytes for rows and for all that the policy stores about them.
    Memory(ByteSize),
}

/// The tables of a model and the capacity for their rows.
#[derive(Debug, Clone)]
pub struct Budget {
    tables: Vec<TableShape>,
    capacity: Capacity,
    /// Bytes added to the weight of each row.
    row_overhead: u32,
}

impl Budget {
    /// A capacity for rows of these tables; the first is `TableId(0)`.
    pub fn new(tables: Vec<TableShape>, capacity: Capacity) -> Self {
        Self { tables, capacity, row_overhead: 0 }
    }

    /// The tables, in the order of their ids.
    pub fn tables(&self) -> &[TableShape] {
        &self.tables
    }

    /// The same budget, in which every row weighs `bytes` more. A number of rows stays the same.
    #[must_use]
    pub fn with_row_overhead(self, bytes: u32) -> Self {
        Self { row_overhead: bytes, ..self }
    }

    /// Bytes that every row weighs more than its table says.
    pub(super) fn row_overhead(&self) -> u32 {
        self.row_overhead
    }

    /// The limit.
    pub fn limit(&self) -> Capacity {
        self.capacity
    }

    /// The capacity in the unit that [`Budget::weight`] counts in.
    pub fn capacity(&self) -> u64 {
        match self.capacity {
            Capacity::Rows(rows) => rows,
            Capacity::Bytes(bytes) | Capacity::Memory(bytes) => bytes.0,
        }
    }

    /// Weight of one row of this table. `None` for an undeclared table or one with empty rows: its
    /// keys are misses and are not admitted.
    #[inline]
    pub fn weight(&self, table: TableId) -> Option<u32> {
        let shape = self.tables.get(usize::from(table.0))?;
        let weight = match self.capacity {
            Capacity::Rows(_) => 1,
            Capacity::Bytes(_) | Capacity::Memory(_) if shape.row_bytes > 0 => {
                shape.row_bytes.saturating_add(self.row_overhead)
            }
            Capacity::Bytes(_) | Capacity::Memory(_) => 0,
        };
        (weight > 0).then_some(weight)
    }

    /// Weight of a row, and number of rows, of each table whose rows may be admitted.
    pub(super) fn weights(&self) -> impl Iterator<Item = (u32, u64)> {
        let ids =
            (0..self.tables.len()).map(|table| TableId(u16::try_from(table).unwrap_or(u16::MAX)));
        ids.zip(&self.tables).filter_map(|(id, shape)| Some((self.weight(id)?, shape.rows)))
    }

    /// The largest number of rows that fit: those of the narrowest tables.
    pub fn rows_max(&self) -> u64 {
        let mut narrowest_first: Vec<(u64, u64)> =
            self.weights().map(|(weight, rows)| (u64::from(weight), rows)).collect();
        narrowest_first.sort_unstable();
        let (mut left, mut rows) = (self.capacity(), 0);
        for (weight, table_rows) in narrowest_first {
            let fitting = (left / weight).min(table_rows);
            left -= fitting * weight;
            rows += fitting;
        }
        rows
    }

    /// Weight of all rows of a table.
    pub fn table_weight(&self, table: TableId) -> u64 {
        let rows = self.tables.get(usize::from(table.0)).map_or(0, |shape| shape.rows);
        rows.saturating_mul(u64::from(self.weight(table).unwrap_or(0)))
    }
}

/// A row that is no longer resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evicted {
    /// Its key.
    pub key: Key,
    /// The slot that it had.
    pub slot: Slot,
}

/// Bytes of a policy's own structures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bookkeeping {
    /// Which keys are resident, their ranks, and the index from key to slot.
    pub directory: u64,
    /// Keys that are not resident.
    pub ghosts: u64,
    /// What the policy's settings are learned from.
    pub tuning: u64,
}

/// How a budget of memory divides once the cache is full, as the policy plans it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Division {
    /// Rows that fit.
    pub rows: u64,
    /// Bytes of these rows.
    pub row_bytes: u64,
    /// Bytes of the policy's own structures.
    pub bookkeeping: Bookkeeping,
}

/// Result of one request. Reused from request to request, so that serving one allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For each key of the request, in order: whether it was resident before the request.
    pub hits: Vec<bool>,
    /// For each key of the request, in order: its slot before the request. A row keeps its slot
    /// while it is resident; later another row may have it.
    pub slots: Vec<Option<Slot>>,
    /// Misses that became resident, to be kept once their rows are read.
    pub admitted: Vec<Key>,
    /// Rows that are no longer resident. A large request may evict what it admitted, so the caller
    /// applies `admitted` before `evicted`.
    pub evicted: Vec<Evicted>,
}

impl Outcome {
    /// Whether every key was resident. A request without keys is perfect.
    pub fn perfect(&self) -> bool {
        self.hits.iter().all(|hit| *hit)
    }

    pub(super) fn clear(&mut self) {
        self.hits.clear();
        self.slots.clear();
        self.admitted.clear();
        self.evicted.clear();
    }
}

/// A replacement policy: decides which rows stay resident.
pub trait Policy: Send {
    /// Serves one request and writes the result to `outcome`.
    fn request(&mut self, keys: &[Key], outcome: &mut Outcome);

    /// Admits the missing keys ahead of a request. `group` does not count this as an access; the
    /// other policies treat it as a miss.
    fn prefetch(&mut self, keys: &[Key], outcome: &mut Outcome);

    /// Appends the keys that `keys` imply, from the associations learned so far. Associations are
    /// recorded from the first call on.
    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>);

    /// The implications between tables that the policy has learned.
    fn implications(&self) -> Vec<Implication>;

    /// The slot of a row, if it is resident.
    fn slot(&self, key: Key) -> Option<Slot>;

    /// Whether a row is resident.
    fn contains(&self, key: Key) -> bool {
        self.slot(key).is_some()
    }

    /// All slots are below this number.
    fn slot_count(&self) -> usize;

    /// Weight of all residents, in the unit of the capacity.
    fn used(&self) -> u64;

    /// Limit on [`Policy::used`].
    fn capacity(&self) -> u64;

    /// All residents, in no particular order.
    fn residents(&self) -> Vec<Key>;

    /// Bytes of the policy's own structures.
    fn bookkeeping(&self) -> Bookkeeping;

    /// How the budget divides once the cache is full. Rows are counted with what their budget adds
    /// to them. `None` for policies that plan nothing.
    fn division(&self) -> Option<Division> {
        None
    }
}

/// State of the request that a policy is serving.
#[derive(Debug)]
pub(super) struct RequestState {
    /// Number of the request, by which an entry notes the request that last hit it.
    pub number: u32,
    pub keys: u32,
    /// Keys that hit.
    pub hits: u32,
    /// Weight that the request may still admit: the capacity without the rows that it hit, minus
    /// what it has admitted.
    pub room: u64,
    pub admitted: Vec<Key>,
    pub evicted: Vec<Evicted>,
}

impl RequestState {
    /// Whether a row of this weight can still be admitted. Policies with a clock hand check this
    /// first, which bounds the hand's rounds: each round passes all protected rows again.
    pub fn has_room(&self, weight: u32) -> bool {
        u64::from(weight) <= self.room
    }

    /// Ends the search for victims in this request, after one has found none.
    pub fn give_up(&mut self) {
        self.room = 0;
    }

    /// The dissertation's group score: the number of keys that hit, scaled to `tables` for requests
    /// with more (bags) or fewer keys than one per table.
    pub fn group_score(&self, tables: u32) -> u32 {
        let scaled = u64::from(self.hits) * u64::from(tables) / u64::from(self.keys.max(1));
        u32::try_from(scaled).expect("no more hits than keys")
    }
}

/// A policy that decides key by key; [`Requests`] adapts it to whole requests.
pub(super) trait Replacement {
    /// What the policy stores about each key.
    type Meta;

    fn entries(&self) -> &Entries<Self::Meta>;

    fn entries_mut(&mut self) -> &mut Entries<Self::Meta>;

    /// Records a hit of a resident.
    fn hit(&mut self, slot: Slot, request: &mut RequestState);

    /// Handles a miss: evicts what must go and admits the key, or leaves it out.
    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState);

    /// Ends the request: its hits are no longer protected.
    fn end(&mut self) {}
}

/// Implements the accessors of a [`Replacement`] with a field `entries` and this metadata per key.
macro_rules! impl_entries {
    ($meta:ty) => {
        type Meta = $meta;

        fn entries(&self) -> &Entries<$meta> {
            &self.entries
        }

        fn entries_mut(&mut self) -> &mut Entries<$meta> {
            &mut self.entries
        }
    };
}
pub(super) use impl_entries;

/// Capacity of the scratch maps that is kept from one request to the next, in keys.
const CONSIDERED_CAPACITY_MAX: usize = 4096;

/// Adapter that feeds whole requests to a [`Replacement`]: first all hits, then all misses.
#[derive(Debug)]
pub(super) struct Requests<R> {
    replacement: R,
    budget: Budget,
    request: RequestState,
    considered: KeyMap<()>,
}

impl<R: Replacement> Requests<R> {
    pub fn new(replacement: R, budget: Budget) -> Self {
        let (admitted, evicted) = (Vec::new(), Vec::new());
        let request = RequestState { number: 0, keys: 0, hits: 0, room: 0, admitted, evicted };
        Self { replacement, budget, request, considered: KeyMap::default() }
    }
}

impl<R: Replacement> Requests<R> {
    /// Looks up the keys and starts a request, which borrows the lists of `outcome`.
    fn begin(&mut self, keys: &[Key], outcome: &mut Outcome) {
        outcome.clear();
        let entries = self.replacement.entries();
        outcome.slots.extend(keys.iter().map(|key| entries.find_resident(*key)));
        outcome.hits.extend(outcome.slots.iter().map(Option::is_some));

        let request = &mut self.request;
        // New entries have `hit_by` 0, so no request has the number 0.
        request.number = request.number.wrapping_add(1).max(1);
        request.keys = u32::try_from(keys.len()).expect("a request has fewer than 2^32 keys");
        let hits = outcome.hits.iter().filter(|hit| **hit).count();
        request.hits = u32::try_from(hits).expect("no more hits than keys");
        std::mem::swap(&mut request.admitted, &mut outcome.admitted);
        std::mem::swap(&mut request.evicted, &mut outcome.evicted);
    }

    /// Passes each missing key that could fit to the policy once, and ends the request.
    fn admit(&mut self, keys: &[Key], protected: u64, outcome: &mut Outcome) {
        let evictable = self.replacement.entries().capacity() - protected;
        self.request.room = evictable;
        // A bag may have a key twice; it is read, and considered, once.
        let may_repeat = !keys.is_sorted_by(|a, b| a.table() < b.table());
        for (key, _) in keys.iter().zip(&outcome.slots).filter(|(_, slot)| slot.is_none()) {
            let Some(weight) = self.budget.weight(key.table()) else { continue };
            let repeated = may_repeat && self.considered.insert(*key, ()).is_some();
            if !repeated && u64::from(weight) <= evictable {
                self.replacement.miss(*key, weight, &mut self.request);
            }
        }
        self.replacement.entries_mut().end_request();
        self.replacement.end();
        self.considered.clear();
        // Clearing a map costs time in proportion to its capacity, so a huge bag must not leave a
        // huge map behind.
        if self.considered.capacity() > CONSIDERED_CAPACITY_MAX {
            self.considered = KeyMap::default();
        }
        std::mem::swap(&mut self.request.admitted, &mut outcome.admitted);
        std::mem::swap(&mut self.request.evicted, &mut outcome.evicted);
    }
}

impl<R: Replacement + Send> Policy for Requests<R> {
    fn request(&mut self, keys: &[Key], outcome: &mut Outcome) {
        self.begin(keys, outcome);
        let mut protected = 0;
        for slot in outcome.slots.iter().flatten() {
            protected += self.replacement.entries_mut().protect(*slot, &self.request);
            self.replacement.hit(*slot, &mut self.request);
        }
        self.admit(keys, protected, outcome);
    }

    fn prefetch(&mut self, keys: &[Key], outcome: &mut Outcome) {
        self.begin(keys, outcome);
        let entries = self.replacement.entries_mut();
        let slots = outcome.slots.iter().flatten();
        let protected = slots.map(|slot| entries.protect(*slot, &self.request)).sum();
        self.admit(keys, protected, outcome);
    }

    fn implied(&mut self, _: &[Key], _: &mut Vec<Key>) {}

    fn implications(&self) -> Vec<Implication> {
        Vec::new()
    }

    fn slot(&self, key: Key) -> Option<Slot> {
        self.replacement.entries().find_resident(key)
    }

    fn slot_count(&self) -> usize {
        self.replacement.entries().slot_count()
    }

    fn used(&self) -> u64 {
        self.replacement.entries().used()
    }

    fn capacity(&self) -> u64 {
        self.replacement.entries().capacity()
    }

    fn residents(&self) -> Vec<Key> {
        self.replacement.entries().residents().collect()
    }

    fn bookkeeping(&self) -> Bookkeeping {
        Bookkeeping { directory: self.replacement.entries().bytes(), ..Bookkeeping::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_max_counts_the_rows_of_the_narrowest_tables() {
        let shape = |rows, row_bytes| TableShape { rows, row_bytes };
        let tables = vec![shape(1000, 100), shape(10, 4), shape(50, 0)];
        let rows = |capacity| Budget::new(tables.clone(), capacity).rows_max();
        assert_eq!(rows(Capacity::Bytes(ByteSize(39))), 9);
        assert_eq!(rows(Capacity::Bytes(ByteSize(1040))), 20);
        assert_eq!(rows(Capacity::Bytes(ByteSize(u64::MAX))), 1010);
        assert_eq!(rows(Capacity::Rows(60)), 60, "a row is a row");
    }
}

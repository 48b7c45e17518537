//! Policy `group`: group-effective frequency, forebay's own policy.
//!
//! A row is worth keeping if it will be accessed *together with rows that are resident too*. An
//! access therefore counts in full only if all other keys of its request hit, and is halved
//! repeatedly for those that miss. Counts decay exponentially ([`decayed_frequency`]). Four rules
//! complete this:
//!
//! - **Bursts count once.** A user rates a hundred films in an hour and never returns. An access
//!   soon after the previous one counts only in proportion to the time between them.
//! - **New rows pass a window.** They are in a FIFO window before they compete with the lowest
//!   resident, and start with the frequency that the [`ghost_table`] has for them.
//! - **Idle rows lose their frequency** ([`idle_decay`]), the sooner, the more frequent they were.
//! - **Nothing is tuned by hand.** Half-life, window and the strictness with incomplete requests
//!   come from [`shadow_tuning`].
//!
//! Small tables are pinned: their rows, once resident, stay. They would nearly always stay anyway;
//! pinned, they need no ranking.
//!
//! Every structure is small and has a limit that is known at the start ([`plan`]), so a budget of
//! bytes includes the bookkeeping.

mod decayed_frequency;
mod eviction_cutoff;
mod ghost_table;
mod idle_decay;
mod plan;
mod rows;
mod shadow_tuning;

#[cfg(test)]
mod tests;

use self::{
    decayed_frequency::{DecayedFrequency, log2},
    ghost_table::GhostTable,
    idle_decay::IdleBound,
    plan::Plan,
    rows::{Place, Rows},
    shadow_tuning::{Access, Setting, ShadowTuning, decay_rate},
};
use super::{
    directory::index_bytes,
    implications::{Implication, Implications},
    key::{Key, KeyMap, TableId, mix},
    pinned_tables::smallest_tables,
    policy::{Bookkeeping, Budget, Division, Evicted, Outcome, Policy},
    slab_list::Slot,
};

/// Accesses to a row closer together than this, in accesses per row that fits, are a burst.
const BURST_SHARE: f64 = 0.3;

/// Level of "now" from which all levels are rebased: stored levels have 16 bits.
const NOW_MAX: u32 = 512 * DecayedFrequency::STEPS;

/// Capacity of scratch lists that is kept from one request to the next, in keys.
const SCRATCH_KEYS_MAX: usize = 512;

/// The policy `group`.
#[derive(Debug)]
pub(super) struct Group {
    budget: Budget,
    rows: Rows,
    ghosts: GhostTable,
    tuning: ShadowTuning,
    setting: Setting,
    /// Whether `tuning` may have a better setting, to be applied at the next request.
    setting_changed: bool,
    pinned: Vec<bool>,
    implications: Implications,
    /// Limit on the weight of the residents.
    capacity: u64,
    /// Bytes of a slot that count towards its weight.
    slot_weight: u32,
    used: u64,
    window_used: u64,
    /// Limit on the weight of the window.
    window_max: u64,
    rows_max: u64,
    /// Whether slots must be given up, because the capacity has shrunk.
    has_shrunk: bool,
    /// Number of accesses so far.
    time: u64,
    /// Level of an access that counts in full, with 32 fractional bits.
    now: u64,
    /// Increase of `now` per access.
    decay_rate: u64,
    idle_bound: IdleBound,
    /// Accesses closer together than this are a burst.
    burst: u32,
    burst_log: u32,
    /// The current request: its keys, how many of them hit, and the discounts of hits and misses.
    keys: u32,
    hits: u32,
    hit_halvings: u32,
    miss_halvings: u32,
    /// Missing keys of the current request, if it may have a key twice.
    considered: KeyMap<()>,
}

impl Group {
    pub fn new(budget: &Budget) -> Self {
        let pinned = smallest_tables(budget);
        let table_rows: Vec<u64> = budget.tables().iter().map(|shape| shape.rows).collect();
        let plan =
            Plan::new(budget, |bytes| Implications::new(&table_rows, &pinned, 0, bytes).bytes());
        let rows_max = plan.rows;
        let tuning = ShadowTuning::new(rows_max, plan.tracked);
        let burst = ((rows_max as f64 * BURST_SHARE) as u32).max(1);
        let mut group = Self {
            budget: budget.clone(),
            rows: Rows::new(rows_max),
            ghosts: GhostTable::new(plan.ghosts),
            setting: tuning.setting(),
            tuning,
            setting_changed: false,
            implications: Implications::new(
                &table_rows,
                &pinned,
                plan.association_rows,
                plan.implications_bytes,
            ),
            pinned,
            capacity: plan.capacity,
            slot_weight: plan.slot_weight,
            used: 0,
            window_used: 0,
            window_max: 0,
            rows_max,
            has_shrunk: false,
            time: 0,
            now: u64::from(DecayedFrequency::START.0) << 32,
            decay_rate: 0,
            idle_bound: IdleBound(0),
            burst,
            burst_log: log2(burst),
            keys: 0,
            hits: 0,
            hit_halvings: 0,
            miss_halvings: 0,
            considered: KeyMap::default(),
        };
        group.apply_setting();
        group
    }

    fn apply_setting(&mut self) {
        self.setting = self.tuning.setting();
        let decay_rate = decay_rate(self.setting.half_life);
        if decay_rate != self.decay_rate {
            self.change_decay_rate(decay_rate);
        }
        self.idle_bound = IdleBound(idle_decay::bound(self.setting.half_life));
        self.window_max = (self.capacity as f64 * self.setting.window) as u64;
    }

    fn is_pinned(&self, table: TableId) -> bool {
        self.pinned.get(usize::from(table.0)).copied().unwrap_or(false)
    }

    /// Weight of a row, with its slot if that counts.
    #[inline]
    fn weight(&self, table: TableId) -> Option<u64> {
        Some(u64::from(self.budget.weight(table)?) + u64::from(self.slot_weight))
    }

    fn weight_of(&self, slot: Slot) -> u64 {
        let table = self.rows.directory.key(slot).table();
        self.weight(table).expect("a resident is of a declared table")
    }

    /// Level of an access that counts in full.
    #[inline]
    fn now_level(&self) -> DecayedFrequency {
        DecayedFrequency(u32::try_from(self.now >> 32).unwrap_or(u32::MAX))
    }

    /// Level of an access to a key; `last` is the time of the previous one, if known.
    #[inline]
    fn access(&mut self, key: Key, last: Option<u32>, discount: u32) -> DecayedFrequency {
        self.time += 1;
        self.now += self.decay_rate;
        if self.now_level().0 > NOW_MAX {
            self.rebase();
        }
        let burst = last.map_or(0, |last| {
            let gap = (self.time as u32).wrapping_sub(last).max(1);
            if gap < self.burst { self.burst_log - log2(gap) } else { 0 }
        });
        let halvings = discount + burst;
        if self.tuning.is_sampled(key) && self.is_tuning_access(last) {
            let is_miss = u32::from(last.is_none());
            self.tune(key, discount, self.keys - self.hits - is_miss);
        }
        self.now_level().minus(halvings)
    }

    /// Whether an access takes part in the tuning, where bursts count once too: an access soon
    /// after the previous one takes part with a probability in proportion to the time between them.
    /// This saves time on keys that hit under every setting.
    fn is_tuning_access(&self, last: Option<u32>) -> bool {
        let gap = last.map_or(u32::MAX, |last| (self.time as u32).wrapping_sub(last));
        // The upper half of the hash as a share of the burst: a draw without a division.
        gap >= self.burst || ((mix(self.time) >> 32) * u64::from(self.burst)) >> 32 < u64::from(gap)
    }

    #[inline(never)]
    fn tune(&mut self, key: Key, discount: u32, others_missed: u32) {
        let access = Access {
            time: self.time,
            halvings: discount,
            missing: others_missed as f32 / self.keys as f32,
            rows: self.rows_that_fit(),
        };
        self.setting_changed |= self.tuning.access(key, access);
    }

    /// Rows that fit: extrapolated from the residents if the cache is full, else the maximum.
    fn rows_that_fit(&self) -> f64 {
        let (used, capacity) = (self.used as f64, self.capacity as f64);
        if used > 0.9 * capacity {
            self.rows.directory.len() as f64 * capacity / used
        } else {
            self.rows_max as f64
        }
    }

    /// Lowers "now" and all levels, so that they do not overflow.
    fn rebase(&mut self) {
        let step = DecayedFrequency::STEPS;
        let by = (self.now_level().0 - NOW_MAX / 2) / step * step;
        self.now -= u64::from(by) << 32;
        self.ghosts.rebase(by);
        self.rows.change_levels(|level, _| level.minus(by));
    }

    /// Changes the half-life: levels of rows that were not accessed recently decay more, or less.
    fn change_decay_rate(&mut self, decay_rate: u64) {
        let (time, now, before) = (self.time as u32, self.now_level().0, self.decay_rate);
        self.decay_rate = decay_rate;
        let decayed =
            |age: u32, decay_rate: u64| ((u128::from(age) * u128::from(decay_rate)) >> 32) as u64;
        self.rows.change_levels(|level, last| {
            let age = time.wrapping_sub(last);
            let changed = u64::from(level.0) + decayed(age, before);
            let changed = changed.saturating_sub(decayed(age, decay_rate));
            DecayedFrequency(changed.min(u64::from(now.max(level.0))) as u32)
        });
    }

    /// Looks up the keys and starts a request. Returns the weight of the rows that it hit.
    fn begin(&mut self, keys: &[Key], outcome: &mut Outcome) -> u64 {
        outcome.clear();
        if std::mem::take(&mut self.has_shrunk) {
            self.give_up_slots(outcome);
        }
        outcome.slots.extend(keys.iter().map(|key| self.rows.directory.find(*key)));
        outcome.hits.extend(outcome.slots.iter().map(Option::is_some));
        let hits = outcome.hits.iter().filter(|hit| **hit).count();
        self.keys = u32::try_from(keys.len()).expect("a request has fewer than 2^32 keys");
        self.hits = u32::try_from(hits).expect("no more hits than keys");
        let mut protected = 0;
        for slot in outcome.slots.iter().flatten() {
            if self.rows.protect(*slot) {
                protected += self.weight_of(*slot);
            }
        }
        protected
    }

    /// Passes each missing key that could fit to `miss` once, and ends the request.
    fn admit_missing(
        &mut self,
        keys: &[Key],
        protected: u64,
        outcome: &mut Outcome,
        miss: impl Fn(&mut Self, Key, u64, &mut Outcome),
    ) {
        let evictable = self.capacity.saturating_sub(protected);
        // A bag may have a key twice; it is read, and considered, once.
        let may_repeat = !keys.is_sorted_by(|a, b| a.table() < b.table());
        for (at, key) in keys.iter().enumerate() {
            if outcome.hits[at] {
                continue;
            }
            let Some(weight) = self.weight(key.table()) else { continue };
            let repeated = may_repeat && self.considered.insert(*key, ()).is_some();
            if !repeated && weight <= evictable {
                miss(self, *key, weight, outcome);
            }
        }
        self.rows.end_request();
        self.considered.clear();
        // Clearing a map costs time in proportion to its capacity, so a huge bag must not leave a
        // huge map behind.
        if self.considered.capacity() > SCRATCH_KEYS_MAX {
            self.considered = KeyMap::default();
        }
    }

    fn hit(&mut self, key: Key, slot: Slot) {
        let access = self.access(key, Some(self.rows.last(slot)), self.hit_halvings);
        self.rows.access(slot, access, self.time as u32);
    }

    fn miss(&mut self, key: Key, weight: u64, outcome: &mut Outcome) {
        let access = self.access(key, None, self.miss_halvings);
        let now = self.now_level();
        let level = self.ghosts.get(key, now).plus(access);
        if !self.make_room(weight, outcome) {
            self.ghosts.insert(key, level, now);
            return;
        }
        self.admit(key, weight, level, self.time as u32, outcome);
    }

    fn miss_ahead(&mut self, key: Key, weight: u64, outcome: &mut Outcome) {
        if self.make_room(weight, outcome) {
            // Its next access counts in full, not as part of a burst.
            let last = (self.time as u32).wrapping_sub(self.burst);
            let level = self.ghosts.get(key, self.now_level());
            self.admit(key, weight, level, last, outcome);
        }
    }

    /// Admits a row that fits.
    fn admit(
        &mut self,
        key: Key,
        weight: u64,
        level: DecayedFrequency,
        last: u32,
        outcome: &mut Outcome,
    ) {
        let is_pinned = self.is_pinned(key.table());
        let place = if is_pinned { Place::Pinned } else { Place::Window };
        self.rows.insert(key, level, last, place);
        outcome.admitted.push(key);
        self.used += weight;
        assert!(self.used <= self.capacity, "a policy evicts before it admits");
        if !is_pinned {
            self.window_used += weight;
        }
        // While the cache is not full, rows that leave the window are admitted unconditionally.
        while self.window_used > self.window_max.max(weight) {
            let slot = self.rows.leave_window();
            self.window_used -= self.weight_of(slot);
        }
    }

    /// The oldest row of the window that the current request does not need.
    fn window_candidate(&mut self) -> Option<Slot> {
        let (budget, slot_weight) = (&self.budget, self.slot_weight);
        let mut left = 0;
        let candidate = self.rows.oldest_in_window(|key| {
            let weight = budget.weight(key.table()).expect("a resident is of a declared table");
            left += u64::from(weight) + u64::from(slot_weight);
        });
        self.window_used -= left;
        candidate
    }

    /// Evicts until a row fits; `false` if the current request needs every resident.
    #[inline]
    fn make_room(&mut self, weight: u64, outcome: &mut Outcome) -> bool {
        let rows_max = self.rows.directory.keys_max();
        while self.used + weight + self.unused_slots() > self.capacity
            || self.rows.directory.len() >= rows_max
        {
            let window_is_full = self.window_used + weight > self.window_max;
            let candidate = if window_is_full { self.window_candidate() } else { None };
            let now = self.now_level();
            let lowest = self.rows.lowest(now, self.time as u32, self.idle_bound);
            let loser = match (candidate, lowest) {
                (Some(candidate), Some(lowest)) => {
                    let needed = self.rows.level(lowest).0 + self.setting.admission_margin;
                    if self.rows.level(candidate).0 > needed { lowest } else { candidate }
                }
                (Some(slot), None) | (None, Some(slot)) => slot,
                (None, None) => {
                    let left = self.window_candidate();
                    match left.or_else(|| self.rows.search(Place::Pinned)) {
                        Some(slot) => slot,
                        None => return false,
                    }
                }
            };
            if let Some(candidate) = candidate {
                self.window_used -= self.weight_of(candidate);
                self.rows.leave_window();
            } else if self.rows.place(loser) == Place::Window {
                self.window_used -= self.weight_of(loser);
                self.rows.leave_window();
            }
            self.evict(loser, outcome);
        }
        true
    }

    /// Weight of free slots, without the one that the next row uses. There are some where rows of
    /// different widths share the capacity.
    #[inline]
    fn unused_slots(&self) -> u64 {
        let directory = &self.rows.directory;
        let free = (directory.slot_count() - directory.len()).saturating_sub(1);
        free as u64 * u64::from(self.slot_weight)
    }

    /// Evicts a row that is not in the window.
    fn evict(&mut self, slot: Slot, outcome: &mut Outcome) {
        let (key, now) = (self.rows.directory.key(slot), self.now_level());
        self.ghosts.insert(key, self.rows.level(slot), now);
        self.used -= self.weight_of(slot);
        self.rows.remove(slot);
        outcome.evicted.push(Evicted { key, slot });
    }

    /// Evicts the rows of all slots that the capacity no longer covers, and frees these slots.
    fn give_up_slots(&mut self, outcome: &mut Outcome) {
        let slots = self.capacity / self.weights_mean().max(1);
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        while !self.rows.window_is_empty() {
            let slot = self.rows.leave_window();
            self.window_used -= self.weight_of(slot);
        }
        let gone: Vec<Slot> = self.rows.slots().filter(|slot| slot.0 as usize >= slots).collect();
        gone.into_iter().for_each(|slot| self.evict(slot, outcome));
        if slots < self.rows.directory.slot_count() {
            self.rows.truncate(slots);
        }
    }

    /// Mean weight of the residents.
    fn weights_mean(&self) -> u64 {
        self.used.div_ceil((self.rows.directory.len() as u64).max(1))
    }
}

impl Policy for Group {
    fn request(&mut self, keys: &[Key], outcome: &mut Outcome) {
        self.implications.request(keys);
        if std::mem::take(&mut self.setting_changed) {
            self.apply_setting();
        }
        let protected = self.begin(keys, outcome);
        let missed = u64::from(self.keys - self.hits);
        let discount = |missed: u64| {
            let halvings =
                u64::from(self.setting.strictness) * missed / u64::from(self.keys.max(1));
            u32::try_from(halvings).unwrap_or(u32::MAX)
        };
        (self.hit_halvings, self.miss_halvings) =
            (discount(missed), discount(missed.saturating_sub(1)));
        for (key, slot) in keys.iter().zip(&outcome.slots) {
            if let Some(slot) = slot {
                self.hit(*key, *slot);
            }
        }
        self.admit_missing(keys, protected, outcome, Self::miss);
    }

    fn prefetch(&mut self, keys: &[Key], outcome: &mut Outcome) {
        let protected = self.begin(keys, outcome);
        self.admit_missing(keys, protected, outcome, Self::miss_ahead);
    }

    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        let before = self.implications.bytes();
        self.implications.implied(keys, into);
        let more = self.implications.bytes() - before;
        if more > 0 && self.slot_weight > 0 {
            self.capacity = self.capacity.saturating_sub(more);
            self.has_shrunk = true;
            self.setting_changed = true;
        }
    }

    fn implications(&self) -> Vec<Implication> {
        self.implications.implications()
    }

    fn slot(&self, key: Key) -> Option<Slot> {
        self.rows.directory.find(key)
    }

    fn slot_count(&self) -> usize {
        self.rows.directory.slot_count()
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn residents(&self) -> Vec<Key> {
        self.rows.slots().map(|slot| self.rows.directory.key(slot)).collect()
    }

    fn bookkeeping(&self) -> Bookkeeping {
        Bookkeeping {
            directory: self.rows.bytes(),
            ghosts: self.ghosts.bytes(),
            tuning: self.tuning.bytes() + self.implications.bytes(),
        }
    }

    fn division(&self) -> Option<Division> {
        let slots = self.rows_max * u64::from(rows::SLOT_BYTES);
        let directory = slots + index_bytes(self.rows_max);
        let row_bytes =
            self.capacity - if self.slot_weight > 0 { slots.min(self.capacity) } else { 0 };
        let bookkeeping = Bookkeeping { directory, ..self.bookkeeping() };
        Some(Division { rows: self.rows_max, row_bytes, bookkeeping })
    }
}

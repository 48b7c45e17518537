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
//! Rows of a bundle ([`Implications`]) that one request admitted are evicted together: with one of
//! them, those that no other request has accessed since.
//!
//! Small tables are pinned: their rows, once resident, stay. They would nearly always stay anyway;
//! pinned, they need no ranking.

mod decayed_frequency;
mod eviction_cutoff;
mod ghost_table;
mod idle_decay;
mod shadow_tuning;

use self::{
    decayed_frequency::{DecayedFrequency, log2},
    ghost_table::GhostTable,
    shadow_tuning::{Access, Setting, ShadowTuning, decay_rate},
};
use super::{
    bucket_queue::BucketQueue,
    entries::{Entries, ListId, UNLISTED},
    implications::{BUNDLES_MAX, Implication, Implications},
    key::{Key, TableId, mix},
    pinned_tables::smallest_tables,
    policy::{Budget, Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const WINDOW: ListId = 0;
const PINNED: ListId = 1;

/// Accesses to a row closer together than this, in accesses per row that fits, are a burst.
const BURST_SHARE: f64 = 0.3;
/// Keys in the ghost table per row that fits: 64 bytes.
const GHOSTS_PER_ROW: u64 = 16;

/// An evicted row takes along rows of its bundle whose levels exceed its own by at most this.
/// Within two doublings they were accessed (nearly) only together with it.
const BUNDLE_LEVEL_GAP: u32 = 2 * DecayedFrequency::STEPS;

/// Rows checked for idle decay per eviction.
const IDLE_CHECKS: u32 = 2;

/// Levels per rank: 16 ranks per doubling.
const RANK_STEPS: u32 = 16;
/// Rank of "now" from which all levels are rebased.
const RANKS_MAX: u32 = 8192;

/// What the policy stores about a resident.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowMeta {
    level: DecayedFrequency,
    /// Time of the last access, in accesses modulo 2^32.
    last: u32,
    /// The next row of its bundle that the same request admitted, in a circle; itself if there is
    /// none.
    next: Slot,
    /// Its score in the main order. Its level may have risen since.
    rank: u32,
}

impl RowMeta {
    fn has_risen(&self) -> bool {
        rank(self.level) > self.rank
    }
}

/// The row of a bundle that was admitted last.
#[derive(Debug, Clone, Copy)]
struct LastAdmitted {
    /// Number of the request that admitted it.
    request: u32,
    slot: Slot,
    /// Its key, since the slot may have been reused.
    key: Option<Key>,
}

/// The policy `group`.
#[derive(Debug)]
pub(super) struct Group {
    entries: Entries<RowMeta>,
    /// Residents that have passed the window, each at the rank of its level or lower. A row is
    /// moved up when it would be the next victim, so that a hit moves nothing.
    main: BucketQueue,
    ghosts: GhostTable,
    tuning: ShadowTuning,
    setting: Setting,
    /// Whether `tuning` may have a better setting, to be applied at the next request.
    setting_changed: bool,
    pinned: Vec<bool>,
    implications: Implications,
    /// For each bundle.
    last_admitted: Vec<LastAdmitted>,
    /// For each table, the number of the last request that admitted a row of it.
    last_admitting: Vec<u32>,
    /// Number of accesses so far.
    time: u64,
    /// Level of an access that counts in full, with 32 fractional bits.
    now: u64,
    /// Increase of `now` per access.
    decay_rate: u64,
    /// Bound of idle decay ([`idle_decay::bound`]).
    idle_bound: u32,
    /// Slot that is next checked for idle decay.
    hand: u32,
    /// Limit on the weight of the window.
    window_max: u64,
    rows_max: u64,
    /// Accesses closer together than this are a burst.
    burst: u32,
    burst_log: u32,
    /// Discounts of the current request's hits and misses.
    hit_halvings: u32,
    miss_halvings: u32,
}

impl Group {
    pub fn new(budget: &Budget) -> Self {
        let rows_max = budget.rows_max();
        let tuning = ShadowTuning::new(rows_max);
        let pinned = smallest_tables(budget);
        let table_rows: Vec<u64> = budget.tables().iter().map(|shape| shape.rows).collect();
        let burst = ((rows_max as f64 * BURST_SHARE) as u32).max(1);
        let mut group = Self {
            entries: Entries::new(2, budget.capacity()),
            main: BucketQueue::default(),
            ghosts: GhostTable::new(rows_max.saturating_mul(GHOSTS_PER_ROW)),
            setting: tuning.setting(),
            tuning,
            setting_changed: false,
            implications: Implications::new(&table_rows, &pinned, rows_max),
            last_admitted: vec![LastAdmitted { request: 0, slot: Slot(0), key: None }; BUNDLES_MAX],
            last_admitting: vec![0; budget.tables().len()],
            pinned,
            time: 0,
            now: u64::from(DecayedFrequency::START.0) << 32,
            decay_rate: 0,
            idle_bound: 0,
            hand: 0,
            window_max: 0,
            rows_max,
            burst,
            burst_log: log2(burst),
            hit_halvings: 0,
            miss_halvings: 0,
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
        self.idle_bound = idle_decay::bound(self.setting.half_life);
        self.window_max = (self.entries.capacity() as f64 * self.setting.window) as u64;
    }

    fn is_pinned(&self, table: TableId) -> bool {
        self.pinned.get(usize::from(table.0)).copied().unwrap_or(false)
    }

    /// Level of an access that counts in full.
    fn now_level(&self) -> DecayedFrequency {
        DecayedFrequency(u32::try_from(self.now >> 32).unwrap_or(u32::MAX))
    }

    /// Level of an access to a key; `last` is the time of the previous one, if known.
    #[inline]
    fn access(
        &mut self,
        key: Key,
        last: Option<u32>,
        discount: u32,
        request: &RequestState,
    ) -> DecayedFrequency {
        self.time += 1;
        self.now += self.decay_rate;
        let burst = last.map_or(0, |last| {
            let gap = (self.time as u32).wrapping_sub(last).max(1);
            if gap < self.burst { self.burst_log - log2(gap) } else { 0 }
        });
        let halvings = discount + burst;
        if self.tuning.is_sampled(key) && self.is_tuning_access(last) {
            let is_miss = u32::from(last.is_none());
            self.tune(key, discount, request.keys - request.hits - is_miss, request.keys);
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
    fn tune(&mut self, key: Key, discount: u32, others_missed: u32, keys: u32) {
        let access = Access {
            time: self.time,
            halvings: discount,
            missing: others_missed as f32 / keys as f32,
            rows: self.rows(),
        };
        self.setting_changed |= self.tuning.access(key, access);
    }

    /// Rows that fit: extrapolated from the residents if the cache is full, else the maximum.
    fn rows(&self) -> f64 {
        let (used, capacity) = (self.entries.used() as f64, self.entries.capacity() as f64);
        if used > 0.9 * capacity {
            f64::from(self.entries.resident_count()) * capacity / used
        } else {
            self.rows_max as f64
        }
    }

    fn leave_main(&mut self, slot: Slot) {
        let rank = self.entries.meta(slot).rank;
        self.main.remove(&mut self.entries.links, rank, slot);
    }

    fn enter_main(&mut self, slot: Slot) {
        self.entries.unlist(slot);
        let row = self.entries.meta_mut(slot);
        let rank = rank(row.level);
        row.rank = rank;
        self.main.push_newest(&mut self.entries.links, rank, slot);
    }

    /// Lowers "now" and all levels, so that neither they nor their ranks overflow.
    fn rebase(&mut self) {
        let by = (rank(self.now_level()) - RANKS_MAX / 2) * RANK_STEPS;
        self.now -= u64::from(by) << 32;
        self.ghosts.rebase(by);
        self.change_levels(|row| row.level.minus(by));
    }

    /// Changes the half-life: levels of rows that were not accessed recently decay more, or less.
    fn change_decay_rate(&mut self, decay_rate: u64) {
        let (time, now, before) = (self.time as u32, self.now_level().0, self.decay_rate);
        self.decay_rate = decay_rate;
        let decayed =
            |age: u32, decay_rate: u64| ((u128::from(age) * u128::from(decay_rate)) >> 32) as u64;
        self.change_levels(|row| {
            let age = time.wrapping_sub(row.last);
            let level = u64::from(row.level.0) + decayed(age, before);
            let level =
                level.saturating_sub(decayed(age, decay_rate)).min(u64::from(now.max(row.level.0)));
            DecayedFrequency(level as u32)
        });
    }

    fn change_levels(&mut self, level: impl Fn(&RowMeta) -> DecayedFrequency) {
        let order: Vec<Slot> = self.main.in_order(&self.entries.links).collect();
        for slot in &order {
            self.leave_main(*slot);
        }
        self.entries.for_each_meta(|row| row.level = level(row));
        for slot in order {
            self.enter_main(slot);
        }
    }

    /// Applies idle decay to the next [`IDLE_CHECKS`] rows. No order would find idle rows first, so
    /// a hand goes round, and a hit costs nothing.
    fn apply_idle_decay(&mut self) {
        let now = self.now_level().0 + self.idle_bound;
        for _ in 0..IDLE_CHECKS {
            self.hand = if self.hand + 1 < self.entries.slot_count() { self.hand + 1 } else { 0 };
            let slot = Slot(self.hand);
            let Some(row) = self.entries.unlisted_resident(slot) else { continue };
            let level =
                DecayedFrequency(now).minus(log2((self.time as u32).wrapping_sub(row.last).max(1)));
            if level < row.level {
                let falls = rank(level) < row.rank;
                self.entries.meta_mut(slot).level = level;
                if falls {
                    self.leave_main(slot);
                    self.enter_main(slot);
                }
            }
        }
    }

    /// The lowest row of the main order. Rows whose levels have risen are moved up first.
    fn lowest(&mut self, request: &RequestState) -> Option<Slot> {
        loop {
            let entries = &self.entries;
            let spared =
                |slot| entries.is_protected(slot, request) && !entries.meta(slot).has_risen();
            let slot = self.main.first_not(&entries.links, spared)?;
            if !entries.meta(slot).has_risen() {
                return Some(slot);
            }
            self.leave_main(slot);
            self.enter_main(slot);
        }
    }

    /// Evicts a row, and the rows of its bundle within [`BUNDLE_LEVEL_GAP`].
    fn evict(&mut self, slot: Slot, request: &mut RequestState) {
        let RowMeta { level, next, .. } = *self.entries.meta(slot);
        self.remove(slot, request);
        let mut at = next;
        while at != slot {
            let row = *self.entries.meta(at);
            self.entries.meta_mut(at).next = at;
            if row.level.0 <= level.0 + BUNDLE_LEVEL_GAP && !self.entries.is_protected(at, request)
            {
                self.remove(at, request);
            }
            at = row.next;
        }
    }

    /// Links an admitted row to the rows of its bundle that the same request admitted, one of each
    /// table. Rows of a bag do not belong together; linked, all would be evicted with the first.
    fn join(&mut self, slot: Slot, key: Key, request: &RequestState) {
        let Some(bundle) = self.implications.bundle(key.table()) else { return };
        let last_admitting = &mut self.last_admitting[usize::from(key.table().0)];
        if std::mem::replace(last_admitting, request.number) == request.number {
            return;
        }
        let admitted = LastAdmitted { request: request.number, slot, key: Some(key) };
        let last = std::mem::replace(&mut self.last_admitted[usize::from(bundle)], admitted);
        // It may have been evicted again, and its slot reused.
        let is_resident =
            self.entries.is_resident(last.slot) && Some(self.entries.key(last.slot)) == last.key;
        if last.request == request.number && is_resident {
            let next = std::mem::replace(&mut self.entries.meta_mut(last.slot).next, slot);
            self.entries.meta_mut(slot).next = next;
        }
    }

    fn remove(&mut self, slot: Slot, request: &mut RequestState) {
        if self.entries.list_of(slot) == UNLISTED {
            self.leave_main(slot);
        }
        let now = self.now_level();
        self.ghosts.insert(self.entries.key(slot), self.entries.meta(slot).level, now);
        self.entries.forget(slot, request);
    }

    /// Admits a row that fits.
    fn admit(
        &mut self,
        key: Key,
        weight: u32,
        level: DecayedFrequency,
        last: u32,
        request: &mut RequestState,
    ) {
        let row = RowMeta { level, last, next: Slot(0), rank: 0 };
        let place = if self.is_pinned(key.table()) { PINNED } else { WINDOW };
        let slot = self.entries.admit(place, key, weight, row, request);
        self.entries.meta_mut(slot).next = slot;
        self.join(slot, key, request);
        // While the cache is not full, rows that leave the window are admitted unconditionally.
        while self.entries.list(WINDOW).weight() > self.window_max.max(u64::from(weight)) {
            let oldest = self.entries.oldest(WINDOW).expect("it weighs something");
            self.enter_main(oldest);
        }
    }

    #[inline]
    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            self.apply_idle_decay();
            let window_is_full =
                self.entries.list(WINDOW).weight() + u64::from(weight) > self.window_max;
            let candidate = self.entries.oldest_free(WINDOW, request);
            let loser = match (candidate.filter(|_| window_is_full), self.lowest(request)) {
                (Some(candidate), Some(lowest)) => {
                    let needed = self.entries.meta(lowest).level.0 + self.setting.admission_margin;
                    if self.entries.meta(candidate).level.0 > needed {
                        self.enter_main(candidate);
                        lowest
                    } else {
                        candidate
                    }
                }
                (Some(slot), None) | (None, Some(slot)) => slot,
                (None, None) => {
                    match candidate.or_else(|| self.entries.oldest_free(PINNED, request)) {
                        Some(slot) => slot,
                        None => return false,
                    }
                }
            };
            self.evict(loser, request);
        }
        true
    }
}

impl Replacement for Group {
    impl_entries!(RowMeta);

    fn begin(&mut self, keys: &[Key], request: &RequestState) {
        self.implications.request(keys);
        if std::mem::take(&mut self.setting_changed) {
            self.apply_setting();
        }
        let missed = u64::from(request.keys - request.hits);
        let discount = |missed: u64| {
            let halvings =
                u64::from(self.setting.strictness) * missed / u64::from(request.keys.max(1));
            u32::try_from(halvings).unwrap_or(u32::MAX)
        };
        (self.hit_halvings, self.miss_halvings) =
            (discount(missed), discount(missed.saturating_sub(1)));
        if rank(self.now_level()) > RANKS_MAX {
            self.rebase();
        }
    }

    fn hit(&mut self, slot: Slot, request: &mut RequestState) {
        let last = self.entries.meta(slot).last;
        let access = self.access(self.entries.key(slot), Some(last), self.hit_halvings, request);
        let time = self.time as u32;
        let row = self.entries.meta_mut(slot);
        row.level = row.level.plus(access);
        row.last = time;
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        let access = self.access(key, None, self.miss_halvings, request);
        let now = self.now_level();
        let level = self.ghosts.get(key, now).plus(access);
        if !self.make_room(weight, request) {
            self.ghosts.insert(key, level, now);
            return;
        }
        self.admit(key, weight, level, self.time as u32, request);
    }

    fn prefetch(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if self.make_room(weight, request) {
            // Its next access counts in full, not as part of a burst.
            let last = (self.time as u32).wrapping_sub(self.burst);
            let level = self.ghosts.get(key, self.now_level());
            self.admit(key, weight, level, last, request);
        }
    }

    fn end(&mut self) {
        self.main.reset_passed();
    }

    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        self.implications.implied(keys, into);
    }

    fn implications(&self) -> Vec<Implication> {
        self.implications.implications()
    }
}

fn rank(level: DecayedFrequency) -> u32 {
    level.0 / RANK_STEPS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::{Capacity, Outcome, Policy as _, TableShape, policy::Requests};

    /// Nothing overflows and no row is lost over long runs, most of which are skipped here.
    #[test]
    fn levels_are_rebased_before_they_overflow() {
        let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
        let budget = Budget::new(vec![shape], Capacity::Rows(100));
        let mut policy = Requests::new(Group::new(&budget), budget);
        let mut outcome = Outcome::default();
        for round in 0..64 {
            let group = policy.replacement_mut();
            group.time += 1 << 24;
            group.now += 1 << 60;
            for row in 0..2000 {
                let key = Key::new(TableId(0), row % 90).unwrap();
                policy.request(&[key], &mut outcome);
                assert!(outcome.perfect() || round == 0 && row < 90, "round {round}, row {row}");
            }
        }
        let group = policy.replacement_mut();
        let gone = Key::new(TableId(0), 5000).unwrap();
        group.ghosts.insert(gone, group.now_level(), group.now_level());
        group.now += u64::from(RANKS_MAX / 4 * RANK_STEPS) << 32;
        let below = |group: &Group| {
            let now = group.now_level();
            now.0 - group.ghosts.get(gone, now).0
        };
        let before = below(group);
        group.rebase();
        assert!(below(group).abs_diff(before) <= RANK_STEPS, "ghosts are rebased too");
    }

    /// A row is moved up when it would be the next victim: hits move nothing, and still the lowest
    /// row is evicted.
    #[test]
    fn a_row_whose_level_has_risen_is_not_the_next_victim() {
        let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
        let budget = Budget::new(vec![shape], Capacity::Rows(100));
        let mut policy = Requests::new(Group::new(&budget), budget);
        let (mut random, mut outcome) = (fastrand::Rng::with_seed(3), Outcome::default());
        // A request that protects no row.
        let (admitted, evicted) = (Vec::new(), Vec::new());
        let request =
            RequestState { number: u32::MAX, keys: 0, hits: 0, room: 0, admitted, evicted };
        for _ in 0..5000 {
            let row = (random.f64().powi(3) * 300.0) as u64;
            policy.request(&[Key::new(TableId(0), row).unwrap()], &mut outcome);
            let group = policy.replacement_mut();
            let of = |group: &Group, slot| rank(group.entries.meta(slot).level);
            let slots = group.entries.residents().filter_map(|key| group.entries.find(key));
            let main = slots.filter(|slot| group.entries.list_of(*slot) == UNLISTED);
            let expected = main.map(|slot| of(group, slot)).min();
            let lowest = group.lowest(&request);
            assert_eq!(lowest.map(|slot| of(group, slot)), expected);
        }
    }

    /// "Idle rows lose their frequency, the sooner, the more frequent they were."
    #[test]
    fn an_idle_row_loses_its_frequency() {
        let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
        let budget = Budget::new(vec![shape], Capacity::Rows(100));
        let mut policy = Requests::new(Group::new(&budget), budget);
        let mut outcome = Outcome::default();
        let key = |row| Key::new(TableId(0), row).unwrap();
        for round in 0..2000 {
            (0..90).for_each(|row| policy.request(&[key(row)], &mut outcome));
            policy.request(&[key(1000 + round)], &mut outcome);
        }
        let group = policy.replacement_mut();
        let highest = |group: &Group, age: u32| group.now_level().0 + group.idle_bound - log2(age);
        let level =
            |group: &Group| group.entries.find(key(0)).map(|slot| group.entries.meta(slot).level.0);
        assert!(level(group).unwrap() > highest(group, 20_000), "it is frequent");
        (10_000..20_000).for_each(|row| policy.request(&[key(row)], &mut outcome));
        let group = policy.replacement_mut();
        // The hand may have passed a while ago.
        assert!(level(group).is_none_or(|level| level <= highest(group, 9000)), "it is idle");
    }
}

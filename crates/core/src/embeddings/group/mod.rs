//! Ours: group-effective frequency.
//!
//! A row is worth keeping if it will be asked for *together with rows that are there too*. So an access
//! counts in full only when all other keys of its request hit, and is halved again and again for those
//! that miss; what counts fades exponentially. Four things keep that from going wrong:
//!
//! - **Bursts count once.** A user rates a hundred films in an hour and is never seen again. An access
//!   soon after the previous one counts only in proportion to the time between them.
//! - **Newcomers get a chance.** They pass a FIFO window before they compete with the lowest resident,
//!   and bring along what is remembered of them.
//! - **Favourites that stay away fall** ([`absence`]), the sooner, the more they were asked for.
//! - **Nothing is tuned by hand.** Half-life, window and the strictness with incomplete requests come from
//!   a [`rehearsal`] on a sample of the keys.
//!
//! Where one table's key determines another's, rows that came together go together ([`Bundles`]): when one of them
//! must go, so do the others that nobody else has asked for since.
//!
//! Small tables are pinned: their rows, once resident, stay. They would anyway, nearly always, and this way
//! they cost neither a ranking nor a surprise.

mod absence;
mod cut;
mod level;
mod memory;
mod rehearsal;

use self::{
    level::{Level, log2},
    memory::Memory,
    rehearsal::{Access, Rehearsal, Setting, pace},
};
use super::{
    bundles::{BUNDLES_MAX, Bundles, Implication},
    key::{Key, TableId, mix},
    list::Slot,
    policy::{Budget, Replacement, Turn, keeps_books},
    ranked::Ranked,
    store::{Place, Store, UNLISTED},
    whole::smallest_tables,
};

const WINDOW: Place = 0;
const PINNED: Place = 1;

/// Accesses closer together than this many per row that fits are a burst.
const BURST_SHARE: f64 = 0.3;
/// Keys that are remembered after they went, per row that fits: 64 bytes.
const REMEMBERED_PER_ROW: u64 = 16;

/// A row takes along those of its bundle whose levels are at most so far above its own: within two doublings they were
/// asked for with it, or nearly so.
const TAKEN_ALONG: u32 = 2 * Level::STEPS;

/// Rows that are looked at for absence when one must go.
const LOOKED_AT: u32 = 2;

/// Ranks are this fine: 16 to a doubling.
const RANK_STEPS: u32 = 16;
/// Ranks in use at most; then all levels are lowered alike.
const RANKS_MAX: u32 = 8192;

/// What we note about a resident.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    level: Level,
    /// When it was last asked for, in accesses; the lower half of the count is enough.
    last: u32,
    /// The next one of its bundle that came by the same request; itself, if there is none.
    next: Slot,
    /// Where it stands in the main order. Its level may have risen since.
    rank: u32,
}

impl Value {
    fn has_risen(&self) -> bool {
        rank(self.level) > self.rank
    }
}

/// Group-effective frequency.
#[derive(Debug)]
pub(super) struct Group {
    store: Store<Value>,
    /// Residents that have passed the window, by level: each no higher than where it belongs. It is moved up when it
    /// would be the next to go, so that a hit moves nobody.
    main: Ranked,
    memory: Memory,
    rehearsal: Rehearsal,
    setting: Setting,
    /// There may be a better setting: it is used from the next request on.
    reviewed: bool,
    pinned: Vec<bool>,
    bundles: Bundles,
    /// The row of each bundle that came last, and by which request; and the last request by which a row of each table
    /// came.
    came_last: Vec<(u32, Slot, Option<Key>)>,
    came: Vec<u32>,
    /// Accesses so far, and the level of one that counts in full, with 32 binary places.
    time: u64,
    now: u64,
    pace: u64,
    /// What a level is at most above now, but for the logarithm of a row's absence; and whose turn it is to be looked at.
    absence_bound: u32,
    hand: u32,
    /// What the window may weigh.
    window_max: u64,
    rows_max: u64,
    burst: u32,
    burst_log: u32,
    /// What the current request's hits, and its misses, are discounted by.
    hit_halvings: u32,
    miss_halvings: u32,
}

impl Group {
    pub fn new(budget: &Budget) -> Self {
        let rows_max = budget.rows_max();
        let rehearsal = Rehearsal::new(rows_max);
        let pinned = smallest_tables(budget);
        let table_rows: Vec<u64> = budget.tables().iter().map(|shape| shape.rows).collect();
        let burst = ((rows_max as f64 * BURST_SHARE) as u32).max(1);
        let mut group = Self {
            store: Store::new(2, budget.capacity()),
            main: Ranked::default(),
            memory: Memory::new(rows_max.saturating_mul(REMEMBERED_PER_ROW)),
            setting: rehearsal.setting(),
            rehearsal,
            reviewed: false,
            bundles: Bundles::new(&table_rows, &pinned, rows_max),
            came_last: vec![(0, Slot(0), None); BUNDLES_MAX],
            came: vec![0; budget.tables().len()],
            pinned,
            time: 0,
            now: u64::from(Level::START.0) << 32,
            pace: 0,
            absence_bound: 0,
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
        self.setting = self.rehearsal.setting();
        let pace = pace(self.setting.half_life);
        if pace != self.pace {
            self.change_pace(pace);
        }
        self.absence_bound = absence::bound(self.setting.half_life);
        self.window_max = (self.store.capacity() as f64 * self.setting.window) as u64;
    }

    fn pinned(&self, table: TableId) -> bool {
        self.pinned.get(usize::from(table.0)).copied().unwrap_or(false)
    }

    /// The level of an access that counts in full.
    fn now_level(&self) -> Level {
        Level(u32::try_from(self.now >> 32).unwrap_or(u32::MAX))
    }

    /// What an access to a key counts; `last` is when it was asked for before, if that is known.
    #[inline]
    fn access(&mut self, key: Key, last: Option<u32>, discount: u32, turn: &Turn) -> Level {
        self.time += 1;
        self.now += self.pace;
        let burst = last.map_or(0, |last| {
            let gap = (self.time as u32).wrapping_sub(last).max(1);
            if gap < self.burst { self.burst_log - log2(gap) } else { 0 }
        });
        let halvings = discount + burst;
        if self.rehearsal.sampled(key) && self.counts_in_rehearsal(last) {
            let is_miss = u32::from(last.is_none());
            self.rehearse(key, discount, turn.keys - turn.hits - is_miss, turn.keys);
        }
        self.now_level().minus(halvings)
    }

    /// In the rehearsal, too, a burst counts once: an access soon after the previous one takes part with a
    /// chance in proportion to the time between them. So it spends no time on keys that every setting has.
    fn counts_in_rehearsal(&self, last: Option<u32>) -> bool {
        let gap = last.map_or(u32::MAX, |last| (self.time as u32).wrapping_sub(last));
        // The upper half of the hash as a share of the burst: drawing without dividing.
        gap >= self.burst || ((mix(self.time) >> 32) * u64::from(self.burst)) >> 32 < u64::from(gap)
    }

    #[inline(never)]
    fn rehearse(&mut self, key: Key, discount: u32, others_missed: u32, keys: u32) {
        let access = Access {
            time: self.time,
            halvings: discount,
            missing: others_missed as f32 / keys as f32,
            rows: self.rows(),
        };
        self.reviewed |= self.rehearsal.access(key, access);
    }

    /// Rows that fit: what is there if the cache is full, else what the narrowest rows would make.
    fn rows(&self) -> f64 {
        let (used, capacity) = (self.store.used() as f64, self.store.capacity() as f64);
        if used > 0.9 * capacity {
            f64::from(self.store.resident_count()) * capacity / used
        } else {
            self.rows_max as f64
        }
    }

    fn leave_main(&mut self, slot: Slot) {
        let rank = self.store.meta(slot).rank;
        self.main.remove(&mut self.store.links, rank, slot);
    }

    fn enter_main(&mut self, slot: Slot) {
        self.store.unlist(slot);
        let value = self.store.meta_mut(slot);
        let rank = rank(value.level);
        value.rank = rank;
        self.main.push_newest(&mut self.store.links, rank, slot);
    }

    /// Levels rise with time; now and then all are lowered alike, so that neither they nor their ranks overflow.
    fn lower(&mut self) {
        let by = (rank(self.now_level()) - RANKS_MAX / 2) * RANK_STEPS;
        self.now -= u64::from(by) << 32;
        self.memory.lower(by);
        self.change_levels(|value| value.level.minus(by));
    }

    /// With another half-life, what was last asked for long ago has faded more, or less.
    fn change_pace(&mut self, pace: u64) {
        let (time, now, before) = (self.time as u32, self.now_level().0, self.pace);
        self.pace = pace;
        let faded = |age: u32, pace: u64| ((u128::from(age) * u128::from(pace)) >> 32) as u64;
        self.change_levels(|value| {
            let age = time.wrapping_sub(value.last);
            let level = u64::from(value.level.0) + faded(age, before);
            let level =
                level.saturating_sub(faded(age, pace)).min(u64::from(now.max(value.level.0)));
            Level(level as u32)
        });
    }

    fn change_levels(&mut self, level: impl Fn(&Value) -> Level) {
        let order: Vec<Slot> = self.main.in_order(&self.store.links).collect();
        for slot in &order {
            self.leave_main(*slot);
        }
        self.store.for_each_meta(|value| value.level = level(value));
        for slot in order {
            self.enter_main(slot);
        }
    }

    /// Looks at the next few rows: whoever has been away for longer than its level promises falls. There is no order
    /// in which these could be found, so a hand goes round, and a hit costs nothing.
    fn look_for_absent(&mut self) {
        let now = self.now_level().0 + self.absence_bound;
        for _ in 0..LOOKED_AT {
            self.hand = if self.hand + 1 < self.store.slot_count() { self.hand + 1 } else { 0 };
            let slot = Slot(self.hand);
            let Some(value) = self.store.unlisted_resident(slot) else { continue };
            let level = Level(now).minus(log2((self.time as u32).wrapping_sub(value.last).max(1)));
            if level < value.level {
                let falls = rank(level) < value.rank;
                self.store.meta_mut(slot).level = level;
                if falls {
                    self.leave_main(slot);
                    self.enter_main(slot);
                }
            }
        }
    }

    /// The lowest of the main order; those that have risen are moved to where they belong.
    fn lowest(&mut self, turn: &Turn) -> Option<Slot> {
        loop {
            let store = &self.store;
            let spared = |slot| store.protected(slot, turn) && !store.meta(slot).has_risen();
            let slot = self.main.first_not(&store.links, spared)?;
            if !store.meta(slot).has_risen() {
                return Some(slot);
            }
            self.leave_main(slot);
            self.enter_main(slot);
        }
    }

    /// Evicts a row, and what came with it and is not wanted more than it.
    fn evict(&mut self, slot: Slot, turn: &mut Turn) {
        let Value { level, next, .. } = *self.store.meta(slot);
        self.remove(slot, turn);
        let mut at = next;
        while at != slot {
            let value = *self.store.meta(at);
            self.store.meta_mut(at).next = at;
            if value.level.0 <= level.0 + TAKEN_ALONG && !self.store.protected(at, turn) {
                self.remove(at, turn);
            }
            at = value.next;
        }
    }

    /// A row came in: it joins those of its bundle that came by the same request, one of each table. Those of a bag do
    /// not belong together, and would all go with the first.
    fn join(&mut self, slot: Slot, key: Key, turn: &Turn) {
        let Some(bundle) = self.bundles.bundle(key.table()) else { return };
        let came = &mut self.came[usize::from(key.table().0)];
        if std::mem::replace(came, turn.number) == turn.number {
            return;
        }
        let came_last = &mut self.came_last[usize::from(bundle)];
        let (number, other, other_key) =
            std::mem::replace(came_last, (turn.number, slot, Some(key)));
        // It may have had to go again, and another have its slot.
        let is_there = self.store.resident(other) && Some(self.store.key(other)) == other_key;
        if number == turn.number && is_there {
            let next = std::mem::replace(&mut self.store.meta_mut(other).next, slot);
            self.store.meta_mut(slot).next = next;
        }
    }

    fn remove(&mut self, slot: Slot, turn: &mut Turn) {
        if self.store.place(slot) == UNLISTED {
            self.leave_main(slot);
        }
        let now = self.now_level();
        self.memory.note(self.store.key(slot), self.store.meta(slot).level, now);
        self.store.forget(slot, turn);
    }

    /// Takes a row in, for which there is room.
    fn admit(&mut self, key: Key, weight: u32, level: Level, last: u32, turn: &mut Turn) {
        let value = Value { level, last, next: Slot(0), rank: 0 };
        let place = if self.pinned(key.table()) { PINNED } else { WINDOW };
        let slot = self.store.admit(place, key, weight, value, turn);
        self.store.meta_mut(slot).next = slot;
        self.join(slot, key, turn);
        // While there is room, what leaves the window need not prove itself.
        while self.store.list(WINDOW).weight() > self.window_max.max(u64::from(weight)) {
            let oldest = self.store.oldest(WINDOW).expect("it weighs something");
            self.enter_main(oldest);
        }
    }

    #[inline]
    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            self.look_for_absent();
            let window_is_full =
                self.store.list(WINDOW).weight() + u64::from(weight) > self.window_max;
            let candidate = self.store.oldest_free(WINDOW, turn);
            let loser = match (candidate.filter(|_| window_is_full), self.lowest(turn)) {
                (Some(candidate), Some(lowest)) => {
                    let needed = self.store.meta(lowest).level.0 + self.setting.reluctance;
                    if self.store.meta(candidate).level.0 > needed {
                        self.enter_main(candidate);
                        lowest
                    } else {
                        candidate
                    }
                }
                (Some(slot), None) | (None, Some(slot)) => slot,
                (None, None) => match candidate.or_else(|| self.store.oldest_free(PINNED, turn)) {
                    Some(slot) => slot,
                    None => return false,
                },
            };
            self.evict(loser, turn);
        }
        true
    }
}

impl Replacement for Group {
    keeps_books!(Value);

    fn begin(&mut self, keys: &[Key], turn: &Turn) {
        self.bundles.request(keys);
        if std::mem::take(&mut self.reviewed) {
            self.apply_setting();
        }
        let missed = u64::from(turn.keys - turn.hits);
        let discount = |missed: u64| {
            let halvings =
                u64::from(self.setting.strictness) * missed / u64::from(turn.keys.max(1));
            u32::try_from(halvings).unwrap_or(u32::MAX)
        };
        (self.hit_halvings, self.miss_halvings) =
            (discount(missed), discount(missed.saturating_sub(1)));
        if rank(self.now_level()) > RANKS_MAX {
            self.lower();
        }
    }

    fn hit(&mut self, slot: Slot, turn: &mut Turn) {
        let last = self.store.meta(slot).last;
        let access = self.access(self.store.key(slot), Some(last), self.hit_halvings, turn);
        let time = self.time as u32;
        let value = self.store.meta_mut(slot);
        value.level = value.level.plus(access);
        value.last = time;
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        let access = self.access(key, None, self.miss_halvings, turn);
        let now = self.now_level();
        let level = self.memory.recall(key, now).plus(access);
        if !self.make_room(weight, turn) {
            self.memory.note(key, level, now);
            return;
        }
        self.admit(key, weight, level, self.time as u32, turn);
    }

    fn prefetch(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if self.make_room(weight, turn) {
            // When it is asked for, that shall count in full, and not as part of a burst.
            let last = (self.time as u32).wrapping_sub(self.burst);
            let level = self.memory.recall(key, self.now_level());
            self.admit(key, weight, level, last, turn);
        }
    }

    fn end(&mut self) {
        self.main.look_anew();
    }

    fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        self.bundles.implied(keys, into);
    }

    fn implications(&self) -> Vec<Implication> {
        self.bundles.implications()
    }
}

fn rank(level: Level) -> u32 {
    level.0 / RANK_STEPS
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Capacity, Outcome, Policy as _, TableShape, policy::Requests},
        *,
    };

    /// Nothing overflows, and nobody is forgotten, however long it runs: nearly all of this time is skipped.
    #[test]
    fn levels_are_lowered_in_time() {
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
        group.memory.note(gone, group.now_level(), group.now_level());
        group.now += u64::from(RANKS_MAX / 4 * RANK_STEPS) << 32;
        let below = |group: &Group| {
            let now = group.now_level();
            now.0 - group.memory.recall(gone, now).0
        };
        let before = below(group);
        group.lower();
        assert!(below(group).abs_diff(before) <= RANK_STEPS, "those who went are lowered alike");
    }

    /// "It is moved up when it would be the next to go": hits move nobody, and still nobody goes before one that is lower.
    #[test]
    fn whoever_has_risen_is_not_the_next_to_go() {
        let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
        let budget = Budget::new(vec![shape], Capacity::Rows(100));
        let mut policy = Requests::new(Group::new(&budget), budget);
        let (mut random, mut outcome) = (fastrand::Rng::with_seed(3), Outcome::default());
        // Of which nobody is part.
        let (admitted, evicted) = (Vec::new(), Vec::new());
        let turn = Turn { number: u32::MAX, keys: 0, hits: 0, room: 0, admitted, evicted };
        for _ in 0..5000 {
            let row = (random.f64().powi(3) * 300.0) as u64;
            policy.request(&[Key::new(TableId(0), row).unwrap()], &mut outcome);
            let group = policy.replacement_mut();
            let of = |group: &Group, slot| rank(group.store.meta(slot).level);
            let slots = group.store.residents().filter_map(|key| group.store.find(key));
            let main = slots.filter(|slot| group.store.place(*slot) == UNLISTED);
            let expected = main.map(|slot| of(group, slot)).min();
            let lowest = group.lowest(&turn);
            assert_eq!(lowest.map(|slot| of(group, slot)), expected);
        }
    }

    /// "Favourites that stay away fall, the sooner, the more they were asked for."
    #[test]
    fn a_favourite_that_stays_away_falls() {
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
        let highest =
            |group: &Group, age: u32| group.now_level().0 + group.absence_bound - log2(age);
        let level =
            |group: &Group| group.store.find(key(0)).map(|slot| group.store.meta(slot).level.0);
        assert!(level(group).unwrap() > highest(group, 20_000), "it is a favourite");
        (10_000..20_000).for_each(|row| policy.request(&[key(row)], &mut outcome));
        let group = policy.replacement_mut();
        // The hand may have passed a while ago.
        assert!(level(group).is_none_or(|level| level <= highest(group, 9000)), "and was one");
    }
}

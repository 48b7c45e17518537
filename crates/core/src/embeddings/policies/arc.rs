//! ARC (Megiddo and Modha, FAST'03) and the dissertation's EV-ARC.
//!
//! Two lists of residents, seen once and seen again, each with a ghost list of what it evicted; a hit
//! in a ghost list says which of the two should have been longer. EV-ARC orders the second list by group
//! score and flushes it as EV-LFU does; what is flushed goes to the *old* end of the first list, so that
//! it really makes way, and the ghosts are resized so that each list and its ghosts weigh alike.

use super::{
    frequency::{Flushing, Score, ScoreRule, oldest_perfect},
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    ranked::Ranked,
    store::{Place, Store, UNLISTED},
};

const ONCE: Place = 0;
const AGAIN: Place = 1;
const ONCE_GHOSTS: Place = 2;
const AGAIN_GHOSTS: Place = 3;

/// How far ARC and CAR move their target on a ghost hit: by the row's weight, times how much longer
/// the other ghost list is.
pub(super) fn adaptation(weight: u32, hit_ghosts: u64, other_ghosts: u64) -> u64 {
    let weight = u64::from(weight);
    weight.max(weight * other_ghosts / hit_ghosts.max(1))
}

/// ARC proper.
#[derive(Debug)]
pub(super) struct Arc {
    store: Store<()>,
    /// What `ONCE` should weigh.
    target: u64,
}

impl Arc {
    pub fn new(capacity: u64) -> Self {
        Self { store: Store::new(4, capacity), target: 0 }
    }

    fn weight(&self, place: Place) -> u64 {
        self.store.list(place).weight()
    }

    /// Makes room; `false` if the current request needs every resident.
    fn make_room(&mut self, weight: u32, seen_again: bool, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let once = self.weight(ONCE);
            let first = if once > self.target || (seen_again && once == self.target) {
                ONCE
            } else {
                AGAIN
            };
            let mut places = [first, ONCE, AGAIN].into_iter();
            let victim = places.find_map(|place| self.store.oldest_free(place, turn));
            let Some(victim) = victim else { return false };
            let ghosts = if self.store.place(victim) == ONCE { ONCE_GHOSTS } else { AGAIN_GHOSTS };
            self.store.evict_to(victim, ghosts, turn);
        }
        true
    }

    fn miss_ghost(&mut self, ghost: Slot, weight: u32, turn: &mut Turn) {
        let (once, again) = (self.weight(ONCE_GHOSTS), self.weight(AGAIN_GHOSTS));
        let seen_again = self.store.place(ghost) == AGAIN_GHOSTS;
        self.target = if seen_again {
            self.target.saturating_sub(adaptation(weight, again, once))
        } else {
            self.store.capacity().min(self.target + adaptation(weight, once, again))
        };
        // Out of the ghosts first: making room must not push this very one out.
        self.store.unlist(ghost);
        if self.make_room(weight, seen_again, turn) {
            self.store.move_newest(ghost, AGAIN);
            self.store.make_resident(ghost, turn);
        } else {
            self.store.forget(ghost, turn);
        }
    }
}

impl Replacement for Arc {
    keeps_books!(());

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        self.store.move_newest(slot, AGAIN);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if let Some(ghost) = self.store.find(key) {
            return self.miss_ghost(ghost, weight, turn);
        }
        let (capacity, needed) = (self.store.capacity(), u64::from(weight));
        if self.weight(ONCE) + self.weight(ONCE_GHOSTS) + needed > capacity {
            if self.weight(ONCE) + needed <= capacity {
                self.store.trim(ONCE_GHOSTS, capacity - self.weight(ONCE) - needed, turn);
            } else {
                // `ONCE` alone fills the cache: its oldest go without a trace.
                self.store.trim(ONCE_GHOSTS, 0, turn);
                while self.weight(ONCE) + needed > capacity {
                    let Some(oldest) = self.store.oldest_free(ONCE, turn) else { break };
                    self.store.forget(oldest, turn);
                }
            }
        }
        if !self.make_room(weight, false, turn) {
            return;
        }
        let others = self.weight(ONCE) + self.weight(ONCE_GHOSTS) + self.weight(AGAIN);
        self.store.trim(
            AGAIN_GHOSTS,
            capacity.saturating_mul(2).saturating_sub(others + needed),
            turn,
        );
        self.store.admit(ONCE, key, weight, (), turn);
    }
}

/// EV-ARC.
#[derive(Debug)]
pub(super) struct EvArc {
    store: Store<Score>,
    /// The residents seen again, by group score.
    again: Ranked,
    again_weight: u64,
    target: u64,
    tables: u32,
    flushing: Flushing,
}

impl EvArc {
    /// As in EV-ARC's pseudo-code, which flushes later than EV-LFU's.
    const FLUSHING: Flushing = Flushing { perfect_share_max: 0.95, rate: 0.1 };

    pub fn new(capacity: u64, tables: u32) -> Self {
        Self {
            store: Store::new(4, capacity),
            again: Ranked::default(),
            again_weight: 0,
            target: 0,
            tables,
            flushing: Self::FLUSHING,
        }
    }

    /// `AGAIN` is ranked, not a list of the store: entries in it are unlisted.
    fn is_again(&self, slot: Slot) -> bool {
        self.store.place(slot) == UNLISTED
    }

    fn leave_again(&mut self, slot: Slot) {
        self.again_weight -= self.store.links.weight(slot);
        let score = self.store.meta(slot).value;
        self.again.remove(&mut self.store.links, score, slot);
    }

    fn enter_again(&mut self, slot: Slot, score: Score) {
        self.store.unlist(slot);
        *self.store.meta_mut(slot) = score;
        self.again_weight += self.store.links.weight(slot);
        self.again.push_newest(&mut self.store.links, score.value, slot);
    }

    fn flush(&mut self, turn: &Turn) {
        let mut left = self.flushing.due(&self.again, self.tables, self.store.capacity());
        while left > 0.0 {
            let Some(slot) = oldest_perfect(&mut self.again, self.tables, &self.store, turn) else {
                return;
            };
            left -= self.store.links.weight(slot) as f64;
            self.leave_again(slot);
            self.store.move_oldest(slot, ONCE);
        }
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let once_victim = self.store.oldest_free(ONCE, turn);
            let store = &self.store;
            let mut again_victim =
                || self.again.first_not(&store.links, |slot| store.protected(slot, turn));
            let victim = if store.list(ONCE).weight() > self.target {
                once_victim.or_else(again_victim)
            } else {
                again_victim().or(once_victim)
            };
            let Some(victim) = victim else { return false };
            if self.is_again(victim) {
                self.leave_again(victim);
                self.store.evict_to(victim, AGAIN_GHOSTS, turn);
            } else {
                self.store.evict_to(victim, ONCE_GHOSTS, turn);
            }
        }
        true
    }

    /// A list and its ghosts together weigh what the cache holds.
    fn resize_ghosts(&mut self, turn: &mut Turn) {
        let capacity = self.store.capacity();
        self.store.trim(ONCE_GHOSTS, capacity - self.store.list(ONCE).weight(), turn);
        self.store.trim(AGAIN_GHOSTS, capacity - self.again_weight, turn);
    }
}

impl Replacement for EvArc {
    keeps_books!(Score);

    fn end(&mut self) {
        self.again.look_anew();
    }

    fn hit(&mut self, slot: Slot, turn: &mut Turn) {
        let next = self.store.meta(slot).next(ScoreRule::Max, turn.group_score(self.tables));
        if !self.is_again(slot) {
            self.enter_again(slot, next);
        } else if next.value != self.store.meta(slot).value {
            self.leave_again(slot);
            self.enter_again(slot, next);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.flush(turn);
        let score = Score::first(ScoreRule::Max, turn.group_score(self.tables));
        let ghost = self.store.find(key);
        if let Some(ghost) = ghost {
            let once = self.store.list(ONCE_GHOSTS).weight();
            let again = self.store.list(AGAIN_GHOSTS).weight();
            self.target = if self.store.place(ghost) == AGAIN_GHOSTS {
                self.target.saturating_sub(adaptation(weight, again, once))
            } else {
                self.store.capacity().min(self.target + adaptation(weight, once, again))
            };
            self.store.forget(ghost, turn);
        }
        if !self.make_room(weight, turn) {
            return;
        }
        let slot = self.store.admit(ONCE, key, weight, score, turn);
        if ghost.is_some() {
            self.enter_again(slot, score);
        }
        self.resize_ghosts(turn);
    }
}

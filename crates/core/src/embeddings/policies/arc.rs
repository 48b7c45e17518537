//! ARC (Megiddo and Modha, FAST'03) and the dissertation's EV-ARC.
//!
//! ARC has two lists of residents, seen once and seen again, each with a list of ghosts that it
//! evicted. A hit in a ghost list makes the list of residents that evicted the key longer.
//!
//! EV-ARC orders the second list by group score and flushes it as EV-LFU does. Flushed keys go to
//! the *old* end of the first list, so that they are evicted next. The ghost lists are resized so
//! that each list and its ghosts together weigh the capacity.

use super::frequency::{Flushing, Score, ScoreRule, oldest_perfect};
use crate::embeddings::{
    bucket_queue::BucketQueue,
    entries::{Entries, ListId, UNLISTED},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const ONCE: ListId = 0;
const AGAIN: ListId = 1;
const ONCE_GHOSTS: ListId = 2;
const AGAIN_GHOSTS: ListId = 3;

/// Step by which ARC and CAR move their target on a ghost hit: the row's weight, times the ratio of
/// the other ghost list to the one hit.
pub(in crate::embeddings) fn adaptation(weight: u32, hit_ghosts: u64, other_ghosts: u64) -> u64 {
    let weight = u64::from(weight);
    weight.max(weight * other_ghosts / hit_ghosts.max(1))
}

/// ARC.
#[derive(Debug)]
pub(in crate::embeddings) struct Arc {
    entries: Entries<()>,
    /// Target weight of `ONCE`.
    target: u64,
}

impl Arc {
    pub fn new(capacity: u64) -> Self {
        Self { entries: Entries::new(4, capacity), target: 0 }
    }

    fn weight(&self, list: ListId) -> u64 {
        self.entries.list(list).weight()
    }

    /// Evicts until a row fits; `false` if the current request needs every resident.
    fn make_room(&mut self, weight: u32, seen_again: bool, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let once = self.weight(ONCE);
            let first = if once > self.target || (seen_again && once == self.target) {
                ONCE
            } else {
                AGAIN
            };
            let mut lists = [first, ONCE, AGAIN].into_iter();
            let victim = lists.find_map(|list| self.entries.oldest_free(list, request));
            let Some(victim) = victim else { return false };
            let ghosts =
                if self.entries.list_of(victim) == ONCE { ONCE_GHOSTS } else { AGAIN_GHOSTS };
            self.entries.evict_to(victim, ghosts, request);
        }
        true
    }

    fn miss_ghost(&mut self, ghost: Slot, weight: u32, request: &mut RequestState) {
        let (once, again) = (self.weight(ONCE_GHOSTS), self.weight(AGAIN_GHOSTS));
        let seen_again = self.entries.list_of(ghost) == AGAIN_GHOSTS;
        self.target = if seen_again {
            self.target.saturating_sub(adaptation(weight, again, once))
        } else {
            self.entries.capacity().min(self.target + adaptation(weight, once, again))
        };
        // Unlisted first, so that making room does not remove this ghost.
        self.entries.unlist(ghost);
        if self.make_room(weight, seen_again, request) {
            self.entries.move_newest(ghost, AGAIN);
            self.entries.make_resident(ghost, request);
        } else {
            self.entries.forget(ghost, request);
        }
    }
}

impl Replacement for Arc {
    impl_entries!(());

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        self.entries.move_newest(slot, AGAIN);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if let Some(ghost) = self.entries.find(key) {
            return self.miss_ghost(ghost, weight, request);
        }
        let (capacity, needed) = (self.entries.capacity(), u64::from(weight));
        if self.weight(ONCE) + self.weight(ONCE_GHOSTS) + needed > capacity {
            if self.weight(ONCE) + needed <= capacity {
                self.entries.trim(ONCE_GHOSTS, capacity - self.weight(ONCE) - needed, request);
            } else {
                // `ONCE` alone fills the cache: its oldest entries leave no ghosts.
                self.entries.trim(ONCE_GHOSTS, 0, request);
                while self.weight(ONCE) + needed > capacity {
                    let Some(oldest) = self.entries.oldest_free(ONCE, request) else { break };
                    self.entries.forget(oldest, request);
                }
            }
        }
        if !self.make_room(weight, false, request) {
            return;
        }
        let others = self.weight(ONCE) + self.weight(ONCE_GHOSTS) + self.weight(AGAIN);
        self.entries.trim(
            AGAIN_GHOSTS,
            capacity.saturating_mul(2).saturating_sub(others + needed),
            request,
        );
        self.entries.admit(ONCE, key, weight, (), request);
    }
}

/// EV-ARC.
#[derive(Debug)]
pub(in crate::embeddings) struct EvArc {
    entries: Entries<Score>,
    /// Residents seen again, by group score.
    again: BucketQueue,
    again_weight: u64,
    target: u64,
    tables: u32,
    flushing: Flushing,
}

impl EvArc {
    /// The settings of EV-ARC's pseudo-code, which flushes later than EV-LFU's.
    const FLUSHING: Flushing = Flushing { perfect_share_max: 0.95, rate: 0.1 };

    pub fn new(capacity: u64, tables: u32) -> Self {
        Self {
            entries: Entries::new(4, capacity),
            again: BucketQueue::default(),
            again_weight: 0,
            target: 0,
            tables,
            flushing: Self::FLUSHING,
        }
    }

    /// Whether an entry is in `again`, which is not a list of `entries`: its entries are unlisted.
    fn is_again(&self, slot: Slot) -> bool {
        self.entries.list_of(slot) == UNLISTED
    }

    fn leave_again(&mut self, slot: Slot) {
        self.again_weight -= self.entries.links.weight(slot);
        let score = self.entries.meta(slot).value;
        self.again.remove(&mut self.entries.links, score, slot);
    }

    fn enter_again(&mut self, slot: Slot, score: Score) {
        self.entries.unlist(slot);
        *self.entries.meta_mut(slot) = score;
        self.again_weight += self.entries.links.weight(slot);
        self.again.push_newest(&mut self.entries.links, score.value, slot);
    }

    fn flush(&mut self, request: &RequestState) {
        let mut left = self.flushing.due(&self.again, self.tables, self.entries.capacity());
        while left > 0.0 {
            let Some(slot) = oldest_perfect(&mut self.again, self.tables, &self.entries, request)
            else {
                return;
            };
            left -= self.entries.links.weight(slot) as f64;
            self.leave_again(slot);
            self.entries.move_oldest(slot, ONCE);
        }
    }

    /// Evicts until a row fits, with ARC's rule for ties.
    fn make_room(&mut self, weight: u32, seen_again: bool, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let once_victim = self.entries.oldest_free(ONCE, request);
            let entries = &self.entries;
            let mut again_victim =
                || self.again.first_not(&entries.links, |slot| entries.is_protected(slot, request));
            let once = entries.list(ONCE).weight();
            let victim = if once > self.target || (seen_again && once == self.target) {
                once_victim.or_else(again_victim)
            } else {
                again_victim().or(once_victim)
            };
            let Some(victim) = victim else { return false };
            if self.is_again(victim) {
                self.leave_again(victim);
                self.entries.evict_to(victim, AGAIN_GHOSTS, request);
            } else {
                self.entries.evict_to(victim, ONCE_GHOSTS, request);
            }
        }
        true
    }

    /// Trims the ghosts so that each list and its ghosts together weigh at most the capacity.
    fn resize_ghosts(&mut self, request: &mut RequestState) {
        let capacity = self.entries.capacity();
        self.entries.trim(ONCE_GHOSTS, capacity - self.entries.list(ONCE).weight(), request);
        self.entries.trim(AGAIN_GHOSTS, capacity - self.again_weight, request);
    }
}

impl Replacement for EvArc {
    impl_entries!(Score);

    fn end(&mut self) {
        self.again.reset_passed();
    }

    fn hit(&mut self, slot: Slot, request: &mut RequestState) {
        let next = self.entries.meta(slot).next(ScoreRule::Max, request.group_score(self.tables));
        if !self.is_again(slot) {
            self.enter_again(slot, next);
        } else if next.value != self.entries.meta(slot).value {
            self.leave_again(slot);
            self.enter_again(slot, next);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        self.flush(request);
        let score = Score::first(ScoreRule::Max, request.group_score(self.tables));
        let ghost = self.entries.find(key);
        let mut seen_again = false;
        if let Some(ghost) = ghost {
            seen_again = self.entries.list_of(ghost) == AGAIN_GHOSTS;
            let once = self.entries.list(ONCE_GHOSTS).weight();
            let again = self.entries.list(AGAIN_GHOSTS).weight();
            self.target = if seen_again {
                self.target.saturating_sub(adaptation(weight, again, once))
            } else {
                self.entries.capacity().min(self.target + adaptation(weight, once, again))
            };
            self.entries.forget(ghost, request);
        }
        if !self.make_room(weight, seen_again, request) {
            return;
        }
        let slot = self.entries.admit(ONCE, key, weight, score, request);
        if ghost.is_some() {
            self.enter_again(slot, score);
        }
        self.resize_ghosts(request);
    }
}

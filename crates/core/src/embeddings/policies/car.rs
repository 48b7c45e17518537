//! CAR (Bansal and Modha, FAST'04) and the dissertation's EV-CAR: ARC's lists as clocks.
//!
//! EV-CAR keeps the group score beside the reference bit, and its hand challenges referenced keys by the
//! score of the request that needs room. Mended here: the recency branch reads the recency clock (the
//! pseudo-code reads the frequency clock in both); a score that beats the challenger's shrinks to
//! `max(0, score - rate)` and the rate rises for every key passed (the printed condition shrinks only
//! scores that would reach nought, and counts only those, so that the hand can spin for ever).

use super::{
    arc::adaptation,
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    store::{Place, Store},
};

const ONCE: Place = 0;
const AGAIN: Place = 1;
const ONCE_GHOSTS: Place = 2;
const AGAIN_GHOSTS: Place = 3;

/// What the clocks note about a key.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    referenced: bool,
    score: u32,
}

/// CAR, or EV-CAR when it is told how many tables a request has.
#[derive(Debug)]
pub(super) struct Car {
    store: Store<Mark>,
    target: u64,
    tables: Option<u32>,
}

/// How EV-CAR's hand loses patience during one search.
struct Impatience {
    score: u32,
    rate: u32,
    passed: u32,
    /// Keys passed before the rate rises.
    partition: u32,
}

impl Impatience {
    /// Passes a referenced key of the frequency clock; it keeps its bit if its score is still higher.
    fn pass(&mut self, mark: &mut Mark) {
        if mark.score <= self.score {
            mark.referenced = false;
            return;
        }
        mark.score = mark.score.saturating_sub(self.rate);
        self.passed += 1;
        if self.passed >= self.partition {
            self.rate += 1;
            self.passed = 0;
        }
    }
}

impl Car {
    pub fn new(capacity: u64) -> Self {
        Self { store: Store::new(4, capacity), target: 0, tables: None }
    }

    pub fn ev(capacity: u64, tables: u32) -> Self {
        Self { tables: Some(tables), ..Self::new(capacity) }
    }

    fn weight(&self, place: Place) -> u64 {
        self.store.list(place).weight()
    }

    fn score(&self, turn: &Turn) -> u32 {
        self.tables.map_or(0, |tables| turn.group_score(tables))
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        let residents = self.store.list(ONCE).len() + self.store.list(AGAIN).len();
        let mut impatience = Impatience {
            score: self.score(turn),
            rate: 1,
            passed: 0,
            partition: (residents / self.tables.unwrap_or(1).max(1)).max(1),
        };
        // No key survives more than a few passes (its score is at most the number of tables), unless
        // the current request needs it.
        let mut passes_left = u64::from(residents) * (2 + u64::from(self.tables.unwrap_or(0)));
        while !self.store.fits(weight) {
            let once = self.store.oldest(ONCE);
            let (slot, ghosts) = match once {
                Some(slot) if self.weight(ONCE) >= self.target.max(1) => (slot, ONCE_GHOSTS),
                _ => match self.store.oldest(AGAIN).or(once) {
                    Some(slot) if self.store.place(slot) == AGAIN => (slot, AGAIN_GHOSTS),
                    Some(slot) => (slot, ONCE_GHOSTS),
                    None => return false,
                },
            };
            if passes_left == 0 {
                return false;
            }
            passes_left -= 1;
            let protected = self.store.protected(slot, turn);
            let is_again = ghosts == AGAIN_GHOSTS;
            let ev = self.tables.is_some();
            let mark = self.store.meta_mut(slot);
            if !mark.referenced && !protected {
                self.store.evict_to(slot, ghosts, turn);
                continue;
            }
            if is_again && ev && mark.referenced {
                impatience.pass(mark);
            } else {
                mark.referenced = false;
            }
            self.store.move_newest(slot, AGAIN);
        }
        true
    }
}

impl Replacement for Car {
    keeps_books!(Mark);

    fn hit(&mut self, slot: Slot, turn: &mut Turn) {
        let score = self.score(turn);
        let mark = self.store.meta_mut(slot);
        mark.referenced = true;
        mark.score = mark.score.max(score);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if !turn.has_room(weight) {
            return;
        }
        let mark = Mark { referenced: false, score: self.score(turn) };
        let ghost = self.store.find(key).map(|slot| (slot, self.store.place(slot)));
        if let Some((slot, _)) = ghost {
            self.store.unlist(slot);
        }
        if !self.make_room(weight, turn) {
            turn.give_up();
            if let Some((slot, _)) = ghost {
                self.store.forget(slot, turn);
            }
            return;
        }
        let (capacity, needed) = (self.store.capacity(), u64::from(weight));
        let Some((slot, place)) = ghost else {
            let once = self.weight(ONCE) + needed;
            self.store.trim(ONCE_GHOSTS, capacity.saturating_sub(once), turn);
            let others = once + self.weight(ONCE_GHOSTS) + self.weight(AGAIN);
            self.store.trim(AGAIN_GHOSTS, capacity.saturating_mul(2).saturating_sub(others), turn);
            self.store.admit(ONCE, key, weight, mark, turn);
            return;
        };
        // The ghost itself counts as part of the list it was in.
        let again = self.weight(AGAIN_GHOSTS) + if place == AGAIN_GHOSTS { needed } else { 0 };
        let once = self.weight(ONCE_GHOSTS) + if place == ONCE_GHOSTS { needed } else { 0 };
        self.target = if place == AGAIN_GHOSTS {
            self.target.saturating_sub(adaptation(weight, again, once))
        } else {
            capacity.min(self.target + adaptation(weight, once, again))
        };
        *self.store.meta_mut(slot) = mark;
        self.store.move_newest(slot, AGAIN);
        self.store.make_resident(slot, turn);
    }
}

//! CAR (Bansal and Modha, FAST'04) and the dissertation's EV-CAR: ARC's lists as clocks.
//!
//! EV-CAR keeps the group score beside the reference bit. Its hand challenges referenced keys with
//! the score of the request that needs space. Two errors of the printed pseudo-code are fixed here:
//!
//! - The recency branch reads the recency clock; the pseudo-code reads the frequency clock in both.
//! - A score above the challenger's shrinks to `max(0, score - rate)`, and the rate rises with the
//!   number of keys passed. The printed condition shrinks, and counts, only scores that would reach
//!   0, so that the hand can spin for ever.

use super::arc::adaptation;
use crate::embeddings::{
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const ONCE: ListId = 0;
const AGAIN: ListId = 1;
const ONCE_GHOSTS: ListId = 2;
const AGAIN_GHOSTS: ListId = 3;

/// What the clocks store about a key.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::embeddings) struct KeyMeta {
    referenced: bool,
    score: u32,
}

/// CAR; EV-CAR if `tables`, the number of tables per request, is set.
#[derive(Debug)]
pub(in crate::embeddings) struct Car {
    entries: Entries<KeyMeta>,
    target: u64,
    tables: Option<u32>,
}

/// State of EV-CAR's hand during one search: scores shrink faster the longer it lasts.
struct Challenge {
    score: u32,
    rate: u32,
    passed: u32,
    /// Keys passed before the rate rises.
    partition: u32,
}

impl Challenge {
    /// Passes a referenced key of the frequency clock. The key keeps its bit if its score is
    /// higher, and shrinks. Returns whether it shrank to the challenger's score, and so lost.
    ///
    /// After one rotation over higher scores the rate exceeds every score, and a key of a lower
    /// score has lost its bit. So the hand finds a victim within a rotation and one key.
    fn pass(&mut self, meta: &mut KeyMeta) -> bool {
        if meta.score <= self.score {
            meta.referenced = false;
            return false;
        }
        meta.score = meta.score.saturating_sub(self.rate);
        self.passed += 1;
        if self.passed >= self.partition {
            self.rate += 1;
            self.passed = 0;
        }
        meta.score <= self.score
    }
}

impl Car {
    pub fn new(capacity: u64) -> Self {
        Self { entries: Entries::new(4, capacity), target: 0, tables: None }
    }

    pub fn ev(capacity: u64, tables: u32) -> Self {
        Self { tables: Some(tables), ..Self::new(capacity) }
    }

    fn weight(&self, list: ListId) -> u64 {
        self.entries.list(list).weight()
    }

    fn score(&self, request: &RequestState) -> u32 {
        self.tables.map_or(0, |tables| request.group_score(tables))
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        let residents = self.entries.list(ONCE).len() + self.entries.list(AGAIN).len();
        let mut challenge = Challenge {
            score: self.score(request),
            rate: 1,
            passed: 0,
            partition: (residents / self.tables.unwrap_or(1).max(1)).max(1),
        };
        // Each row that leaves takes one rotation at most, unless the current request needs all
        // others. Two more are for rows that it needs.
        let mut passes_left = (u64::from(residents) + 1) * (2 + u64::from(weight));
        while !self.entries.fits(weight) {
            let once = self.entries.oldest(ONCE);
            let (slot, ghosts) = match once {
                Some(slot) if self.weight(ONCE) >= self.target.max(1) => (slot, ONCE_GHOSTS),
                _ => match self.entries.oldest(AGAIN).or(once) {
                    Some(slot) if self.entries.list_of(slot) == AGAIN => (slot, AGAIN_GHOSTS),
                    Some(slot) => (slot, ONCE_GHOSTS),
                    None => return false,
                },
            };
            if passes_left == 0 {
                return false;
            }
            passes_left -= 1;
            let protected = self.entries.is_protected(slot, request);
            let is_again = ghosts == AGAIN_GHOSTS;
            let ev = self.tables.is_some();
            let meta = self.entries.meta_mut(slot);
            if !meta.referenced && !protected {
                self.entries.evict_to(slot, ghosts, request);
                continue;
            }
            if is_again && ev && meta.referenced {
                if challenge.pass(meta) && !protected {
                    self.entries.evict_to(slot, ghosts, request);
                    continue;
                }
            } else {
                meta.referenced = false;
            }
            self.entries.move_newest(slot, AGAIN);
        }
        true
    }
}

impl Replacement for Car {
    impl_entries!(KeyMeta);

    fn hit(&mut self, slot: Slot, request: &mut RequestState) {
        let score = self.score(request);
        let meta = self.entries.meta_mut(slot);
        meta.referenced = true;
        meta.score = meta.score.max(score);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if !request.has_room(weight) {
            return;
        }
        let meta = KeyMeta { referenced: false, score: self.score(request) };
        let ghost = self.entries.find(key).map(|slot| (slot, self.entries.list_of(slot)));
        if let Some((slot, _)) = ghost {
            self.entries.unlist(slot);
        }
        if !self.make_room(weight, request) {
            request.give_up();
            if let Some((slot, _)) = ghost {
                self.entries.forget(slot, request);
            }
            return;
        }
        let (capacity, needed) = (self.entries.capacity(), u64::from(weight));
        let Some((slot, list)) = ghost else {
            let once = self.weight(ONCE) + needed;
            self.entries.trim(ONCE_GHOSTS, capacity.saturating_sub(once), request);
            let others = once + self.weight(ONCE_GHOSTS) + self.weight(AGAIN);
            self.entries.trim(
                AGAIN_GHOSTS,
                capacity.saturating_mul(2).saturating_sub(others),
                request,
            );
            self.entries.admit(ONCE, key, weight, meta, request);
            return;
        };
        // The ghost itself counts as part of the list that it was in.
        let again = self.weight(AGAIN_GHOSTS) + if list == AGAIN_GHOSTS { needed } else { 0 };
        let once = self.weight(ONCE_GHOSTS) + if list == ONCE_GHOSTS { needed } else { 0 };
        self.target = if list == AGAIN_GHOSTS {
            self.target.saturating_sub(adaptation(weight, again, once))
        } else {
            capacity.min(self.target + adaptation(weight, once, again))
        };
        *self.entries.meta_mut(slot) = meta;
        self.entries.move_newest(slot, AGAIN);
        self.entries.make_resident(slot, request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::{
        Capacity, Outcome, Policy as _, TableId, TableShape,
        policy::{Budget, Requests},
        slab_list::steps,
    };

    /// The dissertation's promise for EV-CAR: a victim "within a single rotation".
    #[test]
    fn a_challenger_of_score_zero_finds_a_victim_within_a_rotation() {
        const TABLES: u16 = 8;
        const ROWS: u64 = 800;
        let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
        let budget = Budget::new(vec![shape; usize::from(TABLES)], Capacity::Rows(ROWS));
        let mut policy = Requests::new(Car::ev(ROWS, TABLES.into()), budget);
        let mut outcome = Outcome::default();
        let request = |row: u64| -> Vec<Key> {
            (0..TABLES).map(|table| Key::new(TableId(table), row).unwrap()).collect()
        };
        // All rows are in the frequency clock, are referenced, and have the highest score.
        for row in (0..ROWS / u64::from(TABLES)).cycle().take(4 * 100) {
            policy.request(&request(row), &mut outcome);
        }
        assert!(outcome.perfect());
        let new = request(5000);
        let taken = steps::of(|| policy.request(&new[..1], &mut outcome));
        assert_eq!(outcome.admitted, new[..1]);
        // A pass takes a row out of its list and puts it back: a step each.
        assert!(taken <= 2 * (ROWS + 10), "{taken} steps for {ROWS} rows");
    }
}

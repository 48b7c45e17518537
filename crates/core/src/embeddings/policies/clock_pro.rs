//! CLOCK-Pro (Jiang, Chen and Zhang, USENIX ATC'05): LIRS's idea on one clock with three hands.
//!
//! Resident keys are hot or cold; an evicted cold key stays on the clock for a test period, and if it
//! returns within it, the share for cold keys grows. The hands move independently here; the paper lets
//! the hot hand also end test periods, which only shortens them.

use super::{
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    store::{Place, Store},
};

const CLOCK: Place = 0;

/// Cold keys keep this share, as in LIRS, and so do hot ones. With a single one of either kind its hand goes round the
/// whole clock to find it, at every miss.
const SHARE_DIVISOR: u64 = 100;

/// What a hand passes at a miss where that share is least: the clock has up to twice the cache.
const PASSES_PER_MISS: u64 = 2 * SHARE_DIVISOR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hot,
    Cold,
    /// No longer resident, but its return would be noticed.
    Test,
}

/// What the clock notes about a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    kind: Kind,
    referenced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hand {
    Hot,
    Cold,
    Test,
}

/// CLOCK-Pro.
#[derive(Debug)]
pub(super) struct ClockPro {
    store: Store<Page>,
    hands: [Option<Slot>; 3],
    hot: u64,
    test: u64,
    /// What cold residents should weigh.
    cold_target: u64,
    /// Keys that the cold hand passed in this request, beyond what each miss is allowed.
    passed: u64,
}

impl ClockPro {
    pub fn new(capacity: u64) -> Self {
        let store = Store::new(1, capacity);
        let mut clock =
            Self { store, hands: [None; 3], hot: 0, test: 0, cold_target: 0, passed: 0 };
        clock.set_cold_target(capacity);
        clock
    }

    fn set_cold_target(&mut self, target: u64) {
        let capacity = self.store.capacity();
        let least = (capacity / SHARE_DIVISOR).max(1);
        self.cold_target = target.min(capacity.saturating_sub(least)).max(least.min(capacity));
    }

    /// The key under a hand, which then moves on.
    fn advance(&mut self, hand: Hand) -> Option<Slot> {
        let slot = self.hands[hand as usize].or(self.store.oldest(CLOCK))?;
        self.hands[hand as usize] = self.store.links.newer(slot);
        Some(slot)
    }

    fn forget(&mut self, slot: Slot, turn: &mut Turn) {
        let next = self.store.links.newer(slot);
        for hand in self.hands.iter_mut().filter(|hand| **hand == Some(slot)) {
            *hand = next;
        }
        self.store.forget(slot, turn);
    }

    fn insert(&mut self, slot: Slot) {
        if let Some(hot_hand) = self.hands[Hand::Hot as usize].filter(|hand| *hand != slot) {
            self.store.move_behind(slot, hot_hand);
        }
    }

    /// Moves the cold hand past one key.
    fn run_cold(&mut self, turn: &mut Turn) {
        let Some(slot) = self.advance(Hand::Cold) else { return };
        let page = *self.store.meta(slot);
        if page.kind != Kind::Cold {
            return;
        }
        let weight = self.store.links.weight(slot);
        if page.referenced {
            *self.store.meta_mut(slot) = Page { kind: Kind::Hot, referenced: false };
            self.hot += weight;
        } else if !self.store.protected(slot, turn) {
            self.store.meta_mut(slot).kind = Kind::Test;
            self.store.make_ghost(slot, turn);
            self.test += weight;
            while self.test > self.store.capacity() {
                self.run_test(turn);
            }
        }
        self.cool();
    }

    /// Turns hot keys cold until they fit their share.
    fn cool(&mut self) {
        while self.hot > self.store.capacity() - self.cold_target {
            let Some(slot) = self.advance(Hand::Hot) else { return };
            let weight = self.store.links.weight(slot);
            let page = self.store.meta_mut(slot);
            if page.kind == Kind::Hot && !std::mem::take(&mut page.referenced) {
                page.kind = Kind::Cold;
                self.hot -= weight;
            }
        }
    }

    fn run_test(&mut self, turn: &mut Turn) {
        let Some(slot) = self.advance(Hand::Test) else { return };
        if self.store.meta(slot).kind == Kind::Test {
            let weight = self.store.links.weight(slot);
            self.test -= weight;
            self.set_cold_target(self.cold_target.saturating_sub(weight));
            self.forget(slot, turn);
        }
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        // Each key is passed at most a few times: referenced, then hot, then cooled, then gone; but for those that the
        // request needs itself, of which there may be many.
        self.passed = self.passed.saturating_sub(PASSES_PER_MISS);
        let passes_max = 4 * u64::from(self.store.list(CLOCK).len()) + 4;
        while !self.store.fits(weight) && self.passed < passes_max {
            self.run_cold(turn);
            self.passed += 1;
        }
        // With every resident hot, or needed, the cold hand finds nothing: whoever is next at the hot hand goes.
        if !self.store.fits(weight) {
            self.evict_any(weight, turn);
        }
        self.store.fits(weight)
    }

    fn evict_any(&mut self, weight: u32, turn: &mut Turn) {
        for _ in 0..self.store.list(CLOCK).len() {
            if self.store.fits(weight) {
                return;
            }
            let Some(slot) = self.advance(Hand::Hot) else { return };
            if self.store.resident(slot) && !self.store.protected(slot, turn) {
                if self.store.meta(slot).kind == Kind::Hot {
                    self.hot -= self.store.links.weight(slot);
                }
                self.forget(slot, turn);
            }
        }
    }
}

impl Replacement for ClockPro {
    keeps_books!(Page);

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        self.store.meta_mut(slot).referenced = true;
    }

    fn end(&mut self) {
        self.passed = 0;
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if !turn.has_room(weight) {
            return;
        }
        let ghost = self.store.find(key);
        if let Some(ghost) = ghost {
            let weight = self.store.links.weight(ghost);
            self.test -= weight;
            self.set_cold_target(self.cold_target + weight);
            self.forget(ghost, turn);
        }
        if !self.make_room(weight, turn) {
            return turn.give_up();
        }
        let kind = if ghost.is_some() { Kind::Hot } else { Kind::Cold };
        let slot = self.store.admit(CLOCK, key, weight, Page { kind, referenced: false }, turn);
        self.insert(slot);
        if kind == Kind::Hot {
            self.hot += u64::from(weight);
            self.cool();
        }
    }
}

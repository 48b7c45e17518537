//! CLOCK-Pro (Jiang, Chen and Zhang, USENIX ATC'05): LIRS's idea on one clock with three hands.
//!
//! Resident keys are hot or cold. An evicted cold key stays on the clock for a test period; if it
//! returns within that period, the share for cold keys grows. The hands move independently here. In
//! the paper the hot hand also ends test periods, which only shortens them.

use crate::embeddings::{
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const CLOCK: ListId = 0;

/// Cold keys, and hot keys, have at least 1/100 of the capacity, as in LIRS. With a single key of
/// one kind, its hand would go round the whole clock to find it at every miss.
const SHARE_DIVISOR: u64 = 100;

/// Keys that a hand passes per miss when a share is at its minimum: the clock has up to twice the
/// keys of the cache.
const PASSES_PER_MISS: u64 = 2 * SHARE_DIVISOR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hot,
    Cold,
    /// Not resident, in its test period.
    Test,
}

/// What the clock stores about a key.
#[derive(Debug, Clone, Copy)]
pub(in crate::embeddings) struct Page {
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
pub(in crate::embeddings) struct ClockPro {
    entries: Entries<Page>,
    hands: [Option<Slot>; 3],
    hot: u64,
    test: u64,
    /// Target weight of cold residents.
    cold_target: u64,
    /// Keys that the cold hand passed in this request, beyond [`PASSES_PER_MISS`] for each miss.
    passed: u64,
}

impl ClockPro {
    pub fn new(capacity: u64) -> Self {
        let entries = Entries::new(1, capacity);
        let mut clock =
            Self { entries, hands: [None; 3], hot: 0, test: 0, cold_target: 0, passed: 0 };
        clock.set_cold_target(capacity);
        clock
    }

    fn set_cold_target(&mut self, target: u64) {
        let capacity = self.entries.capacity();
        let least = (capacity / SHARE_DIVISOR).max(1);
        self.cold_target = target.min(capacity.saturating_sub(least)).max(least.min(capacity));
    }

    /// Moves a hand by one and returns the key that it was at.
    fn advance(&mut self, hand: Hand) -> Option<Slot> {
        let slot = self.hands[hand as usize].or(self.entries.oldest(CLOCK))?;
        self.hands[hand as usize] = self.entries.links.newer(slot);
        Some(slot)
    }

    fn forget(&mut self, slot: Slot, request: &mut RequestState) {
        let next = self.entries.links.newer(slot);
        for hand in self.hands.iter_mut().filter(|hand| **hand == Some(slot)) {
            *hand = next;
        }
        self.entries.forget(slot, request);
    }

    fn insert(&mut self, slot: Slot) {
        if let Some(hot_hand) = self.hands[Hand::Hot as usize].filter(|hand| *hand != slot) {
            self.entries.move_behind(slot, hot_hand);
        }
    }

    /// Moves the cold hand past one key.
    fn run_cold(&mut self, request: &mut RequestState) {
        let Some(slot) = self.advance(Hand::Cold) else { return };
        let page = *self.entries.meta(slot);
        if page.kind != Kind::Cold {
            return;
        }
        let weight = self.entries.links.weight(slot);
        if page.referenced {
            *self.entries.meta_mut(slot) = Page { kind: Kind::Hot, referenced: false };
            self.hot += weight;
        } else if !self.entries.is_protected(slot, request) {
            self.entries.meta_mut(slot).kind = Kind::Test;
            self.entries.make_ghost(slot, request);
            self.test += weight;
            while self.test > self.entries.capacity() {
                self.run_test(request);
            }
        }
        self.cool();
    }

    /// Makes hot keys cold until they fit their share.
    fn cool(&mut self) {
        while self.hot > self.entries.capacity() - self.cold_target {
            let Some(slot) = self.advance(Hand::Hot) else { return };
            let weight = self.entries.links.weight(slot);
            let page = self.entries.meta_mut(slot);
            if page.kind == Kind::Hot && !std::mem::take(&mut page.referenced) {
                page.kind = Kind::Cold;
                self.hot -= weight;
            }
        }
    }

    fn run_test(&mut self, request: &mut RequestState) {
        let Some(slot) = self.advance(Hand::Test) else { return };
        if self.entries.meta(slot).kind == Kind::Test {
            let weight = self.entries.links.weight(slot);
            self.test -= weight;
            self.set_cold_target(self.cold_target.saturating_sub(weight));
            self.forget(slot, request);
        }
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        // A key is passed at most four times: as referenced, hot, cooled and evicted. The exception
        // are keys that the request hit, of which there may be many.
        self.passed = self.passed.saturating_sub(PASSES_PER_MISS);
        let passes_max = 4 * u64::from(self.entries.list(CLOCK).len()) + 4;
        while !self.entries.fits(weight) && self.passed < passes_max {
            self.run_cold(request);
            self.passed += 1;
        }
        // If every resident is hot or protected, the cold hand finds nothing: the hot hand evicts.
        if !self.entries.fits(weight) {
            self.evict_any(weight, request);
        }
        self.entries.fits(weight)
    }

    fn evict_any(&mut self, weight: u32, request: &mut RequestState) {
        for _ in 0..self.entries.list(CLOCK).len() {
            if self.entries.fits(weight) {
                return;
            }
            let Some(slot) = self.advance(Hand::Hot) else { return };
            if self.entries.is_resident(slot) && !self.entries.is_protected(slot, request) {
                if self.entries.meta(slot).kind == Kind::Hot {
                    self.hot -= self.entries.links.weight(slot);
                }
                self.forget(slot, request);
            }
        }
    }
}

impl Replacement for ClockPro {
    impl_entries!(Page);

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        self.entries.meta_mut(slot).referenced = true;
    }

    fn end(&mut self) {
        self.passed = 0;
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if !request.has_room(weight) {
            return;
        }
        let ghost = self.entries.find(key);
        if let Some(ghost) = ghost {
            let weight = self.entries.links.weight(ghost);
            self.test -= weight;
            self.set_cold_target(self.cold_target + weight);
            self.forget(ghost, request);
        }
        if !self.make_room(weight, request) {
            return request.give_up();
        }
        let kind = if ghost.is_some() { Kind::Hot } else { Kind::Cold };
        let slot =
            self.entries.admit(CLOCK, key, weight, Page { kind, referenced: false }, request);
        self.insert(slot);
        if kind == Kind::Hot {
            self.hot += u64::from(weight);
            self.cool();
        }
    }
}

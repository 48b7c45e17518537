//! LIRS (Jiang and Zhang, SIGMETRICS'02): keep what returns soonest, judged by its last two accesses.
//!
//! Keys with a short distance between accesses (LIR) hold nearly all of the cache; the others pass
//! through a short queue. A stack of recent accesses, ghosts included, shows who has earned a change.

use super::{
    key::Key,
    list::{Links, List, Slot},
    policy::{Replacement, Turn, keeps_books},
    store::{Place, Store},
};

const LIR: Place = 0;
const QUEUE: Place = 1;
const GHOSTS: Place = 2;

/// The authors' share of the cache for keys that are not (yet) LIR.
const QUEUE_SHARE: f64 = 0.01;
/// Ghosts that the stack may remember, in cache sizes; the paper sets no limit.
const GHOSTS_MAX: u64 = 2;

/// Whether a key stands in the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stacked(bool);

/// LIRS.
#[derive(Debug)]
pub(super) struct Lirs {
    store: Store<Stacked>,
    stack: List,
    stack_links: Links,
    lir_max: u64,
}

impl Lirs {
    pub fn new(capacity: u64) -> Self {
        let queue = ((capacity as f64 * QUEUE_SHARE) as u64).max(1);
        Self {
            store: Store::new(3, capacity),
            stack: List::default(),
            stack_links: Links::default(),
            lir_max: capacity.saturating_sub(queue),
        }
    }

    fn stack_remove(&mut self, slot: Slot) {
        if std::mem::take(&mut self.store.meta_mut(slot).0) {
            self.stack.remove(&mut self.stack_links, slot);
        }
    }

    fn stack_push(&mut self, slot: Slot) {
        self.stack_remove(slot);
        self.stack_links.prepare(slot, 0);
        self.stack.push_newest(&mut self.stack_links, slot);
        self.store.meta_mut(slot).0 = true;
    }

    /// The bottom of the stack is always LIR: others there cannot have a shorter distance than it.
    fn prune(&mut self, turn: &mut Turn) {
        while let Some(bottom) = self.stack.oldest() {
            if self.store.place(bottom) == LIR {
                break;
            }
            self.stack_remove(bottom);
            if self.store.place(bottom) == GHOSTS {
                self.store.forget(bottom, turn);
            }
        }
    }

    /// A key earned a place among the LIR; the bottom of the stack makes way.
    fn promote(&mut self, slot: Slot, turn: &mut Turn) {
        self.store.move_newest(slot, LIR);
        self.stack_push(slot);
        while self.store.list(LIR).weight() > self.lir_max {
            self.prune(turn);
            let Some(bottom) = self.stack.oldest() else { break };
            self.stack_remove(bottom);
            self.store.move_newest(bottom, QUEUE);
        }
        self.prune(turn);
    }

    fn forget_ghost(&mut self, slot: Slot, turn: &mut Turn) {
        self.stack_remove(slot);
        self.store.forget(slot, turn);
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let victim = self.store.oldest_free(QUEUE, turn).or_else(|| {
                let store = &self.store;
                let spared = |slot| !store.resident(slot) || store.protected(slot, turn);
                self.stack.oldest_not(&self.stack_links, spared)
            });
            let Some(victim) = victim else { return false };
            if self.store.meta(victim).0 && self.store.place(victim) == QUEUE {
                self.store.evict_to(victim, GHOSTS, turn);
            } else {
                self.stack_remove(victim);
                self.store.forget(victim, turn);
                self.prune(turn);
            }
        }
        while self.store.list(GHOSTS).weight() > self.store.capacity().saturating_mul(GHOSTS_MAX) {
            let oldest = self.store.oldest(GHOSTS).expect("it weighs something");
            self.forget_ghost(oldest, turn);
        }
        true
    }
}

impl Replacement for Lirs {
    keeps_books!(Stacked);

    fn end(&mut self) {
        self.stack.look_anew();
    }

    fn hit(&mut self, slot: Slot, turn: &mut Turn) {
        if self.store.place(slot) == LIR {
            self.stack_push(slot);
            self.prune(turn);
        } else if self.store.meta(slot).0 {
            self.promote(slot, turn);
        } else {
            self.stack_push(slot);
            self.store.move_newest(slot, QUEUE);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if !self.make_room(weight, turn) {
            return;
        }
        // Making room may have pruned the ghost away: only now is it known whether it is in the stack.
        let ghost = self.store.find(key);
        if let Some(ghost) = ghost {
            self.forget_ghost(ghost, turn);
        }
        let slot = self.store.admit(QUEUE, key, weight, Stacked(false), turn);
        let cold_start = self.store.list(LIR).weight() + u64::from(weight) <= self.lir_max;
        if ghost.is_some() || cold_start {
            self.promote(slot, turn);
        } else {
            self.stack_push(slot);
        }
    }
}

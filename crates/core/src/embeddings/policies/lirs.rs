//! LIRS (Jiang and Zhang, SIGMETRICS'02): keeps the keys with the shortest distance between their
//! last two accesses.
//!
//! Keys with a short distance (LIR) use nearly all of the cache; the others pass through a short
//! queue. A stack of recent accesses, ghosts included, shows which keys change their status.

use crate::embeddings::{
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::{Links, List, Slot},
};

const LIR: ListId = 0;
const QUEUE: ListId = 1;
const GHOSTS: ListId = 2;

/// Share of the cache for keys that are not LIR, as in the paper.
const QUEUE_SHARE: f64 = 0.01;
/// Limit on the weight of ghosts in the stack, in capacities; the paper sets no limit.
const GHOST_CAPACITIES_MAX: u64 = 2;

/// Whether a key is in the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::embeddings) struct Stacked(bool);

/// LIRS.
#[derive(Debug)]
pub(in crate::embeddings) struct Lirs {
    entries: Entries<Stacked>,
    stack: List,
    stack_links: Links,
    lir_max: u64,
}

impl Lirs {
    pub fn new(capacity: u64) -> Self {
        let queue = ((capacity as f64 * QUEUE_SHARE) as u64).max(1);
        Self {
            entries: Entries::new(3, capacity),
            stack: List::default(),
            stack_links: Links::default(),
            lir_max: capacity.saturating_sub(queue),
        }
    }

    fn stack_remove(&mut self, slot: Slot) {
        if std::mem::take(&mut self.entries.meta_mut(slot).0) {
            self.stack.remove(&mut self.stack_links, slot);
        }
    }

    fn stack_push(&mut self, slot: Slot) {
        self.stack_remove(slot);
        self.stack_links.prepare(slot, 0);
        self.stack.push_newest(&mut self.stack_links, slot);
        self.entries.meta_mut(slot).0 = true;
    }

    /// Removes keys from the bottom of the stack until it is LIR: keys below the last LIR key
    /// cannot have a shorter distance than that key.
    fn prune(&mut self, request: &mut RequestState) {
        while let Some(bottom) = self.stack.oldest() {
            if self.entries.list_of(bottom) == LIR {
                break;
            }
            self.stack_remove(bottom);
            if self.entries.list_of(bottom) == GHOSTS {
                self.entries.forget(bottom, request);
            }
        }
    }

    /// Makes a key LIR; the LIR key at the bottom of the stack loses that status.
    fn promote(&mut self, slot: Slot, request: &mut RequestState) {
        self.entries.move_newest(slot, LIR);
        self.stack_push(slot);
        while self.entries.list(LIR).weight() > self.lir_max {
            self.prune(request);
            let Some(bottom) = self.stack.oldest() else { break };
            self.stack_remove(bottom);
            self.entries.move_newest(bottom, QUEUE);
        }
        self.prune(request);
    }

    fn forget_ghost(&mut self, slot: Slot, request: &mut RequestState) {
        self.stack_remove(slot);
        self.entries.forget(slot, request);
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let victim = self.entries.oldest_free(QUEUE, request).or_else(|| {
                let entries = &self.entries;
                let spared =
                    |slot| !entries.is_resident(slot) || entries.is_protected(slot, request);
                self.stack.oldest_not(&self.stack_links, spared)
            });
            let Some(victim) = victim else { return false };
            if self.entries.meta(victim).0 && self.entries.list_of(victim) == QUEUE {
                self.entries.evict_to(victim, GHOSTS, request);
            } else {
                self.stack_remove(victim);
                self.entries.forget(victim, request);
                self.prune(request);
            }
        }
        while self.entries.list(GHOSTS).weight()
            > self.entries.capacity().saturating_mul(GHOST_CAPACITIES_MAX)
        {
            let oldest = self.entries.oldest(GHOSTS).expect("it weighs something");
            self.forget_ghost(oldest, request);
        }
        true
    }
}

impl Replacement for Lirs {
    impl_entries!(Stacked);

    fn end(&mut self) {
        self.stack.reset_passed();
    }

    fn hit(&mut self, slot: Slot, request: &mut RequestState) {
        if self.entries.list_of(slot) == LIR {
            self.stack_push(slot);
            self.prune(request);
        } else if self.entries.meta(slot).0 {
            self.promote(slot, request);
        } else {
            self.stack_push(slot);
            self.entries.move_newest(slot, QUEUE);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if !self.make_room(weight, request) {
            return;
        }
        // After making room, because that may have pruned the ghost.
        let ghost = self.entries.find(key);
        if let Some(ghost) = ghost {
            self.forget_ghost(ghost, request);
        }
        let slot = self.entries.admit(QUEUE, key, weight, Stacked(false), request);
        let cold_start = self.entries.list(LIR).weight() + u64::from(weight) <= self.lir_max;
        if ghost.is_some() || cold_start {
            self.promote(slot, request);
        } else {
            self.stack_push(slot);
        }
    }
}

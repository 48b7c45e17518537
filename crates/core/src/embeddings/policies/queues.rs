//! Policies with one queue and at most one bit per key: FIFO, LRU, CLOCK and SIEVE.

use crate::embeddings::{
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const QUEUE: ListId = 0;

/// How a queue treats a hit and chooses a victim.
pub(in crate::embeddings) trait Discipline {
    fn hit(queue: &mut Queue<Self>, slot: Slot)
    where
        Self: Sized;

    /// The next resident to evict, or `None` if the current request needs them all.
    fn victim(queue: &mut Queue<Self>, request: &RequestState) -> Option<Slot>
    where
        Self: Sized;
}

/// One queue of residents, newest first.
#[derive(Debug)]
pub(in crate::embeddings) struct Queue<D> {
    /// The bit: accessed since the hand last passed.
    entries: Entries<bool>,
    /// Position of SIEVE's hand; the other policies start at the oldest entry.
    hand: Option<Slot>,
    discipline: std::marker::PhantomData<D>,
}

impl<D> Queue<D> {
    pub fn new(capacity: u64) -> Self {
        Self {
            entries: Entries::new(1, capacity),
            hand: None,
            discipline: std::marker::PhantomData,
        }
    }

    /// The oldest resident for which `spare` is false. Spared residents move to the newest end.
    fn oldest_not(
        &mut self,
        mut spare: impl FnMut(&mut Entries<bool>, Slot) -> bool,
    ) -> Option<Slot> {
        // Two rounds: the first clears the bits, the second finds a victim if there is one.
        for _ in 0..2 * self.entries.list(QUEUE).len() {
            let oldest = self.entries.oldest(QUEUE)?;
            if !spare(&mut self.entries, oldest) {
                return Some(oldest);
            }
            self.entries.move_newest(oldest, QUEUE);
        }
        None
    }
}

impl<D: Discipline> Replacement for Queue<D> {
    impl_entries!(bool);

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        D::hit(self, slot);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if !request.has_room(weight) {
            return;
        }
        while !self.entries.fits(weight) {
            let Some(victim) = D::victim(self, request) else { return request.give_up() };
            self.entries.forget(victim, request);
        }
        self.entries.admit(QUEUE, key, weight, false, request);
    }
}

/// First in, first out. A key that the current request hit moves to the newest end instead.
#[derive(Debug)]
pub(in crate::embeddings) struct Fifo;

impl Discipline for Fifo {
    fn hit(_: &mut Queue<Self>, _: Slot) {}

    fn victim(queue: &mut Queue<Self>, request: &RequestState) -> Option<Slot> {
        queue.oldest_not(|entries, slot| entries.is_protected(slot, request))
    }
}

/// Least recently used.
#[derive(Debug)]
pub(in crate::embeddings) struct Lru;

impl Discipline for Lru {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        queue.entries.move_newest(slot, QUEUE);
    }

    fn victim(queue: &mut Queue<Self>, request: &RequestState) -> Option<Slot> {
        queue.oldest_not(|entries, slot| entries.is_protected(slot, request))
    }
}

/// Second chance: a key accessed since the hand last passed moves to the newest end instead.
#[derive(Debug)]
pub(in crate::embeddings) struct Clock;

impl Discipline for Clock {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        *queue.entries.meta_mut(slot) = true;
    }

    fn victim(queue: &mut Queue<Self>, request: &RequestState) -> Option<Slot> {
        queue.oldest_not(|entries, slot| {
            std::mem::take(entries.meta_mut(slot)) || entries.is_protected(slot, request)
        })
    }
}

/// SIEVE (Zhang et al., NSDI'24): like CLOCK, but survivors keep their position, so that new keys
/// between the hand and the newest end are evicted quickly.
#[derive(Debug)]
pub(in crate::embeddings) struct Sieve;

impl Discipline for Sieve {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        *queue.entries.meta_mut(slot) = true;
    }

    fn victim(queue: &mut Queue<Self>, request: &RequestState) -> Option<Slot> {
        let entries = &mut queue.entries;
        for _ in 0..2 * entries.list(QUEUE).len() {
            let slot = queue.hand.or(entries.oldest(QUEUE))?;
            queue.hand = entries.links.newer(slot);
            if !std::mem::take(entries.meta_mut(slot)) && !entries.is_protected(slot, request) {
                return Some(slot);
            }
        }
        None
    }
}

//! The policies that need one queue and at most one bit per key: FIFO, LRU, CLOCK and SIEVE.

use super::{
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    store::{Place, Store},
};

const QUEUE: Place = 0;

/// How a queue treats a hit, and the key whose turn it is to go.
pub(super) trait Discipline {
    fn hit(queue: &mut Queue<Self>, slot: Slot)
    where
        Self: Sized;

    /// The next resident to evict, or `None` if the current request needs them all.
    fn victim(queue: &mut Queue<Self>, turn: &Turn) -> Option<Slot>
    where
        Self: Sized;
}

/// One queue of residents, newest first.
#[derive(Debug)]
pub(super) struct Queue<D> {
    /// The bit says: asked for since the hand last passed.
    store: Store<bool>,
    /// Where SIEVE's hand rests; the others always look at the oldest.
    hand: Option<Slot>,
    discipline: std::marker::PhantomData<D>,
}

impl<D> Queue<D> {
    pub fn new(capacity: u64) -> Self {
        Self { store: Store::new(1, capacity), hand: None, discipline: std::marker::PhantomData }
    }

    /// The first of the oldest residents that `spare` does not send round once more.
    fn oldest_not(
        &mut self,
        mut spare: impl FnMut(&mut Store<bool>, Slot) -> bool,
    ) -> Option<Slot> {
        // Twice round: the first clears the bits, the second must find a victim if there is one.
        for _ in 0..2 * self.store.list(QUEUE).len() {
            let oldest = self.store.oldest(QUEUE)?;
            if !spare(&mut self.store, oldest) {
                return Some(oldest);
            }
            self.store.move_newest(oldest, QUEUE);
        }
        None
    }
}

impl<D: Discipline> Replacement for Queue<D> {
    keeps_books!(bool);

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        D::hit(self, slot);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if !turn.has_room(weight) {
            return;
        }
        while !self.store.fits(weight) {
            let Some(victim) = D::victim(self, turn) else { return turn.give_up() };
            self.store.forget(victim, turn);
        }
        self.store.admit(QUEUE, key, weight, false, turn);
    }
}

/// First in, first out. A key whose turn comes while its own request uses it goes round once more.
#[derive(Debug)]
pub(super) struct Fifo;

impl Discipline for Fifo {
    fn hit(_: &mut Queue<Self>, _: Slot) {}

    fn victim(queue: &mut Queue<Self>, turn: &Turn) -> Option<Slot> {
        queue.oldest_not(|store, slot| store.protected(slot, turn))
    }
}

/// Least recently used.
#[derive(Debug)]
pub(super) struct Lru;

impl Discipline for Lru {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        queue.store.move_newest(slot, QUEUE);
    }

    fn victim(queue: &mut Queue<Self>, turn: &Turn) -> Option<Slot> {
        queue.oldest_not(|store, slot| store.protected(slot, turn))
    }
}

/// Second chance: a key asked for since the hand last passed goes round once more.
#[derive(Debug)]
pub(super) struct Clock;

impl Discipline for Clock {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        *queue.store.meta_mut(slot) = true;
    }

    fn victim(queue: &mut Queue<Self>, turn: &Turn) -> Option<Slot> {
        queue.oldest_not(|store, slot| {
            std::mem::take(store.meta_mut(slot)) || store.protected(slot, turn)
        })
    }
}

/// SIEVE (Zhang et al., NSDI'24): like CLOCK, but survivors stay where they are, so that newcomers
/// are sifted quickly between the hand and the newest end.
#[derive(Debug)]
pub(super) struct Sieve;

impl Discipline for Sieve {
    fn hit(queue: &mut Queue<Self>, slot: Slot) {
        *queue.store.meta_mut(slot) = true;
    }

    fn victim(queue: &mut Queue<Self>, turn: &Turn) -> Option<Slot> {
        let store = &mut queue.store;
        for _ in 0..2 * store.list(QUEUE).len() {
            let slot = queue.hand.or(store.oldest(QUEUE))?;
            queue.hand = store.links.newer(slot);
            if !std::mem::take(store.meta_mut(slot)) && !store.protected(slot, turn) {
                return Some(slot);
            }
        }
        None
    }
}

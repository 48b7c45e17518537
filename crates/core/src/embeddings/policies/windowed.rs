//! The policies that filter newcomers in a small queue before a main part: S3-FIFO and W-TinyLFU.

use super::{
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    sketch::Sketch,
    store::{Place, Store},
};

const SMALL: Place = 0;
const MAIN: Place = 1;
const GHOSTS: Place = 2;

/// S3-FIFO (Yang et al., SOSP'23): most keys are seen once; a small FIFO lets them pass quickly.
#[derive(Debug)]
pub(super) struct S3Fifo {
    /// How often a key was seen since it came, at most [`S3Fifo::COUNT_MAX`].
    store: Store<u8>,
    small_max: u64,
    evicted_before: bool,
}

impl S3Fifo {
    const SMALL_SHARE: f64 = 0.1;
    const COUNT_MAX: u8 = 3;
    /// Seen so often in the small queue: worth a place in the main one.
    const PROMOTE_AT: u8 = 2;

    pub fn new(capacity: u64) -> Self {
        let small_max = (capacity as f64 * Self::SMALL_SHARE) as u64;
        Self { store: Store::new(3, capacity), small_max, evicted_before: false }
    }

    fn main_max(&self) -> u64 {
        self.store.capacity() - self.small_max
    }

    /// One step of eviction: the oldest key of one of the queues moves on or goes.
    fn step(&mut self, turn: &mut Turn) {
        let main_first = self.store.list(MAIN).weight() > self.main_max();
        let small = self.store.oldest(SMALL).filter(|_| !main_first);
        if let Some(slot) = small {
            if *self.store.meta(slot) >= Self::PROMOTE_AT || self.store.protected(slot, turn) {
                *self.store.meta_mut(slot) = 0;
                self.store.move_newest(slot, MAIN);
            } else {
                self.store.evict_to(slot, GHOSTS, turn);
                self.store.trim(GHOSTS, self.main_max(), turn);
            }
        } else if let Some(slot) = self.store.oldest(MAIN) {
            let count = *self.store.meta(slot);
            if count > 0 || self.store.protected(slot, turn) {
                *self.store.meta_mut(slot) = count.saturating_sub(1);
                self.store.move_newest(slot, MAIN);
            } else {
                self.store.forget(slot, turn);
            }
        }
    }
}

impl Replacement for S3Fifo {
    keeps_books!(u8);

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        let count = self.store.meta_mut(slot);
        *count = (*count + 1).min(Self::COUNT_MAX);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        if !turn.has_room(weight) {
            return;
        }
        let ghost = self.store.find(key);
        if let Some(ghost) = ghost {
            self.store.forget(ghost, turn);
        }
        let residents = u64::from(self.store.list(SMALL).len() + self.store.list(MAIN).len());
        let mut steps_left = residents * (u64::from(Self::COUNT_MAX) + 2);
        while !self.store.fits(weight) {
            self.evicted_before = true;
            if steps_left == 0 {
                return turn.give_up();
            }
            steps_left -= 1;
            self.step(turn);
        }
        let small_is_full = self.store.list(SMALL).weight() >= self.small_max;
        let to_main = ghost.is_some() || (!self.evicted_before && small_is_full);
        self.store.admit(if to_main { MAIN } else { SMALL }, key, weight, 0, turn);
    }
}

const WINDOW: Place = 0;
const PROBATION: Place = 1;
const GUARDED: Place = 2;

/// W-TinyLFU (Einziger, Friedman and Manes, 2017): a small LRU window before a segmented LRU, which a
/// newcomer enters only if a sketch has counted it more often than the key it would replace.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    store: Store<()>,
    sketch: Sketch,
    window_max: u64,
    guarded_max: u64,
}

impl WTinyLfu {
    const WINDOW_SHARE: f64 = 0.01;
    const GUARDED_SHARE: f64 = 0.8;
    /// The sketch forgets half after so many counts per resident.
    const SAMPLE: u64 = 10;

    /// `rows` is how many rows the capacity holds at most.
    pub fn new(capacity: u64, rows: u64) -> Self {
        let window_max = ((capacity as f64 * Self::WINDOW_SHARE) as u64).max(1);
        let guarded_max =
            ((capacity - window_max.min(capacity)) as f64 * Self::GUARDED_SHARE) as u64;
        let sketch = Sketch::new(rows, Self::SAMPLE * rows, 15);
        Self { store: Store::new(3, capacity), sketch, window_max, guarded_max }
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let window_is_full =
                self.store.list(WINDOW).weight() + u64::from(weight) > self.window_max;
            let candidate = self.store.oldest_free(WINDOW, turn);
            let mut places = [PROBATION, GUARDED].into_iter();
            let victim = places.find_map(|place| self.store.oldest_free(place, turn));
            let loser = match (candidate.filter(|_| window_is_full), victim) {
                (Some(candidate), Some(victim)) => {
                    let seen = |slot| self.sketch.estimate(self.store.key(slot));
                    if seen(candidate) > seen(victim) {
                        self.store.move_newest(candidate, PROBATION);
                        victim
                    } else {
                        candidate
                    }
                }
                (None, Some(victim)) => victim,
                (Some(candidate), None) => candidate,
                (None, None) => match candidate {
                    Some(candidate) => candidate,
                    None => return false,
                },
            };
            self.store.forget(loser, turn);
        }
        true
    }
}

impl Replacement for WTinyLfu {
    keeps_books!(());

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        self.sketch.count(self.store.key(slot));
        let window = self.store.place(slot) == WINDOW;
        self.store.move_newest(slot, if window { WINDOW } else { GUARDED });
        while self.store.list(GUARDED).weight() > self.guarded_max {
            let oldest = self.store.oldest(GUARDED).expect("it weighs something");
            self.store.move_newest(oldest, PROBATION);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.sketch.count(key);
        if !self.make_room(weight, turn) {
            return;
        }
        self.store.admit(WINDOW, key, weight, (), turn);
        // While there is room, what leaves the window need not prove itself.
        while self.store.list(WINDOW).weight() > self.window_max.max(u64::from(weight)) {
            let oldest = self.store.oldest(WINDOW).expect("it weighs something");
            self.store.move_newest(oldest, PROBATION);
        }
    }
}

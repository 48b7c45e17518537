//! Policies that filter new keys in a small queue in front of a main part: S3-FIFO and W-TinyLFU.

use crate::embeddings::{
    count_min::CountMin,
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

const SMALL: ListId = 0;
const MAIN: ListId = 1;
const GHOSTS: ListId = 2;

/// S3-FIFO (Yang et al., SOSP'23): most keys are seen once, and a small FIFO evicts them quickly.
#[derive(Debug)]
pub(in crate::embeddings) struct S3Fifo {
    /// Hits of a key since it was admitted, at most [`S3Fifo::COUNT_MAX`].
    entries: Entries<u8>,
    small_max: u64,
    evicted_before: bool,
}

impl S3Fifo {
    const SMALL_SHARE: f64 = 0.1;
    const COUNT_MAX: u8 = 3;
    /// Hits in the small queue that promote a key to the main one.
    const PROMOTE_AT: u8 = 2;

    pub fn new(capacity: u64) -> Self {
        let small_max = (capacity as f64 * Self::SMALL_SHARE) as u64;
        Self { entries: Entries::new(3, capacity), small_max, evicted_before: false }
    }

    fn main_max(&self) -> u64 {
        self.entries.capacity() - self.small_max
    }

    /// One step of eviction: moves or evicts the oldest key of one of the queues.
    fn step(&mut self, request: &mut RequestState) {
        let main_first = self.entries.list(MAIN).weight() > self.main_max();
        let small = self.entries.oldest(SMALL).filter(|_| !main_first);
        if let Some(slot) = small {
            if *self.entries.meta(slot) >= Self::PROMOTE_AT
                || self.entries.is_protected(slot, request)
            {
                *self.entries.meta_mut(slot) = 0;
                self.entries.move_newest(slot, MAIN);
            } else {
                self.entries.evict_to(slot, GHOSTS, request);
                self.entries.trim(GHOSTS, self.main_max(), request);
            }
        } else if let Some(slot) = self.entries.oldest(MAIN) {
            let count = *self.entries.meta(slot);
            if count > 0 || self.entries.is_protected(slot, request) {
                *self.entries.meta_mut(slot) = count.saturating_sub(1);
                self.entries.move_newest(slot, MAIN);
            } else {
                self.entries.forget(slot, request);
            }
        }
    }
}

impl Replacement for S3Fifo {
    impl_entries!(u8);

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        let count = self.entries.meta_mut(slot);
        *count = (*count + 1).min(Self::COUNT_MAX);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        if !request.has_room(weight) {
            return;
        }
        let ghost = self.entries.find(key);
        if let Some(ghost) = ghost {
            self.entries.forget(ghost, request);
        }
        let residents = u64::from(self.entries.list(SMALL).len() + self.entries.list(MAIN).len());
        let mut steps_left = residents * (u64::from(Self::COUNT_MAX) + 2);
        while !self.entries.fits(weight) {
            self.evicted_before = true;
            if steps_left == 0 {
                return request.give_up();
            }
            steps_left -= 1;
            self.step(request);
        }
        let small_is_full = self.entries.list(SMALL).weight() >= self.small_max;
        let to_main = ghost.is_some() || (!self.evicted_before && small_is_full);
        self.entries.admit(if to_main { MAIN } else { SMALL }, key, weight, 0, request);
    }
}

const WINDOW: ListId = 0;
const PROBATION: ListId = 1;
const PROTECTED: ListId = 2;

/// W-TinyLFU (Einziger, Friedman and Manes, 2017): a small LRU window in front of a segmented LRU.
/// A key enters the latter only if a sketch has counted it more often than the key it would
/// replace.
#[derive(Debug)]
pub(in crate::embeddings) struct WTinyLfu {
    entries: Entries<()>,
    sketch: CountMin,
    window_max: u64,
    protected_max: u64,
}

impl WTinyLfu {
    const WINDOW_SHARE: f64 = 0.01;
    const PROTECTED_SHARE: f64 = 0.8;
    /// Counts per resident after which the sketch is halved.
    const COUNTS_PER_ROW: u64 = 10;

    /// `rows` is the largest number of rows that fit.
    pub fn new(capacity: u64, rows: u64) -> Self {
        let window_max = ((capacity as f64 * Self::WINDOW_SHARE) as u64).max(1);
        let protected_max =
            ((capacity - window_max.min(capacity)) as f64 * Self::PROTECTED_SHARE) as u64;
        let sketch = CountMin::new(rows, Self::COUNTS_PER_ROW * rows, 15);
        Self { entries: Entries::new(3, capacity), sketch, window_max, protected_max }
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let window_is_full =
                self.entries.list(WINDOW).weight() + u64::from(weight) > self.window_max;
            let candidate = self.entries.oldest_free(WINDOW, request);
            let mut lists = [PROBATION, PROTECTED].into_iter();
            let victim = lists.find_map(|list| self.entries.oldest_free(list, request));
            let loser = match (candidate.filter(|_| window_is_full), victim) {
                (Some(candidate), Some(victim)) => {
                    let seen = |slot| self.sketch.estimate(self.entries.key(slot));
                    if seen(candidate) > seen(victim) {
                        self.entries.move_newest(candidate, PROBATION);
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
            self.entries.forget(loser, request);
        }
        true
    }
}

impl Replacement for WTinyLfu {
    impl_entries!(());

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        self.sketch.count(self.entries.key(slot));
        let window = self.entries.list_of(slot) == WINDOW;
        self.entries.move_newest(slot, if window { WINDOW } else { PROTECTED });
        while self.entries.list(PROTECTED).weight() > self.protected_max {
            let oldest = self.entries.oldest(PROTECTED).expect("it weighs something");
            self.entries.move_newest(oldest, PROBATION);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        self.sketch.count(key);
        if !self.make_room(weight, request) {
            return;
        }
        self.entries.admit(WINDOW, key, weight, (), request);
        // While the cache is not full, keys that leave the window are admitted unconditionally.
        while self.entries.list(WINDOW).weight() > self.window_max.max(u64::from(weight)) {
            let oldest = self.entries.oldest(WINDOW).expect("it weighs something");
            self.entries.move_newest(oldest, PROBATION);
        }
    }
}

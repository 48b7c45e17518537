//! Where would the cut be between those who stay and those who go? Known at every moment, without sorting anybody.
//!
//! Levels do not change but by accesses, so a count of keys for each small range of levels is kept up to date in
//! constant time, and so is the range in which a cache of so many rows would end: when a key crosses it, it moves by a
//! range or two. (Sorting now and then is dearer, and a cut that is old says that a loop longer than the cache hits.)

use super::level::Level;

/// Ranges that are told apart; what is lower has gone in any case.
const RANGES: i32 = 1024;
/// Sums may be above "now" by so much: 20 doublings.
const ABOVE: i32 = 20 * Level::STEPS.cast_signed();

/// The cuts of caches of `N` sizes, all under one half-life.
#[derive(Debug)]
pub(super) struct Cut<const N: usize> {
    /// A range has 2^width levels.
    width: u32,
    /// Keys in each range, in a ring; the highest range is `top`.
    counts: Box<[u16; RANGES as usize]>,
    top: i32,
    /// For each cache: the highest range that has no room, or not for all, and how many keys are above it.
    ends: [i32; N],
    above: [i32; N],
    rooms: [i32; N],
}

impl<const N: usize> Cut<N> {
    /// Ranges reach so many doublings back.
    pub fn new(doublings: f64) -> Self {
        let levels = doublings.max(64.0) * f64::from(Level::STEPS);
        let width = (levels / f64::from(RANGES)).log2().ceil() as u32;
        let top = ABOVE >> width;
        let ends = [top - RANGES; N];
        Self {
            width,
            counts: Box::new([0; RANGES as usize]),
            top,
            ends,
            above: [0; N],
            rooms: [i32::MAX; N],
        }
    }

    /// The highest range that is not told apart from those below it.
    #[inline]
    fn floor(&self) -> i32 {
        self.top.wrapping_sub(RANGES)
    }

    #[inline]
    fn count(&self, range: i32) -> i32 {
        i32::from(self.counts[place(range)])
    }

    #[inline]
    fn range(&self, level: i32) -> i32 {
        (level >> self.width).max(self.floor()).min(self.top)
    }

    /// Which caches have a key of this level?
    #[inline]
    pub fn there(&self, level: i32) -> [bool; N] {
        let range = self.range(level);
        self.ends.map(|end| range > end)
    }

    /// Time goes on: higher levels come into use, the lowest out of it.
    #[inline]
    pub fn advance(&mut self, now: i32) {
        let top = (now + ABOVE) >> self.width;
        while self.top < top {
            self.top += 1;
            let gone = std::mem::take(&mut self.counts[place(self.top)]);
            let floor = self.floor();
            for (end, above) in self.ends.iter_mut().zip(&mut self.above) {
                if *end < floor {
                    *end = floor;
                    *above -= i32::from(gone);
                }
            }
        }
    }

    /// A key's level changes; it was below all that counts if it is new.
    #[inline]
    pub fn change(&mut self, from: i32, to: i32) {
        let (from, to) = (self.range(from), self.range(to));
        if from == to {
            return;
        }
        let floor = self.floor();
        if from > floor {
            self.counts[place(from)] -= 1;
        }
        if to > floor {
            self.counts[place(to)] += 1;
        }
        for at in 0..N {
            let end = self.ends[at];
            let crosses = i32::from(to > end).wrapping_sub(i32::from(from > end));
            if crosses != 0 || from == end {
                self.above[at] += crosses;
                self.settle(at);
            }
        }
    }

    /// How many rows there is room for.
    pub fn set_rooms(&mut self, rooms: [i32; N]) {
        self.rooms = rooms;
        (0..N).for_each(|at| self.settle(at));
    }

    /// Nobody is known any more, and time begins anew.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.top = ABOVE >> self.width;
        self.ends = [self.floor(); N];
        self.above = [0; N];
    }

    #[inline(never)]
    fn settle(&mut self, at: usize) {
        let room = self.rooms[at];
        while self.above[at] > room && self.ends[at] < self.top {
            self.ends[at] += 1;
            self.above[at] -= self.count(self.ends[at]);
        }
        while self.ends[at] > self.floor() && self.above[at] + self.count(self.ends[at]) <= room {
            self.above[at] += self.count(self.ends[at]);
            self.ends[at] -= 1;
        }
    }
}

/// Where a range is in the ring.
#[inline]
fn place(range: i32) -> usize {
    range.rem_euclid(RANGES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_is_where_sorting_would_put_it() {
        let mut random = fastrand::Rng::with_seed(1);
        for doublings in [64.0, 600.0] {
            let mut cut = Cut::<2>::new(doublings);
            cut.set_rooms([100, 30]);
            let mut levels = vec![i32::MIN / 2; 500];
            for now in (0..300_000).step_by(7) {
                cut.advance(now);
                let key = (random.f64().powi(2) * 500.0) as usize;
                // Most rise, some fall.
                let level = now - random.i32(0..4000) * i32::from(random.bool());
                cut.change(levels[key], level);
                levels[key] = level;
                let mut ranges: Vec<i32> = levels.iter().map(|level| cut.range(*level)).collect();
                ranges.sort_unstable_by_key(|range| std::cmp::Reverse(*range));
                for (at, room) in [100, 30].into_iter().enumerate() {
                    let there = levels.iter().filter(|level| cut.there(**level)[at]).count();
                    // All who are above the first that has no room.
                    let first = ranges[room];
                    let expected = ranges.iter().filter(|range| **range > first).count();
                    assert_eq!(there, expected, "at {now}, room for {room}");
                }
            }
        }
    }
}

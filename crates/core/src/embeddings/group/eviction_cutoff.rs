//! Where would the cut be between those who stay and those who go? Known at every moment, without sorting anybody.
//!
//! Levels do not change but by accesses, so a count of keys for each small range of levels is kept up to date in
//! constant time, and so is the range in which a cache of so many rows would end: when a key crosses it, it moves by a
//! range or two. (Sorting now and then is dearer, and a cut that is old says that a loop longer than the cache hits.)
//!
//! All half-lives are asked at once and nearly always, so what is compared with a key's levels lies side by side, one
//! number per half-life: the processor then takes four of them in a step.

use super::level::Level;

/// Ranges that are told apart; what is lower has gone in any case.
const RANGES: i32 = 1024;
/// Sums may be above "now" by so much: 20 doublings.
const ABOVE: i32 = 20 * Level::STEPS.cast_signed();

/// One number for each half-life.
pub(super) type Each<const H: usize> = [i32; H];

/// The cuts of caches of `N` sizes, each under `H` half-lives.
#[derive(Debug)]
pub(super) struct Cuts<const H: usize, const N: usize> {
    /// A range has 2^width levels.
    widths: [u32; H],
    /// Keys in each range, in a ring; the highest range is the top, and rises as soon as "now" is so high.
    counts: Vec<[u16; RANGES as usize]>,
    tops: Each<H>,
    rises_at: Each<H>,
    /// For each cache: the highest range that has no room, or not for all, and how many keys are above it; and the lowest
    /// level that it has.
    ends: [Each<H>; N],
    above: [Each<H>; N],
    lowest: [Each<H>; N],
    rooms: [i32; N],
}

impl<const H: usize, const N: usize> Cuts<H, N> {
    /// Ranges reach so many doublings back, under each half-life.
    pub fn new(doublings: [f64; H]) -> Self {
        let widths = doublings.map(|doublings| {
            let levels = doublings.max(64.0) * f64::from(Level::STEPS);
            (levels / f64::from(RANGES)).log2().ceil() as u32
        });
        let mut cuts = Self {
            widths,
            counts: vec![[0; RANGES as usize]; H],
            tops: [0; H],
            rises_at: [0; H],
            ends: [[0; H]; N],
            above: [[0; H]; N],
            lowest: [[0; H]; N],
            rooms: [i32::MAX; N],
        };
        cuts.clear();
        cuts
    }

    /// The highest range that is not told apart from those below it.
    #[inline]
    fn floor(&self, half_life: usize) -> i32 {
        self.tops[half_life].wrapping_sub(RANGES)
    }

    #[inline]
    fn range(&self, half_life: usize, level: i32) -> i32 {
        // A width is far below 32.
        let range = level.wrapping_shr(self.widths[half_life]);
        range.max(self.floor(half_life)).min(self.tops[half_life])
    }

    /// The lowest levels that one of the caches has.
    #[inline]
    pub fn lowest(&self, cache: usize) -> &Each<H> {
        &self.lowest[cache]
    }

    /// Whether so much time has passed that no range is left of those that are told apart: to begin anew is
    /// faster than to advance.
    #[inline]
    pub fn is_left_behind(&self, now: &Each<H>) -> bool {
        // Under the shortest half-life time goes fastest.
        now[0] >> self.widths[0] > self.tops[0] + RANGES
    }

    /// Time goes on: higher levels come into use, the lowest out of it.
    #[inline]
    pub fn advance(&mut self, now: &Each<H>) {
        let rises: Each<H> = std::array::from_fn(|at| i32::from(now[at] >= self.rises_at[at]));
        if rises.iter().fold(0, |any, rises| any | rises) != 0 {
            for (half_life, now) in now.iter().enumerate() {
                while *now >= self.rises_at[half_life] {
                    self.rise(half_life);
                }
            }
        }
    }

    #[inline]
    fn rise(&mut self, half_life: usize) {
        let top = self.tops[half_life] + 1;
        self.set_top(half_life, top);
        let floor = self.floor(half_life);
        let gone = std::mem::take(&mut self.counts[half_life][place(top)]);
        for cache in 0..N {
            let end = self.ends[cache][half_life];
            if end < floor {
                self.ends[cache][half_life] = floor;
                self.above[cache][half_life] -= i32::from(gone);
            }
            // The end has moved, or it was at the top.
            if end < floor || end + 1 == top {
                self.set_lowest(half_life, cache);
            }
        }
    }

    fn set_top(&mut self, half_life: usize, top: i32) {
        self.tops[half_life] = top;
        self.rises_at[half_life] = ((top + 1) << self.widths[half_life]) - ABOVE;
    }

    #[inline]
    fn set_lowest(&mut self, half_life: usize, cache: usize) {
        let end = self.ends[cache][half_life];
        let has_any = end < self.tops[half_life];
        self.lowest[cache][half_life] =
            if has_any { (end + 1) << self.widths[half_life] } else { i32::MAX };
    }

    /// A key's levels change; they were below all that counts if it is new.
    pub fn change(&mut self, from: &Each<H>, to: &Each<H>) {
        for half_life in 0..H {
            self.change_one(half_life, from[half_life], to[half_life]);
        }
    }

    #[inline]
    fn change_one(&mut self, half_life: usize, from: i32, to: i32) {
        let (from, to) = (self.range(half_life, from), self.range(half_life, to));
        if from == to {
            return;
        }
        let floor = self.floor(half_life);
        let counts = &mut self.counts[half_life];
        if from > floor {
            counts[place(from)] -= 1;
        }
        if to > floor {
            counts[place(to)] += 1;
        }
        // Cuts move if the key crosses the end, or leaves the range in which it is: then there may be room for that.
        let (low, reach) =
            if from < to { (from, to.wrapping_sub(from) - 1) } else { (to, from.wrapping_sub(to)) };
        for cache in 0..N {
            let end = self.ends[cache][half_life];
            if end.wrapping_sub(low).cast_unsigned() <= reach.cast_unsigned() {
                let crosses = i32::from(to > end).wrapping_sub(i32::from(from > end));
                let above = self.above[cache][half_life] + crosses;
                self.above[cache][half_life] = above;
                let room = self.rooms[cache];
                if above > room || above + i32::from(self.counts[half_life][place(end)]) <= room {
                    self.settle(half_life, cache);
                }
            }
        }
    }

    /// How many rows there is room for.
    pub fn set_rooms(&mut self, rooms: [i32; N]) {
        self.rooms = rooms;
        for half_life in 0..H {
            (0..N).for_each(|cache| self.settle(half_life, cache));
        }
    }

    /// Nobody is known any more, and time begins anew.
    pub fn clear(&mut self) {
        self.counts.fill([0; RANGES as usize]);
        self.above = [[0; H]; N];
        for half_life in 0..H {
            self.set_top(half_life, ABOVE >> self.widths[half_life]);
            for cache in 0..N {
                self.ends[cache][half_life] = self.floor(half_life);
                self.set_lowest(half_life, cache);
            }
        }
    }

    #[inline(never)]
    fn settle(&mut self, half_life: usize, cache: usize) {
        let (top, floor, room) = (self.tops[half_life], self.floor(half_life), self.rooms[cache]);
        let counts = &self.counts[half_life];
        let count = |range: i32| i32::from(counts[place(range)]);
        let (mut end, mut above) = (self.ends[cache][half_life], self.above[cache][half_life]);
        while above > room && end < top {
            end += 1;
            above -= count(end);
        }
        while end > floor && above + count(end) <= room {
            above += count(end);
            end -= 1;
        }
        (self.ends[cache][half_life], self.above[cache][half_life]) = (end, above);
        self.set_lowest(half_life, cache);
    }
}

/// Where a range is in the ring.
#[inline]
fn place(range: i32) -> usize {
    (range & (RANGES - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_is_where_sorting_would_put_it() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut cuts = Cuts::<2, 2>::new([64.0, 600.0]);
        cuts.set_rooms([100, 30]);
        let mut levels = vec![[i32::MIN / 2; 2]; 500];
        for now in (0..300_000).step_by(7) {
            cuts.advance(&[now; 2]);
            let key = (random.f64().powi(2) * 500.0) as usize;
            // Most rise, some fall.
            let level = [(); 2].map(|()| now - random.i32(0..4000) * i32::from(random.bool()));
            cuts.change(&levels[key], &level);
            levels[key] = level;
            for half_life in 0..2 {
                let range = |level: &[i32; 2]| cuts.range(half_life, level[half_life]);
                let mut ranges: Vec<i32> = levels.iter().map(range).collect();
                ranges.sort_unstable_by_key(|range| std::cmp::Reverse(*range));
                for (cache, room) in [100, 30].into_iter().enumerate() {
                    let lowest = cuts.lowest(cache)[half_life];
                    let there = levels.iter().filter(|level| level[half_life] >= lowest).count();
                    // All who are above the first that has no room.
                    let first = ranges[room];
                    let expected = ranges.iter().filter(|range| **range > first).count();
                    assert_eq!(there, expected, "at {now}, room for {room}");
                }
            }
        }
    }
}

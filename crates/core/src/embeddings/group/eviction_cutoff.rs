//! Eviction cutoff: the lowest level that a cache of a given size would keep, updated
//! incrementally.
//!
//! Levels change only by accesses, so the number of keys in each small range of levels is
//! maintained in constant time. So is the range in which a cache of `capacity` rows ends: when a
//! key crosses the end, the end moves by a range or two. Sorting from time to time costs more, and
//! with an outdated cutoff a loop longer than the cache appears to hit.
//!
//! Nearly every access compares with the cutoffs of all half-lives. They are therefore stored side
//! by side, one number per half-life, so that SIMD instructions compare four at once.

use super::decayed_frequency::DecayedFrequency;

/// Number of ranges; keys below the lowest are evicted in any case.
const RANGES: i32 = 1024;
/// Levels above "now" that sums can reach: 20 doublings.
const ABOVE_NOW: i32 = 20 * DecayedFrequency::STEPS.cast_signed();

/// One number for each half-life.
pub(super) type PerHalfLife<const H: usize> = [i32; H];

/// The cutoffs of caches of `N` sizes, each under `H` half-lives.
#[derive(Debug)]
pub(super) struct EvictionCutoff<const H: usize, const N: usize> {
    /// A range spans 2^width levels.
    widths: [u32; H],
    /// Keys in each range, as a ring buffer.
    counts: Vec<[u16; RANGES as usize]>,
    /// The highest range.
    tops: PerHalfLife<H>,
    /// Level of "now" at which the highest range rises by one.
    rises_at: PerHalfLife<H>,
    /// For each cache: the highest range whose keys do not all fit.
    ends: [PerHalfLife<H>; N],
    /// For each cache: the number of keys above its end.
    above: [PerHalfLife<H>; N],
    /// For each cache: the lowest level that it keeps.
    lowest: [PerHalfLife<H>; N],
    /// For each cache: the rows that fit.
    capacities: [i32; N],
}

impl<const H: usize, const N: usize> EvictionCutoff<H, N> {
    /// Bytes of the counts.
    pub const BYTES: u64 = (H * size_of::<[u16; RANGES as usize]>()) as u64;

    /// Ranges that cover `doublings` doublings below "now", under each half-life.
    pub fn new(doublings: [f64; H]) -> Self {
        let widths = doublings.map(|doublings| {
            let levels = doublings.max(64.0) * f64::from(DecayedFrequency::STEPS);
            (levels / f64::from(RANGES)).log2().ceil() as u32
        });
        let mut cutoff = Self {
            widths,
            counts: vec![[0; RANGES as usize]; H],
            tops: [0; H],
            rises_at: [0; H],
            ends: [[0; H]; N],
            above: [[0; H]; N],
            lowest: [[0; H]; N],
            capacities: [i32::MAX; N],
        };
        cutoff.clear();
        cutoff
    }

    /// The range just below the lowest one that is counted.
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

    /// The lowest levels that a cache keeps.
    #[inline]
    pub fn lowest(&self, cache: usize) -> &PerHalfLife<H> {
        &self.lowest[cache]
    }

    /// Whether "now" has passed all ranges, so that rebuilding is faster than advancing.
    #[inline]
    pub fn is_outdated(&self, now: &PerHalfLife<H>) -> bool {
        // "Now" rises fastest under the shortest half-life.
        now[0] >> self.widths[0] > self.tops[0] + RANGES
    }

    /// Advances "now": adds higher ranges and drops the lowest ones.
    #[inline]
    pub fn advance(&mut self, now: &PerHalfLife<H>) {
        let rises: PerHalfLife<H> =
            std::array::from_fn(|at| i32::from(now[at] >= self.rises_at[at]));
        if rises.iter().fold(0, |any, rises| any | rises) != 0 {
            for (half_life, now) in now.iter().enumerate() {
                while *now >= self.rises_at[half_life] {
                    self.raise_top(half_life);
                }
            }
        }
    }

    #[inline]
    fn raise_top(&mut self, half_life: usize) {
        let top = self.tops[half_life] + 1;
        self.set_top(half_life, top);
        let floor = self.floor(half_life);
        let gone = std::mem::take(&mut self.counts[half_life][ring_index(top)]);
        for cache in 0..N {
            let end = self.ends[cache][half_life];
            if end < floor {
                self.ends[cache][half_life] = floor;
                self.above[cache][half_life] -= i32::from(gone);
            }
            // The end has moved, or was at the top.
            if end < floor || end + 1 == top {
                self.set_lowest(half_life, cache);
            }
        }
    }

    fn set_top(&mut self, half_life: usize, top: i32) {
        self.tops[half_life] = top;
        self.rises_at[half_life] = ((top + 1) << self.widths[half_life]) - ABOVE_NOW;
    }

    #[inline]
    fn set_lowest(&mut self, half_life: usize, cache: usize) {
        let end = self.ends[cache][half_life];
        let has_any = end < self.tops[half_life];
        self.lowest[cache][half_life] =
            if has_any { (end + 1) << self.widths[half_life] } else { i32::MAX };
    }

    /// Changes the levels of a key. A new key comes from below all ranges.
    pub fn change(&mut self, from: &PerHalfLife<H>, to: &PerHalfLife<H>) {
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
            counts[ring_index(from)] -= 1;
        }
        if to > floor {
            counts[ring_index(to)] += 1;
        }
        // A cutoff moves if the key crosses the end, or leaves the end's range, which may then fit.
        let (low, reach) =
            if from < to { (from, to.wrapping_sub(from) - 1) } else { (to, from.wrapping_sub(to)) };
        for cache in 0..N {
            let end = self.ends[cache][half_life];
            if end.wrapping_sub(low).cast_unsigned() <= reach.cast_unsigned() {
                let crosses = i32::from(to > end).wrapping_sub(i32::from(from > end));
                let above = self.above[cache][half_life] + crosses;
                self.above[cache][half_life] = above;
                let capacity = self.capacities[cache];
                if above > capacity
                    || above + i32::from(self.counts[half_life][ring_index(end)]) <= capacity
                {
                    self.adjust(half_life, cache);
                }
            }
        }
    }

    /// Sets the number of rows that fit into each cache.
    pub fn set_capacities(&mut self, capacities: [i32; N]) {
        self.capacities = capacities;
        for half_life in 0..H {
            (0..N).for_each(|cache| self.adjust(half_life, cache));
        }
    }

    /// Removes all keys and resets "now" to 0.
    pub fn clear(&mut self) {
        self.counts.fill([0; RANGES as usize]);
        self.above = [[0; H]; N];
        for half_life in 0..H {
            self.set_top(half_life, ABOVE_NOW >> self.widths[half_life]);
            for cache in 0..N {
                self.ends[cache][half_life] = self.floor(half_life);
                self.set_lowest(half_life, cache);
            }
        }
    }

    /// Moves the end of a cache to where it belongs.
    #[inline(never)]
    fn adjust(&mut self, half_life: usize, cache: usize) {
        let (top, floor, capacity) =
            (self.tops[half_life], self.floor(half_life), self.capacities[cache]);
        let counts = &self.counts[half_life];
        let count = |range: i32| i32::from(counts[ring_index(range)]);
        let (mut end, mut above) = (self.ends[cache][half_life], self.above[cache][half_life]);
        while above > capacity && end < top {
            end += 1;
            above -= count(end);
        }
        while end > floor && above + count(end) <= capacity {
            above += count(end);
            end -= 1;
        }
        (self.ends[cache][half_life], self.above[cache][half_life]) = (end, above);
        self.set_lowest(half_life, cache);
    }
}

/// Index of a range in the ring buffer.
#[inline]
fn ring_index(range: i32) -> usize {
    (range & (RANGES - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cutoff_is_where_sorting_would_put_it() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut cutoff = EvictionCutoff::<2, 2>::new([64.0, 600.0]);
        cutoff.set_capacities([100, 30]);
        let mut levels = vec![[i32::MIN / 2; 2]; 500];
        for now in (0..300_000).step_by(7) {
            cutoff.advance(&[now; 2]);
            let key = (random.f64().powi(2) * 500.0) as usize;
            // Most levels rise, some fall.
            let level = [(); 2].map(|()| now - random.i32(0..4000) * i32::from(random.bool()));
            cutoff.change(&levels[key], &level);
            levels[key] = level;
            for half_life in 0..2 {
                let range = |level: &[i32; 2]| cutoff.range(half_life, level[half_life]);
                let mut ranges: Vec<i32> = levels.iter().map(range).collect();
                ranges.sort_unstable_by_key(|range| std::cmp::Reverse(*range));
                for (cache, capacity) in [100, 30].into_iter().enumerate() {
                    let lowest = cutoff.lowest(cache)[half_life];
                    let resident = levels.iter().filter(|level| level[half_life] >= lowest).count();
                    // All keys above the first range that does not fit.
                    let first = ranges[capacity];
                    let expected = ranges.iter().filter(|range| **range > first).count();
                    assert_eq!(resident, expected, "at {now}, {capacity} rows fit");
                }
            }
        }
    }
}

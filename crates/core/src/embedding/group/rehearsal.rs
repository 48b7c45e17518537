//! Which half-life, how large a window, how strict with incomplete requests? Tried out on a sample.
//!
//! Recency wins on some traces and frequency on others, so nothing of this can be fixed. For a few
//! thousand sampled keys we keep what their level would be under each half-life, and what level a key
//! would need to be resident beside each window. Every access to a sampled key then tells which
//! settings would have had it, and the setting that has most of them (each access counted by how much it
//! matters to its request) is used for the whole cache.
//!
//! The same sample tells how much a request says about its keys' next requests. Where tables are
//! independent, the misses of today's request say nothing about tomorrow's, and it would be wrong to
//! discount a key for them; where keys come in company (a flight has its route and its hour), they say
//! much. That correlation sets the discount.

use super::{
    super::key::{Key, KeyMap},
    level::Level,
};

/// Half-lives tried, each [`HALF_LIFE_STEP`] times the one before.
const HALF_LIVES: usize = 8;
const HALF_LIFE_STEP: f64 = 2.5;
/// The shortest one, in accesses and as a share of the rows that fit.
const HALF_LIFE_MIN: f64 = 1024.0;
const HALF_LIFE_MIN_SHARE: f64 = 0.25;

/// We begin with a long one: where it matters, a trace soon shows that it wants a shorter one.
const HALF_LIFE_FIRST: usize = 6;

/// Windows tried, as shares of the capacity, smallest first.
const WINDOWS: [f64; 3] = [0.01, 0.05, 0.2];

/// Sampled keys, within limits one for so many rows that fit; when there are more, all keys are sampled
/// less densely.
const ROWS_PER_TRACKED: u64 = 4;
const TRACKED_MIN: u64 = 2048;
const TRACKED_MAX: u64 = 16 * 1024;
/// Accesses to sampled keys between two looks at the results: few at first, then as many as there are of
/// these keys. Looking four times as often gained no hits and cost a seventh of all time (flights, 5 %).
const REVIEW_FIRST: u32 = 128;
/// What earlier results still count at each look.
const FADE: f64 = 0.815;
/// Another setting must be better by this factor: changing costs a little.
const MARGIN: f64 = 1.002;

/// Halvings of an access's worth if all other keys missed, per unit of correlation, and its limits. With
/// a correlation of 0.3 (flights), one miss among ten keys divides by five.
const STRICTNESS: f64 = 80.0;
const STRICTNESS_MIN: f64 = 4.0;
const STRICTNESS_MAX: f64 = 40.0;
/// Sums as if a hundred accesses with a correlation of 0.3 had been seen.
const MOMENTS_BEFORE: [f64; 6] = [100.0, 0.0, 0.0, 10.0, 10.0, 3.0];
/// When favourites change, all requests miss more for a while, which says nothing about who belongs together. So
/// what is correlated is by how much a request misses more than others lately; so many accesses are lately.
const LATELY: f64 = 256.0;

/// Where keys come in a loop that is longer than the cache, whatever is admitted goes before it returns: there,
/// and wherever all are wanted alike, it is best to hold on to what one has. One more setting does that, with
/// the longest half-life and the smallest window: a newcomer must be wanted so much more than whom it displaces.
const RELUCTANCE: u32 = 3 * Level::STEPS / 2;
const HELD_HALF_LIFE: usize = HALF_LIVES - 1;
const HELD_WINDOW: usize = 0;

/// Levels are lowered, at a review, when "now" has come so far.
const NOW_MAX: u32 = 1 << 30;

/// There is room for every key that was seen at all.
const ANY: i64 = -(1 << 40);

#[derive(Debug, Clone, Copy)]
struct Tracked {
    levels: [Level; HALF_LIVES],
    /// How much had been admitted to each window when this key last was.
    entered: [f64; WINDOWS.len()],
    /// The share of the other keys that missed in its last request, beyond what was usual then.
    missing: f64,
    /// Whether it would be resident if one held on to what one has.
    held: bool,
}

/// What a rehearsal recommends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    /// Half-life in accesses.
    pub half_life: f64,
    /// The window's share of the capacity.
    pub window: f64,
    /// Halvings of an access's worth, in 256ths, if all other keys of its request missed.
    pub strictness: u32,
    /// By how much a newcomer's level must exceed that of whom it displaces.
    pub reluctance: u32,
}

/// One access to a sampled key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// Accesses so far.
    pub time: u64,
    /// What it counts, and what it is worth to its request to have it: 2^-halvings, in 256ths.
    pub halvings: u32,
    /// The share of the other keys that missed.
    pub missing: f64,
    /// Rows that fit into the cache.
    pub rows: f64,
}

/// All settings, tried at once.
#[derive(Debug)]
pub(super) struct Rehearsal {
    tracked: KeyMap<Tracked>,
    /// Keys whose hash is below this are sampled.
    sampled_below: u64,
    /// 256ths of a half-life per access, and when levels were last lowered.
    paces: [f64; HALF_LIVES],
    lowered_at: u64,
    /// What level a key needs, relative to "now", per window and half-life.
    needed: [[i64; HALF_LIVES]; WINDOWS.len()],
    results: [[f64; HALF_LIVES]; WINDOWS.len()],
    admitted: [f64; WINDOWS.len()],
    moments: [f64; 6],
    /// The share of keys that miss lately.
    missing_lately: f64,
    /// The setting that holds on: how many sampled keys it has and may have, the lowest level among them, its results.
    held: usize,
    held_max: usize,
    held_level: u32,
    held_result: f64,
    until_review: u32,
    review_every: u32,
    tracked_max: u32,
    /// The tracked levels under each half-life, while they are looked through.
    scratch: [Vec<u32>; HALF_LIVES],
    /// Indices of the setting in use.
    half_life: usize,
    window: usize,
    holds_on: bool,
}

impl Rehearsal {
    /// For a cache of so many rows.
    pub fn new(rows: u64) -> Self {
        let shortest = HALF_LIFE_MIN.max(rows as f64 * HALF_LIFE_MIN_SHARE);
        let tracked_max = (rows / ROWS_PER_TRACKED).clamp(TRACKED_MIN, TRACKED_MAX);
        let tracked_max = u32::try_from(tracked_max).expect("it is small");
        let mut half_life = shortest;
        let paces = [(); HALF_LIVES].map(|()| {
            let pace = f64::from(Level::STEPS) / half_life;
            half_life *= HALF_LIFE_STEP;
            pace
        });
        Self {
            tracked: KeyMap::default(),
            sampled_below: u64::MAX,
            paces,
            lowered_at: 0,
            needed: [[ANY; HALF_LIVES]; WINDOWS.len()],
            results: [[0.0; HALF_LIVES]; WINDOWS.len()],
            admitted: [0.0; WINDOWS.len()],
            moments: MOMENTS_BEFORE,
            missing_lately: 0.5,
            held: 0,
            held_max: 0,
            held_level: 0,
            held_result: 0.0,
            until_review: REVIEW_FIRST,
            review_every: REVIEW_FIRST,
            tracked_max,
            scratch: Default::default(),
            half_life: HALF_LIFE_FIRST,
            window: 0,
            holds_on: false,
        }
    }

    /// What to use now.
    pub fn setting(&self) -> Setting {
        let [count, first, second, first_squared, second_squared, product] = self.moments;
        let covariance = product / count - first / count * (second / count);
        let variance = |sum: f64, squares: f64| squares / count - (sum / count).powi(2);
        let scale = (variance(first, first_squared) * variance(second, second_squared)).sqrt();
        let correlation = if scale > 1e-9 { covariance / scale } else { 0.0 };
        let halvings = (STRICTNESS * correlation).clamp(STRICTNESS_MIN, STRICTNESS_MAX);
        let (half_life, window, reluctance) = if self.holds_on {
            (HELD_HALF_LIFE, HELD_WINDOW, RELUCTANCE)
        } else {
            (self.half_life, self.window, 0)
        };
        Setting {
            half_life: f64::from(Level::STEPS) / self.paces[half_life],
            window: WINDOWS[window],
            strictness: (halvings * f64::from(Level::STEPS)) as u32,
            reluctance,
        }
    }

    #[inline]
    pub fn sampled(&self, key: Key) -> bool {
        spread(key) < self.sampled_below
    }

    /// A sampled key was asked for. `true` if the setting may have changed.
    pub fn access(&mut self, key: Key, access: Access) -> bool {
        let now = self.now(access.time);
        let newcomer = Tracked {
            levels: [Level::default(); HALF_LIVES],
            entered: [f64::NEG_INFINITY; WINDOWS.len()],
            missing: f64::NAN,
            held: false,
        };
        let missing = access.missing - self.missing_lately;
        self.missing_lately += missing / LATELY;
        let tracked = self.tracked.entry(key).or_insert(newcomer);
        if !tracked.missing.is_nan() {
            let (first, second) = (tracked.missing, missing);
            let terms = [1.0, first, second, first * first, second * second, first * second];
            for (sum, term) in self.moments.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        tracked.missing = missing;

        let worth = worth(access.halvings);
        let each_stands_for = u64::MAX as f64 / self.sampled_below as f64;
        let relative: [i64; HALF_LIVES] =
            std::array::from_fn(|at| i64::from(tracked.levels[at].0) - i64::from(now[at]));
        for (window, share) in WINDOWS.iter().enumerate() {
            let in_window = self.admitted[window] - tracked.entered[window] < share * access.rows;
            if window == HELD_WINDOW && (in_window || tracked.held) {
                self.held_result += worth;
            }
            let needed = if in_window { &[ANY; HALF_LIVES] } else { &self.needed[window] };
            for ((result, relative), needed) in
                self.results[window].iter_mut().zip(relative).zip(needed)
            {
                *result += if relative >= *needed { worth } else { 0.0 };
            }
            if relative[self.half_life] < needed[self.half_life] {
                self.admitted[window] += each_stands_for;
                tracked.entered[window] = self.admitted[window];
            }
        }
        for (level, now) in tracked.levels.iter_mut().zip(now) {
            *level = level.plus(Level(now).minus(access.halvings));
        }
        let wanted = tracked.levels[HELD_HALF_LIFE].0;
        // Who must go for a newcomer is settled by the next review: not too many may come until then.
        if !tracked.held
            && (self.held < self.held_max
                || wanted > self.held_level + RELUCTANCE && self.held < self.held_max * 17 / 16)
        {
            tracked.held = true;
            self.held += 1;
        }

        if self.tracked.len() > self.tracked_max as usize {
            self.thin_out();
        }
        self.until_review -= 1;
        if self.until_review > 0 {
            return false;
        }
        self.review_every = (self.review_every + self.review_every / 4).min(self.tracked_max);
        self.until_review = self.review_every;
        self.review(now, access.rows);
        if now[0] > NOW_MAX {
            self.lower(now, access.time);
        }
        true
    }

    fn now(&self, time: u64) -> [u32; HALF_LIVES] {
        let elapsed = (time - self.lowered_at) as f64;
        self.paces.map(|pace| Level::START.0 + (elapsed * pace) as u32)
    }

    /// Levels rise with time; before they overflow, those under each half-life are lowered alike.
    fn lower(&mut self, now: [u32; HALF_LIVES], time: u64) {
        let by = now.map(|now| now - Level::START.0);
        for tracked in self.tracked.values_mut() {
            for (level, by) in tracked.levels.iter_mut().zip(by) {
                *level = level.minus(by);
            }
        }
        self.held_level = self.held_level.saturating_sub(by[HELD_HALF_LIFE]);
        self.lowered_at = time;
    }

    fn thin_out(&mut self) {
        self.sampled_below -= self.sampled_below / 4;
        let below = self.sampled_below;
        self.tracked.retain(|key, _| spread(*key) < below);
        self.held = self.tracked.values().filter(|tracked| tracked.held).count();
        self.held_max -= self.held_max / 4;
    }

    /// Takes stock: what level is needed now, and which setting does best?
    fn review(&mut self, now: [u32; HALF_LIVES], rows: f64) {
        let sampled_rows = rows * (self.sampled_below as f64 / u64::MAX as f64);
        // One pass over the map; higher levels become lower numbers, so that plain order puts them first.
        self.scratch.iter_mut().for_each(Vec::clear);
        for tracked in self.tracked.values() {
            for (levels, level) in self.scratch.iter_mut().zip(tracked.levels) {
                levels.push(u32::MAX - level.0);
            }
        }
        for (half_life, now) in now.into_iter().enumerate() {
            let mut among = self.scratch[half_life].as_mut_slice();
            for (window, share) in WINDOWS.iter().enumerate() {
                let residents = (sampled_rows * (1.0 - share)) as usize;
                self.needed[window][half_life] = ANY;
                if residents < among.len() {
                    // Larger windows leave less room: their residents are among these.
                    let (higher, turned, _) = among.select_nth_unstable(residents);
                    let level = u32::MAX - *turned;
                    self.needed[window][half_life] = i64::from(level) + 1 - i64::from(now);
                    among = higher;
                }
            }
        }
        self.review_held((sampled_rows * (1.0 - WINDOWS[HELD_WINDOW])) as usize);
        let used = self.results[self.window][self.half_life];
        let mut best = if self.holds_on { self.held_result } else { used } * MARGIN;
        let held_result = self.held_result;
        self.held_result *= FADE;
        for (window, results) in self.results.iter_mut().enumerate() {
            for (half_life, result) in results.iter_mut().enumerate() {
                if *result > best {
                    best = *result;
                    (self.window, self.half_life) = (window, half_life);
                    self.holds_on = false;
                }
                *result *= FADE;
            }
        }
        self.holds_on |= held_result > best;
        for sum in &mut self.moments {
            *sum *= FADE;
        }
    }

    /// Who is held, now that there is room for so many?
    fn review_held(&mut self, room: usize) {
        self.held_max = room;
        let levels = &mut self.scratch[0];
        levels.clear();
        let held = self.tracked.values().filter(|tracked| tracked.held);
        levels.extend(held.map(|tracked| u32::MAX - tracked.levels[HELD_HALF_LIFE].0));
        self.held_level = 0;
        if room > 0 && levels.len() >= room {
            let (_, turned, _) = levels.select_nth_unstable(room - 1);
            self.held_level = u32::MAX - *turned;
            for tracked in self.tracked.values_mut() {
                tracked.held &= tracked.levels[HELD_HALF_LIFE].0 >= self.held_level;
            }
        }
        self.held = self.tracked.values().filter(|tracked| tracked.held).count();
    }
}

/// 2^-halvings, to a 16th of a halving: a table, since this is asked for often.
#[inline]
fn worth(halvings: u32) -> f64 {
    /// 2^(-i/16).
    const PARTS: [f64; 16] = {
        let mut parts = [1.0; 16];
        let mut index = 1;
        while index < 16 {
            parts[index] = parts[index - 1] * 0.957_603_280_698_573_6;
            index += 1;
        }
        parts
    };
    let whole = u64::from(halvings / Level::STEPS).min(1000);
    let part = PARTS[(halvings % Level::STEPS / 16) as usize];
    part * f64::from_bits((1023 - whole) << 52)
}

/// Where a key falls between nought and the highest number, independently of where maps put it.
#[inline]
fn spread(key: Key) -> u64 {
    key.mixed().wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_worth_a_power_of_two() {
        assert_eq!((worth(0), worth(256), worth(5 * 256)), (1.0, 0.5, 1.0 / 32.0));
        for halvings in 0..20_000_u32 {
            let exact = (-f64::from(halvings) / 256.0).exp2();
            assert!((worth(halvings) / exact - 1.0).abs() < 0.05, "{halvings}");
        }
        assert!(worth(u32::MAX) > 0.0);
    }
}

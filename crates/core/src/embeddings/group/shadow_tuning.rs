//! Shadow tuning: chooses half-life, window and strictness of `group` by running all candidates on
//! a sample of the keys.
//!
//! Recency wins on some traces and frequency on others, so these settings cannot be fixed. For
//! 1,024 to 16,384 sampled keys, the levels under each half-life are maintained, and with them the
//! lowest level that a cache beside each window would keep ([`EvictionCutoff`]). Each access to a
//! sampled key shows which candidates would have hit. The candidate with the most hits, each
//! weighted by its worth to the request, is used for the whole cache.
//!
//! The same sample measures how much a request predicts about the next requests of its keys. Where
//! tables are independent, the misses of one request predict nothing about the next, and it would
//! be wrong to discount a key for them. Where keys come in company (a flight has its route and its
//! hour), they predict much. That correlation sets the discount, the *strictness*.

use super::{
    decayed_frequency::{DecayedFrequency, log2},
    eviction_cutoff::EvictionCutoff,
    idle_decay,
};
use crate::embeddings::key::{Key, KeyMap};

/// Candidate half-lives, each [`HALF_LIFE_STEP`] times the one before. The shortest, as a share of
/// the rows that fit, is as good as LRU.
const HALF_LIVES: usize = 8;
const HALF_LIFE_STEP: f64 = 3.5;
const HALF_LIFE_MIN_SHARE: f64 = 0.1;
const HALF_LIFE_MIN: f64 = 8.0;

/// Index of the initial half-life, a long one: traces that need a shorter one soon show it.
const HALF_LIFE_INITIAL: usize = 5;

/// Accesses that the ranges of the cutoff cover, per row that fits.
const CUTOFF_REACH: f64 = 60.0;

/// Candidate windows, as shares of the capacity, smallest first.
const WINDOWS: [f64; 3] = [0.01, 0.05, 0.2];

/// Rows that fit per sampled key, within the limits below. If there are more sampled keys than
/// that, the sampling rate is reduced.
const ROWS_PER_TRACKED: u64 = 8;
const TRACKED_MIN: u64 = 1024;
const TRACKED_MAX: u64 = 16 * 1024;
/// Tracked keys however little memory there is, and the bytes that one costs.
const TRACKED_LEAST: u64 = 64;
const TRACKED_BYTES: u64 = 128;
/// Accesses to sampled keys before the first review. The interval then grows to a quarter of the
/// maximum number of sampled keys.
const REVIEW_INITIAL: u32 = 128;
const REVIEWS_PER_TRACKED: u32 = 4;
/// Factor by which earlier results decay at each review.
const RESULT_DECAY: f32 = 0.95;
/// Factor by which another setting must be better, because changing settings costs a little.
const SWITCH_MARGIN: f32 = 1.002;

/// Halvings of an access's worth if all other keys missed, per unit of correlation. With a
/// correlation of 0.3 (flights), one miss among ten keys divides the worth by five. Without
/// correlation there is no discount.
const STRICTNESS: f32 = 80.0;
/// Upper bound on the halvings. A higher one gains nothing, and a new key with only new companions
/// would hardly count.
const STRICTNESS_MAX: f32 = 25.0;
/// Prior of the sums: 100 accesses with a correlation of 0.3.
const MOMENTS_PRIOR: [f32; 6] = [100.0, 0.0, 0.0, 10.0, 10.0, 3.0];
/// Accesses over which the average share of misses is taken. When popular keys change, all requests
/// miss more for a while, which says nothing about which keys belong together. The correlation is
/// therefore between deviations from this average.
const MISSING_WINDOW: f32 = 256.0;

/// Accesses over which the average worth is taken. An access has a high worth if its companions are
/// resident, but after a change few keys are, under any setting. Results therefore count worth as a
/// multiple of this average, so that times with few hits weigh as much as times with many.
const WORTH_WINDOW: f32 = 600.0;
/// Lower bound on the average, so that it can recover.
const WORTH_MIN: f32 = 1e-30;

/// Level by which a new key must exceed its victim under the retaining setting. In a loop longer
/// than the cache, every admitted key is evicted before it returns. There, and wherever all keys
/// are equally frequent, it is best to keep the residents. One more candidate does that, with the
/// longest half-life and the smallest window.
const ADMISSION_MARGIN: u32 = 3 * DecayedFrequency::STEPS / 2;
const RETAIN_HALF_LIFE: usize = HALF_LIVES - 1;
const RETAIN_WINDOW: usize = 0;

/// Level of "now" from which all levels are rebased. "Now" never exceeds twice this.
const NOW_MAX: i32 = 1 << 29;

/// Level of a key that was never accessed.
const NEVER: i32 = i32::MIN / 2;

/// A sampled key.
#[derive(Debug, Clone, Copy)]
struct Tracked {
    key: Key,
    levels: [i32; HALF_LIVES],
    /// Time of the last access, in accesses modulo 2^32.
    last: u32,
    /// Admissions to each window when this key was last admitted to it.
    entered: [u32; WINDOWS.len()],
    /// Share of the other keys that missed in its last request, minus the average at that time.
    missing: f32,
    /// Whether it would be resident under the retaining setting.
    retained: bool,
}

impl Tracked {
    /// Its levels, bounded by idle decay.
    #[inline]
    fn bounded(&self, bounds: &[i32; HALF_LIVES], time: u32) -> [i32; HALF_LIVES] {
        let age = log2(time.wrapping_sub(self.last).max(1)).cast_signed();
        std::array::from_fn(|at| self.levels[at].min(bounds[at].wrapping_sub(age)))
    }
}

/// Settings of the policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    /// Half-life in accesses.
    pub half_life: f64,
    /// The window's share of the capacity.
    pub window: f64,
    /// Halvings of an access's worth, in 256ths, if all other keys of its request missed.
    pub strictness: u32,
    /// Level by which a new key must exceed its victim.
    pub admission_margin: u32,
}

/// One access to a sampled key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// Number of accesses so far.
    pub time: u64,
    /// Binary logarithm, in 256ths, of the reciprocal of its worth: what it adds to the key's
    /// frequency, and what a hit is worth to the request.
    pub halvings: u32,
    /// Share of the other keys that missed.
    pub missing: f32,
    /// Rows that fit into the cache.
    pub rows: f64,
}

/// All candidate settings, run on the sampled keys.
#[derive(Debug)]
pub(super) struct ShadowTuning {
    tracked: Vec<Tracked>,
    /// Position of each sampled key in `tracked`.
    positions: KeyMap<u32>,
    /// Position of the key that is next checked for idle decay.
    hand: usize,
    /// Keys whose hash is below this are sampled.
    sampled_below: u64,
    half_lives: [f64; HALF_LIVES],
    /// Levels by which "now" rises per access, with 32 fractional bits.
    decay_rates: [u64; HALF_LIVES],
    /// Limit on the accesses counted since the last rebase: after more, all levels have decayed to
    /// nothing.
    elapsed_max: u64,
    /// Time of the last rebase.
    rebased_at: u64,
    /// Bounds of idle decay ([`idle_decay::bound`]).
    bounds: [i32; HALF_LIVES],
    /// Lowest levels that would be resident beside each window, per half-life.
    cutoff: EvictionCutoff<HALF_LIVES, { WINDOWS.len() }>,
    /// Worth of the hits of each candidate.
    results: [[f32; HALF_LIVES]; WINDOWS.len()],
    /// Sampled keys admitted to each window.
    admitted: [u32; WINDOWS.len()],
    /// Sampled keys that fit into each window.
    window_max: [u32; WINDOWS.len()],
    /// Sums for the correlation of misses: count, first, second, their squares and their product.
    moments: [f32; 6],
    /// Moving average of the share of keys that miss.
    missing_average: f32,
    /// Moving average of the worth of an access.
    worth_average: f32,
    /// The retaining setting: its sampled keys, their maximum, their lowest level and its result.
    retained_count: usize,
    retained_max: usize,
    retained_level: i32,
    retained_result: f32,
    until_review: u32,
    review_every: u32,
    tracked_max: u32,
    /// Scratch space for the levels of retained keys.
    scratch: Vec<i32>,
    /// Indices of the half-life and window in use, unless the retaining setting is.
    half_life: usize,
    window: usize,
    is_retaining: bool,
}

impl ShadowTuning {
    /// Keys to track for a cache of `rows` rows, in about this number of bytes.
    pub fn keys(rows: u64, bytes: u64) -> u32 {
        let affordable = (bytes / TRACKED_BYTES).clamp(TRACKED_LEAST, TRACKED_MAX);
        let tracked = (rows / ROWS_PER_TRACKED).clamp(TRACKED_MIN, TRACKED_MAX);
        u32::try_from(tracked.min(affordable)).expect("it is small")
    }

    /// Bytes for this number of keys.
    pub fn bytes_for(keys: u32) -> u64 {
        let keys = u64::from(keys) + 1;
        // A map has a power of two of buckets, of which 7 of 8 are used.
        let buckets = (keys * 8 / 7 + 1).next_power_of_two();
        keys * (size_of::<Tracked>() + size_of::<i32>()) as u64
            + buckets * (size_of::<(Key, u32)>() + 1) as u64
            + EvictionCutoff::<HALF_LIVES, { WINDOWS.len() }>::BYTES
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        let map = self.positions.allocation_size();
        let lists = self.tracked.capacity() * size_of::<Tracked>()
            + self.scratch.capacity() * size_of::<i32>();
        (map + lists) as u64 + EvictionCutoff::<HALF_LIVES, { WINDOWS.len() }>::BYTES
    }

    /// For a cache of `rows` rows, with this number of tracked keys at most.
    pub fn new(rows: u64, tracked_max: u32) -> Self {
        let keys = tracked_max as usize + 1;
        let mut half_life = (rows as f64 * HALF_LIFE_MIN_SHARE).max(HALF_LIFE_MIN) / HALF_LIFE_STEP;
        let half_lives = [(); HALF_LIVES].map(|()| {
            half_life *= HALF_LIFE_STEP;
            half_life
        });
        Self {
            tracked: Vec::with_capacity(keys),
            positions: KeyMap::with_capacity_and_hasher(keys, Default::default()),
            hand: 0,
            sampled_below: u64::MAX,
            half_lives,
            decay_rates: half_lives.map(decay_rate),
            elapsed_max: (u64::from(NOW_MAX.cast_unsigned()) << 33)
                / decay_rate(half_lives[0]).max(1),
            rebased_at: 0,
            bounds: half_lives.map(|half_life| idle_decay::bound(half_life).cast_signed()),
            cutoff: EvictionCutoff::new(
                half_lives.map(|half_life| CUTOFF_REACH * rows as f64 / half_life),
            ),
            results: Default::default(),
            admitted: [0; WINDOWS.len()],
            window_max: [u32::MAX; WINDOWS.len()],
            moments: MOMENTS_PRIOR,
            missing_average: 0.5,
            worth_average: 0.5,
            retained_count: 0,
            retained_max: 0,
            retained_level: 0,
            retained_result: 0.0,
            until_review: REVIEW_INITIAL,
            review_every: REVIEW_INITIAL,
            tracked_max,
            scratch: Vec::with_capacity(keys),
            half_life: HALF_LIFE_INITIAL,
            window: 0,
            is_retaining: false,
        }
    }

    /// The best settings so far.
    pub fn setting(&self) -> Setting {
        let [count, first, second, first_squared, second_squared, product] = self.moments;
        let covariance = product / count - first / count * (second / count);
        let variance = |sum: f32, squares: f32| squares / count - (sum / count).powi(2);
        let scale = (variance(first, first_squared) * variance(second, second_squared)).sqrt();
        let correlation = if scale > 1e-9 { covariance / scale } else { 0.0 };
        let halvings = (STRICTNESS * correlation).clamp(0.0, STRICTNESS_MAX);
        let (half_life, window, admission_margin) = if self.is_retaining {
            (RETAIN_HALF_LIFE, RETAIN_WINDOW, ADMISSION_MARGIN)
        } else {
            (self.half_life, self.window, 0)
        };
        Setting {
            half_life: self.half_lives[half_life],
            window: WINDOWS[window],
            strictness: (halvings * DecayedFrequency::STEPS as f32) as u32,
            admission_margin,
        }
    }

    #[inline]
    pub fn is_sampled(&self, key: Key) -> bool {
        sampling_hash(key) < self.sampled_below
    }

    /// Records an access to a sampled key. Returns whether the settings may have changed.
    pub fn access(&mut self, key: Key, access: Access) -> bool {
        let mut now = self.now(access.time);
        let time = access.time as u32;
        // Any time may have passed since the last access to a sampled key.
        if now[0] > NOW_MAX || self.cutoff.is_outdated(&now) {
            self.rebase(now, access.time);
            now = self.now(access.time);
        }
        self.cutoff.advance(&now);
        let bounds = std::array::from_fn(|at| now[at].wrapping_add(self.bounds[at]));
        self.apply_idle_decay(&bounds, time);
        let known = self.positions.get(&key).copied();
        let position = known.unwrap_or_else(|| self.track(key, time));
        let tracked = &mut self.tracked[position as usize];
        let missing = access.missing - self.missing_average;
        self.missing_average += missing / MISSING_WINDOW;
        if !tracked.missing.is_nan() {
            let (first, second) = (tracked.missing, missing);
            let terms = [1.0, first, second, first * first, second * second, first * second];
            for (sum, term) in self.moments.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        tracked.missing = missing;

        let worth = worth(access.halvings) / self.worth_average;
        self.worth_average =
            (self.worth_average * (1.0 + (worth - 1.0) / WORTH_WINDOW)).max(WORTH_MIN);
        let in_window: [bool; WINDOWS.len()] = std::array::from_fn(|window| {
            self.admitted[window].wrapping_sub(tracked.entered[window]) < self.window_max[window]
        });
        self.retained_result +=
            if in_window[RETAIN_WINDOW] || tracked.retained { worth } else { 0.0 };
        let bounded = tracked.bounded(&bounds, time);
        let counted = access.halvings.cast_signed();
        for (window, in_window) in in_window.into_iter().enumerate() {
            let lowest = self.cutoff.lowest(window);
            for (at, result) in self.results[window].iter_mut().enumerate() {
                *result += if bounded[at] >= lowest[at] || in_window { worth } else { 0.0 };
            }
            if bounded[self.half_life] < lowest[self.half_life] && !in_window {
                self.admitted[window] = self.admitted[window].wrapping_add(1);
                tracked.entered[window] = self.admitted[window];
            }
        }
        let levels = std::array::from_fn(|at| {
            DecayedFrequency::log_of_sum(bounded[at], now[at].wrapping_sub(counted))
        });
        self.cutoff.change(&tracked.levels, &levels);
        tracked.levels = levels;
        tracked.last = time;
        let level = tracked.levels[RETAIN_HALF_LIFE];
        // The next review chooses the victims. Until then the excess is limited to 1/16.
        if !tracked.retained
            && (self.retained_count < self.retained_max
                || level > self.retained_level + ADMISSION_MARGIN.cast_signed()
                    && self.retained_count < self.retained_max * 17 / 16)
        {
            tracked.retained = true;
            self.retained_count += 1;
        }

        if self.tracked.len() > self.tracked_max as usize {
            self.reduce_sample();
        }
        self.until_review -= 1;
        if self.until_review > 0 {
            return false;
        }
        let most = self.tracked_max / REVIEWS_PER_TRACKED;
        self.review_every = (self.review_every + self.review_every / 4).min(most);
        self.until_review = self.review_every;
        self.review(access.rows);
        true
    }

    /// Adds a key that was not accessed before.
    fn track(&mut self, key: Key, time: u32) -> u32 {
        let position = self.tracked.len() as u32;
        self.tracked.push(Tracked {
            key,
            levels: [NEVER; HALF_LIVES],
            last: time,
            entered: self.admitted.map(|admitted| admitted.wrapping_sub(u32::MAX / 2)),
            missing: f32::NAN,
            retained: false,
        });
        self.positions.insert(key, position);
        position
    }

    #[inline]
    fn now(&self, time: u64) -> [i32; HALF_LIVES] {
        let elapsed = (time - self.rebased_at).min(self.elapsed_max);
        self.decay_rates.map(|decay_rate| ((elapsed * decay_rate) >> 32) as i32)
    }

    /// Applies idle decay to the next key.
    #[inline]
    fn apply_idle_decay(&mut self, bounds: &[i32; HALF_LIVES], time: u32) {
        self.hand = if self.hand + 1 < self.tracked.len() { self.hand + 1 } else { 0 };
        let Some(tracked) = self.tracked.get_mut(self.hand) else { return };
        let bounded = tracked.bounded(bounds, time);
        if bounded != tracked.levels {
            self.cutoff.change(&tracked.levels, &bounded);
            tracked.levels = bounded;
        }
    }

    /// Subtracts "now" from all levels, before they overflow.
    fn rebase(&mut self, now: [i32; HALF_LIVES], time: u64) {
        for tracked in &mut self.tracked {
            for (level, now) in tracked.levels.iter_mut().zip(now) {
                *level = (*level - now).max(NEVER);
            }
        }
        self.retained_level = (self.retained_level - now[RETAIN_HALF_LIFE]).max(NEVER);
        self.rebased_at = time;
        self.cutoff.clear();
        self.cutoff.advance(&self.now(time));
        for tracked in &self.tracked {
            self.cutoff.change(&[NEVER; HALF_LIVES], &tracked.levels);
        }
    }

    /// Reduces the sampling rate by a quarter.
    fn reduce_sample(&mut self) {
        self.sampled_below -= self.sampled_below / 4;
        let below = self.sampled_below;
        let (cutoff, retained) = (&mut self.cutoff, &mut self.retained_count);
        self.tracked.retain(|tracked| {
            let stays = sampling_hash(tracked.key) < below;
            if !stays {
                cutoff.change(&tracked.levels, &[NEVER; HALF_LIVES]);
                *retained -= usize::from(tracked.retained);
            }
            stays
        });
        self.positions.clear();
        self.positions.extend(self.tracked.iter().zip(0..).map(|(tracked, at)| (tracked.key, at)));
        self.retained_max -= self.retained_max / 4;
    }

    /// Updates the sizes of the shadow caches and chooses the best candidate.
    fn review(&mut self, rows: f64) {
        let sampled_rows = rows * (self.sampled_below as f64 / u64::MAX as f64);
        self.window_max = WINDOWS.map(|share| (share * sampled_rows).ceil() as u32);
        let capacities = WINDOWS.map(|share| ((1.0 - share) * sampled_rows) as i32);
        self.cutoff.set_capacities(capacities);
        self.review_retained((sampled_rows * (1.0 - WINDOWS[RETAIN_WINDOW])) as usize);
        if self.tracked.len() < sampled_rows as usize {
            // All sampled keys fit, so all settings are equally good.
            self.results = Default::default();
            self.retained_result = 0.0;
            return;
        }
        let used = self.results[self.window][self.half_life];
        let mut best = if self.is_retaining { self.retained_result } else { used } * SWITCH_MARGIN;
        let retained_result = self.retained_result;
        self.retained_result *= RESULT_DECAY;
        for half_life in 0..HALF_LIVES {
            for (window, results) in self.results.iter_mut().enumerate() {
                let result = &mut results[half_life];
                if *result > best {
                    best = *result;
                    (self.window, self.half_life) = (window, half_life);
                    self.is_retaining = false;
                }
                *result *= RESULT_DECAY;
            }
        }
        self.is_retaining |= retained_result > best;
        for sum in &mut self.moments {
            *sum *= RESULT_DECAY;
        }
    }

    /// Limits the retained keys to the `room` with the highest levels.
    fn review_retained(&mut self, room: usize) {
        self.retained_max = room;
        let levels = &mut self.scratch;
        levels.clear();
        let retained = self.tracked.iter().filter(|tracked| tracked.retained);
        levels.extend(retained.map(|tracked| -tracked.levels[RETAIN_HALF_LIFE]));
        self.retained_level = NEVER;
        self.retained_count = levels.len();
        if room > 0 && levels.len() >= room {
            let (_, negated, _) = levels.select_nth_unstable(room - 1);
            self.retained_level = -*negated;
            for tracked in self.tracked.iter_mut().filter(|tracked| tracked.retained) {
                tracked.retained = tracked.levels[RETAIN_HALF_LIFE] >= self.retained_level;
                self.retained_count -= usize::from(!tracked.retained);
            }
        }
    }
}

/// Levels by which "now" rises per access, with 32 fractional bits.
pub(super) fn decay_rate(half_life: f64) -> u64 {
    (f64::from(DecayedFrequency::STEPS) / half_life * f64::from(u32::MAX)) as u64
}

/// 2^-halvings, to a 16th of a halving, from a table because it is computed at every access.
#[inline]
fn worth(halvings: u32) -> f32 {
    /// 2^(-i/16).
    const PARTS: [f32; 16] = {
        let mut parts = [1.0; 16];
        let mut index = 1;
        while index < 16 {
            parts[index] = parts[index - 1] * 0.957_603_3;
            index += 1;
        }
        parts
    };
    let whole = (halvings / DecayedFrequency::STEPS).min(120);
    let part = PARTS[(halvings % DecayedFrequency::STEPS / 16) as usize];
    part * f32::from_bits((127 - whole) << 23)
}

/// A hash that decides whether a key is sampled, independent of the one that maps use.
#[inline]
fn sampling_hash(key: Key) -> u64 {
    key.mixed().wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worth_is_a_power_of_two() {
        assert_eq!((worth(0), worth(256), worth(5 * 256)), (1.0, 0.5, 1.0 / 32.0));
        for halvings in 0..20_000_u32 {
            let exact = (-f64::from(halvings) / 256.0).exp2();
            assert!((f64::from(worth(halvings)) / exact - 1.0).abs() < 0.05, "{halvings}");
        }
        assert!(worth(u32::MAX) > 0.0);
    }

    /// Accesses a key; time also passes for keys that are not sampled.
    fn access(tuning: &mut ShadowTuning, time: &mut u64, row: u64, halvings: u32, missing: f32) {
        *time += 1;
        let key = Key::new(crate::embeddings::TableId(0), row).unwrap();
        if tuning.is_sampled(key) {
            tuning.access(key, Access { time: *time, halvings, missing, rows: 1000.0 });
        }
    }

    /// Times with few hits weigh as much as times with many: when all keys have shifted and all
    /// companions miss, accesses to new keys still count.
    #[test]
    fn a_shift_of_keys_shortens_the_half_life_while_all_companions_miss() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut tuning = ShadowTuning::new(1000, 1024);
        let mut time = 0;
        for _ in 0..200_000 {
            let row = (random.f64().powi(3) * 5000.0) as u64;
            access(&mut tuning, &mut time, row, 0, 0.0);
        }
        let before = tuning.setting().half_life;
        assert!(before > 1000.0, "stable keys need a long half-life, not {before}");
        for at in 0..200_000 {
            let row = 10_000 + at / 40 + random.u64(..500);
            access(&mut tuning, &mut time, row, 12 * DecayedFrequency::STEPS, 0.9);
        }
        let after = tuning.setting().half_life;
        assert!(
            after < before / 3.0,
            "shifting keys need a shorter half-life: {after} after {before}"
        );
    }

    /// For a long time, all accesses may be to keys that are not sampled.
    #[test]
    fn long_pauses_between_sampled_accesses_do_not_overflow() {
        for pause in [1, 1 << 20, 1 << 26, 1 << 32, 1 << 40, u64::MAX / 4] {
            let mut tuning = ShadowTuning::new(60, 1024);
            let mut time = 0;
            for _ in 0..3 {
                for row in 0..10_000 {
                    access(&mut tuning, &mut time, row % 300, 0, 0.0);
                }
                assert!(tuning.now(time)[0] <= NOW_MAX, "levels are rebased");
                time += pause;
            }
        }
    }

    #[test]
    fn strictness_follows_the_correlation_of_misses() {
        let strictness = |missing: fn(&mut fastrand::Rng, u64) -> f32| {
            let mut random = fastrand::Rng::with_seed(2);
            let mut tuning = ShadowTuning::new(1000, 1024);
            let mut time = 0;
            for _ in 0..100_000 {
                let row = random.u64(..2000);
                let missing = missing(&mut random, row);
                access(&mut tuning, &mut time, row, 0, missing);
            }
            tuning.setting().strictness
        };
        let independent = strictness(|random, _| random.f32());
        assert!(
            independent < 3 * DecayedFrequency::STEPS,
            "independent misses give no discount: {independent}"
        );
        let correlated = strictness(|_, row| (row % 2) as f32);
        assert_eq!(correlated, STRICTNESS_MAX as u32 * DecayedFrequency::STEPS);
    }
}

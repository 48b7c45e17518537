//! Which half-life, how large a window, how strict with incomplete requests? Tried out on a sample.
//!
//! Recency wins on some traces and frequency on others, so nothing of this can be fixed. For a thousand sampled keys, or
//! a few, we keep what their level would be under each half-life, and where each cache would have to cut them off
//! beside each window ([`Cuts`]). Every access to a sampled key then tells which
//! settings would have had it, and the setting that has most of them (each access counted by how much it
//! matters to its request) is used for the whole cache.
//!
//! The same sample tells how much a request says about its keys' next requests. Where tables are
//! independent, the misses of today's request say nothing about tomorrow's, and it would be wrong to
//! discount a key for them; where keys come in company (a flight has its route and its hour), they say
//! much. That correlation sets the discount.

use super::{
    super::key::{Key, KeyMap},
    absence,
    cut::Cuts,
    level::{Level, log2},
};

/// Half-lives tried, each [`HALF_LIFE_STEP`] times the one before; the shortest, as a share of the rows that fit, is as
/// good as asking who was seen last.
const HALF_LIVES: usize = 8;
const HALF_LIFE_STEP: f64 = 3.5;
const HALF_LIFE_MIN_SHARE: f64 = 0.1;
const HALF_LIFE_MIN: f64 = 8.0;

/// We begin with a long one: where it matters, a trace soon shows that it wants a shorter one.
const HALF_LIFE_FIRST: usize = 5;

/// Cuts are looked for among those who were seen in so many times the rows that fit.
const REACH: f64 = 60.0;

/// Windows tried, as shares of the capacity, smallest first.
const WINDOWS: [f64; 3] = [0.01, 0.05, 0.2];

/// Sampled keys, within limits one for so many rows that fit; when there are more, all keys are sampled
/// less densely.
const ROWS_PER_TRACKED: u64 = 8;
const TRACKED_MIN: u64 = 1024;
const TRACKED_MAX: u64 = 16 * 1024;
/// Accesses to sampled keys between two looks at the results: few at first, then a quarter of how many of these keys
/// there may be.
const REVIEW_FIRST: u32 = 128;
const REVIEWS_PER_TRACKED: u32 = 4;
/// What earlier results still count at each look.
const FADE: f32 = 0.95;
/// Another setting must be better by this factor: changing costs a little.
const MARGIN: f32 = 1.002;

/// Halvings of an access's worth if all other keys missed, per unit of correlation, and the most of them. With
/// a correlation of 0.3 (flights), one miss among ten keys divides by five. Without any, there is no discount. More than the
/// most gains nothing, and whoever comes anew with all companions would hardly count.
const STRICTNESS: f32 = 80.0;
const STRICTNESS_MAX: f32 = 25.0;
/// Sums as if a hundred accesses with a correlation of 0.3 had been seen.
const MOMENTS_BEFORE: [f32; 6] = [100.0, 0.0, 0.0, 10.0, 10.0, 3.0];
/// When favourites change, all requests miss more for a while, which says nothing about who belongs together. So
/// what is correlated is by how much a request misses more than others lately; so many accesses are lately.
const LATELY: f32 = 256.0;

/// An access is worth much if its companions are there; but after a change hardly anybody is there, whichever setting would
/// be right now. So what it is worth is told as a multiple of the average lately, and bad times say as much as good
/// ones; so many accesses are lately.
const WORTH_LATELY: f32 = 600.0;
/// The average is at least this, lest it take for ever to come back.
const WORTH_MIN: f32 = 1e-30;

/// Where keys come in a loop that is longer than the cache, whatever is admitted goes before it returns: there,
/// and wherever all are wanted alike, it is best to hold on to what one has. One more setting does that, with
/// the longest half-life and the smallest window: a newcomer must be wanted so much more than whom it displaces.
const RELUCTANCE: u32 = 3 * Level::STEPS / 2;
const HELD_HALF_LIFE: usize = HALF_LIVES - 1;
const HELD_WINDOW: usize = 0;

/// Levels are lowered when "now" has come so far; it never comes further than twice that.
const NOW_MAX: i32 = 1 << 29;

/// The level of a key that was never seen.
const NEVER: i32 = i32::MIN / 2;

#[derive(Debug, Clone, Copy)]
struct Tracked {
    key: Key,
    levels: [i32; HALF_LIVES],
    /// When it was last asked for; the lower half of the count is enough.
    last: u32,
    /// How many had been admitted to each window when this key last was.
    entered: [u32; WINDOWS.len()],
    /// The share of the other keys that missed in its last request, beyond what was usual then.
    missing: f32,
    /// Whether it would be resident if one held on to what one has.
    held: bool,
}

impl Tracked {
    /// Its levels, bounded by how long it has been absent.
    #[inline]
    fn bounded(&self, bounds: &[i32; HALF_LIVES], time: u32) -> [i32; HALF_LIVES] {
        let age = log2(time.wrapping_sub(self.last).max(1)).cast_signed();
        std::array::from_fn(|at| self.levels[at].min(bounds[at].wrapping_sub(age)))
    }
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
    pub missing: f32,
    /// Rows that fit into the cache.
    pub rows: f64,
}

/// All settings, tried at once.
#[derive(Debug)]
pub(super) struct Rehearsal {
    /// The sampled keys, and where each of them is.
    tracked: Vec<Tracked>,
    places: KeyMap<u32>,
    /// Whose turn it is to be looked at for absence.
    hand: usize,
    /// Keys whose hash is below this are sampled.
    sampled_below: u64,
    half_lives: [f64; HALF_LIVES],
    /// 256ths of a half-life per access, with 32 binary places, and when levels were last lowered.
    paces: [u64; HALF_LIVES],
    /// Accesses that are told apart since then: by more, everybody's level has fallen to nothing.
    elapsed_max: u64,
    lowered_at: u64,
    /// What a level is at most, but for the logarithm of a key's absence.
    bounds: [i32; HALF_LIVES],
    /// Who would be resident beside each window, per half-life, and with what results.
    cuts: Cuts<HALF_LIVES, { WINDOWS.len() }>,
    results: [[f32; HALF_LIVES]; WINDOWS.len()],
    /// How many sampled keys were admitted to each window, and how many it has room for.
    admitted: [u32; WINDOWS.len()],
    window_max: [u32; WINDOWS.len()],
    moments: [f32; 6],
    /// The share of keys that miss lately.
    missing_lately: f32,
    /// What an access is worth lately.
    worth_lately: f32,
    /// The setting that holds on: how many sampled keys it has and may have, the lowest level among them, its results.
    held: usize,
    held_max: usize,
    held_level: i32,
    held_result: f32,
    until_review: u32,
    review_every: u32,
    tracked_max: u32,
    /// The levels of those that are held, while they are looked through.
    scratch: Vec<i32>,
    /// Indices of the setting in use.
    half_life: usize,
    window: usize,
    holds_on: bool,
}

impl Rehearsal {
    /// For a cache of so many rows.
    pub fn new(rows: u64) -> Self {
        let tracked_max = (rows / ROWS_PER_TRACKED).clamp(TRACKED_MIN, TRACKED_MAX);
        let tracked_max = u32::try_from(tracked_max).expect("it is small");
        let mut half_life = (rows as f64 * HALF_LIFE_MIN_SHARE).max(HALF_LIFE_MIN) / HALF_LIFE_STEP;
        let half_lives = [(); HALF_LIVES].map(|()| {
            half_life *= HALF_LIFE_STEP;
            half_life
        });
        Self {
            tracked: Vec::new(),
            places: KeyMap::default(),
            hand: 0,
            sampled_below: u64::MAX,
            half_lives,
            paces: half_lives.map(pace),
            elapsed_max: (u64::from(NOW_MAX.cast_unsigned()) << 33) / pace(half_lives[0]).max(1),
            lowered_at: 0,
            bounds: half_lives.map(|half_life| absence::bound(half_life).cast_signed()),
            cuts: Cuts::new(half_lives.map(|half_life| REACH * rows as f64 / half_life)),
            results: Default::default(),
            admitted: [0; WINDOWS.len()],
            window_max: [u32::MAX; WINDOWS.len()],
            moments: MOMENTS_BEFORE,
            missing_lately: 0.5,
            worth_lately: 0.5,
            held: 0,
            held_max: 0,
            held_level: 0,
            held_result: 0.0,
            until_review: REVIEW_FIRST,
            review_every: REVIEW_FIRST,
            tracked_max,
            scratch: Vec::new(),
            half_life: HALF_LIFE_FIRST,
            window: 0,
            holds_on: false,
        }
    }

    /// What to use now.
    pub fn setting(&self) -> Setting {
        let [count, first, second, first_squared, second_squared, product] = self.moments;
        let covariance = product / count - first / count * (second / count);
        let variance = |sum: f32, squares: f32| squares / count - (sum / count).powi(2);
        let scale = (variance(first, first_squared) * variance(second, second_squared)).sqrt();
        let correlation = if scale > 1e-9 { covariance / scale } else { 0.0 };
        let halvings = (STRICTNESS * correlation).clamp(0.0, STRICTNESS_MAX);
        let (half_life, window, reluctance) = if self.holds_on {
            (HELD_HALF_LIFE, HELD_WINDOW, RELUCTANCE)
        } else {
            (self.half_life, self.window, 0)
        };
        Setting {
            half_life: self.half_lives[half_life],
            window: WINDOWS[window],
            strictness: (halvings * Level::STEPS as f32) as u32,
            reluctance,
        }
    }

    #[inline]
    pub fn sampled(&self, key: Key) -> bool {
        spread(key) < self.sampled_below
    }

    /// A sampled key was asked for. `true` if the setting may have changed.
    pub fn access(&mut self, key: Key, access: Access) -> bool {
        let mut now = self.now(access.time);
        let time = access.time as u32;
        // However long no sampled key was asked for.
        if now[0] > NOW_MAX || self.cuts.is_left_behind(&now) {
            self.lower(now, access.time);
            now = self.now(access.time);
        }
        self.cuts.advance(&now);
        let bounds = std::array::from_fn(|at| now[at].wrapping_add(self.bounds[at]));
        self.look_for_absent(&bounds, time);
        let known = self.places.get(&key).copied();
        let place = known.unwrap_or_else(|| self.track(key, time));
        let tracked = &mut self.tracked[place as usize];
        let missing = access.missing - self.missing_lately;
        self.missing_lately += missing / LATELY;
        if !tracked.missing.is_nan() {
            let (first, second) = (tracked.missing, missing);
            let terms = [1.0, first, second, first * first, second * second, first * second];
            for (sum, term) in self.moments.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        tracked.missing = missing;

        let worth = worth(access.halvings) / self.worth_lately;
        self.worth_lately =
            (self.worth_lately * (1.0 + (worth - 1.0) / WORTH_LATELY)).max(WORTH_MIN);
        let in_window: [bool; WINDOWS.len()] = std::array::from_fn(|window| {
            self.admitted[window].wrapping_sub(tracked.entered[window]) < self.window_max[window]
        });
        self.held_result += if in_window[HELD_WINDOW] || tracked.held { worth } else { 0.0 };
        let bounded = tracked.bounded(&bounds, time);
        let counted = access.halvings.cast_signed();
        for (window, in_window) in in_window.into_iter().enumerate() {
            let lowest = self.cuts.lowest(window);
            for (at, result) in self.results[window].iter_mut().enumerate() {
                *result += if bounded[at] >= lowest[at] || in_window { worth } else { 0.0 };
            }
            if bounded[self.half_life] < lowest[self.half_life] && !in_window {
                self.admitted[window] = self.admitted[window].wrapping_add(1);
                tracked.entered[window] = self.admitted[window];
            }
        }
        let levels =
            std::array::from_fn(|at| Level::log_of_sum(bounded[at], now[at].wrapping_sub(counted)));
        self.cuts.change(&tracked.levels, &levels);
        tracked.levels = levels;
        tracked.last = time;
        let wanted = tracked.levels[HELD_HALF_LIFE];
        // Who must go for a newcomer is settled by the next review: not too many may come until then.
        if !tracked.held
            && (self.held < self.held_max
                || wanted > self.held_level + RELUCTANCE.cast_signed()
                    && self.held < self.held_max * 17 / 16)
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
        let most = self.tracked_max / REVIEWS_PER_TRACKED;
        self.review_every = (self.review_every + self.review_every / 4).min(most);
        self.until_review = self.review_every;
        self.review(access.rows);
        true
    }

    /// A key that was not asked for before.
    fn track(&mut self, key: Key, time: u32) -> u32 {
        let place = self.tracked.len() as u32;
        self.tracked.push(Tracked {
            key,
            levels: [NEVER; HALF_LIVES],
            last: time,
            entered: self.admitted.map(|admitted| admitted.wrapping_sub(u32::MAX / 2)),
            missing: f32::NAN,
            held: false,
        });
        self.places.insert(key, place);
        place
    }

    #[inline]
    fn now(&self, time: u64) -> [i32; HALF_LIVES] {
        let elapsed = (time - self.lowered_at).min(self.elapsed_max);
        self.paces.map(|pace| ((elapsed * pace) >> 32) as i32)
    }

    /// Looks at the next key: if it has been away for longer than its levels promise, they fall.
    #[inline]
    fn look_for_absent(&mut self, bounds: &[i32; HALF_LIVES], time: u32) {
        self.hand = if self.hand + 1 < self.tracked.len() { self.hand + 1 } else { 0 };
        let Some(tracked) = self.tracked.get_mut(self.hand) else { return };
        let bounded = tracked.bounded(bounds, time);
        if bounded != tracked.levels {
            self.cuts.change(&tracked.levels, &bounded);
            tracked.levels = bounded;
        }
    }

    /// Levels rise with time; before they overflow, those under each half-life are lowered alike.
    fn lower(&mut self, now: [i32; HALF_LIVES], time: u64) {
        for tracked in &mut self.tracked {
            for (level, now) in tracked.levels.iter_mut().zip(now) {
                *level = (*level - now).max(NEVER);
            }
        }
        self.held_level = (self.held_level - now[HELD_HALF_LIFE]).max(NEVER);
        self.lowered_at = time;
        self.cuts.clear();
        self.cuts.advance(&self.now(time));
        for tracked in &self.tracked {
            self.cuts.change(&[NEVER; HALF_LIVES], &tracked.levels);
        }
    }

    fn thin_out(&mut self) {
        self.sampled_below -= self.sampled_below / 4;
        let below = self.sampled_below;
        let (cuts, held) = (&mut self.cuts, &mut self.held);
        self.tracked.retain(|tracked| {
            let stays = spread(tracked.key) < below;
            if !stays {
                cuts.change(&tracked.levels, &[NEVER; HALF_LIVES]);
                *held -= usize::from(tracked.held);
            }
            stays
        });
        self.places.clear();
        self.places.extend(self.tracked.iter().zip(0..).map(|(tracked, at)| (tracked.key, at)));
        self.held_max -= self.held_max / 4;
    }

    /// Takes stock: how much room is there, and which setting does best?
    fn review(&mut self, rows: f64) {
        let sampled_rows = rows * (self.sampled_below as f64 / u64::MAX as f64);
        self.window_max = WINDOWS.map(|share| (share * sampled_rows).ceil() as u32);
        let rooms = WINDOWS.map(|share| ((1.0 - share) * sampled_rows) as i32);
        self.cuts.set_rooms(rooms);
        self.review_held((sampled_rows * (1.0 - WINDOWS[HELD_WINDOW])) as usize);
        if self.tracked.len() < sampled_rows as usize {
            // Everything has room: any setting is as good.
            self.results = Default::default();
            self.held_result = 0.0;
            return;
        }
        let used = self.results[self.window][self.half_life];
        let mut best = if self.holds_on { self.held_result } else { used } * MARGIN;
        let held_result = self.held_result;
        self.held_result *= FADE;
        for half_life in 0..HALF_LIVES {
            for (window, results) in self.results.iter_mut().enumerate() {
                let result = &mut results[half_life];
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
        let levels = &mut self.scratch;
        levels.clear();
        let held = self.tracked.iter().filter(|tracked| tracked.held);
        levels.extend(held.map(|tracked| -tracked.levels[HELD_HALF_LIFE]));
        self.held_level = NEVER;
        self.held = levels.len();
        if room > 0 && levels.len() >= room {
            let (_, turned, _) = levels.select_nth_unstable(room - 1);
            self.held_level = -*turned;
            for tracked in self.tracked.iter_mut().filter(|tracked| tracked.held) {
                tracked.held = tracked.levels[HELD_HALF_LIFE] >= self.held_level;
                self.held -= usize::from(!tracked.held);
            }
        }
    }
}

/// 256ths of a half-life per access, with 32 binary places.
pub(super) fn pace(half_life: f64) -> u64 {
    (f64::from(Level::STEPS) / half_life * f64::from(u32::MAX)) as u64
}

/// 2^-halvings, to a 16th of a halving: a table, since this is asked for often.
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
    let whole = (halvings / Level::STEPS).min(120);
    let part = PARTS[(halvings % Level::STEPS / 16) as usize];
    part * f32::from_bits((127 - whole) << 23)
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
            assert!((f64::from(worth(halvings)) / exact - 1.0).abs() < 0.05, "{halvings}");
        }
        assert!(worth(u32::MAX) > 0.0);
    }

    /// A sampled key is asked for; the time of all others passes, too.
    fn ask(rehearsal: &mut Rehearsal, time: &mut u64, row: u64, halvings: u32, missing: f32) {
        *time += 1;
        let key = Key::new(crate::embedding::TableId(0), row).unwrap();
        if rehearsal.sampled(key) {
            rehearsal.access(key, Access { time: *time, halvings, missing, rows: 1000.0 });
        }
    }

    /// "Bad times say as much as good ones": when everything has shifted, all companions miss, and still newcomers count.
    #[test]
    fn a_change_is_noticed_while_all_companions_miss() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut rehearsal = Rehearsal::new(1000);
        let mut time = 0;
        for _ in 0..200_000 {
            let row = (random.f64().powi(3) * 5000.0) as u64;
            ask(&mut rehearsal, &mut time, row, 0, 0.0);
        }
        let before = rehearsal.setting().half_life;
        assert!(before > 1000.0, "favourites that stay want a long half-life, not {before}");
        for at in 0..200_000 {
            let row = 10_000 + at / 40 + random.u64(..500);
            ask(&mut rehearsal, &mut time, row, 12 * Level::STEPS, 0.9);
        }
        let after = rehearsal.setting().half_life;
        assert!(
            after < before / 3.0,
            "new ones all the time want a short one: {after} is as {before}"
        );
    }

    /// Hot keys that are not sampled may be all that is asked for, for very long.
    #[test]
    fn however_long_no_sampled_key_is_asked_for() {
        for pause in [1, 1 << 20, 1 << 26, 1 << 32, 1 << 40, u64::MAX / 4] {
            let mut rehearsal = Rehearsal::new(60);
            let mut time = 0;
            for _ in 0..3 {
                for row in 0..10_000 {
                    ask(&mut rehearsal, &mut time, row % 300, 0, 0.0);
                }
                assert!(rehearsal.now(time)[0] <= NOW_MAX, "time goes on");
                time += pause;
            }
        }
    }

    #[test]
    fn the_discount_is_as_strict_as_companions_are_faithful() {
        let strictness = |missing: fn(&mut fastrand::Rng, u64) -> f32| {
            let mut random = fastrand::Rng::with_seed(2);
            let mut rehearsal = Rehearsal::new(1000);
            let mut time = 0;
            for _ in 0..100_000 {
                let row = random.u64(..2000);
                let missing = missing(&mut random, row);
                ask(&mut rehearsal, &mut time, row, 0, missing);
            }
            rehearsal.setting().strictness
        };
        let by_chance = strictness(|random, _| random.f32());
        assert!(by_chance < 3 * Level::STEPS, "misses by chance say nothing: {by_chance}");
        let always_alike = strictness(|_, row| (row % 2) as f32);
        assert_eq!(always_alike, STRICTNESS_MAX as u32 * Level::STEPS);
    }
}

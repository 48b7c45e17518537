//! How much reuse is worth a write to flash.
//!
//! Flash wears out, so its write rate has a limit. A segment is written if enough reads of it are expected: more than a threshold,
//! which is never below a minimum, and rises while more is offered than may be written (Shift 5.1). Segments of one bucket
//! often are expected to be read equally often, so at the threshold a part of them is let in, always the same part: those with a
//! low hash. A segment's **level** is the highest threshold that still lets it in.
//!
//! Every refresh the levels that were offered since the last one say which threshold would have let in what is
//! aimed at. The aim is the limit, corrected by a PID controller on what was really asked for; it does not integrate while its correction is at
//! its bounds or the threshold at its minimum (anti-windup). Whatever comes of it, a token bucket has the last word: past
//! it nothing is written.

use std::time::Duration;

use crate::{ByteSize, rate::TokenBucket, stable::mix, units::ByteRate};

use super::words::Segment;

/// How writes are held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteSettings {
    /// The threshold is never lower (1.1 in the paper: a first read is not enough).
    pub threshold_min: f64,
    /// What may be written on average; no limit if it is not said.
    pub limit: Option<ByteRate>,
    /// How often the threshold is tuned, and bucket policies are decided anew.
    pub refresh: Duration,
}

impl Default for WriteSettings {
    fn default() -> Self {
        Self { threshold_min: 1.1, limit: None, refresh: Duration::from_secs(10) }
    }
}

/// Levels are told apart this finely, up to a highest.
const LEVELS_PER_READ: f64 = 16.0;
const LEVELS: usize = 66 * 16;
/// A little more than the limit is aimed at: the token bucket takes what is too much, and nothing goes unused.
const AIM: f64 = 1.05;
/// Of the relative excess of writes that were asked for.
const PROPORTIONAL: f64 = 0.2;
const INTEGRAL: f64 = 0.1;
const DERIVATIVE: f64 = 0.05;
/// The aim is corrected by no more than this factor, and its inverse.
const CORRECTION_MAX: f64 = 2.0;
/// The threshold, and the writes that it answers for.
#[derive(Debug)]
pub struct Threshold {
    settings: WriteSettings,
    value: f64,
    integral: f64,
    last_error: f64,
    tokens: Option<TokenBucket>,
    /// Bytes that were offered, by their level, and those that were let in.
    offered: Vec<u64>,
    asked: u64,
    since: Duration,
}

impl Threshold {
    /// At its minimum; segments are usually so long.
    pub fn new(settings: WriteSettings, segment: ByteSize) -> Self {
        let tokens = settings.limit.map(|rate| {
            // What was not written since the last look may still be; and a limit below a segment a second
            // would otherwise never let one pass.
            let burst = u128::from(rate.0.0) * settings.refresh.as_nanos() / 1_000_000_000;
            let burst = u64::try_from(burst).unwrap_or(u64::MAX).max(segment.0.saturating_mul(2));
            TokenBucket::new(rate, ByteSize(burst))
        });
        Self {
            settings,
            value: settings.threshold_min,
            integral: 0.0,
            last_error: 0.0,
            offered: if tokens.is_some() { vec![0; LEVELS] } else { Vec::new() },
            tokens,
            asked: 0,
            since: Duration::ZERO,
        }
    }

    /// What expected reads must exceed.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The limit, if there is one.
    pub fn limit(&self) -> Option<ByteRate> {
        self.settings.limit
    }

    /// How often the threshold is tuned.
    pub fn refresh(&self) -> Duration {
        self.settings.refresh
    }

    /// Is a segment of which so many reads are expected worth a write?
    pub fn admits(&mut self, expected: f64, segment: Segment, bytes: u32) -> bool {
        if expected <= self.settings.threshold_min {
            return false;
        }
        if self.tokens.is_none() {
            return true;
        }
        let hash = (mix(segment.0 ^ 0x5bd1_e995) >> 11) as f64 / (1_u64 << 53) as f64;
        let level = expected + 1.0 - hash;
        self.offered[index(level)] += u64::from(bytes);
        level > self.value
    }

    /// May these bytes be written now? If so they are.
    pub fn try_write(&mut self, now: Duration, bytes: u32) -> bool {
        self.asked += u64::from(bytes);
        let size = ByteSize(u64::from(bytes));
        self.tokens.as_mut().is_none_or(|tokens| tokens.try_take(now, size))
    }

    /// Tunes the threshold if it is time to; says whether it was.
    pub fn tick(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.since);
        if elapsed < self.settings.refresh {
            return false;
        }
        if let Some(limit) = self.settings.limit {
            self.tune(limit.0.0 as f64 * elapsed.as_secs_f64());
        }
        (self.asked, self.since) = (0, now);
        true
    }

    /// Finds the threshold that would have let in so many bytes since the last time, corrected.
    fn tune(&mut self, limit: f64) {
        let error = (1.0 - self.asked as f64 / (AIM * limit)).clamp(-1.0, 1.0);
        let change = PROPORTIONAL * error + DERIVATIVE * (error - self.last_error);
        self.last_error = error;
        let wished = (self.integral + change).exp2();
        let correction = wished.clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        let aim = AIM * limit * correction;
        // From the highest level down, until that is more than is aimed at.
        let mut sum = 0.0;
        let mut value = 0.0_f64;
        for (level, bytes) in self.offered.iter().enumerate().rev() {
            let bytes = *bytes as f64;
            if sum + bytes > aim {
                value = (level as f64 + 1.0 - (aim - sum) / bytes) / LEVELS_PER_READ;
                break;
            }
            sum += bytes;
        }
        self.offered.fill(0);
        self.value = value.max(self.settings.threshold_min);
        let idle = value <= self.settings.threshold_min && error > 0.0;
        let saturated = (wished - correction).abs() > 0.0;
        if !idle && !saturated {
            self.integral += INTEGRAL * error;
        }
    }
}

/// Which level it is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "levels are positive, and the highest stands for all above"
)]
fn index(level: f64) -> usize {
    ((level.max(0.0) * LEVELS_PER_READ) as usize).min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threshold(limit: u64) -> Threshold {
        let limit = Some(ByteRate(ByteSize(limit)));
        Threshold::new(WriteSettings { limit, ..WriteSettings::default() }, ByteSize(1_000_000))
    }

    /// Offers 100 segments of 1 MB a second of which so many reads are expected, for so long.
    fn offer(threshold: &mut Threshold, from_s: u64, for_s: u64, expected: f64) -> u64 {
        let mut written = 0;
        for step in from_s * 100..(from_s + for_s) * 100 {
            let now = Duration::from_millis(step * 10);
            threshold.tick(now);
            if threshold.admits(expected, Segment(step), 1_000_000)
                && threshold.try_write(now, 1_000_000)
            {
                written += 1;
            }
        }
        written
    }

    /// Promise 6: the write rate has "a stated limit that holds under any load".
    #[test]
    fn no_more_is_written_than_the_limit_and_hardly_less() {
        let mut threshold = threshold(20_000_000);
        let written = offer(&mut threshold, 0, 1000, 3.0);
        assert!(written <= 20_000 + 200, "{written} MB of 20 MB/s in 1000 s and a burst");
        assert!(written >= 19_600, "and it is used: {written}");
        assert!((3.7..3.9).contains(&threshold.value()), "a fifth passes: {}", threshold.value());
    }

    #[test]
    fn the_part_that_is_let_in_stays_the_same() {
        let mut threshold = threshold(20_000_000);
        offer(&mut threshold, 0, 1000, 3.0);
        let mut pass = |expected: f64| {
            (0..1000).filter(|at| threshold.admits(expected, Segment(*at), 1)).collect::<Vec<_>>()
        };
        let once = pass(3.0);
        assert_eq!(pass(3.0), once);
        assert!((150..250).contains(&once.len()), "{}", once.len());
        assert_eq!((pass(2.0).len(), pass(4.0).len()), (0, 1000), "fewer readers, and more");
    }

    #[test]
    fn what_was_too_much_is_soon_forgotten() {
        let mut threshold = threshold(20_000_000);
        offer(&mut threshold, 0, 2000, 5.0);
        assert!(threshold.value() > 4.0);
        // Nothing is offered for a while: what was integrated before must not stand in the way afterwards.
        for second in 2000..2600 {
            threshold.tick(Duration::from_secs(second));
        }
        assert!(threshold.value() < 1.2, "{}", threshold.value());
        let written = offer(&mut threshold, 2600, 60, 3.0);
        assert!((1100..1450).contains(&written), "{written}");
    }

    /// "It does not integrate while […] the threshold [is] at its minimum": after hours without an offer it is not too low for
    /// longer than it takes to see one, or the token bucket would choose what is written instead.
    #[test]
    fn an_idle_night_does_not_lower_the_threshold_of_the_morning() {
        let mut threshold = threshold(20_000_000);
        for tick in 0..1000 {
            threshold.tick(Duration::from_secs(10 * tick));
        }
        offer(&mut threshold, 10_000, 60, 3.0);
        assert!((3.75..3.9).contains(&threshold.value()), "a fifth passes: {}", threshold.value());
    }

    /// "It does not integrate while its correction is at its bounds": where no threshold would be high enough, the next one
    /// is not too high for long.
    #[test]
    fn what_no_threshold_holds_back_does_not_raise_the_next() {
        let mut threshold = threshold(20_000_000);
        // More readers than are told apart: all or nothing.
        offer(&mut threshold, 0, 2000, 100.0);
        offer(&mut threshold, 2000, 300, 3.0);
        let written = offer(&mut threshold, 2300, 100, 3.0);
        assert!((1800..=2200).contains(&written), "{written} MB of 20 MB/s in 100 s and a burst");
    }

    #[test]
    fn without_a_limit_the_threshold_stays_and_all_pass() {
        let mut threshold = Threshold::new(WriteSettings::default(), ByteSize(1_000_000));
        assert_eq!(offer(&mut threshold, 0, 100, 1.2), 10_000);
        assert!((threshold.value() - 1.1).abs() < 1e-9);
        assert_eq!(offer(&mut threshold, 100, 100, 1.0), 0, "one read is not enough");
    }
}

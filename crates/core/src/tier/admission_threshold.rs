//! Admission threshold: the expected reads that justify a flash write.
//!
//! Flash wears out, so its write rate has a limit. A segment is written if its expected reads
//! exceed a threshold, which is never below a minimum and rises while more is offered than may be
//! written (Shift 5.1). Segments of one bucket often have equal expected reads, so at the threshold
//! a part of them is admitted, always the same part: those with a low hash. A segment's **level**
//! is the highest threshold that still admits it.
//!
//! At every refresh the levels offered since the last one give the threshold that would have
//! admitted the target volume. The target is the limit, corrected by a PID controller on the writes
//! requested. The controller does not integrate while its correction is at its bounds or the
//! threshold at its minimum (anti-windup). A token bucket enforces the limit whatever the
//! threshold.

use std::time::Duration;

use crate::{
    ByteSize,
    units::ByteRate,
    util::{stable_hash::mix, token_bucket::TokenBucket},
};

use super::{
    snapshot::{Reader, SnapshotError, Writer},
    types::Segment,
};

/// Limits on flash writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteSettings {
    /// Lowest threshold (1.1 in the paper: a first read is not enough).
    pub threshold_min: f64,
    /// Mean write rate allowed; `None` for no limit.
    pub limit: Option<ByteRate>,
    /// Interval at which the threshold is tuned and bucket priorities are recomputed.
    pub refresh: Duration,
}

impl Default for WriteSettings {
    fn default() -> Self {
        Self { threshold_min: 1.1, limit: None, refresh: Duration::from_secs(10) }
    }
}

/// Resolution of levels.
const LEVELS_PER_READ: f64 = 16.0;
/// The last level stands for all above.
const LEVELS: usize = 66 * 16;
/// Target as a multiple of the limit. The token bucket rejects the excess, and no allowance goes
/// unused.
const TARGET: f64 = 1.05;
/// Gains on the relative excess of requested writes.
const PROPORTIONAL: f64 = 0.2;
const INTEGRAL: f64 = 0.1;
const DERIVATIVE: f64 = 0.05;
/// The target is corrected by at most this factor, or its inverse.
const CORRECTION_MAX: f64 = 2.0;

/// The integral of a snapshot is at most this; the correction is bounded long before.
const INTEGRAL_MAX: f64 = 100.0;

/// What the controller has tuned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuning {
    value: f64,
    integral: f64,
    last_error: f64,
}

/// The threshold with its controller and token bucket.
#[derive(Debug)]
pub struct AdmissionThreshold {
    settings: WriteSettings,
    value: f64,
    integral: f64,
    last_error: f64,
    tokens: Option<TokenBucket>,
    /// Bytes offered since the last refresh, by level.
    offered: Vec<u64>,
    /// Bytes of writes requested since the last refresh.
    requested: u64,
    since: Duration,
}

impl AdmissionThreshold {
    /// A threshold at its minimum. `segment` is the usual length of a segment.
    pub fn new(settings: WriteSettings, segment: ByteSize) -> Self {
        let tokens = settings.limit.map(|rate| {
            // Allowance left since the last refresh may still be used. Two segments at least:
            // a limit below a segment per second would otherwise never admit one.
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
            requested: 0,
            since: Duration::ZERO,
        }
    }

    /// The value that expected reads must exceed.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The write limit.
    pub fn limit(&self) -> Option<ByteRate> {
        self.settings.limit
    }

    /// Interval at which the threshold is tuned.
    pub fn refresh(&self) -> Duration {
        self.settings.refresh
    }

    /// Whether a segment with these expected reads justifies a write. Records the offer.
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

    /// Takes the bytes of a write from the token bucket. Returns whether they were available.
    pub fn try_write(&mut self, now: Duration, bytes: u32) -> bool {
        self.requested += u64::from(bytes);
        let size = ByteSize(u64::from(bytes));
        self.tokens.as_mut().is_none_or(|tokens| tokens.try_take(now, size))
    }

    /// Gives back the bytes of a write that did not happen.
    pub fn give_back(&mut self, bytes: u32) {
        self.requested = self.requested.saturating_sub(u64::from(bytes));
        if let Some(tokens) = &mut self.tokens {
            tokens.give_back(ByteSize(u64::from(bytes)));
        }
    }

    /// Tunes the threshold if a refresh is due. Returns whether it was.
    pub fn tick(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.since);
        if elapsed < self.settings.refresh {
            return false;
        }
        if let Some(limit) = self.settings.limit {
            self.tune(limit.0.0 as f64 * elapsed.as_secs_f64());
        }
        (self.requested, self.since) = (0, now);
        true
    }

    /// Writes what was tuned.
    pub(super) fn save(&self, writer: &mut Writer) {
        for tuned in [self.value, self.integral, self.last_error] {
            writer.f64(tuned);
        }
    }

    /// Reads what [`Self::save`] wrote.
    pub(super) fn read_tuning(reader: &mut Reader<'_>) -> Result<Tuning, SnapshotError> {
        let (value, integral) = (reader.positive()?, reader.within(INTEGRAL_MAX)?);
        Ok(Tuning { value, integral, last_error: reader.within(1.0)? })
    }

    /// Continues with what another threshold had tuned.
    pub(super) fn tune_to(&mut self, tuning: Tuning) {
        self.value = tuning.value.max(self.settings.threshold_min);
        (self.integral, self.last_error) = (tuning.integral, tuning.last_error);
    }

    /// Finds the threshold that would have admitted the corrected target since the last refresh;
    /// `limit` is the bytes allowed in that time.
    fn tune(&mut self, limit: f64) {
        let error = (1.0 - self.requested as f64 / (TARGET * limit)).clamp(-1.0, 1.0);
        let change = PROPORTIONAL * error + DERIVATIVE * (error - self.last_error);
        self.last_error = error;
        let unclamped = (self.integral + change).exp2();
        let correction = unclamped.clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        let target = TARGET * limit * correction;
        // From the highest level down, until the sum exceeds the target.
        let mut sum = 0.0;
        let mut value = 0.0_f64;
        for (level, bytes) in self.offered.iter().enumerate().rev() {
            let bytes = *bytes as f64;
            if sum + bytes > target {
                value = (level as f64 + 1.0 - (target - sum) / bytes) / LEVELS_PER_READ;
                break;
            }
            sum += bytes;
        }
        self.offered.fill(0);
        self.value = value.max(self.settings.threshold_min);
        let idle = value <= self.settings.threshold_min && error > 0.0;
        let saturated = (unclamped - correction).abs() > 0.0;
        if !idle && !saturated {
            self.integral += INTEGRAL * error;
        }
    }
}

/// Index of a level in `offered`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "levels are positive, and the last stands for all above"
)]
fn index(level: f64) -> usize {
    ((level.max(0.0) * LEVELS_PER_READ) as usize).min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threshold(limit: u64) -> AdmissionThreshold {
        let limit = Some(ByteRate(ByteSize(limit)));
        let settings = WriteSettings { limit, ..WriteSettings::default() };
        AdmissionThreshold::new(settings, ByteSize(1_000_000))
    }

    /// Offers 100 segments of 1 MB per second with `expected` reads, for `for_s` seconds. Returns
    /// the number written.
    fn offer(threshold: &mut AdmissionThreshold, from_s: u64, for_s: u64, expected: f64) -> u64 {
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
    fn the_write_limit_is_kept_and_nearly_used_up() {
        let mut threshold = threshold(20_000_000);
        let written = offer(&mut threshold, 0, 1000, 3.0);
        assert!(written <= 20_000 + 200, "{written} MB at 20 MB/s in 1000 s, and a burst");
        assert!(written >= 19_600, "the limit is used: {written}");
        assert!((3.7..3.9).contains(&threshold.value()), "a fifth passes: {}", threshold.value());
    }

    #[test]
    fn the_part_that_is_admitted_stays_the_same() {
        let mut threshold = threshold(20_000_000);
        offer(&mut threshold, 0, 1000, 3.0);
        let mut pass = |expected: f64| {
            (0..1000).filter(|at| threshold.admits(expected, Segment(*at), 1)).collect::<Vec<_>>()
        };
        let once = pass(3.0);
        assert_eq!(pass(3.0), once);
        assert!((150..250).contains(&once.len()), "{}", once.len());
        assert_eq!(
            (pass(2.0).len(), pass(4.0).len()),
            (0, 1000),
            "with fewer and with more readers"
        );
    }

    #[test]
    fn the_threshold_recovers_from_overload() {
        let mut threshold = threshold(20_000_000);
        offer(&mut threshold, 0, 2000, 5.0);
        assert!(threshold.value() > 4.0);
        // Nothing is offered for a while. The integral from before must not delay admission after.
        for second in 2000..2600 {
            threshold.tick(Duration::from_secs(second));
        }
        assert!(threshold.value() < 1.2, "{}", threshold.value());
        let written = offer(&mut threshold, 2600, 60, 3.0);
        assert!((1100..1450).contains(&written), "{written}");
    }

    /// No integration while the threshold is at its minimum: after hours without an offer the
    /// threshold must rise at the first refresh, or the token bucket would choose what is written.
    #[test]
    fn idle_hours_do_not_lower_the_threshold_afterwards() {
        let mut threshold = threshold(20_000_000);
        for tick in 0..1000 {
            threshold.tick(Duration::from_secs(10 * tick));
        }
        offer(&mut threshold, 10_000, 60, 3.0);
        assert!((3.75..3.9).contains(&threshold.value()), "a fifth passes: {}", threshold.value());
    }

    /// No integration while the correction is at its bounds: after a time in which no threshold was
    /// high enough, the next one is not too high for long.
    #[test]
    fn overload_beyond_the_last_level_does_not_raise_the_next_threshold() {
        let mut threshold = threshold(20_000_000);
        // Above the last level: all or nothing.
        offer(&mut threshold, 0, 2000, 100.0);
        offer(&mut threshold, 2000, 300, 3.0);
        let written = offer(&mut threshold, 2300, 100, 3.0);
        assert!((1800..=2200).contains(&written), "{written} MB at 20 MB/s in 100 s, and a burst");
    }

    #[test]
    fn without_a_limit_the_threshold_stays_at_its_minimum() {
        let mut threshold = AdmissionThreshold::new(WriteSettings::default(), ByteSize(1_000_000));
        assert_eq!(offer(&mut threshold, 0, 100, 1.2), 10_000);
        assert!((threshold.value() - 1.1).abs() < 1e-9);
        assert_eq!(offer(&mut threshold, 100, 100, 1.0), 0, "one read is not enough");
    }
}

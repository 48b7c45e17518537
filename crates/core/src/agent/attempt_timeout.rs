//! Attempt timeouts: how long one attempt at an origin may be silent before it is made again.
//!
//! An answer that hangs costs one timeout, not the whole deadline. The timeout doubles with every
//! attempt of a request, so that an origin that is slow, not hung, is read by a later attempt.

use std::time::Duration;

/// Timeout of a first attempt. Object stores answer within 1 s; 5 s leaves room for a busy one.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// A first attempt may take one part in this many of the deadline.
const FIRST_SHARE: u32 = 12;
/// A later attempt may take one part in this many of the deadline.
const LATER_SHARE: u32 = 4;

/// Bytes per second below which an answer makes no progress. At this rate, 48 kB arrive within a
/// deadline of a minute.
const PROGRESS_RATE_MIN: u128 = 800;

/// Bytes that an answer must bring in every window of this length.
pub fn progress_min(window: Duration) -> u64 {
    u64::try_from(window.as_millis() * PROGRESS_RATE_MIN / 1000).unwrap_or(u64::MAX).max(1)
}

/// The timeout of an attempt, counted from 0, of a request with this deadline. It bounds the wait
/// for the first byte. It is also the window in which the answer must make progress.
pub fn attempt_timeout(deadline: Duration, attempt: u32) -> Duration {
    let first = (deadline / FIRST_SHARE).min(FIRST_MAX);
    first.saturating_mul(2_u32.saturating_pow(attempt)).min(deadline / LATER_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_double_and_stay_well_under_the_deadline() {
        let seconds = |attempt| attempt_timeout(Duration::from_mins(1), attempt).as_secs();
        assert_eq!([0, 1, 2, 3, 40].map(seconds), [5, 10, 15, 15, 15]);
        let long = |attempt| attempt_timeout(Duration::from_hours(1), attempt).as_secs();
        assert_eq!([0, 1, 2, 20].map(long), [5, 10, 20, 900]);
        assert_eq!(attempt_timeout(Duration::from_millis(1200), 0), Duration::from_millis(100));
    }

    #[test]
    fn a_window_without_a_byte_is_no_progress() {
        let windows = [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(5)];
        assert_eq!(windows.map(progress_min), [1, 1, 4000]);
        assert_eq!(progress_min(Duration::MAX), u64::MAX);
    }
}

//! Token bucket: a limit on bytes per second, with a burst.
//!
//! Time is an argument (since a fixed start), so a traffic-shaped server and a simulation share it.

use std::time::Duration;

use crate::units::{ByteRate, ByteSize};

/// A rate limit with a burst. A caller that takes more than the bucket holds gets the time to wait.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate_per_s: u64,
    burst: u64,
    /// Time at which the bucket will be full again.
    full_at: Duration,
}

impl TokenBucket {
    /// A bucket that starts full.
    pub fn new(rate: ByteRate, burst: ByteSize) -> Self {
        let rate_per_s = rate.0.0;
        assert!(rate_per_s > 0, "the rate of a token bucket is zero");
        Self { rate_per_s, burst: burst.0, full_at: Duration::ZERO }
    }

    /// Takes `size` at time `now` and returns the time to wait before using it. The wait covers all
    /// earlier takes, so the long-run rate is exact.
    #[must_use = "the bytes may pass only after this wait"]
    pub fn take(&mut self, now: Duration, size: ByteSize) -> Duration {
        self.full_at = self.full_at.max(now) + self.time_for(size.0);
        self.full_at.saturating_sub(now + self.time_for(self.burst))
    }

    /// Takes `size` and returns true if it may pass at once. Otherwise takes nothing.
    #[must_use = "the bytes may pass only if this is true"]
    pub fn try_take(&mut self, now: Duration, size: ByteSize) -> bool {
        let full_at = self.full_at.max(now).saturating_add(self.time_for(size.0));
        let passes = full_at <= now.saturating_add(self.time_for(self.burst));
        if passes {
            self.full_at = full_at;
        }
        passes
    }

    /// Gives back bytes that were taken and not used.
    pub fn give_back(&mut self, size: ByteSize) {
        self.full_at = self.full_at.saturating_sub(self.time_for(size.0));
    }

    fn time_for(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate_per_s);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(rate: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(ByteRate(ByteSize(rate)), ByteSize(burst))
    }

    #[test]
    fn a_second_of_bytes_takes_a_second() {
        let mut bucket = bucket(1000, 0);
        assert_eq!(bucket.take(Duration::ZERO, ByteSize(500)), Duration::from_millis(500));
        assert_eq!(bucket.take(Duration::ZERO, ByteSize(500)), Duration::from_secs(1));
        assert_eq!(bucket.take(Duration::from_secs(5), ByteSize(100)), Duration::from_millis(100));
    }

    #[test]
    fn a_full_bucket_lets_a_burst_pass_at_once() {
        let mut bucket = bucket(1000, 300);
        assert_eq!(bucket.take(Duration::ZERO, ByteSize(300)), Duration::ZERO);
        assert_eq!(bucket.take(Duration::ZERO, ByteSize(100)), Duration::from_millis(100));
    }

    #[test]
    fn try_take_takes_all_or_nothing() {
        let mut bucket = bucket(1000, 300);
        let at = Duration::from_millis;
        assert!(bucket.try_take(at(0), ByteSize(200)));
        assert!(!bucket.try_take(at(0), ByteSize(200)), "100 are left");
        assert!(bucket.try_take(at(0), ByteSize(100)), "a refusal takes nothing");
        assert!(
            bucket.try_take(at(200), ByteSize(200)) && !bucket.try_take(at(299), ByteSize(100))
        );
    }

    proptest! {
        /// Promise 6 (bounded): for any sequence of takes, at most burst + rate x time passes.
        #[test]
        fn never_more_than_the_rate(
            takes in proptest::collection::vec((0_u64..2_000_000_000, 1_u64..10_000), 1..100),
        ) {
            let (rate, burst) = (10_000, 3_000);
            let mut bucket = bucket(rate, burst);
            let (mut now, mut taken) = (Duration::ZERO, 0);
            for (gap_ns, size) in takes {
                now += Duration::from_nanos(gap_ns);
                taken += size;
                let passes_at = now + bucket.take(now, ByteSize(size));
                let allowed = burst as f64 + passes_at.as_secs_f64() * rate as f64;
                prop_assert!(taken as f64 <= allowed + 1.0, "{taken} > {allowed}");
            }
        }
    }
}

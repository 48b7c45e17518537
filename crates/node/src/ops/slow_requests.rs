//! Slow requests: counted, and logged with operation, tenant and duration.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ops::metrics::Counters;

/// A request that takes longer is slow.
const SLOW: Duration = Duration::from_millis(200);
/// Shortest time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Logs slow requests, one per second at most.
#[derive(Default)]
pub(crate) struct SlowRequestLog(Mutex<Option<Instant>>);

impl SlowRequestLog {
    /// A request was handled in this time.
    pub fn on_request(
        &self,
        counters: &Counters,
        operation: &'static str,
        tenant: &str,
        took: Duration,
    ) {
        if took < SLOW {
            return;
        }
        counters.requests_slow.one();
        let mut logged_at = self.0.lock();
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged_at = Some(Instant::now());
            let (duration_ms, total) = (took.as_millis(), counters.requests_slow.get());
            tracing::warn!(operation, tenant, duration_ms, total, "slow request");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_requests_are_counted() {
        let (log, counters) = (SlowRequestLog::default(), Counters::default());
        let short = SLOW.checked_sub(Duration::from_millis(1)).unwrap();
        for took in [Duration::ZERO, short, SLOW, 2 * SLOW] {
            log.on_request(&counters, "evict", "team", took);
        }
        assert_eq!(counters.requests_slow.get(), 2);
    }
}

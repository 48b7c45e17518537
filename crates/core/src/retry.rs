//! When to try again to reach one who could not be reached.
//!
//! A node that is gone may be back in a second, or never; every attempt costs the job time. So each
//! failure doubles the pause. The first few are worth starting the node anew; one that keeps dying is
//! left alone (promise 5: a job never depends on it).

use std::time::Duration;

/// Nobody is tried again sooner.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Nobody is left alone for longer.
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// So many failures in a row are answered by starting the other side anew.
const REVIVALS_MAX: u32 = 5;

/// The attempts to reach one other side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retry {
    /// Failures in a row: none was further from the one before than its pause and a minute.
    failures: u32,
    next: Duration,
}

impl Retry {
    /// Whether it may be tried.
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// It could not be reached, or broke. Says whether it should be started anew.
    pub fn failed(&mut self, now: Duration) -> bool {
        if now > self.next + PAUSE_MAX {
            self.failures = 0;
        }
        let pause = PAUSE_MIN * 2_u32.pow(self.failures.min(16));
        self.failures += 1;
        self.next = now + pause.min(PAUSE_MAX);
        self.failures <= REVIVALS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_revivals_end() {
        let mut retry = Retry::default();
        let mut made = Vec::new();
        for now in 0..200 {
            let now = Duration::from_secs(now);
            if retry.is_due(now) {
                made.push((now.as_secs(), retry.failed(now)));
            }
        }
        let revivals = [(0, true), (1, true), (3, true), (7, true), (15, true)];
        let later = [(31, false), (63, false), (123, false), (183, false)];
        assert_eq!(made, [&revivals[..], &later[..]].concat());
    }

    #[test]
    fn what_worked_for_a_minute_begins_anew() {
        let mut retry = Retry::default();
        for now in [0, 1, 3, 7, 15] {
            retry.failed(Duration::from_secs(now));
        }
        assert!(!retry.failed(Duration::from_secs(40)), "it worked, but not for long");
        let pause_and_a_minute = Duration::from_secs(40 + 32 + 61);
        assert!(retry.failed(pause_and_a_minute));
        assert!(retry.is_due(pause_and_a_minute + PAUSE_MIN));
    }
}

//! Liveness: when to ping a silent peer, and how long to wait for its answer.
//!
//! Silence alone does not show a failure. An agent may be silent for minutes while it reads a slow
//! origin; its own deadlines end that. A node may be silent while another agent fetches the blob
//! that it was asked to wait for. A hung process is silent as well, and must not hold up a job
//! (promise 5). A ping over a second connection tells them apart: a healthy peer answers it at
//! once.
//!
//! A node, an agent, and the node again behind the next agent may hang one after the other during
//! one batch. The times below find out all of that within five seconds.

use std::time::Duration;

/// Silence after which a peer is pinged first.
const FIRST_PING_AFTER: Duration = Duration::from_millis(500);
/// Interval between pings of a peer that stays silent.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time within which a healthy peer answers a ping.
pub const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest timeout of a ping. A healthy peer most likely answers within it.
const PING_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// The timeout of a ping to one of several peers that were asked at once. `waited` is the time
/// spent on the others: this peer has been silent during it as well, so that several hung peers
/// take little more time than one.
pub fn ping_timeout(waited: Duration) -> Duration {
    (FIRST_PING_AFTER + PING_TIMEOUT).saturating_sub(waited).clamp(PING_TIMEOUT_MIN, PING_TIMEOUT)
}

/// The pings of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct PingSchedule {
    /// The silence at the last ping.
    pinged_at: Option<Duration>,
}

impl PingSchedule {
    /// Returns whether to ping the peer, which has been silent for `silence`, and records the ping.
    pub fn take_due(&mut self, silence: Duration) -> bool {
        // Less silence than at the last ping: the peer has answered since.
        self.pinged_at = self.pinged_at.filter(|at| *at <= silence);
        let is_due = silence >= self.pinged_at.map_or(FIRST_PING_AFTER, |at| at + PING_INTERVAL);
        if is_due {
            self.pinged_at = Some(silence);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_pinged_soon_and_then_every_two_seconds() {
        let mut schedule = PingSchedule::default();
        let pings = |schedule: &mut PingSchedule, until: u64| -> Vec<u64> {
            let silence = (0..until).step_by(100);
            silence.filter(|silence| schedule.take_due(Duration::from_millis(*silence))).collect()
        };
        assert_eq!(pings(&mut schedule, 6000), [500, 2500, 4500]);
        assert_eq!(pings(&mut schedule, 1000), [500], "it answered, and is silent again");
    }

    /// Promise 5: five hung nodes hold up a job little longer than one.
    #[test]
    fn peers_that_were_asked_at_once_are_found_hung_together() {
        let mut waited = Duration::ZERO;
        for _ in 0..5 {
            waited = waited.max(FIRST_PING_AFTER) + ping_timeout(waited);
        }
        assert!(waited <= Duration::from_millis(2500), "{waited:?}");
        assert_eq!(ping_timeout(Duration::ZERO), PING_TIMEOUT);
    }
}

//! Liveness: when to ping a silent peer, and how long to wait for its answer.
//!
//! Silence alone does not show a failure. An agent may be silent for minutes while it reads a slow
//! origin; its own deadlines end that. A node may be silent while another agent fetches the blob
//! that it was asked to wait for. A hung process is silent as well, and must not hold up a job
//! (promise 5). A ping over a second connection tells them apart: a healthy peer answers it at
//! once.
//!
//! A ping is a hello and a request for the list of nodes: a process whose dispatch hangs may still
//! answer the hello. When one peer is silent, all peers are pinged at once, so that 64 hung nodes
//! are found in the time of one.
//!
//! The process that draws, a worker and the agent may wait one after the other during one batch.
//! Each finds all hung nodes within [`HUNG_AFTER`], so that the batch waits less than five seconds.

use std::time::Duration;

/// Silence after which a peer is pinged first. A ping is cheap, and most replies take less.
pub const FIRST_PING_AFTER: Duration = Duration::from_millis(250);
/// Interval between pings of a peer that stays silent.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time within which a healthy peer answers a ping.
pub const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which hung peers, however many, are known to be hung.
pub const HUNG_AFTER: Duration = FIRST_PING_AFTER.saturating_add(PING_TIMEOUT);

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
        assert_eq!(pings(&mut schedule, 6000), [300, 2300, 4300]);
        assert_eq!(pings(&mut schedule, 1000), [300], "it answered, and is silent again");
    }

    /// Promise 5: the process that draws, a worker and the agent wait in turn for hung nodes.
    #[test]
    fn three_processes_find_hung_peers_within_five_seconds() {
        assert!(HUNG_AFTER * 3 < Duration::from_secs(5));
    }
}

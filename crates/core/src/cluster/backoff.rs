//! Backoff: how long a client waits for a node, and when it tries a failed node again (promise 5).
//!
//! A node is in one of three states:
//!
//! - **healthy**: it answers;
//! - **dead**: it refuses connections, or closes them. That is found out at once and costs nothing,
//!   so a dead node is retried every second;
//! - **hung**: it accepts connections and does not answer, not even a ping
//!   ([`crate::cluster::liveness`]). Each retry costs the time of one ping, so the pause before the
//!   next one is a multiple of what the last one cost.
//!
//! Retries of all failed nodes together cost a process at most 5 % of its time. To keep that bound,
//! the pauses grow with the number of failed nodes, and nodes that are asked at once share one
//! timeout.
//!
//! All connections of a process share one [`BackoffTable`]. Otherwise a job with five connections
//! would wait five times for the same node.

use std::{collections::BTreeMap, time::Duration};

use crate::Endpoint;

/// Time within which a healthy node answers. After it, the request has failed.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// A node closes a connection whose client has read nothing for this long, or has left a frame
/// unfinished for this long.
pub const STALL_TIMEOUT: Duration = Duration::from_mins(2);
/// Age after which a client sends a request again instead of relying on its reply. Below
/// [`STALL_TIMEOUT`], after which the node closes the connection.
pub const REQUEST_AGE_MAX: Duration = Duration::from_mins(1);
/// Time that connecting to nodes may take within one request. Nodes that are not tried within it
/// wait for the next request.
const RETRIES_TIMEOUT: Duration = Duration::from_secs(2);
/// Shortest pause before a failed node is tried again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Retries of all failed nodes together cost a process at most one part in this many of its time. A
/// job waits for two processes in a row, the one that draws and a worker, so for twice that: 10 %.
const COST_SHARE: u32 = 20;
/// Restarts of a dead node that are suggested in a row. The count starts again after
/// [`RESTARTS_WINDOW`] without a failure.
const RESTARTS_MAX: u32 = 5;
const RESTARTS_WINDOW: Duration = Duration::from_mins(1);
/// A node that answers other requests, but not this one, counts as hung after this many timeouts.
const TIMEOUTS_MAX: u32 = 6;

/// How a node has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It refuses connections, has closed the connection, or violates the protocol. A restart may
    /// help.
    Dead,
    /// It is connected and does not answer. A restart does not help: the process still holds the
    /// socket and the devices.
    Hung,
}

/// The time since an event, such as the start of a try or of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    /// When the event happened.
    pub since: Duration,
    /// The current time, by the same clock.
    pub now: Duration,
}

impl Elapsed {
    fn duration(self) -> Duration {
        self.now.saturating_sub(self.since)
    }
}

/// When a failed node is tried again. Also used for a node that does not accept prefetched blobs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retry {
    /// The last failure and the time of the next try.
    failed: Option<(Failure, Duration)>,
    /// When the last try ended.
    updated_at: Duration,
    /// Restarts suggested in a row, and the earliest time of the next one.
    restarts: u32,
    restart_due: Duration,
}

impl Retry {
    /// Whether the node may be tried now.
    pub fn is_due(&self, now: Duration) -> bool {
        self.failed.is_none_or(|(_, not_before)| now >= not_before)
    }

    /// Whether the last try failed.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Records that a try has failed. Returns whether to restart the node: up to `RESTARTS_MAX`
    /// times, at doubling intervals, so that a node that keeps dying is not restarted for ever.
    pub fn on_failure(&mut self, failure: Failure, attempt: Elapsed) -> bool {
        self.on_failure_among(1, failure, attempt)
    }

    /// The same for one of `failed` failed nodes.
    fn on_failure_among(&mut self, failed: u32, failure: Failure, attempt: Elapsed) -> bool {
        let now = attempt.now;
        let factor = COST_SHARE.saturating_mul(failed) - 1;
        let pause = attempt.duration().saturating_mul(factor).max(PAUSE_MIN);
        self.failed = Some((failure, now.saturating_add(pause)));
        self.updated_at = now;
        if failure == Failure::Hung {
            return false;
        }
        if now > self.restart_due + RESTARTS_WINDOW {
            self.restarts = 0;
        }
        let restart = self.restarts < RESTARTS_MAX && now >= self.restart_due;
        if restart {
            self.restart_due = now + PAUSE_MIN * 2_u32.pow(self.restarts);
            self.restarts += 1;
        }
        restart
    }

    /// Records that a try has succeeded.
    pub fn on_success(&mut self, now: Duration) {
        (self.failed, self.updated_at) = (None, now);
    }
}

/// The retries of all nodes that have ever failed in this process, over all its connections.
#[derive(Debug, Clone, Default)]
pub struct BackoffTable(BTreeMap<Endpoint, Retry>);

impl BackoffTable {
    /// Whether the node may be tried now, within a request of this age.
    pub fn is_due(&self, node: &Endpoint, request: Elapsed) -> bool {
        request.duration() < RETRIES_TIMEOUT
            && self.0.get(node).is_none_or(|retry| retry.is_due(request.now))
    }

    /// Whether the last try of this node failed. Connections to it are not used any more.
    pub fn has_failed(&self, node: &Endpoint) -> bool {
        self.0.get(node).is_some_and(Retry::has_failed)
    }

    /// Records that a try of this node has failed, on a connection that was opened at `opened_at`.
    /// Returns whether to restart the node.
    pub fn on_failure(
        &mut self,
        node: &Endpoint,
        failure: Failure,
        opened_at: Duration,
        attempt: Elapsed,
    ) -> bool {
        let others = self.0.iter().filter(|(at, retry)| *at != node && retry.has_failed());
        let failed = u32::try_from(others.count() + 1).unwrap_or(u32::MAX);
        let retry = self.0.entry(node.clone()).or_default();
        // The node has been reached since: the connection belonged to its previous run.
        if failure == Failure::Dead && !retry.has_failed() && opened_at < retry.updated_at {
            return false;
        }
        retry.on_failure_among(failed, failure, attempt)
    }

    /// Records that a try of this node has succeeded.
    pub fn on_success(&mut self, node: &Endpoint, now: Duration) {
        if let Some(retry) = self.0.get_mut(node) {
            retry.on_success(now);
        }
    }

    /// Merges another table: of each node, the newer state stays.
    pub fn merge(&mut self, other: &Self) {
        for (node, theirs) in &other.0 {
            let ours = self.0.entry(node.clone()).or_default();
            if theirs.updated_at > ours.updated_at {
                *ours = *theirs;
            }
        }
    }

    /// Forgets dead nodes, which may have been restarted. Hung nodes stay: a restart would have
    /// made them dead first.
    pub fn forget_dead(&mut self) {
        self.0.retain(|_, retry| matches!(retry.failed, Some((Failure::Hung, _))));
    }
}

/// What is left of `timeout` for the first reply of a node, if several nodes were asked at once and
/// others were waited for first.
pub fn remaining_timeout(timeout: Duration, asked: Elapsed) -> Duration {
    asked.since.saturating_add(timeout).saturating_sub(asked.now)
}

/// A request that waits for its reply.
#[derive(Debug, Clone, Copy)]
pub struct PendingAnswer {
    /// When it was sent.
    pub asked_at: Duration,
    /// How long the node was asked to wait before it replies.
    pub wait: Duration,
    /// When anything last arrived on the connection. A reply to another request shows that the node
    /// is alive.
    pub heard_at: Duration,
}

impl PendingAnswer {
    /// When the request fails, if nothing more arrives.
    pub fn deadline(self, timeout: Duration) -> Duration {
        let due_at = self.asked_at.saturating_add(self.wait);
        let last = due_at.saturating_add(timeout.saturating_mul(TIMEOUTS_MAX));
        due_at.max(self.heard_at).saturating_add(timeout).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::liveness::PING_TIMEOUT;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn elapsed(since: u64, now: u64) -> Elapsed {
        Elapsed { since: seconds(since), now: seconds(now) }
    }

    fn node(number: usize) -> Endpoint {
        format!("/node-{number}").as_str().parse().unwrap()
    }

    /// Promise 5: no cache fault hangs a job.
    #[test]
    fn a_hung_node_costs_a_twentieth_of_the_time_and_a_dead_one_nothing() {
        let (mut retry, mut now, mut lost) = (Retry::default(), Duration::ZERO, Duration::ZERO);
        while now < seconds(10_000) {
            if retry.is_due(now) {
                let since = now;
                now += seconds(5);
                lost += seconds(5);
                let restart = retry.on_failure(Failure::Hung, Elapsed { since, now });
                assert!(!restart, "a hung node still holds its socket");
            }
            now += seconds(1);
        }
        assert!(lost <= now / COST_SHARE + seconds(5), "{lost:?} of {now:?}");
        let mut dead = Retry::default();
        assert!(dead.on_failure(Failure::Dead, Elapsed { since: now, now }));
        assert!(!dead.is_due(now) && dead.is_due(now + seconds(1)), "retried every second");
        dead.on_success(now);
        assert!(dead.is_due(now));
    }

    /// Promise 5 for several nodes: hung nodes together cost a process a twentieth of its time,
    /// plus the time to find each out, whatever their number and whenever they hang. A single
    /// request costs at most `RETRIES_TIMEOUT` and the try under way, or one `NODE_TIMEOUT`.
    #[test]
    fn hung_nodes_together_cost_what_one_does() {
        const NODES: usize = 5;
        const BATCH: Duration = Duration::from_millis(200);
        for (hung, connected) in [(1, true), (3, true), (5, true), (1, false), (5, false)] {
            let mut table = BackoffTable::default();
            // A connected node is asked without a try before.
            let mut is_open = [connected; NODES];
            let (mut now, mut lost) = (Duration::ZERO, Duration::ZERO);
            while now < seconds(20_000) {
                let began = now;
                // All nodes are asked; those that have to be tried first, one after the other.
                let mut asked = Vec::new();
                for (at, is_open) in is_open.iter_mut().enumerate() {
                    let since = now;
                    if !*is_open && table.is_due(&node(at), Elapsed { since: began, now }) {
                        if at < hung {
                            now += PING_TIMEOUT;
                            table.on_failure(&node(at), Failure::Hung, now, Elapsed { since, now });
                        } else {
                            table.on_success(&node(at), now);
                            *is_open = true;
                        }
                    }
                    if *is_open {
                        asked.push(at);
                    }
                }
                let since = now;
                for at in asked.into_iter().filter(|at| *at < hung) {
                    now += remaining_timeout(NODE_TIMEOUT, Elapsed { since, now });
                    let attempt = Elapsed { since, now };
                    table.on_failure(&node(at), Failure::Hung, Duration::ZERO, attempt);
                    is_open[at] = false;
                }
                let request = now.saturating_sub(began);
                assert!(request <= NODE_TIMEOUT.max(RETRIES_TIMEOUT + PING_TIMEOUT), "{request:?}");
                lost += request;
                now += BATCH;
            }
            let first = if connected { 1 } else { u32::try_from(hung).unwrap() };
            let allowed = now / COST_SHARE + NODE_TIMEOUT * (first + 1);
            assert!(lost <= allowed, "{hung} hung: {lost:?} of {now:?}");
        }
    }

    /// A process has several connections to a node. It waits once for a hung node, not once for
    /// each connection.
    #[test]
    fn a_failure_on_one_connection_counts_for_all() {
        let (mut one, mut another) = (BackoffTable::default(), BackoffTable::default());
        one.on_failure(&node(0), Failure::Hung, Duration::ZERO, elapsed(10, 11));
        another.merge(&one);
        let due = |table: &BackoffTable, now| table.is_due(&node(0), elapsed(now, now));
        assert!(another.has_failed(&node(0)) && !due(&another, 12));
        assert!(!another.has_failed(&node(1)), "other nodes are unaffected");
        assert!(due(&another, 11 + 19));
        another.on_success(&node(0), seconds(30));
        one.merge(&another);
        assert!(!one.has_failed(&node(0)), "a success counts for all, too");
        let mut late = BackoffTable::default();
        late.on_failure(&node(0), Failure::Hung, Duration::ZERO, elapsed(20, 21));
        one.merge(&late);
        assert!(!one.has_failed(&node(0)), "an older failure does not count");
    }

    /// After a restart of a node, each connection to its previous run breaks at its next use.
    #[test]
    fn a_broken_connection_to_a_previous_run_is_no_failure() {
        let mut table = BackoffTable::default();
        assert!(table.on_failure(&node(0), Failure::Dead, seconds(1), elapsed(10, 10)));
        table.on_success(&node(0), seconds(12));
        assert!(!table.on_failure(&node(0), Failure::Dead, seconds(2), elapsed(13, 13)));
        assert!(!table.has_failed(&node(0)));
        assert!(table.on_failure(&node(0), Failure::Dead, seconds(12), elapsed(14, 14)));
        assert!(table.has_failed(&node(0)));
    }

    #[test]
    fn dead_nodes_are_forgotten_and_hung_ones_are_not() {
        let mut table = BackoffTable::default();
        table.on_failure(&node(0), Failure::Dead, Duration::ZERO, elapsed(10, 10));
        table.on_failure(&node(1), Failure::Hung, Duration::ZERO, elapsed(10, 11));
        table.forget_dead();
        assert_eq!([table.has_failed(&node(0)), table.has_failed(&node(1))], [false, true]);
    }

    #[test]
    fn other_replies_extend_the_deadline_up_to_a_limit() {
        let deadline = |wait, heard| {
            let (asked_at, wait, heard_at) = (seconds(100), seconds(wait), seconds(heard));
            PendingAnswer { asked_at, wait, heard_at }.deadline(seconds(10))
        };
        assert_eq!(deadline(0, 90), seconds(110));
        assert_eq!(deadline(30, 90), seconds(140), "the node was asked to wait 30 s");
        assert_eq!(deadline(0, 105), seconds(115), "it answers other requests");
        assert_eq!(deadline(0, 1000), seconds(160), "it never answers this one");
    }

    #[test]
    fn restarts_come_at_growing_intervals_and_end() {
        let mut retry = Retry::default();
        let restarts: Vec<u64> =
            (0..200).filter(|now| retry.on_failure(Failure::Dead, elapsed(*now, *now))).collect();
        assert_eq!(restarts[..5], [0, 1, 3, 7, 15]);
        assert_eq!(restarts[5..10], [92, 93, 95, 99, 107], "again after a minute");
    }
}

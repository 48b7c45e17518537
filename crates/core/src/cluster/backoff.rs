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
//! All hung nodes together have one [`StallBudget`] in a process: two seconds at first, and 5 % of
//! the time that passes. A call waits for silent nodes at most as long as the budget allows. Nodes
//! that are tried at once, or are found hung at once, are charged once. So 64 hung nodes cost what
//! one costs.
//!
//! All connections of a process share one [`BackoffTable`]. Otherwise a job with five connections
//! would wait five times for the same node.

use std::{collections::BTreeMap, time::Duration};

use crate::{Endpoint, cluster::liveness::PING_TIMEOUT};

/// Time within which a healthy node answers. After it, the request has failed.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// A node closes a connection whose client has read nothing for this long, or has left a frame
/// unfinished for this long.
pub const STALL_TIMEOUT: Duration = Duration::from_mins(2);
/// Age after which a client sends a request again instead of relying on its reply. Below
/// [`STALL_TIMEOUT`], after which the node closes the connection.
pub const REQUEST_AGE_MAX: Duration = Duration::from_mins(1);
/// Time that hung nodes may cost a process at once. More than
/// [`crate::cluster::liveness::HUNG_AFTER`], after which a node that hangs altogether is known.
const STALL_MAX: Duration = Duration::from_secs(2);
/// Shortest wait for a reply, however much hung nodes have cost before. A healthy node answers
/// within it.
const ALLOWANCE_MIN: Duration = Duration::from_millis(250);
/// Shortest pause before a failed node is tried again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Hung nodes together cost a process at most one part in this many of its time. A job waits for
/// two processes in a row, the one that draws and a worker, so for twice that: 10 %.
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
        let now = attempt.now;
        let pause = attempt.duration().saturating_mul(COST_SHARE - 1).max(PAUSE_MIN);
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

/// The time that hung nodes may still cost a process.
///
/// Every part of a second is charged once, however many nodes were waited for in it.
#[derive(Debug, Clone, Copy, Default)]
pub struct StallBudget {
    /// When the budget is full again.
    full_at: Duration,
    /// The end of the last stall that was charged.
    charged_until: Duration,
}

impl StallBudget {
    /// What is left.
    fn remaining(&self, now: Duration) -> Duration {
        STALL_MAX.saturating_sub(self.full_at.saturating_sub(now) / COST_SHARE)
    }

    /// Charges a stall.
    fn charge(&mut self, stall: Elapsed) {
        let cost = stall.now.saturating_sub(stall.since.max(self.charged_until));
        self.charged_until = self.charged_until.max(stall.now);
        let debt = cost.saturating_mul(COST_SHARE);
        self.full_at = self.full_at.max(stall.now).saturating_add(debt);
    }

    fn merge(&mut self, other: &Self) {
        self.full_at = self.full_at.max(other.full_at);
        self.charged_until = self.charged_until.max(other.charged_until);
    }
}

/// The retries of all nodes that have ever failed in this process, over all its connections.
#[derive(Debug, Clone, Default)]
pub struct BackoffTable {
    nodes: BTreeMap<Endpoint, Retry>,
    budget: StallBudget,
}

impl BackoffTable {
    /// Whether the node may be tried now. Several that are due are tried at once.
    pub fn is_due(&self, node: &Endpoint, now: Duration) -> bool {
        self.nodes.get(node).is_none_or(|retry| {
            let is_hung = matches!(retry.failed, Some((Failure::Hung, _)));
            retry.is_due(now) && (!is_hung || self.budget.remaining(now) >= PING_TIMEOUT)
        })
    }

    /// How long a call that begins now waits for nodes that do not answer, all of them together.
    pub fn allowance(&self, now: Duration) -> Duration {
        self.budget.remaining(now).max(ALLOWANCE_MIN)
    }

    /// Whether the last try of this node failed. Connections to it are not used any more.
    pub fn has_failed(&self, node: &Endpoint) -> bool {
        self.nodes.get(node).is_some_and(Retry::has_failed)
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
        if failure == Failure::Hung {
            self.budget.charge(attempt);
        }
        let retry = self.nodes.entry(node.clone()).or_default();
        // The node has been reached since: the connection belonged to its previous run.
        if failure == Failure::Dead && !retry.has_failed() && opened_at < retry.updated_at {
            return false;
        }
        retry.on_failure(failure, attempt)
    }

    /// Records that a try of this node has succeeded.
    pub fn on_success(&mut self, node: &Endpoint, now: Duration) {
        if let Some(retry) = self.nodes.get_mut(node) {
            retry.on_success(now);
        }
    }

    /// Merges another table: of each node, the newer state stays.
    pub fn merge(&mut self, other: &Self) {
        for (node, theirs) in &other.nodes {
            let ours = self.nodes.entry(node.clone()).or_default();
            if theirs.updated_at > ours.updated_at {
                *ours = *theirs;
            }
        }
        self.budget.merge(&other.budget);
    }

    /// Forgets dead nodes, which may have been restarted. Hung nodes stay: a restart would have
    /// made them dead first.
    pub fn forget_dead(&mut self) {
        self.nodes.retain(|_, retry| matches!(retry.failed, Some((Failure::Hung, _))));
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
    use crate::cluster::liveness::HUNG_AFTER;

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

    /// How the nodes of the world below hang.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Hang {
        /// They answer nothing.
        Silent,
        /// They answer pings and nothing else.
        PingsOnly,
    }

    /// Promise 5 for several nodes: hung nodes together cost a process [`STALL_MAX`] and a
    /// twentieth of its time, whatever their number, whenever and however they hang.
    #[test]
    fn hung_nodes_together_cost_what_one_does() {
        const NODES: usize = 66;
        const BATCH: Duration = Duration::from_millis(200);
        let hangs = [Hang::Silent, Hang::PingsOnly];
        let worlds = hangs.iter().flat_map(|hang| {
            [1, 3, 5, 64].into_iter().flat_map(|hung| [(*hang, hung, true), (*hang, hung, false)])
        });
        for (hang, hung, connected) in worlds {
            let mut table = BackoffTable::default();
            // A connected node is asked without a try before.
            let mut is_open = [connected; NODES];
            let (mut now, mut lost, mut calls_lost) = (Duration::ZERO, Duration::ZERO, 0_u32);
            while now < seconds(2_000) {
                let began = now;
                // All nodes that are due are tried at once.
                let due = |at: &usize| !is_open[*at] && table.is_due(&node(*at), began);
                let tried: Vec<usize> = (0..NODES).filter(due).collect();
                for at in &tried {
                    if *at < hung && hang == Hang::Silent {
                        now = began + PING_TIMEOUT.min(table.allowance(began));
                    }
                }
                for at in tried {
                    let attempt = Elapsed { since: began, now };
                    if at < hung && hang == Hang::Silent {
                        table.on_failure(&node(at), Failure::Hung, began, attempt);
                    } else {
                        table.on_success(&node(at), now);
                        is_open[at] = true;
                    }
                }
                // All open nodes are asked at once, and share one timeout.
                let (since, allowance) = (now, table.allowance(now));
                for at in (0..hung).filter(|at| is_open[*at]).collect::<Vec<_>>() {
                    now = since
                        + match hang {
                            Hang::Silent => HUNG_AFTER.min(allowance),
                            Hang::PingsOnly => allowance,
                        };
                    let attempt = Elapsed { since, now };
                    table.on_failure(&node(at), Failure::Hung, Duration::ZERO, attempt);
                    is_open[at] = false;
                }
                let call = now.saturating_sub(began);
                assert!(call <= STALL_MAX + ALLOWANCE_MIN, "{hang:?} {hung}: {call:?}");
                calls_lost += u32::from(call > Duration::ZERO);
                lost += call;
                now += BATCH;
            }
            // A call that finds the budget empty costs `ALLOWANCE_MIN` at most.
            let allowed = now / COST_SHARE + STALL_MAX + ALLOWANCE_MIN * calls_lost.min(400);
            assert!(lost <= allowed, "{hang:?} {hung} hung: {lost:?} of {now:?}");
        }
    }

    /// The first call pays for all hung nodes at once, and the following ones pay nothing.
    #[test]
    fn a_stall_is_charged_once_for_all_its_nodes() {
        let mut table = BackoffTable::default();
        assert_eq!(table.allowance(seconds(9)), STALL_MAX);
        for at in 0..64 {
            let attempt = Elapsed { since: seconds(10), now: seconds(11) };
            table.on_failure(&node(at), Failure::Hung, Duration::ZERO, attempt);
        }
        assert_eq!(table.allowance(seconds(11)) + seconds(1), STALL_MAX);
        let again = Elapsed { since: seconds(11), now: seconds(14) };
        table.on_failure(&node(0), Failure::Hung, Duration::ZERO, again);
        assert_eq!(table.allowance(seconds(14)), ALLOWANCE_MIN, "the budget is used up");
        assert!(!table.is_due(&node(1), seconds(31)), "no retry without a budget");
        assert!(table.is_due(&node(1), seconds(80)), "a twentieth of the time comes back");
        assert_eq!(table.allowance(seconds(1000)), STALL_MAX, "and no more than that");
    }

    /// A process has several connections to a node. It waits once for a hung node, not once for
    /// each connection.
    #[test]
    fn a_failure_on_one_connection_counts_for_all() {
        let (mut one, mut another) = (BackoffTable::default(), BackoffTable::default());
        one.on_failure(&node(0), Failure::Hung, Duration::ZERO, elapsed(10, 11));
        another.merge(&one);
        let due = |table: &BackoffTable, now| table.is_due(&node(0), seconds(now));
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

//! How much of a job's time a node may cost (promise 5): how long an answer is waited for, and when a node
//! that failed is tried again.
//!
//! A node that is gone refuses at once and costs nothing, so it is looked for every second. One that is
//! there and says nothing, because it was stopped or its disk hangs, costs its whole patience at every try;
//! so the pause that follows is a multiple of what the try cost, and a job goes on at nine tenths of its
//! speed. Of several nodes all may fail, and together they may cost no more: the pauses are the longer, the more
//! have failed, and nodes that were asked at once are waited for at once.

use std::time::Duration;

/// A node from which nothing is heard for so long is as good as gone.
pub const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// No failed node is tried again sooner.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// All that failed together may cost one part of the time in so many.
const COST_SHARE: u32 = 10;
/// So often in a row a node that failed is started anew, and after so long without a failure that counts
/// from the beginning.
const REVIVALS_MAX: u32 = 5;
const REVIVALS_FORGOTTEN: Duration = Duration::from_mins(1);
/// A node that answers others, but not this, is as good as silent in the end.
const PATIENCES_MAX: u32 = 6;

/// When somebody who failed is tried again: a node that is gone or silent, or one that takes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retry {
    not_before: Option<Duration>,
    /// How often it was to be started anew, in a row, and when it may be the next time.
    revivals: u32,
    revival_due: Duration,
}

impl Retry {
    /// Whether it is time.
    pub fn is_due(&self, now: Duration) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// Whether the last try failed.
    pub fn has_failed(&self) -> bool {
        self.not_before.is_some()
    }

    /// A try that began then has failed now. Says whether the other side should be started anew: a few
    /// times, at growing intervals; one that keeps dying is left alone.
    pub fn failed(&mut self, began: Duration, now: Duration) -> bool {
        self.failed_among(1, began, now)
    }

    /// The same, for one of so many that have failed.
    fn failed_among(&mut self, failed: u32, began: Duration, now: Duration) -> bool {
        let costs = COST_SHARE.saturating_mul(failed) - 1;
        let pause = now.saturating_sub(began).saturating_mul(costs).max(PAUSE_MIN);
        self.not_before = Some(now.saturating_add(pause));
        if now > self.revival_due + REVIVALS_FORGOTTEN {
            self.revivals = 0;
        }
        let revive = self.revivals < REVIVALS_MAX && now >= self.revival_due;
        if revive {
            self.revival_due = now + PAUSE_MIN * 2_u32.pow(self.revivals);
            self.revivals += 1;
        }
        revive
    }

    /// A try has succeeded.
    pub fn succeeded(&mut self) {
        self.not_before = None;
    }
}

/// The retries of several nodes that are tried one after the other.
#[derive(Debug, Clone)]
pub struct Retries(Vec<Retry>);

impl Retries {
    /// For so many.
    pub fn new(nodes: usize) -> Self {
        Self(vec![Retry::default(); nodes])
    }

    /// Whether it is time to try this one.
    pub fn is_due(&self, node: usize, now: Duration) -> bool {
        self.0[node].is_due(now)
    }

    /// Whether the last try of this one failed.
    pub fn has_failed(&self, node: usize) -> bool {
        self.0[node].has_failed()
    }

    /// A try of this one that began then has failed now. Says whether it should be started anew.
    pub fn failed(&mut self, node: usize, began: Duration, now: Duration) -> bool {
        let others = self.0.iter().enumerate().filter(|(at, one)| *at != node && one.has_failed());
        let failed = u32::try_from(others.count() + 1).unwrap_or(u32::MAX);
        self.0[node].failed_among(failed, began, now)
    }

    /// A try of this one has succeeded.
    pub fn succeeded(&mut self, node: usize) {
        self.0[node].succeeded();
    }
}

/// How much longer the first word of a node is waited for, if it was asked then, together with others that
/// were waited for first.
pub fn left_of(patience: Duration, asked_at: Duration, now: Duration) -> Duration {
    asked_at.saturating_add(patience).saturating_sub(now)
}

/// Until when the answer to a request is waited for, if nothing more is heard. `wait` is how long the
/// other side was asked to take; whatever it says to others meanwhile shows that it is alive.
pub fn answer_by(
    patience: Duration,
    asked_at: Duration,
    wait: Duration,
    heard_at: Duration,
) -> Duration {
    let due_at = asked_at.saturating_add(wait);
    let last = due_at.saturating_add(patience.saturating_mul(PATIENCES_MAX));
    due_at.max(heard_at).saturating_add(patience).min(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Promise 5: no cache fault hangs a job.
    #[test]
    fn a_silent_node_costs_a_tenth_of_the_time_and_a_dead_one_nothing() {
        let (mut retry, mut now, mut lost) = (Retry::default(), Duration::ZERO, Duration::ZERO);
        while now < seconds(10_000) {
            if retry.is_due(now) {
                let began = now;
                now += seconds(5);
                lost += seconds(5);
                retry.failed(began, now);
            }
            now += seconds(1);
        }
        assert!(lost <= now / 10 + seconds(5), "{lost:?} of {now:?}");
        let mut dead = Retry::default();
        dead.failed(now, now);
        assert!(!dead.is_due(now) && dead.is_due(now + seconds(1)), "looked for every second");
        dead.succeeded();
        assert!(dead.is_due(now));
    }

    /// Promise 5, for several nodes: however many of them are hung, and whenever that happens, they cost a
    /// job a tenth of its time, and one patience for each at most.
    #[test]
    fn hung_nodes_together_cost_what_one_does() {
        const NODES: usize = 5;
        const BATCH: Duration = Duration::from_millis(200);
        for (hung, connected) in [(1, true), (3, true), (5, true), (1, false), (5, false)] {
            let mut retries = Retries::new(NODES);
            // Whoever is connected is asked without a try before.
            let mut is_open = [connected; NODES];
            let (mut now, mut lost) = (Duration::ZERO, Duration::ZERO);
            while now < seconds(20_000) {
                let began = now;
                // All are asked, those that have to be tried first one after the other.
                let mut asked = Vec::new();
                for (node, is_open) in is_open.iter_mut().enumerate() {
                    let try_began = now;
                    if !*is_open && retries.is_due(node, now) {
                        if node < hung {
                            now += NODE_PATIENCE;
                            retries.failed(node, try_began, now);
                        } else {
                            retries.succeeded(node);
                            *is_open = true;
                        }
                    }
                    if *is_open {
                        asked.push(node);
                    }
                }
                let asked_at = now;
                for node in asked.into_iter().filter(|node| *node < hung) {
                    now += left_of(NODE_PATIENCE, asked_at, now);
                    retries.failed(node, asked_at, now);
                    is_open[node] = false;
                }
                lost += now.saturating_sub(began);
                now += BATCH;
            }
            let first = if connected { 1 } else { u32::try_from(hung).unwrap() };
            let allowed = now / 10 + NODE_PATIENCE * (first + 1);
            assert!(lost <= allowed, "{hung} hung: {lost:?} of {now:?}");
        }
    }

    #[test]
    fn whoever_is_heard_of_is_alive_but_not_for_ever() {
        let by = |wait, heard| answer_by(seconds(10), seconds(100), seconds(wait), seconds(heard));
        assert_eq!(by(0, 90), seconds(110));
        assert_eq!(by(30, 90), seconds(140), "it was asked to wait");
        assert_eq!(by(0, 105), seconds(115), "it answers others");
        assert_eq!(by(0, 1000), seconds(160), "but never this");
    }

    #[test]
    fn revivals_come_at_growing_intervals_and_end() {
        let mut retry = Retry::default();
        let at = |now| seconds(now);
        let revived: Vec<u64> = (0..200).filter(|now| retry.failed(at(*now), at(*now))).collect();
        assert_eq!(revived[..5], [0, 1, 3, 7, 15]);
        assert_eq!(revived[5..10], [92, 93, 95, 99, 107], "after a minute it is tried again");
    }
}

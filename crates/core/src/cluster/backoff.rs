//! How much of a job's time a node may cost (promise 5): how long an answer is waited for, and when a node
//! that failed is tried again.
//!
//! A node that is gone refuses at once and costs nothing, so it is looked for every second. One that is
//! there and says nothing, because it was stopped, costs as long as it takes to find that out: whoever is
//! silent is greeted ([`crate::doubt`]), and one that does not answer is hung. The pause that follows is a
//! multiple of what the try cost. Of several nodes all may fail, and together they may cost no more: the pauses
//! are the longer, the more have failed, and nodes that were asked at once are waited for at once.
//!
//! What one connection has found out counts for all of a process: it is written into one [`Book`]. Otherwise a
//! job that has five of them waits five times for the same node.

use std::{collections::BTreeMap, time::Duration};

use crate::Endpoint;

/// A node that lives, and does not answer this for so long, is as good as gone.
pub const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// A node ends a connection whose client has not read for so long, or leaves a frame unfinished.
pub const STALLED: Duration = Duration::from_mins(2);
/// So a client does not rely on what it asked for longer ago than this: it asks again.
pub const ASKED_AHEAD_MAX: Duration = Duration::from_mins(1);
/// Those that have to be tried before they can be asked may cost one request so much; the others wait for the next.
const TRIES_PATIENCE: Duration = Duration::from_secs(2);
/// No failed node is tried again sooner.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// All that failed together may cost one part of a process's time in so many. A job waits for two in a row, the
/// one that draws and a worker, and so for a tenth.
const COST_SHARE: u32 = 20;
/// So often in a row a node that failed is started anew, and after so long without a failure that counts
/// from the beginning.
const REVIVALS_MAX: u32 = 5;
const REVIVALS_FORGOTTEN: Duration = Duration::from_mins(1);
/// A node that answers others, but not this, is as good as silent in the end.
const PATIENCES_MAX: u32 = 6;

/// How somebody has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It is not there, has hung up, or is of no use: one may start it anew.
    Gone,
    /// It is there and says nothing: whoever started another would find its place taken.
    Hung,
}

/// When somebody who failed is tried again: a node that is gone or silent, or one that takes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retry {
    failed: Option<(Failure, Duration)>,
    /// When this was found out.
    known_at: Duration,
    /// How often it was to be started anew, in a row, and when it may be the next time.
    revivals: u32,
    revival_due: Duration,
}

impl Retry {
    /// Whether it is time.
    pub fn is_due(&self, now: Duration) -> bool {
        self.failed.is_none_or(|(_, not_before)| now >= not_before)
    }

    /// Whether the last try failed.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// A try that began then has failed now. Says whether the other side should be started anew: a few
    /// times, at growing intervals; one that keeps dying is left alone.
    pub fn failed(&mut self, how: Failure, began: Duration, now: Duration) -> bool {
        self.failed_among(1, how, began, now)
    }

    /// The same, for one of so many that have failed.
    fn failed_among(&mut self, failed: u32, how: Failure, began: Duration, now: Duration) -> bool {
        let costs = COST_SHARE.saturating_mul(failed) - 1;
        let pause = now.saturating_sub(began).saturating_mul(costs).max(PAUSE_MIN);
        self.failed = Some((how, now.saturating_add(pause)));
        self.known_at = now;
        if how == Failure::Hung {
            return false;
        }
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
    pub fn succeeded(&mut self, now: Duration) {
        (self.failed, self.known_at) = (None, now);
    }
}

/// What a process knows of the nodes that have ever failed it, whichever connection has found it out.
#[derive(Debug, Clone, Default)]
pub struct Book(BTreeMap<Endpoint, Retry>);

impl Book {
    /// Whether it is time to try this one, for a request that was begun then.
    pub fn is_due(&self, node: &Endpoint, request_began: Duration, now: Duration) -> bool {
        now.saturating_sub(request_began) < TRIES_PATIENCE
            && self.0.get(node).is_none_or(|retry| retry.is_due(now))
    }

    /// Whether the last try of this one failed. Whoever still has a connection to it had better not use it.
    pub fn has_failed(&self, node: &Endpoint) -> bool {
        self.0.get(node).is_some_and(Retry::has_failed)
    }

    /// A try of this one that began then has failed now, on a connection of that age. Says whether it should be
    /// started anew.
    pub fn failed(
        &mut self,
        node: &Endpoint,
        how: Failure,
        opened_at: Duration,
        (began, now): (Duration, Duration),
    ) -> bool {
        let others = self.0.iter().filter(|(at, retry)| *at != node && retry.has_failed());
        let failed = u32::try_from(others.count() + 1).unwrap_or(u32::MAX);
        let retry = self.0.entry(node.clone()).or_default();
        // It has been reached since: what has ended with its former life is the connection.
        if how == Failure::Gone && !retry.has_failed() && opened_at < retry.known_at {
            return false;
        }
        retry.failed_among(failed, how, began, now)
    }

    /// A try of this one has succeeded.
    pub fn succeeded(&mut self, node: &Endpoint, now: Duration) {
        if let Some(retry) = self.0.get_mut(node) {
            retry.succeeded(now);
        }
    }

    /// Takes over what somebody else has found out since.
    pub fn learn(&mut self, other: &Self) {
        for (node, theirs) in &other.0 {
            let ours = self.0.entry(node.clone()).or_default();
            if theirs.known_at > ours.known_at {
                *ours = *theirs;
            }
        }
    }

    /// Those that were gone may have been started meanwhile. Nobody starts those that hang.
    pub fn forget_the_gone(&mut self) {
        self.0.retain(|_, retry| matches!(retry.failed, Some((Failure::Hung, _))));
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
    use crate::doubt::GREETING;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn node(number: usize) -> Endpoint {
        format!("/node-{number}").as_str().parse().unwrap()
    }

    /// Promise 5: no cache fault hangs a job.
    #[test]
    fn a_silent_node_costs_a_twentieth_of_the_time_and_a_dead_one_nothing() {
        let (mut retry, mut now, mut lost) = (Retry::default(), Duration::ZERO, Duration::ZERO);
        while now < seconds(10_000) {
            if retry.is_due(now) {
                let began = now;
                now += seconds(5);
                lost += seconds(5);
                assert!(!retry.failed(Failure::Hung, began, now), "its place is taken");
            }
            now += seconds(1);
        }
        assert!(lost <= now / COST_SHARE + seconds(5), "{lost:?} of {now:?}");
        let mut dead = Retry::default();
        assert!(dead.failed(Failure::Gone, now, now));
        assert!(!dead.is_due(now) && dead.is_due(now + seconds(1)), "looked for every second");
        dead.succeeded(now);
        assert!(dead.is_due(now));
    }

    /// Promise 5, for several nodes: however many of them are hung, and whenever that happens, they cost a
    /// process a twentieth of its time, and each what it takes to find out; no single request more than is left
    /// for tries, and what is under way then.
    #[test]
    fn hung_nodes_together_cost_what_one_does() {
        const NODES: usize = 5;
        const BATCH: Duration = Duration::from_millis(200);
        for (hung, connected) in [(1, true), (3, true), (5, true), (1, false), (5, false)] {
            let mut book = Book::default();
            // Whoever is connected is asked without a try before.
            let mut is_open = [connected; NODES];
            let (mut now, mut lost) = (Duration::ZERO, Duration::ZERO);
            while now < seconds(20_000) {
                let began = now;
                // All are asked, those that have to be tried first one after the other.
                let mut asked = Vec::new();
                for (at, is_open) in is_open.iter_mut().enumerate() {
                    let try_began = now;
                    if !*is_open && book.is_due(&node(at), began, now) {
                        if at < hung {
                            now += GREETING;
                            book.failed(&node(at), Failure::Hung, now, (try_began, now));
                        } else {
                            book.succeeded(&node(at), now);
                            *is_open = true;
                        }
                    }
                    if *is_open {
                        asked.push(at);
                    }
                }
                let asked_at = now;
                for at in asked.into_iter().filter(|at| *at < hung) {
                    now += left_of(NODE_PATIENCE, asked_at, now);
                    book.failed(&node(at), Failure::Hung, Duration::ZERO, (asked_at, now));
                    is_open[at] = false;
                }
                let request = now.saturating_sub(began);
                assert!(request <= NODE_PATIENCE.max(TRIES_PATIENCE + GREETING), "{request:?}");
                lost += request;
                now += BATCH;
            }
            let first = if connected { 1 } else { u32::try_from(hung).unwrap() };
            let allowed = now / COST_SHARE + NODE_PATIENCE * (first + 1);
            assert!(lost <= allowed, "{hung} hung: {lost:?} of {now:?}");
        }
    }

    /// A process has several connections to a node; it waits for one that hangs once, and not once for each.
    #[test]
    fn what_one_connection_found_out_counts_for_all() {
        let (mut one, mut another) = (Book::default(), Book::default());
        one.failed(&node(0), Failure::Hung, Duration::ZERO, (seconds(10), seconds(11)));
        another.learn(&one);
        let due = |book: &Book, now| book.is_due(&node(0), seconds(now), seconds(now));
        assert!(another.has_failed(&node(0)) && !due(&another, 12));
        assert!(!another.has_failed(&node(1)), "the others are as they were");
        assert!(due(&another, 11 + 19));
        another.succeeded(&node(0), seconds(30));
        one.learn(&another);
        assert!(!one.has_failed(&node(0)), "it is back for all");
        let mut late = Book::default();
        late.failed(&node(0), Failure::Hung, Duration::ZERO, (seconds(20), seconds(21)));
        one.learn(&late);
        assert!(!one.has_failed(&node(0)), "what is older does not count");
    }

    /// After a node was started anew, each connection to its former life breaks when it is used next.
    #[test]
    fn connections_to_a_former_life_say_nothing_of_this_one() {
        let mut book = Book::default();
        assert!(book.failed(&node(0), Failure::Gone, seconds(1), (seconds(10), seconds(10))));
        book.succeeded(&node(0), seconds(12));
        assert!(!book.failed(&node(0), Failure::Gone, seconds(2), (seconds(13), seconds(13))));
        assert!(!book.has_failed(&node(0)));
        assert!(book.failed(&node(0), Failure::Gone, seconds(12), (seconds(14), seconds(14))));
        assert!(book.has_failed(&node(0)));
    }

    /// Whoever may have started a node tries it at once; one that hangs, nobody has started.
    #[test]
    fn the_gone_may_be_back_but_the_hung_are_not_forgotten() {
        let mut book = Book::default();
        book.failed(&node(0), Failure::Gone, Duration::ZERO, (seconds(10), seconds(10)));
        book.failed(&node(1), Failure::Hung, Duration::ZERO, (seconds(10), seconds(11)));
        book.forget_the_gone();
        assert_eq!([book.has_failed(&node(0)), book.has_failed(&node(1))], [false, true]);
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
        let revived: Vec<u64> =
            (0..200).filter(|now| retry.failed(Failure::Gone, at(*now), at(*now))).collect();
        assert_eq!(revived[..5], [0, 1, 3, 7, 15]);
        assert_eq!(revived[5..10], [92, 93, 95, 99, 107], "after a minute it is tried again");
    }
}

//! One fetch of a blob by an agent: claim it at the node, wait for another agent, or read the
//! origin (promises 3 and 5).
//!
//! Results of steps and the time go in; the next step comes out. The agent carries the steps out
//! and decides nothing.
//!
//! A blob that the job waits for (a *demand* fetch) is fetched under a claim, or read from the node
//! when another agent has fetched it. The node wakes a waiter when the blob is resident or the
//! claim ends. The wait ends after as many leases as the longest claim lasts
//! ([`crate::node::claims`]), or as soon as the node fails; then the origin is read without a
//! claim, and that is counted. A *prefetch* reads the origin only if its claim is granted at once.

use std::time::Duration;

use crate::node::{
    claims::{Claim, LEASES_MAX},
    fetch_table::Claimed,
};

/// Pause before the node is asked again when it answered twice without a wait.
const PAUSE: Duration = Duration::from_millis(20);
/// Times that a node may report a blob as present and then not return it.
const FALSE_PRESENTS_MAX: u32 = 2;

/// Why a blob is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The job waits for it.
    Demand,
    /// It will be read later.
    Prefetch,
}

/// The state of the node when a fetch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// No node is configured.
    None,
    /// It cannot be reached.
    Unreachable,
    /// It is connected. Its claims end after this time unless renewed.
    Connected {
        /// The node's claim lease.
        lease: Duration,
    },
}

/// The next action of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Claim the blob at the node, unless the agent's cache has it by now.
    Claim,
    /// Get the bytes from the node, and wait up to this long for another agent's fetch.
    Get(Duration),
    /// Wait until one of the agent's own claims has ended, at most this long.
    AwaitClaimSlot(Duration),
    /// Sleep.
    Pause(Duration),
    /// Read the origin. At most once per fetch.
    ReadOrigin(FetchReason),
    /// Put the bytes to the node.
    Put,
    /// Keep the bytes in the agent's cache.
    Keep,
    /// Release the claim.
    Release,
    /// The fetch has ended.
    Done(Outcome),
}

/// Why the origin is read. All but `Claim` are counted exceptions to promise 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchReason {
    /// The claim was granted.
    Claim,
    /// The node failed, or a wait timed out.
    Fallback,
    /// No node is configured.
    NoNode,
    /// The node would not keep the blob: its half-chunk is not in the keep-set.
    Uncached,
}

/// The result of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes arrived, and the node has them.
    Bytes,
    /// The bytes arrived and are in the agent's cache: the node did not take them.
    Kept,
    /// Prefetch only: the node has the blob, or another agent is fetching it.
    Elsewhere,
    /// Prefetch only: no claim was granted. To prefetch it anyway, the agent starts a demand fetch,
    /// which all requests share.
    Unclaimed,
    /// The origin failed.
    Failed,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchEvent {
    /// The node's answer to a claim.
    Claim(Claimed),
    /// The bytes arrived.
    Bytes,
    /// The blob is neither resident nor claimed.
    Absent,
    /// Another agent is still fetching the blob.
    StillClaimed,
    /// The node did not answer, or refused.
    NodeFailed,
    /// The origin returned the bytes, and they match their address.
    Fetched,
    /// The origin failed.
    FetchFailed,
    /// A step without a result is done.
    Done,
}

/// The state of one fetch.
#[derive(Debug)]
pub struct FetchState {
    purpose: Purpose,
    lease: Duration,
    ends_at: Duration,
    step: Step,
    step_at: Duration,
    /// The node reported the blob as present.
    is_present: bool,
    false_presents: u32,
    /// The last wait ended at once.
    was_immediate: bool,
    is_claimed: bool,
    /// The result after the claim is released.
    outcome: Outcome,
}

impl FetchState {
    /// Starts a fetch; [`FetchState::step`] is its first step.
    pub fn new(now: Duration, purpose: Purpose, node: NodeState) -> Self {
        let (lease, step) = match (node, purpose) {
            (NodeState::Connected { lease }, _) => (lease, Step::Claim),
            (_, Purpose::Prefetch) => (Duration::ZERO, Step::Done(Outcome::Unclaimed)),
            (NodeState::None, Purpose::Demand) => {
                (Duration::ZERO, Step::ReadOrigin(FetchReason::NoNode))
            }
            (NodeState::Unreachable, Purpose::Demand) => {
                (Duration::ZERO, Step::ReadOrigin(FetchReason::Fallback))
            }
        };
        Self {
            purpose,
            lease,
            ends_at: now.saturating_add(lease.saturating_mul(LEASES_MAX)),
            step,
            step_at: now,
            is_present: false,
            false_presents: 0,
            was_immediate: false,
            is_claimed: false,
            outcome: Outcome::Bytes,
        }
    }

    /// The current step.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Takes the result of the current step, and returns the next one.
    pub fn on_event(&mut self, now: Duration, event: FetchEvent) -> Step {
        self.step = self.after(now, event);
        self.step_at = now;
        self.step
    }

    fn after(&mut self, now: Duration, event: FetchEvent) -> Step {
        match (self.step, event) {
            (Step::Claim | Step::Get(_), FetchEvent::Bytes) | (Step::Put, FetchEvent::Done) => {
                Step::Done(Outcome::Bytes)
            }
            (Step::Claim, FetchEvent::Claim(claimed)) => self.after_claim(now, claimed),
            (Step::Claim, FetchEvent::NodeFailed) if self.purpose == Purpose::Prefetch => {
                Step::Done(Outcome::Unclaimed)
            }
            (Step::Claim | Step::Get(_), FetchEvent::NodeFailed) => {
                Step::ReadOrigin(FetchReason::Fallback)
            }
            (Step::Get(_), FetchEvent::Absent | FetchEvent::StillClaimed) => {
                self.false_presents += u32::from(self.is_present && event == FetchEvent::Absent);
                if self.false_presents >= FALSE_PRESENTS_MAX {
                    return Step::ReadOrigin(FetchReason::Fallback);
                }
                self.after_waiting(now)
            }
            (Step::AwaitClaimSlot(_), FetchEvent::Done) => self.after_waiting(now),
            (Step::Pause(_), FetchEvent::Done) => self.claim_again(now),
            (Step::ReadOrigin(FetchReason::Claim), FetchEvent::Fetched) => Step::Put,
            // Bytes that the node does not take are cached before the claim is released: the
            // waiters that the release wakes find them.
            (Step::ReadOrigin(_), FetchEvent::Fetched) | (Step::Put, FetchEvent::NodeFailed) => {
                Step::Keep
            }
            (Step::ReadOrigin(_), FetchEvent::FetchFailed) => {
                self.outcome = Outcome::Failed;
                self.end()
            }
            (Step::Keep, FetchEvent::Done) => {
                self.outcome = Outcome::Kept;
                self.end()
            }
            (Step::Release, FetchEvent::Done) => Step::Done(self.outcome),
            (step, event) => panic!("{event:?} is no result of {step:?}"),
        }
    }

    fn after_claim(&mut self, now: Duration, claimed: Claimed) -> Step {
        self.is_present = claimed == Claimed::Present;
        match claimed {
            Claimed::Decided(Claim::Granted) => {
                self.is_claimed = true;
                Step::ReadOrigin(FetchReason::Claim)
            }
            Claimed::Uncached if self.purpose == Purpose::Prefetch => {
                Step::Done(Outcome::Unclaimed)
            }
            Claimed::Uncached => Step::ReadOrigin(FetchReason::Uncached),
            _ if self.purpose == Purpose::Prefetch => Step::Done(Outcome::Elsewhere),
            Claimed::Present | Claimed::Decided(Claim::Held) => Step::Get(self.wait(now)),
            Claimed::Decided(Claim::TooMany) => Step::AwaitClaimSlot(self.wait(now)),
        }
    }

    fn wait(&self, now: Duration) -> Duration {
        self.lease.min(self.ends_at.saturating_sub(now))
    }

    /// Claims again at once after a wait, or when the claim had ended before the wait began. Two
    /// immediate answers in a row lead to a pause, so that the agent does not poll.
    fn after_waiting(&mut self, now: Duration) -> Step {
        let is_immediate = now.saturating_sub(self.step_at) < PAUSE;
        if std::mem::replace(&mut self.was_immediate, is_immediate) && is_immediate {
            return Step::Pause(PAUSE);
        }
        self.claim_again(now)
    }

    fn claim_again(&self, now: Duration) -> Step {
        if now < self.ends_at { Step::Claim } else { Step::ReadOrigin(FetchReason::Fallback) }
    }

    /// Releases a claim that was not fulfilled.
    fn end(&self) -> Step {
        if self.is_claimed { Step::Release } else { Step::Done(self.outcome) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const GRANTED: FetchEvent = FetchEvent::Claim(Claimed::Decided(Claim::Granted));
    const HELD: FetchEvent = FetchEvent::Claim(Claimed::Decided(Claim::Held));
    const PRESENT: FetchEvent = FetchEvent::Claim(Claimed::Present);
    const TOO_MANY: FetchEvent = FetchEvent::Claim(Claimed::Decided(Claim::TooMany));

    fn demand() -> FetchState {
        FetchState::new(Duration::ZERO, Purpose::Demand, NodeState::Connected { lease: LEASE })
    }

    /// Applies events, each at a time in seconds, and returns the last step.
    fn apply(fetch: &mut FetchState, events: &[(u64, FetchEvent)]) -> Step {
        for (second, event) in events {
            fetch.on_event(Duration::from_secs(*second), *event);
        }
        fetch.step()
    }

    /// Promise 3: a blob that is resident, or claimed by a live holder, is not fetched again.
    #[test]
    fn a_claimed_blob_is_waited_for() {
        let mut fetch = demand();
        assert_eq!(fetch.step(), Step::Claim);
        assert_eq!(apply(&mut fetch, &[(0, HELD)]), Step::Get(LEASE));
        assert_eq!(apply(&mut fetch, &[(10, FetchEvent::StillClaimed)]), Step::Claim);
        assert_eq!(apply(&mut fetch, &[(10, PRESENT)]), Step::Get(LEASE));
        assert_eq!(apply(&mut fetch, &[(11, FetchEvent::Bytes)]), Step::Done(Outcome::Bytes));
    }

    #[test]
    fn a_granted_claim_is_fetched_and_put() {
        let mut fetch = demand();
        assert_eq!(apply(&mut fetch, &[(0, GRANTED)]), Step::ReadOrigin(FetchReason::Claim));
        assert_eq!(apply(&mut fetch, &[(5, FetchEvent::Fetched)]), Step::Put);
        assert_eq!(apply(&mut fetch, &[(6, FetchEvent::Done)]), Step::Done(Outcome::Bytes));
        let mut failing = demand();
        let failed = [(0, GRANTED), (5, FetchEvent::FetchFailed)];
        assert_eq!(apply(&mut failing, &failed), Step::Release);
        assert_eq!(apply(&mut failing, &[(5, FetchEvent::Done)]), Step::Done(Outcome::Failed));
    }

    /// A job with an empty draw set reads past the cache.
    #[test]
    fn a_blob_that_the_node_does_not_keep_is_read_from_the_origin() {
        let mut fetch = demand();
        let uncached = FetchEvent::Claim(Claimed::Uncached);
        assert_eq!(apply(&mut fetch, &[(0, uncached)]), Step::ReadOrigin(FetchReason::Uncached));
        assert_eq!(apply(&mut fetch, &[(1, FetchEvent::Fetched)]), Step::Keep);
        assert_eq!(apply(&mut fetch, &[(1, FetchEvent::Done)]), Step::Done(Outcome::Kept));
        let node = NodeState::Connected { lease: LEASE };
        let mut prefetch = FetchState::new(Duration::ZERO, Purpose::Prefetch, node);
        assert_eq!(apply(&mut prefetch, &[(0, uncached)]), Step::Done(Outcome::Unclaimed));
    }

    /// Waiters look into the agent's cache as soon as the claim is released.
    #[test]
    fn refused_bytes_are_cached_before_the_claim_is_released() {
        let mut fetch = demand();
        let refused = [(0, GRANTED), (5, FetchEvent::Fetched), (5, FetchEvent::NodeFailed)];
        assert_eq!(apply(&mut fetch, &refused), Step::Keep);
        assert_eq!(apply(&mut fetch, &[(5, FetchEvent::Done)]), Step::Release);
        assert_eq!(apply(&mut fetch, &[(5, FetchEvent::Done)]), Step::Done(Outcome::Kept));
    }

    /// Promise 5: no cache fault fails or hangs a job; past a deadline it reads the origin. Two
    /// renewals without new bytes, or ten leases, end the wait.
    #[test]
    fn after_ten_leases_the_origin_is_read() {
        let mut fetch = demand();
        for second in (0..90).step_by(10) {
            let round = [(second, HELD), (second + 10, FetchEvent::StillClaimed)];
            assert_eq!(apply(&mut fetch, &round), Step::Claim);
        }
        let short = Step::Get(Duration::from_secs(5));
        assert_eq!(apply(&mut fetch, &[(95, HELD)]), short, "the time that is left");
        let fallback = Step::ReadOrigin(FetchReason::Fallback);
        assert_eq!(apply(&mut fetch, &[(100, FetchEvent::StillClaimed)]), fallback);
        assert_eq!(apply(&mut fetch, &[(101, FetchEvent::Fetched)]), Step::Keep);
        assert_eq!(apply(&mut fetch, &[(101, FetchEvent::Done)]), Step::Done(Outcome::Kept));
    }

    #[test]
    fn a_node_that_reports_a_blob_twice_without_returning_it_is_bypassed() {
        let mut fetch = demand();
        let once = [(0, PRESENT), (0, FetchEvent::Absent)];
        assert_eq!(apply(&mut fetch, &once), Step::Claim);
        let twice = [(0, PRESENT), (0, FetchEvent::Absent)];
        assert_eq!(apply(&mut fetch, &twice), Step::ReadOrigin(FetchReason::Fallback));
    }

    #[test]
    fn an_agent_waits_for_a_claim_slot_but_not_for_a_dead_node() {
        let mut full = demand();
        assert_eq!(apply(&mut full, &[(0, TOO_MANY)]), Step::AwaitClaimSlot(LEASE));
        assert_eq!(
            apply(&mut full, &[(3, FetchEvent::Done)]),
            Step::Claim,
            "as soon as a slot is free"
        );
        let fallback = Step::ReadOrigin(FetchReason::Fallback);
        assert_eq!(apply(&mut demand(), &[(0, FetchEvent::NodeFailed)]), fallback);
        let lost = [(0, HELD), (3, FetchEvent::NodeFailed)];
        assert_eq!(apply(&mut demand(), &lost), fallback);
    }

    /// A claim may end between two requests: the agent claims again at once. A second immediate
    /// answer leads to a pause.
    #[test]
    fn waiters_are_woken_and_do_not_poll() {
        let mut fetch = demand();
        assert_eq!(apply(&mut fetch, &[(0, HELD), (0, FetchEvent::Absent)]), Step::Claim);
        assert_eq!(apply(&mut fetch, &[(0, HELD), (0, FetchEvent::Absent)]), Step::Pause(PAUSE));
        assert_eq!(apply(&mut fetch, &[(1, FetchEvent::Done), (1, HELD)]), Step::Get(LEASE));
        assert_eq!(apply(&mut fetch, &[(4, FetchEvent::Absent)]), Step::Claim, "woken: no pause");
    }

    #[test]
    fn a_prefetch_does_not_wait() {
        let begin = |node| FetchState::new(Duration::ZERO, Purpose::Prefetch, node);
        for (event, outcome) in [
            (HELD, Outcome::Elsewhere),
            (PRESENT, Outcome::Elsewhere),
            (TOO_MANY, Outcome::Elsewhere),
            (FetchEvent::NodeFailed, Outcome::Unclaimed),
        ] {
            let mut fetch = begin(NodeState::Connected { lease: LEASE });
            assert_eq!(apply(&mut fetch, &[(0, event)]), Step::Done(outcome));
        }
        for node in [NodeState::None, NodeState::Unreachable] {
            assert_eq!(begin(node).step(), Step::Done(Outcome::Unclaimed));
        }
    }

    /// All possible results of a step.
    fn results(step: Step) -> &'static [FetchEvent] {
        match step {
            Step::Claim => {
                &[HELD, PRESENT, TOO_MANY, GRANTED, FetchEvent::NodeFailed, FetchEvent::Bytes]
            }
            Step::Get(_) => &[
                FetchEvent::StillClaimed,
                FetchEvent::Absent,
                FetchEvent::Bytes,
                FetchEvent::NodeFailed,
            ],
            Step::ReadOrigin(_) => &[FetchEvent::Fetched, FetchEvent::FetchFailed],
            Step::Put => &[FetchEvent::Done, FetchEvent::NodeFailed],
            Step::AwaitClaimSlot(_) | Step::Pause(_) | Step::Keep | Step::Release => {
                &[FetchEvent::Done]
            }
            Step::Done(_) => &[],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promises 3 and 5, for any answers at any times: the fetch ends by its deadline and reads
        /// the origin at most once; a granted claim is put or released, and fetched bytes are
        /// cached or put before that. Answers that make no progress are the most frequent.
        #[test]
        fn every_fetch_ends_within_its_deadline(
            node in prop::sample::select(vec![
                NodeState::Connected { lease: Duration::from_millis(100) },
                NodeState::Connected { lease: LEASE },
                NodeState::Unreachable,
                NodeState::None,
            ]),
            purpose in prop::sample::select(vec![Purpose::Demand, Purpose::Prefetch]),
            answers in prop::collection::vec(
                (prop_oneof![30 => Just(0), 1 => 0..6_usize], 0..=1000_u32), 1..300,
            ),
        ) {
            let mut now = Duration::from_secs(5);
            let lease = match node {
                NodeState::Connected { lease } => lease,
                _ => Duration::ZERO,
            };
            let deadline = now + lease * LEASES_MAX;
            let rounds_max = (lease * LEASES_MAX).as_millis() / PAUSE.as_millis();
            let mut fetch = FetchState::new(now, purpose, node);
            let (mut claims, mut fetches, mut is_claimed, mut has_bytes) = (0, 0, false, false);
            for (answer, share) in answers.iter().cycle() {
                let step = fetch.step();
                let results = results(step);
                match step {
                    Step::Done(outcome) => {
                        prop_assert!(fetches <= 1 && !is_claimed && !has_bytes);
                        let left = matches!(outcome, Outcome::Elsewhere | Outcome::Unclaimed);
                        prop_assert!(!left || purpose == Purpose::Prefetch && fetches == 0);
                        break;
                    }
                    Step::Claim => {
                        claims += 1;
                        prop_assert!(claims <= 2 * rounds_max + 2, "the fetch does not end");
                    }
                    // Only waits and pauses take time here.
                    Step::Get(wait) | Step::AwaitClaimSlot(wait) => {
                        prop_assert!(wait <= lease && now + wait <= deadline);
                        now += wait * *share / 1000;
                    }
                    Step::Pause(pause) => now += pause,
                    Step::ReadOrigin(reason) => {
                        fetches += 1;
                        prop_assert!(now <= deadline + PAUSE, "late");
                        prop_assert_eq!(reason == FetchReason::Claim, is_claimed);
                    }
                    Step::Release => {
                        prop_assert!(is_claimed && !has_bytes, "waiters would not find the bytes");
                    }
                    Step::Put | Step::Keep => prop_assert!(has_bytes),
                }
                let event = results[answer % results.len()];
                match (step, event) {
                    (_, GRANTED) => is_claimed = true,
                    (_, FetchEvent::Fetched) => has_bytes = true,
                    (Step::Put, FetchEvent::Done) => (is_claimed, has_bytes) = (false, false),
                    (Step::Keep, _) => has_bytes = false,
                    (Step::Release, _) => is_claimed = false,
                    _ => {}
                }
                fetch.on_event(now, event);
            }
        }
    }
}

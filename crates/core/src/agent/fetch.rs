//! How an agent comes by a blob: in which order it asks the node, waits for others, reads the origin, and
//! what becomes of a claim it was granted (promises 3 and 5).
//!
//! The answers of the node and of the origin go in, with the time; the next step comes out. Whoever drives
//! an attempt carries the steps out, and decides nothing.
//!
//! A blob that the job waits for is fetched under a claim, or read from the node when somebody else has
//! fetched it. How long a claim may last is for [`crate::claims`]; here is the waiter's side of the same
//! promise: it is woken by the node when the blob is there or the claim is free; after as many leases as the longest claim lasts, or as soon as the node is of no help, it is
//! read from the origin without a claim, and that is counted. A blob that nobody waits for yet is fetched
//! only if the claim is to be had at once.

use std::time::Duration;

use crate::{
    claims::{Claim, LEASES_MAX},
    node::Claimed,
};

/// What is left to others before the node is asked again, if it did not let us wait for it.
const PAUSE: Duration = Duration::from_millis(20);
/// So often may a node say that it has a blob, and then not give it.
const EMPTY_PROMISES_MAX: u32 = 2;

/// Why a blob is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The job waits for it.
    Wanted,
    /// It will be of use later.
    Ahead,
}

/// What is known of the node when an attempt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// There is to be none.
    None,
    /// It cannot be reached.
    Unreachable,
    /// It is there, and its claims live so long without being renewed.
    Leases(Duration),
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask the node to be the one who fetches the blob, unless it has come into one's own memory.
    Claim,
    /// Ask the node for the bytes, and leave whoever is fetching them so much time.
    Get(Duration),
    /// Wait until one of one's own claims has ended, but not longer than this.
    Room(Duration),
    /// Do nothing for so long.
    Pause(Duration),
    /// Read the origin. This happens at most once.
    Fetch(Right),
    /// Hand the bytes to the node.
    Put,
    /// Keep the bytes in one's own memory.
    Keep,
    /// Give the claim back.
    Release,
    /// That was all.
    Done(Outcome),
}

/// By what right the origin is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// The claim was granted.
    Claim,
    /// The node is of no help: a counted exception to "one fetch".
    Fallback,
    /// There is no node.
    NoNode,
    /// The node would not keep it: the chunk that it is of has no place in the cache.
    Outside,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes are here, and the node has them.
    Bytes,
    /// The bytes are here and in one's own memory: no node has taken them.
    Kept,
    /// Somebody else has the blob or is fetching it, and nobody here waits for it.
    Elsewhere,
    /// No node will keep it. Whoever fetches it ahead all the same does so as if it were wanted, so that
    /// all who ask share one fetch.
    Unclaimed,
    /// The origin failed.
    Failed,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The node's answer to a claim.
    Claim(Claimed),
    /// The bytes are here.
    Bytes,
    /// The node has no bytes, and nobody is fetching any.
    Absent,
    /// Somebody is still fetching them.
    StillClaimed,
    /// The node gave no answer, or refused.
    NodeFailed,
    /// The origin gave the bytes, and they are right.
    Fetched,
    /// It did not.
    FetchFailed,
    /// A step that cannot fail is done.
    Done,
}

/// One attempt.
#[derive(Debug)]
pub struct Attempt {
    purpose: Purpose,
    lease: Duration,
    ends_at: Duration,
    step: Step,
    step_at: Duration,
    /// The node said that it has the blob.
    is_promised: bool,
    empty_promises: u32,
    /// It was sent on at once, without having waited.
    was_hasty: bool,
    is_claimed: bool,
    /// How it ends, if nothing else happens.
    outcome: Outcome,
}

impl Attempt {
    /// Begins; [`Attempt::step`] is the first step.
    pub fn new(now: Duration, purpose: Purpose, node: NodeState) -> Self {
        let (lease, step) = match (node, purpose) {
            (NodeState::Leases(lease), _) => (lease, Step::Claim),
            (_, Purpose::Ahead) => (Duration::ZERO, Step::Done(Outcome::Unclaimed)),
            (NodeState::None, Purpose::Wanted) => (Duration::ZERO, Step::Fetch(Right::NoNode)),
            (NodeState::Unreachable, Purpose::Wanted) => {
                (Duration::ZERO, Step::Fetch(Right::Fallback))
            }
        };
        Self {
            purpose,
            lease,
            ends_at: now.saturating_add(lease.saturating_mul(LEASES_MAX)),
            step,
            step_at: now,
            is_promised: false,
            empty_promises: 0,
            was_hasty: false,
            is_claimed: false,
            outcome: Outcome::Bytes,
        }
    }

    /// What to do now.
    pub fn step(&self) -> Step {
        self.step
    }

    /// What to do after the last step has led to this.
    pub fn next(&mut self, now: Duration, fact: Fact) -> Step {
        self.step = self.after(now, fact);
        self.step_at = now;
        self.step
    }

    fn after(&mut self, now: Duration, fact: Fact) -> Step {
        match (self.step, fact) {
            (Step::Claim | Step::Get(_), Fact::Bytes) | (Step::Put, Fact::Done) => {
                Step::Done(Outcome::Bytes)
            }
            (Step::Claim, Fact::Claim(claimed)) => self.after_claim(now, claimed),
            (Step::Claim, Fact::NodeFailed) if self.purpose == Purpose::Ahead => {
                Step::Done(Outcome::Unclaimed)
            }
            (Step::Claim | Step::Get(_), Fact::NodeFailed) => Step::Fetch(Right::Fallback),
            (Step::Get(_), Fact::Absent | Fact::StillClaimed) => {
                self.empty_promises += u32::from(self.is_promised && fact == Fact::Absent);
                if self.empty_promises >= EMPTY_PROMISES_MAX {
                    return Step::Fetch(Right::Fallback);
                }
                self.after_waiting(now)
            }
            (Step::Room(_), Fact::Done) => self.after_waiting(now),
            (Step::Pause(_), Fact::Done) => self.claim_again(now),
            (Step::Fetch(Right::Claim), Fact::Fetched) => Step::Put,
            // What the node does not take is kept before its claim is given back: those who are woken by
            // that find it.
            (Step::Fetch(_), Fact::Fetched) | (Step::Put, Fact::NodeFailed) => Step::Keep,
            (Step::Fetch(_), Fact::FetchFailed) => {
                self.outcome = Outcome::Failed;
                self.end()
            }
            (Step::Keep, Fact::Done) => {
                self.outcome = Outcome::Kept;
                self.end()
            }
            (Step::Release, Fact::Done) => Step::Done(self.outcome),
            (step, fact) => panic!("{step:?} does not lead to {fact:?}"),
        }
    }

    fn after_claim(&mut self, now: Duration, claimed: Claimed) -> Step {
        self.is_promised = claimed == Claimed::Present;
        match claimed {
            Claimed::Decided(Claim::Granted) => {
                self.is_claimed = true;
                Step::Fetch(Right::Claim)
            }
            Claimed::Outside if self.purpose == Purpose::Ahead => Step::Done(Outcome::Unclaimed),
            Claimed::Outside => Step::Fetch(Right::Outside),
            _ if self.purpose == Purpose::Ahead => Step::Done(Outcome::Elsewhere),
            Claimed::Present | Claimed::Decided(Claim::Held) => Step::Get(self.wait(now)),
            Claimed::Decided(Claim::TooMany) => Step::Room(self.wait(now)),
        }
    }

    fn wait(&self, now: Duration) -> Duration {
        self.lease.min(self.ends_at.saturating_sub(now))
    }

    /// Whoever has waited claims at once, and so does whoever found that what it wanted to wait for was over.
    /// But answers that keep coming at once must not lead to a thousand more.
    fn after_waiting(&mut self, now: Duration) -> Step {
        let is_hasty = now.saturating_sub(self.step_at) < PAUSE;
        if std::mem::replace(&mut self.was_hasty, is_hasty) && is_hasty {
            return Step::Pause(PAUSE);
        }
        self.claim_again(now)
    }

    fn claim_again(&self, now: Duration) -> Step {
        if now < self.ends_at { Step::Claim } else { Step::Fetch(Right::Fallback) }
    }

    /// Whatever was claimed and not put is given back.
    fn end(&self) -> Step {
        if self.is_claimed { Step::Release } else { Step::Done(self.outcome) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const GRANTED: Fact = Fact::Claim(Claimed::Decided(Claim::Granted));
    const HELD: Fact = Fact::Claim(Claimed::Decided(Claim::Held));
    const PRESENT: Fact = Fact::Claim(Claimed::Present);
    const TOO_MANY: Fact = Fact::Claim(Claimed::Decided(Claim::TooMany));

    fn wanted() -> Attempt {
        Attempt::new(Duration::ZERO, Purpose::Wanted, NodeState::Leases(LEASE))
    }

    /// Tells facts, each with the second it came in, and returns the last step.
    fn tell(attempt: &mut Attempt, facts: &[(u64, Fact)]) -> Step {
        for (second, fact) in facts {
            attempt.next(Duration::from_secs(*second), *fact);
        }
        attempt.step()
    }

    /// Promise 3: a blob that is resident, or claimed by someone who keeps renewing the claim, is not
    /// fetched again.
    #[test]
    fn what_somebody_else_fetches_is_waited_for() {
        let mut attempt = wanted();
        assert_eq!(attempt.step(), Step::Claim);
        assert_eq!(tell(&mut attempt, &[(0, HELD)]), Step::Get(LEASE));
        assert_eq!(tell(&mut attempt, &[(10, Fact::StillClaimed)]), Step::Claim);
        assert_eq!(tell(&mut attempt, &[(10, PRESENT)]), Step::Get(LEASE));
        assert_eq!(tell(&mut attempt, &[(11, Fact::Bytes)]), Step::Done(Outcome::Bytes));
    }

    #[test]
    fn what_nobody_fetches_is_fetched_and_put() {
        let mut attempt = wanted();
        assert_eq!(tell(&mut attempt, &[(0, GRANTED)]), Step::Fetch(Right::Claim));
        assert_eq!(tell(&mut attempt, &[(5, Fact::Fetched)]), Step::Put);
        assert_eq!(tell(&mut attempt, &[(6, Fact::Done)]), Step::Done(Outcome::Bytes));
        let mut failing = wanted();
        let failed = [(0, GRANTED), (5, Fact::FetchFailed)];
        assert_eq!(tell(&mut failing, &failed), Step::Release);
        assert_eq!(tell(&mut failing, &[(5, Fact::Done)]), Step::Done(Outcome::Failed));
    }

    /// DESIGN 4.5: a job with nothing open reads through, uncached.
    #[test]
    fn what_the_node_does_not_keep_is_read_through() {
        let mut attempt = wanted();
        let outside = Fact::Claim(Claimed::Outside);
        assert_eq!(tell(&mut attempt, &[(0, outside)]), Step::Fetch(Right::Outside));
        assert_eq!(tell(&mut attempt, &[(1, Fact::Fetched)]), Step::Keep);
        assert_eq!(tell(&mut attempt, &[(1, Fact::Done)]), Step::Done(Outcome::Kept));
        let node = NodeState::Leases(LEASE);
        let mut ahead = Attempt::new(Duration::ZERO, Purpose::Ahead, node);
        assert_eq!(tell(&mut ahead, &[(0, outside)]), Step::Done(Outcome::Unclaimed));
    }

    /// Those who wait for it look into this memory as soon as the claim is free.
    #[test]
    fn what_the_node_does_not_take_is_kept_before_the_claim_is_given_back() {
        let mut attempt = wanted();
        let refused = [(0, GRANTED), (5, Fact::Fetched), (5, Fact::NodeFailed)];
        assert_eq!(tell(&mut attempt, &refused), Step::Keep);
        assert_eq!(tell(&mut attempt, &[(5, Fact::Done)]), Step::Release);
        assert_eq!(tell(&mut attempt, &[(5, Fact::Done)]), Step::Done(Outcome::Kept));
    }

    /// Promise 5: no cache fault fails or hangs a job: past a short deadline it reads the origin. Two
    /// renewals without new bytes, or ten leases, end the wait.
    #[test]
    fn after_ten_leases_the_origin_is_read() {
        let mut attempt = wanted();
        for second in (0..90).step_by(10) {
            let round = [(second, HELD), (second + 10, Fact::StillClaimed)];
            assert_eq!(tell(&mut attempt, &round), Step::Claim);
        }
        let short = Step::Get(Duration::from_secs(5));
        assert_eq!(tell(&mut attempt, &[(95, HELD)]), short, "no longer than is left");
        let fallback = Step::Fetch(Right::Fallback);
        assert_eq!(tell(&mut attempt, &[(100, Fact::StillClaimed)]), fallback);
        assert_eq!(tell(&mut attempt, &[(101, Fact::Fetched)]), Step::Keep);
        assert_eq!(tell(&mut attempt, &[(101, Fact::Done)]), Step::Done(Outcome::Kept));
    }

    #[test]
    fn a_node_that_promises_and_does_not_give_is_not_believed_twice() {
        let mut attempt = wanted();
        let once = [(0, PRESENT), (0, Fact::Absent)];
        assert_eq!(tell(&mut attempt, &once), Step::Claim);
        let twice = [(0, PRESENT), (0, Fact::Absent)];
        assert_eq!(tell(&mut attempt, &twice), Step::Fetch(Right::Fallback));
    }

    #[test]
    fn too_many_claims_are_waited_for_and_a_dead_node_is_not() {
        let mut full = wanted();
        assert_eq!(tell(&mut full, &[(0, TOO_MANY)]), Step::Room(LEASE));
        assert_eq!(tell(&mut full, &[(3, Fact::Done)]), Step::Claim, "as soon as there is room");
        let fallback = Step::Fetch(Right::Fallback);
        assert_eq!(tell(&mut wanted(), &[(0, Fact::NodeFailed)]), fallback);
        let lost = [(0, HELD), (3, Fact::NodeFailed)];
        assert_eq!(tell(&mut wanted(), &lost), fallback);
    }

    /// A claim may end between two questions: that is no reason to wait. A node that keeps us from waiting is.
    #[test]
    fn waiters_are_woken_and_do_not_poll() {
        let mut attempt = wanted();
        assert_eq!(tell(&mut attempt, &[(0, HELD), (0, Fact::Absent)]), Step::Claim);
        assert_eq!(tell(&mut attempt, &[(0, HELD), (0, Fact::Absent)]), Step::Pause(PAUSE));
        assert_eq!(tell(&mut attempt, &[(1, Fact::Done), (1, HELD)]), Step::Get(LEASE));
        assert_eq!(tell(&mut attempt, &[(4, Fact::Absent)]), Step::Claim, "woken: at once");
    }

    #[test]
    fn what_is_fetched_ahead_waits_for_nobody() {
        let begin = |node| Attempt::new(Duration::ZERO, Purpose::Ahead, node);
        for (fact, outcome) in [
            (HELD, Outcome::Elsewhere),
            (PRESENT, Outcome::Elsewhere),
            (TOO_MANY, Outcome::Elsewhere),
            (Fact::NodeFailed, Outcome::Unclaimed),
        ] {
            let mut attempt = begin(NodeState::Leases(LEASE));
            assert_eq!(tell(&mut attempt, &[(0, fact)]), Step::Done(outcome));
        }
        for node in [NodeState::None, NodeState::Unreachable] {
            assert_eq!(begin(node).step(), Step::Done(Outcome::Unclaimed));
        }
    }

    /// All that can become of a step.
    fn facts(step: Step) -> &'static [Fact] {
        match step {
            Step::Claim => &[HELD, PRESENT, TOO_MANY, GRANTED, Fact::NodeFailed, Fact::Bytes],
            Step::Get(_) => &[Fact::StillClaimed, Fact::Absent, Fact::Bytes, Fact::NodeFailed],
            Step::Fetch(_) => &[Fact::Fetched, Fact::FetchFailed],
            Step::Put => &[Fact::Done, Fact::NodeFailed],
            Step::Room(_) | Step::Pause(_) | Step::Keep | Step::Release => &[Fact::Done],
            Step::Done(_) => &[],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promises 3 and 5, whatever the node and the origin say and however quickly: it ends by its
        /// deadline, and reads the origin at most once; a claim that was granted is put or given back, and
        /// nothing that was fetched is lost before. Answers that lead nowhere are the likelier.
        #[test]
        fn every_attempt_ends_well(
            node in prop::sample::select(vec![
                NodeState::Leases(Duration::from_millis(100)),
                NodeState::Leases(LEASE),
                NodeState::Unreachable,
                NodeState::None,
            ]),
            purpose in prop::sample::select(vec![Purpose::Wanted, Purpose::Ahead]),
            answers in prop::collection::vec(
                (prop_oneof![30 => Just(0), 1 => 0..6_usize], 0..=1000_u32), 1..300,
            ),
        ) {
            let mut now = Duration::from_secs(5);
            let lease = if let NodeState::Leases(lease) = node { lease } else { Duration::ZERO };
            let deadline = now + lease * LEASES_MAX;
            let rounds_max = (lease * LEASES_MAX).as_millis() / PAUSE.as_millis();
            let mut attempt = Attempt::new(now, purpose, node);
            let (mut claims, mut fetches, mut is_claimed, mut is_at_hand) = (0, 0, false, false);
            for (answer, share) in answers.iter().cycle() {
                let step = attempt.step();
                let facts = facts(step);
                match step {
                    Step::Done(outcome) => {
                        prop_assert!(fetches <= 1 && !is_claimed && !is_at_hand);
                        let left = matches!(outcome, Outcome::Elsewhere | Outcome::Unclaimed);
                        prop_assert!(!left || purpose == Purpose::Ahead && fetches == 0);
                        break;
                    }
                    Step::Claim => {
                        claims += 1;
                        prop_assert!(claims <= 2 * rounds_max + 2, "no end to it");
                    }
                    // Nothing but the node and the pauses takes any time here.
                    Step::Get(wait) | Step::Room(wait) => {
                        prop_assert!(wait <= lease && now + wait <= deadline);
                        now += wait * *share / 1000;
                    }
                    Step::Pause(pause) => now += pause,
                    Step::Fetch(right) => {
                        fetches += 1;
                        prop_assert!(now <= deadline + PAUSE, "late");
                        prop_assert_eq!(right == Right::Claim, is_claimed);
                    }
                    Step::Release => {
                        prop_assert!(is_claimed && !is_at_hand, "others wait for what is here");
                    }
                    Step::Put | Step::Keep => prop_assert!(is_at_hand),
                }
                let fact = facts[answer % facts.len()];
                match (step, fact) {
                    (_, GRANTED) => is_claimed = true,
                    (_, Fact::Fetched) => is_at_hand = true,
                    (Step::Put, Fact::Done) => (is_claimed, is_at_hand) = (false, false),
                    (Step::Keep, _) => is_at_hand = false,
                    (Step::Release, _) => is_claimed = false,
                    _ => {}
                }
                attempt.next(now, fact);
            }
        }
    }
}

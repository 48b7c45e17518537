//! One node's decisions about blobs: who fetches what is missing, who waits for it, who may write it.
//!
//! Facts and the time go in; what to answer and whom to wake come out. The daemon owns one of these behind
//! a lock and does the reading, writing and waking; `W` is whatever it uses to wake somebody. What is
//! resident is the flash engine's to know: it is asked while the lock is held, and told of a new blob
//! before the claim on it ends, so that between claim and presence there is never a gap (promise 3).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Address,
    claims::{Claim, Claims, Holder},
};

/// The state of a node.
#[derive(Debug)]
pub struct Node<W> {
    claims: Claims,
    waiting: BTreeMap<Address, BTreeMap<Ticket, W>>,
    next_ticket: Ticket,
    /// What is being written, and by whom.
    writing: BTreeMap<Address, Holder>,
}

/// By what a waiter is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Where a blob stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It can be read.
    Resident,
    /// Somebody is fetching it: wait.
    Claimed,
    /// Nobody is: claim it.
    Absent,
}

/// What became of an attempt to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// There is no need: it can be read.
    Present,
    /// There is no use: it would not be kept.
    Outside,
    /// As the claims decided.
    Decided(Claim),
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The claim goes on.
    Renewed,
    /// It ends here: there was no headway, or it has lasted too long.
    Ended,
    /// It was not, or no longer, the caller's.
    NotHeld,
}

/// Somebody else holds the claim, or nobody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the claim is not held (any more)")]
pub struct NotClaimed;

impl<W> Node<W> {
    /// A node of which nobody wants anything yet.
    pub fn new(lease: Duration, claims_per_holder_max: usize) -> Self {
        Self {
            claims: Claims::new(lease, claims_per_holder_max),
            waiting: BTreeMap::new(),
            next_ticket: Ticket::default(),
            writing: BTreeMap::new(),
        }
    }

    /// How long a claim lives without being renewed.
    pub fn lease(&self) -> Duration {
        self.claims.lease()
    }

    /// How many claims there are.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }

    /// Where a blob stands.
    pub fn standing(&self, address: &Address, resident: bool) -> Standing {
        match resident {
            true => Standing::Resident,
            false if self.claims.is_claimed(address) => Standing::Claimed,
            false => Standing::Absent,
        }
    }

    /// Remembers whom to wake when a claimed blob is there, or its claim is over.
    pub fn wait(&mut self, address: Address, waiter: W) -> Ticket {
        assert!(self.claims.is_claimed(&address), "nobody would ever wake a waiter for {address}");
        let ticket = self.next_ticket;
        self.next_ticket.0 += 1;
        self.waiting.entry(address).or_default().insert(ticket, waiter);
        ticket
    }

    /// Forgets one who has given up waiting for a blob, and may have been woken meanwhile.
    pub fn forget(&mut self, address: &Address, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(address) {
            waiting.remove(&ticket);
            if waiting.is_empty() {
                self.waiting.remove(address);
            }
        }
    }

    /// Asks to be the one who fetches a blob.
    pub fn claim(
        &mut self,
        now: Duration,
        holder: Holder,
        address: Address,
        resident: bool,
        is_kept: bool,
    ) -> Claimed {
        if resident {
            Claimed::Present
        } else if !is_kept && !self.claims.is_claimed(&address) {
            Claimed::Outside
        } else {
            Claimed::Decided(self.claims.claim(now, holder, address))
        }
    }

    /// Keeps a claim alive. If that fails, `wake` are those who waited for it.
    #[must_use = "a lost claim must not be fulfilled"]
    pub fn renew(
        &mut self,
        now: Duration,
        holder: Holder,
        address: &Address,
        bytes: u64,
        wake: &mut Vec<W>,
    ) -> Renewal {
        let held = self.claims.is_held_by(address, holder);
        match self.claims.renew(now, holder, address, bytes) {
            true => Renewal::Renewed,
            false if held => {
                self.wake(address, wake);
                Renewal::Ended
            }
            false => Renewal::NotHeld,
        }
    }

    /// Gives a claim back. False if it was not this holder's.
    pub fn release(&mut self, holder: Holder, address: &Address, wake: &mut Vec<W>) -> bool {
        let is_its = self.claims.release(holder, address);
        if is_its {
            self.wake(address, wake);
        }
        is_its
    }

    /// A holder is gone, and its claims with it. Returns how many it had.
    pub fn abandon(&mut self, holder: Holder, wake: &mut Vec<W>) -> usize {
        let abandoned = self.claims.abandon(holder);
        for address in &abandoned {
            self.wake(address, wake);
        }
        abandoned.len()
    }

    /// Time has passed. Returns how many claims it ended.
    pub fn expire(&mut self, now: Duration, wake: &mut Vec<W>) -> usize {
        let expired = self.claims.expire(now);
        for address in &expired {
            self.wake(address, wake);
        }
        expired.len()
    }

    /// When [`Node::expire`] has something to do, if nothing happens until then.
    pub fn wake_at(&self) -> Option<Duration> {
        self.claims.wake_at()
    }

    /// A holder begins to write what it has claimed.
    pub fn begin_put(&mut self, holder: Holder, address: Address) -> Result<(), NotClaimed> {
        if !self.claims.is_held_by(&address, holder) || self.writing.contains_key(&address) {
            return Err(NotClaimed);
        }
        self.writing.insert(address, holder);
        Ok(())
    }

    /// Whether this holder is fetching this blob.
    pub fn is_claimed_by(&self, holder: Holder, address: &Address) -> bool {
        self.claims.is_held_by(address, holder)
    }

    /// Whether what a holder has begun to write is still wanted: a claim may have been lost meanwhile.
    pub fn may_write(&self, holder: Holder, address: &Address) -> bool {
        self.writing.get(address) == Some(&holder) && self.claims.is_held_by(address, holder)
    }

    /// A blob has been written, hashed and believed, and is resident.
    pub fn finish_put(&mut self, address: &Address, wake: &mut Vec<W>) {
        self.writing.remove(address).expect("begun before");
        self.claims.fulfilled(address);
        self.wake(address, wake);
    }

    /// Writing failed, or was wrong, or came too late. The claim stays as it is.
    pub fn fail_put(&mut self, address: &Address) {
        self.writing.remove(address).expect("begun before");
    }

    /// Nobody fetches it any more: in the order of their coming, those who waited for it.
    fn wake(&mut self, address: &Address, wake: &mut Vec<W>) {
        wake.extend(self.waiting.remove(address).into_iter().flat_map(BTreeMap::into_values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);
    const A: Holder = Holder(1);
    const B: Holder = Holder(2);

    fn blob(index: u8) -> Address {
        Address::from_bytes([index; 32])
    }

    fn node() -> Node<&'static str> {
        Node::new(LEASE, 8)
    }

    fn claim(node: &mut Node<&'static str>, holder: Holder, index: u8) -> Claimed {
        node.claim(Duration::ZERO, holder, blob(index), false, true)
    }

    /// Promise 3: a blob that is resident or claimed is not fetched again.
    #[test]
    fn one_fetches_and_the_others_are_woken() {
        let mut node = node();
        assert_eq!(node.standing(&blob(1), false), Standing::Absent);
        assert_eq!(claim(&mut node, A, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Held));
        node.wait(blob(1), "b");
        assert_eq!(node.begin_put(B, blob(1)), Err(NotClaimed));
        assert_eq!(node.begin_put(A, blob(1)), Ok(()));
        assert_eq!(node.standing(&blob(1), false), Standing::Claimed, "not before it is believed");
        // Resident a moment before its claim ends: never neither.
        assert_eq!(node.standing(&blob(1), true), Standing::Resident);
        let mut woken = vec![];
        node.finish_put(&blob(1), &mut woken);
        assert_eq!(woken, ["b"]);
        assert_eq!(node.claim(Duration::ZERO, B, blob(1), true, true), Claimed::Present);
        assert_eq!(node.claims(), 0);
    }

    /// What has no place is fetched by each for itself; what somebody began to fetch is waited for.
    #[test]
    fn what_is_not_kept_is_not_claimed() {
        let mut node = node();
        let outside = |node: &mut Node<_>, holder, index| {
            node.claim(Duration::ZERO, holder, blob(index), false, false)
        };
        assert_eq!(outside(&mut node, A, 1), Claimed::Outside);
        assert_eq!(node.claims(), 0);
        claim(&mut node, A, 2);
        assert_eq!(outside(&mut node, B, 2), Claimed::Decided(Claim::Held));
        assert_eq!(node.claim(Duration::ZERO, B, blob(3), true, false), Claimed::Present);
    }

    /// Promise 5: whoever waits gets its bytes or its turn.
    #[test]
    fn every_way_of_losing_a_claim_wakes_those_who_wait() {
        type Loss = fn(&mut Node<&'static str>, &mut Vec<&'static str>);
        let losses: [Loss; 4] = [
            |node, woken| assert!(node.release(A, &blob(1), woken)),
            |node, woken| assert_eq!(node.abandon(A, woken), 1),
            |node, woken| assert_eq!(node.expire(LEASE, woken), 1),
            |node, woken| assert_eq!(node.renew(LEASE * 2, A, &blob(1), 9, woken), Renewal::Ended),
        ];
        for loss in losses {
            let mut node = node();
            claim(&mut node, A, 1);
            node.wait(blob(1), "b");
            let mut woken = vec![];
            loss(&mut node, &mut woken);
            assert_eq!(woken, ["b"]);
            assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
        }
    }

    #[test]
    fn a_writer_that_lost_its_claim_leaves_no_trace() {
        let mut node = node();
        claim(&mut node, A, 1);
        node.begin_put(A, blob(1)).unwrap();
        node.expire(LEASE, &mut vec![]);
        assert!(!node.may_write(A, &blob(1)));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(node.begin_put(B, blob(1)), Err(NotClaimed), "the first still writes");
        node.fail_put(&blob(1));
        assert_eq!(node.begin_put(B, blob(1)), Ok(()));
    }

    #[test]
    fn who_gives_up_is_forgotten() {
        let mut node = node();
        claim(&mut node, A, 1);
        node.wait(blob(1), "patient");
        let gone = node.wait(blob(1), "gone");
        node.wait(blob(1), "patient too");
        node.forget(&blob(1), gone);
        node.forget(&blob(2), gone);
        let mut woken = vec![];
        node.release(A, &blob(1), &mut woken);
        assert_eq!(woken, ["patient", "patient too"]);
        node.forget(&blob(1), gone);
    }
}

//! The fetch table of a node: which blobs are claimed, which requests wait for them, which writes
//! are in progress.
//!
//! Events and the time go in; the answer and the waiters to wake come out. The node owns one table
//! behind a lock and does the reading, writing and waking; `W` is its handle of a waiter. The flash
//! engine knows which blobs are resident. It is asked while the lock is held, and stores a new blob
//! before the claim on it ends, so that a blob is never neither claimed nor resident in between
//! (promise 3).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Address,
    node::{
        claims::{Claim, Claims, Holder},
        fetch_pace::{FetchPace, OldClaim, Party},
    },
};

/// Claims that are looked at for a takeover in one call.
const OLD_CLAIMS_MAX: usize = 4096;

/// Claims, waiters and writes of one node.
#[derive(Debug)]
pub struct FetchTable<W> {
    claims: Claims,
    waiting: BTreeMap<Address, BTreeMap<Ticket, Waiter<W>>>,
    next_ticket: Ticket,
    /// Blobs that are being written, with the writer.
    writing: BTreeMap<Address, Holder>,
    parties: BTreeMap<Holder, Party>,
    pace: FetchPace<Address>,
}

#[derive(Debug)]
struct Waiter<W> {
    holder: Holder,
    waker: W,
}

/// Identifies a waiter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The state of a blob on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobState {
    /// It can be read from this node.
    Resident,
    /// A holder is fetching it.
    Claimed,
    /// It is neither resident nor claimed.
    Absent,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// The blob is resident.
    Present,
    /// The node would not keep the blob: read it without a claim.
    Uncached,
    /// The answer of the claim table.
    Decided(Claim),
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is extended.
    Renewed,
    /// The claim ends: no progress, or it has lasted too long.
    Ended,
    /// The caller does not hold the claim.
    NotHeld,
}

/// The caller does not hold the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the claim is not held, or has ended")]
pub struct NotClaimed;

impl<W> FetchTable<W> {
    /// An empty table.
    pub fn new(lease: Duration, claims_per_holder_max: usize) -> Self {
        Self {
            claims: Claims::new(lease, claims_per_holder_max),
            waiting: BTreeMap::new(),
            next_ticket: Ticket::default(),
            writing: BTreeMap::new(),
            parties: BTreeMap::new(),
            pace: FetchPace::default(),
        }
    }

    /// A connection begins, of this job. A connection that is not registered counts as a job of its
    /// own.
    pub fn register(&mut self, holder: Holder, party: Party) {
        self.parties.insert(holder, party);
    }

    fn party(&self, holder: Holder) -> Party {
        let unknown = Party { tenant: 0, job: Some(holder.0) };
        self.parties.get(&holder).copied().unwrap_or(unknown)
    }

    /// Time after which a claim ends unless it is renewed.
    pub fn lease(&self) -> Duration {
        self.claims.lease()
    }

    /// Number of claims held.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }

    /// The state of a blob; `resident` is what the flash engine answers.
    pub fn state(&self, address: &Address, resident: bool) -> BlobState {
        match resident {
            true => BlobState::Resident,
            false if self.claims.is_claimed(address) => BlobState::Claimed,
            false => BlobState::Absent,
        }
    }

    /// Registers a waiter of the connection `holder`, to be woken when the claimed blob is resident
    /// or its claim ends.
    pub fn wait(&mut self, address: Address, holder: Holder, waker: W) -> Ticket {
        assert!(
            self.claims.is_claimed(&address),
            "a waiter for {address}, which is not claimed, would never be woken"
        );
        let ticket = self.next_ticket;
        self.next_ticket.0 += 1;
        self.waiting.entry(address).or_default().insert(ticket, Waiter { holder, waker });
        ticket
    }

    /// Removes a waiter that timed out. It may have been woken already.
    pub fn forget(&mut self, address: &Address, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(address) {
            waiting.remove(&ticket);
            if waiting.is_empty() {
                self.waiting.remove(address);
            }
        }
    }

    /// Claims a blob for `holder`. `is_kept` is whether the node would keep it.
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
            Claimed::Uncached
        } else if !self.pace.may_claim(now, &address, self.party(holder)) {
            // It was taken from this holder, for those that wait.
            Claimed::Decided(Claim::Held)
        } else {
            Claimed::Decided(self.claims.claim(now, holder, address))
        }
    }

    /// Ends the claims that have lasted too long while other jobs wait, and returns their number.
    /// One of the waiters claims the blob next.
    pub fn take_over(&mut self, now: Duration, wake: &mut Vec<W>) -> usize {
        self.pace.end_trials(now, |address| self.claims.is_claimed(address));
        let young = now.saturating_sub(FetchPace::<Address>::limit_min());
        let old: Vec<(Address, OldClaim)> = self
            .claims
            .oldest()
            .take(OLD_CLAIMS_MAX)
            .take_while(|(_, _, granted_at)| *granted_at <= young)
            .filter_map(|(address, holder, granted_at)| {
                let holder = self.party(holder);
                let mut waiters = self.waiting.get(&address)?.values();
                let waiter = waiters.find_map(|waiter| {
                    let party = self.party(waiter.holder);
                    (party != holder).then_some(party)
                })?;
                let age = now.saturating_sub(granted_at);
                Some((address, OldClaim { holder, waiter, age }))
            })
            .collect();
        let mut count = 0;
        for (address, claim) in old {
            if self.pace.may_take_over(now, address, claim) {
                self.claims.take_over(&address);
                self.wake(&address, wake);
                count += 1;
            }
        }
        count
    }

    /// Renews a claim. If it ends instead, its waiters are added to `wake`.
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

    /// Releases a claim. Returns false if `holder` does not hold it.
    pub fn release(&mut self, holder: Holder, address: &Address, wake: &mut Vec<W>) -> bool {
        let was_held = self.claims.release(holder, address);
        if was_held {
            self.wake(address, wake);
        }
        was_held
    }

    /// Ends the claims of a holder that has disconnected, and returns their number.
    pub fn abandon(&mut self, holder: Holder, wake: &mut Vec<W>) -> usize {
        let abandoned = self.claims.abandon(holder);
        self.parties.remove(&holder);
        for address in &abandoned {
            self.wake(address, wake);
        }
        abandoned.len()
    }

    /// Ends the claims that have expired, and returns their number.
    pub fn expire(&mut self, now: Duration, wake: &mut Vec<W>) -> usize {
        let expired = self.claims.expire(now);
        for address in &expired {
            self.wake(address, wake);
        }
        expired.len()
    }

    /// The earliest time at which [`FetchTable::expire`] ends a claim.
    pub fn wake_at(&self) -> Option<Duration> {
        self.claims.wake_at()
    }

    /// Starts a write. Only the holder of the claim may write, one write at a time.
    pub fn begin_put(&mut self, holder: Holder, address: Address) -> Result<(), NotClaimed> {
        if !self.claims.is_held_by(&address, holder) || self.writing.contains_key(&address) {
            return Err(NotClaimed);
        }
        self.writing.insert(address, holder);
        Ok(())
    }

    /// Whether `holder` holds the claim on this blob.
    pub fn is_claimed_by(&self, holder: Holder, address: &Address) -> bool {
        self.claims.is_held_by(address, holder)
    }

    /// Whether a write that `holder` started may continue: its claim may have ended since.
    pub fn may_write(&self, holder: Holder, address: &Address) -> bool {
        self.writing.get(address) == Some(&holder) && self.claims.is_held_by(address, holder)
    }

    /// Completes a write: the blob is hashed, verified and resident.
    pub fn finish_put(&mut self, now: Duration, address: &Address, wake: &mut Vec<W>) {
        self.writing.remove(address).expect("a write that was started");
        if let Some((holder, granted_at)) = self.claims.fulfilled(address) {
            let took = now.saturating_sub(granted_at);
            self.pace.on_fetched(now, address, self.party(holder), took);
        }
        self.wake(address, wake);
    }

    /// Ends a write that failed, did not match its address, or lost its claim. The claim is
    /// unchanged.
    pub fn fail_put(&mut self, address: &Address) {
        self.writing.remove(address).expect("a write that was started");
    }

    /// Moves the waiters of a blob to `wake`, in order of arrival.
    fn wake(&mut self, address: &Address, wake: &mut Vec<W>) {
        let waiters = self.waiting.remove(address).into_iter().flat_map(BTreeMap::into_values);
        wake.extend(waiters.map(|waiter| waiter.waker));
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

    fn node() -> FetchTable<&'static str> {
        FetchTable::new(LEASE, 8)
    }

    fn claim(node: &mut FetchTable<&'static str>, holder: Holder, index: u8) -> Claimed {
        node.claim(Duration::ZERO, holder, blob(index), false, true)
    }

    /// Promise 3: a blob that is resident or claimed is not fetched again.
    #[test]
    fn one_holder_fetches_and_the_waiters_are_woken() {
        let mut node = node();
        assert_eq!(node.state(&blob(1), false), BlobState::Absent);
        assert_eq!(claim(&mut node, A, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Held));
        node.wait(blob(1), B, "b");
        assert_eq!(node.begin_put(B, blob(1)), Err(NotClaimed));
        assert_eq!(node.begin_put(A, blob(1)), Ok(()));
        assert_eq!(node.state(&blob(1), false), BlobState::Claimed, "not before it is verified");
        // Resident before its claim ends: there is no gap between the two states.
        assert_eq!(node.state(&blob(1), true), BlobState::Resident);
        let mut woken = vec![];
        node.finish_put(Duration::ZERO, &blob(1), &mut woken);
        assert_eq!(woken, ["b"]);
        assert_eq!(node.claim(Duration::ZERO, B, blob(1), true, true), Claimed::Present);
        assert_eq!(node.claims(), 0);
    }

    /// A blob that the node does not keep is read without a claim; one that is claimed is waited
    /// for.
    #[test]
    fn a_blob_that_is_not_kept_is_not_claimed() {
        let mut node = node();
        let uncached = |node: &mut FetchTable<_>, holder, index| {
            node.claim(Duration::ZERO, holder, blob(index), false, false)
        };
        assert_eq!(uncached(&mut node, A, 1), Claimed::Uncached);
        assert_eq!(node.claims(), 0);
        claim(&mut node, A, 2);
        assert_eq!(uncached(&mut node, B, 2), Claimed::Decided(Claim::Held));
        assert_eq!(node.claim(Duration::ZERO, B, blob(3), true, false), Claimed::Present);
    }

    /// Promise 5: a waiter gets the bytes or the claim.
    #[test]
    fn the_end_of_a_claim_wakes_its_waiters() {
        type Loss = fn(&mut FetchTable<&'static str>, &mut Vec<&'static str>);
        let losses: [Loss; 4] = [
            |node, woken| assert!(node.release(A, &blob(1), woken)),
            |node, woken| assert_eq!(node.abandon(A, woken), 1),
            |node, woken| assert_eq!(node.expire(LEASE, woken), 1),
            |node, woken| assert_eq!(node.renew(LEASE * 2, A, &blob(1), 9, woken), Renewal::Ended),
        ];
        for loss in losses {
            let mut node = node();
            claim(&mut node, A, 1);
            node.wait(blob(1), B, "b");
            let mut woken = vec![];
            loss(&mut node, &mut woken);
            assert_eq!(woken, ["b"]);
            assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
        }
    }

    /// Promise 5: a holder that reports progress for ever does not keep others waiting.
    #[test]
    fn a_waiter_takes_over_a_claim_that_only_reports_progress() {
        let mut node = FetchTable::new(Duration::from_secs(10), 8);
        let party = |job| Party { tenant: 0, job: Some(job) };
        node.register(A, party(1));
        node.register(B, party(2));
        node.register(Holder(3), party(1));
        claim(&mut node, A, 1);
        claim(&mut node, A, 2);
        node.wait(blob(1), B, "b");
        node.wait(blob(2), Holder(3), "of the same job");
        let mut woken = vec![];
        let s = Duration::from_secs;
        for second in 1..4 {
            assert_eq!(node.renew(s(second), A, &blob(1), second, &mut woken), Renewal::Renewed);
            assert_eq!(node.take_over(s(second), &mut woken), 0);
        }
        assert_eq!((node.take_over(s(5), &mut woken), woken), (1, vec!["b"]));
        let again =
            |node: &mut FetchTable<_>, holder| node.claim(s(5), holder, blob(1), false, true);
        assert_eq!(again(&mut node, A), Claimed::Decided(Claim::Held), "not again");
        assert_eq!(again(&mut node, B), Claimed::Decided(Claim::Granted));
        assert_eq!(node.renew(s(5), A, &blob(1), 9, &mut vec![]), Renewal::NotHeld);
    }

    #[test]
    fn a_writer_that_lost_its_claim_may_not_write() {
        let mut node = node();
        claim(&mut node, A, 1);
        node.begin_put(A, blob(1)).unwrap();
        node.expire(LEASE, &mut vec![]);
        assert!(!node.may_write(A, &blob(1)));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(node.begin_put(B, blob(1)), Err(NotClaimed), "the first write has not ended");
        node.fail_put(&blob(1));
        assert_eq!(node.begin_put(B, blob(1)), Ok(()));
    }

    #[test]
    fn a_waiter_that_timed_out_is_not_woken() {
        let mut node = node();
        claim(&mut node, A, 1);
        node.wait(blob(1), B, "patient");
        let gone = node.wait(blob(1), B, "gone");
        node.wait(blob(1), B, "patient too");
        node.forget(&blob(1), gone);
        node.forget(&blob(2), gone);
        let mut woken = vec![];
        node.release(A, &blob(1), &mut woken);
        assert_eq!(woken, ["patient", "patient too"]);
        node.forget(&blob(1), gone);
    }
}

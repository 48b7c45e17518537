//! One node's decisions about blobs: what is resident, who fetches what is missing, who waits for it.
//!
//! Facts and the time go in; what to answer, what to delete and whom to wake come out. The daemon owns
//! one of these behind a lock and does the reading, writing and waking; `W` is whatever it uses to wake
//! somebody.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Address, ByteSize,
    claims::{Claim, Claims, Holder},
    shelf::{NoSpace, Shelf, Stay, Stock},
};

/// The state of a node.
#[derive(Debug)]
pub struct Node<W> {
    claims: Claims,
    shelf: Shelf,
    waiting: BTreeMap<Address, Vec<W>>,
    /// What is being written, and by whom.
    writing: BTreeMap<Address, Holder>,
    /// What is being deleted. Until it is, nobody may fetch it: a deletion that came late would hit what
    /// was put anew.
    leaving: BTreeSet<Address>,
}

/// Where a blob stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It can be read.
    Resident(Stay),
    /// Somebody is fetching it, or it is just leaving: wait.
    Claimed,
    /// Nobody is: claim it.
    Absent,
}

/// What became of an attempt to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// There is no need: it can be read.
    Present,
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

/// Why nothing may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Somebody else holds the claim, or nobody does.
    #[error("the claim is not held (any more)")]
    NotClaimed,
    /// There is no room.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
}

impl<W> Node<W> {
    /// An empty node.
    pub fn new(capacity: ByteSize, lease: Duration, claims_per_holder_max: usize) -> Self {
        Self {
            claims: Claims::new(lease, claims_per_holder_max),
            shelf: Shelf::new(capacity),
            waiting: BTreeMap::new(),
            writing: BTreeMap::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Takes up a blob that was found at start. Returns what has to go for it (the capacity may have been
    /// made smaller), or itself, if it does not fit at all.
    pub fn recover(&mut self, address: Address, length: u64) -> Vec<Address> {
        match self.shelf.reserve(address, length) {
            Ok(leaving) => {
                self.shelf.commit(&address);
                leaving
            }
            Err(NoSpace { .. }) => vec![address],
        }
    }

    /// How long a claim lives without being renewed.
    pub fn lease(&self) -> Duration {
        self.claims.lease()
    }

    /// The most that may be resident.
    pub fn capacity(&self) -> ByteSize {
        self.shelf.capacity()
    }

    /// What is resident.
    pub fn resident(&self) -> Stock {
        self.shelf.resident()
    }

    /// How many claims there are.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }

    /// Where a blob stands.
    pub fn standing(&self, address: &Address) -> Standing {
        match self.shelf.stay(address) {
            Some(stay) => Standing::Resident(stay),
            None if self.is_awaited(address) => Standing::Claimed,
            None => Standing::Absent,
        }
    }

    /// Whether something will happen to it that wakes those who wait.
    fn is_awaited(&self, address: &Address) -> bool {
        self.claims.is_claimed(address) || self.leaving.contains(address)
    }

    /// Remembers whom to wake when a claimed blob is there, or its claim is over.
    pub fn wait(&mut self, address: Address, waiter: W) {
        assert!(self.is_awaited(&address), "nobody would ever wake a waiter for {address}");
        self.waiting.entry(address).or_default().push(waiter);
    }

    /// Forgets those who have given up waiting for a blob.
    pub fn forget(&mut self, address: &Address, has_given_up: impl Fn(&W) -> bool) {
        if let Some(waiting) = self.waiting.get_mut(address) {
            waiting.retain(|waiter| !has_given_up(waiter));
            if waiting.is_empty() {
                self.waiting.remove(address);
            }
        }
    }

    /// Asks to be the one who fetches a blob.
    pub fn claim(&mut self, now: Duration, holder: Holder, address: Address) -> Claimed {
        if self.shelf.contains(&address) {
            return Claimed::Present;
        }
        if self.leaving.contains(&address) {
            return Claimed::Decided(Claim::Held);
        }
        Claimed::Decided(self.claims.claim(now, holder, address))
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
                self.lost(address, wake);
                Renewal::Ended
            }
            false => Renewal::NotHeld,
        }
    }

    /// Gives a claim back.
    pub fn release(&mut self, holder: Holder, address: &Address, wake: &mut Vec<W>) {
        if self.claims.release(holder, address) {
            self.lost(address, wake);
        }
    }

    /// A holder is gone, and its claims with it.
    pub fn abandon(&mut self, holder: Holder, wake: &mut Vec<W>) {
        for address in self.claims.abandon(holder) {
            self.lost(&address, wake);
        }
    }

    /// Time has passed. Returns how many claims it ended.
    pub fn expire(&mut self, now: Duration, wake: &mut Vec<W>) -> usize {
        let expired = self.claims.expire(now);
        for address in &expired {
            self.lost(address, wake);
        }
        expired.len()
    }

    /// When [`Node::expire`] has something to do, if nothing happens until then.
    pub fn wake_at(&self) -> Option<Duration> {
        self.claims.wake_at()
    }

    /// A holder begins to write what it has claimed. Returns what has to be deleted before;
    /// [`Node::left`] says that it was.
    pub fn begin_put(
        &mut self,
        holder: Holder,
        address: Address,
        length: u64,
    ) -> Result<Vec<Address>, PutError> {
        if !self.claims.is_held_by(&address, holder) || self.writing.contains_key(&address) {
            return Err(PutError::NotClaimed);
        }
        let leaving = self.shelf.reserve(address, length)?;
        self.writing.insert(address, holder);
        self.leaving.extend(&leaving);
        Ok(leaving)
    }

    /// These have been deleted, and may come again.
    pub fn left(&mut self, addresses: &[Address], wake: &mut Vec<W>) {
        for address in addresses {
            assert!(self.leaving.remove(address), "{address} was not leaving");
            self.lost(address, wake);
        }
    }

    /// Whether this holder is fetching this blob.
    pub fn is_claimed_by(&self, holder: Holder, address: &Address) -> bool {
        self.claims.is_held_by(address, holder)
    }

    /// Whether what a holder has begun to write is still wanted: a claim may have been lost meanwhile.
    pub fn may_write(&self, holder: Holder, address: &Address) -> bool {
        self.writing.get(address) == Some(&holder) && self.claims.is_held_by(address, holder)
    }

    /// A blob has been written, hashed and believed.
    pub fn finish_put(&mut self, address: &Address, wake: &mut Vec<W>) {
        self.writing.remove(address).expect("begun before");
        self.shelf.commit(address);
        self.claims.fulfilled(address);
        wake.extend(self.waiting.remove(address).into_iter().flatten());
    }

    /// Writing failed, or was wrong, or came too late: the space is free again, the claim stays as it is.
    pub fn fail_put(&mut self, address: &Address) {
        self.writing.remove(address).expect("begun before");
        self.shelf.remove(address);
    }

    /// A blob turned out to be unreadable during this stay: it has to be deleted, and [`Node::left`] says
    /// that it was. False if that stay was over.
    pub fn lose(&mut self, address: &Address, stay: Stay) -> bool {
        if self.shelf.stay(address) != Some(stay) {
            return false;
        }
        self.leaving.insert(*address);
        self.shelf.remove(address)
    }

    fn lost(&mut self, address: &Address, wake: &mut Vec<W>) {
        wake.extend(self.waiting.remove(address).into_iter().flatten());
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
        Node::new(ByteSize(10), LEASE, 8)
    }

    fn claim(node: &mut Node<&'static str>, holder: Holder, index: u8) -> Claimed {
        node.claim(Duration::ZERO, holder, blob(index))
    }

    /// Promise 3: a blob that is resident or claimed is not fetched again.
    #[test]
    fn one_fetches_and_the_others_are_woken() {
        let mut node = node();
        assert_eq!(node.standing(&blob(1)), Standing::Absent);
        assert_eq!(claim(&mut node, A, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Held));
        node.wait(blob(1), "b");
        assert_eq!(node.begin_put(B, blob(1), 4), Err(PutError::NotClaimed));
        assert_eq!(node.begin_put(A, blob(1), 4), Ok(vec![]));
        assert_eq!(node.standing(&blob(1)), Standing::Claimed, "not before it is believed");
        let mut woken = vec![];
        node.finish_put(&blob(1), &mut woken);
        assert_eq!(woken, ["b"]);
        assert!(matches!(node.standing(&blob(1)), Standing::Resident(_)));
        assert_eq!(claim(&mut node, B, 1), Claimed::Present);
        assert_eq!(node.claims(), 0);
    }

    /// Promise 5: whoever waits gets its bytes or its turn.
    #[test]
    fn every_way_of_losing_a_claim_wakes_those_who_wait() {
        type Loss = fn(&mut Node<&'static str>, &mut Vec<&'static str>);
        let losses: [Loss; 4] = [
            |node, woken| node.release(A, &blob(1), woken),
            |node, woken| node.abandon(A, woken),
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
        node.begin_put(A, blob(1), 8).unwrap();
        node.expire(LEASE, &mut vec![]);
        assert!(!node.may_write(A, &blob(1)));
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
        assert_eq!(
            node.begin_put(B, blob(1), 8),
            Err(PutError::NotClaimed),
            "the first still writes"
        );
        node.fail_put(&blob(1));
        assert_eq!(node.begin_put(B, blob(1), 8), Ok(vec![]));
    }

    #[test]
    fn what_does_not_fit_after_a_restart_goes() {
        let mut node = node();
        assert!(node.recover(blob(1), 6).is_empty());
        assert_eq!(node.recover(blob(2), 6), [blob(1)]);
        assert_eq!(node.recover(blob(3), 11), [blob(3)]);
        assert_eq!(node.resident(), Stock { blobs: 1, bytes: 6 });
    }

    fn stay(node: &Node<&'static str>, index: u8) -> Stay {
        match node.standing(&blob(index)) {
            Standing::Resident(stay) => stay,
            other => panic!("{other:?}"),
        }
    }

    fn put(node: &mut Node<&'static str>, index: u8, length: u64) -> Vec<Address> {
        assert_eq!(claim(node, A, index), Claimed::Decided(Claim::Granted));
        let leaving = node.begin_put(A, blob(index), length).unwrap();
        node.finish_put(&blob(index), &mut vec![]);
        leaving
    }

    /// An eviction and a new put of the same blob must not meet: the file that is deleted would be the
    /// new one, and what the books call resident would be gone (promise 3).
    #[test]
    fn what_is_leaving_does_not_come_again_before_it_has_left() {
        let mut node = node();
        assert!(put(&mut node, 1, 8).is_empty());
        assert_eq!(put(&mut node, 2, 8), [blob(1)]);
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Held));
        assert_eq!(node.standing(&blob(1)), Standing::Claimed);
        node.wait(blob(1), "b");
        let mut woken = vec![];
        node.left(&[blob(1)], &mut woken);
        assert_eq!(woken, ["b"]);
        assert_eq!(claim(&mut node, B, 1), Claimed::Decided(Claim::Granted));
    }

    /// A reader that found a blob damaged may be late: what was put since is not what it saw.
    #[test]
    fn only_the_stay_that_was_damaged_is_lost() {
        let mut node = node();
        put(&mut node, 1, 5);
        let first = stay(&node, 1);
        assert!(node.lose(&blob(1), first) && !node.lose(&blob(1), first), "once");
        node.left(&[blob(1)], &mut vec![]);
        put(&mut node, 1, 5);
        assert!(!node.lose(&blob(1), first));
        assert_ne!(stay(&node, 1), first);
    }

    #[test]
    fn who_gives_up_is_forgotten() {
        let mut node = node();
        claim(&mut node, A, 1);
        node.wait(blob(1), "patient");
        node.wait(blob(1), "gone");
        node.forget(&blob(1), |waiter| *waiter == "gone");
        node.forget(&blob(2), |_| true);
        let mut woken = vec![];
        node.release(A, &blob(1), &mut woken);
        assert_eq!(woken, ["patient"]);
    }
}

//! One node's decisions about blobs: what is resident, who fetches what is missing, who waits for it.
//!
//! Facts and the time go in; what to answer, what to delete and whom to wake come out. The daemon owns
//! one of these behind a lock and does the reading, writing and waking; `W` is whatever it uses to wake
//! somebody.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Address, ByteSize,
    claims::{Claim, Claims, Holder},
    shelf::{NoSpace, Shelf, Stock},
};

/// The state of a node.
#[derive(Debug)]
pub struct Node<W> {
    claims: Claims,
    shelf: Shelf,
    waiting: BTreeMap<Address, Vec<W>>,
    /// What is being written, and by whom.
    writing: BTreeMap<Address, Holder>,
}

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
    /// As the claims decided.
    Decided(Claim),
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
        if self.shelf.contains(address) {
            Standing::Resident
        } else if self.claims.is_claimed(address) {
            Standing::Claimed
        } else {
            Standing::Absent
        }
    }

    /// Remembers whom to wake when a claimed blob is there, or its claim is over.
    pub fn wait(&mut self, address: Address, waiter: W) {
        assert!(self.claims.is_claimed(&address), "nobody would ever wake a waiter for {address}");
        self.waiting.entry(address).or_default().push(waiter);
    }

    /// Asks to be the one who fetches a blob.
    pub fn claim(&mut self, now: Duration, holder: Holder, address: Address) -> Claimed {
        if self.shelf.contains(&address) {
            return Claimed::Present;
        }
        Claimed::Decided(self.claims.claim(now, holder, address))
    }

    /// Keeps a claim alive. False if it is not, or no longer, the caller's; then `wake` are those who
    /// waited for it.
    #[must_use = "a lost claim must not be fulfilled"]
    pub fn renew(
        &mut self,
        now: Duration,
        holder: Holder,
        address: &Address,
        bytes: u64,
        wake: &mut Vec<W>,
    ) -> bool {
        let held = self.claims.is_held_by(address, holder);
        let renewed = self.claims.renew(now, holder, address, bytes);
        if held && !renewed {
            self.lost(address, wake);
        }
        renewed
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

    /// A holder begins to write what it has claimed. Returns what has to be deleted before.
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
        Ok(leaving)
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

    /// A resident blob turned out to be unreadable. False if it had gone meanwhile.
    pub fn lose(&mut self, address: &Address) -> bool {
        self.shelf.contains(address) && self.shelf.remove(address)
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
        assert_eq!((woken, node.standing(&blob(1))), (vec!["b"], Standing::Resident));
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
            |node, woken| assert!(!node.renew(LEASE * 2, A, &blob(1), 9, woken)),
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
        assert!(node.lose(&blob(2)) && !node.lose(&blob(2)));
    }
}

//! Claims: who fetches a missing blob, so that nobody else has to (promise 3).
//!
//! A job that misses a blob claims it, fetches it and puts it; all others wait for it. A claim is a
//! lease: its holder renews it and says how far the fetch is. A holder that dies lets it expire; one
//! that renews but makes no headway loses it after two such renewals; and nobody keeps one longer than
//! ten leases. So a waiter always gets its bytes or its turn, and a slow fetch that is really moving is
//! left alone.
//!
//! Claims are on addresses, not on places in a dataset: two datasets that share a blob fetch it once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use crate::Address;

/// Leases that make sense.
pub const LEASES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);
/// Renewals without new bytes that end a claim.
const IDLE_RENEWALS_MAX: u32 = 2;
/// Leases after which a claim ends, whatever its holder says.
pub(crate) const LEASES_MAX: u32 = 10;

/// Who holds a claim: one connection of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u64);

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Go and fetch it.
    Granted,
    /// Somebody (perhaps you) is fetching it.
    Held,
    /// You hold too many already.
    TooMany,
}

/// All claims of a node.
#[derive(Debug)]
pub struct Claims {
    lease: Duration,
    per_holder_max: usize,
    leases: BTreeMap<Address, Lease>,
    /// The same leases by when they end, and by who holds them.
    by_end: BTreeSet<(Duration, Address)>,
    by_holder: BTreeSet<(Holder, Address)>,
    held: BTreeMap<Holder, usize>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    holder: Holder,
    granted_at: Duration,
    ends_at: Duration,
    bytes: u64,
    idle_renewals: u32,
}

impl Claims {
    /// No claims yet. A claim lives for `lease` unless it is renewed.
    pub fn new(lease: Duration, per_holder_max: usize) -> Self {
        assert!(lease > Duration::ZERO && per_holder_max > 0, "claims nobody could hold");
        Self {
            lease,
            per_holder_max,
            leases: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_holder: BTreeSet::new(),
            held: BTreeMap::new(),
        }
    }

    /// How long a claim lives without being renewed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How many claims there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether somebody is fetching this blob.
    pub fn is_claimed(&self, address: &Address) -> bool {
        self.leases.contains_key(address)
    }

    /// Whether this holder is.
    pub fn is_held_by(&self, address: &Address, holder: Holder) -> bool {
        self.leases.get(address).is_some_and(|lease| lease.holder == holder)
    }

    /// Asks to be the one who fetches a blob.
    pub fn claim(&mut self, now: Duration, holder: Holder, address: Address) -> Claim {
        if self.is_claimed(&address) {
            return Claim::Held;
        }
        if self.held.get(&holder).copied().unwrap_or(0) >= self.per_holder_max {
            return Claim::TooMany;
        }
        let ends_at = now + self.lease;
        let lease = Lease { holder, granted_at: now, ends_at, bytes: 0, idle_renewals: 0 };
        self.leases.insert(address, lease);
        self.by_end.insert((ends_at, address));
        self.by_holder.insert((holder, address));
        *self.held.entry(holder).or_default() += 1;
        Claim::Granted
    }

    /// Keeps a claim alive; `bytes` is how much has been fetched. False: it is no longer yours, and if it
    /// was until now, waiters may have their turn.
    #[must_use = "a lost claim must not be fulfilled"]
    pub fn renew(&mut self, now: Duration, holder: Holder, address: &Address, bytes: u64) -> bool {
        if !self.is_held_by(address, holder) {
            return false;
        }
        let lease = self.leases.get_mut(address).expect("just seen");
        lease.idle_renewals = if bytes > lease.bytes { 0 } else { lease.idle_renewals + 1 };
        lease.bytes = lease.bytes.max(bytes);
        let overdue = now >= lease.granted_at + self.lease * LEASES_MAX;
        if overdue || lease.idle_renewals >= IDLE_RENEWALS_MAX || now >= lease.ends_at {
            self.remove(address);
            return false;
        }
        self.by_end.remove(&(lease.ends_at, *address));
        // A renewal that comes late or out of order never shortens a lease.
        lease.ends_at = lease.ends_at.max(now + self.lease);
        self.by_end.insert((lease.ends_at, *address));
        true
    }

    /// Gives a claim back. False if it was not this holder's.
    pub fn release(&mut self, holder: Holder, address: &Address) -> bool {
        self.is_held_by(address, holder) && self.remove(address).is_some()
    }

    /// The blob is resident: whoever claimed it need not any more.
    pub fn fulfilled(&mut self, address: &Address) {
        self.remove(address);
    }

    /// The holder is gone. Returns what it had claimed, for waiters to have their turn.
    pub fn abandon(&mut self, holder: Holder) -> Vec<Address> {
        let first = (holder, Address::from_bytes([0; Address::LEN]));
        let last = (holder, Address::from_bytes([0xff; Address::LEN]));
        let claimed: Vec<Address> =
            self.by_holder.range(first..=last).map(|(_, address)| *address).collect();
        for address in &claimed {
            self.remove(address);
        }
        claimed
    }

    /// Ends what has not been renewed in time. Returns it, for waiters to have their turn.
    pub fn expire(&mut self, now: Duration) -> Vec<Address> {
        let mut expired = Vec::new();
        while let Some((ends_at, address)) = self.by_end.first() {
            if *ends_at > now {
                break;
            }
            let address = *address;
            self.remove(&address);
            expired.push(address);
        }
        expired
    }

    /// When [`Claims::expire`] has something to do, if nothing happens until then.
    pub fn wake_at(&self) -> Option<Duration> {
        self.by_end.first().map(|(ends_at, _)| *ends_at)
    }

    fn remove(&mut self, address: &Address) -> Option<Lease> {
        let lease = self.leases.remove(address)?;
        self.by_end.remove(&(lease.ends_at, *address));
        self.by_holder.remove(&(lease.holder, *address));
        let held = self.held.get_mut(&lease.holder).expect("holders of leases are counted");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&lease.holder);
        }
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: Duration = Duration::from_secs(1);
    const A: Holder = Holder(1);
    const B: Holder = Holder(2);

    fn blob(index: u8) -> Address {
        Address::from_bytes([index; 32])
    }

    fn at(leases: f64) -> Duration {
        LEASE.mul_f64(leases)
    }

    /// Promise 3: a blob that is claimed by someone who keeps renewing is not fetched again.
    #[test]
    fn a_moving_fetch_is_left_alone_and_a_stuck_one_is_not() {
        let mut claims = Claims::new(LEASE, 8);
        assert_eq!(claims.claim(at(0.0), A, blob(1)), Claim::Granted);
        assert_eq!(claims.claim(at(0.1), B, blob(1)), Claim::Held);
        for step in 1..=5_u32 {
            assert!(claims.renew(at(f64::from(step) * 0.5), A, &blob(1), u64::from(step)));
        }
        assert_eq!(claims.claim(at(3.0), B, blob(1)), Claim::Held);
        assert!(claims.renew(at(3.0), A, &blob(1), 5), "one idle renewal is forgiven");
        assert!(!claims.renew(at(3.5), A, &blob(1), 5), "two are not");
        assert_eq!(claims.claim(at(3.6), B, blob(1)), Claim::Granted);
    }

    #[test]
    fn nobody_keeps_a_claim_for_ever() {
        let mut claims = Claims::new(LEASE, 8);
        claims.claim(at(0.0), A, blob(1));
        let lost = (1..100).find(|step: &u32| {
            !claims.renew(at(f64::from(*step) * 0.5), A, &blob(1), u64::from(*step))
        });
        assert_eq!(lost, Some(20), "ten leases of two renewals each");
    }

    #[test]
    fn a_dead_holder_passes_its_claims_on() {
        let mut claims = Claims::new(LEASE, 8);
        claims.claim(at(0.0), A, blob(1));
        claims.claim(at(0.5), A, blob(2));
        claims.claim(at(0.5), B, blob(3));
        assert_eq!(claims.wake_at(), Some(at(1.0)));
        assert_eq!(claims.expire(at(0.9)), []);
        assert_eq!(claims.expire(at(1.0)), [blob(1)]);
        assert!(!claims.renew(at(1.1), A, &blob(1), 9), "too late");
        assert_eq!(claims.abandon(A), [blob(2)]);
        assert!(claims.is_held_by(&blob(3), B));
        claims.fulfilled(&blob(3));
        assert!(claims.is_empty() && claims.wake_at().is_none());
    }

    /// Promise 5: claims per job are bounded.
    #[test]
    fn nobody_claims_everything() {
        let mut claims = Claims::new(LEASE, 2);
        assert_eq!(claims.claim(at(0.0), A, blob(1)), Claim::Granted);
        assert_eq!(claims.claim(at(0.0), A, blob(2)), Claim::Granted);
        assert_eq!(claims.claim(at(0.0), A, blob(3)), Claim::TooMany);
        assert_eq!(claims.claim(at(0.0), B, blob(3)), Claim::Granted);
        assert!(!claims.release(B, &blob(1)), "somebody else's");
        assert!(claims.release(A, &blob(1)));
        assert_eq!(claims.claim(at(0.0), A, blob(4)), Claim::Granted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Whatever happens in whatever order: one holder per blob, bounded claims per holder, and no
        /// claim outlives its lease once time has been told.
        #[test]
        fn the_books_always_balance(
            steps in proptest::collection::vec((0_u8..6, 0_u64..4, 0_u8..6, 0_u64..2000, 0_u64..5), 0..200),
        ) {
            let mut claims = Claims::new(LEASE, 3);
            let mut now = Duration::ZERO;
            for (what, holder, address, later_ms, bytes) in steps {
                let (holder, address) = (Holder(holder), blob(address));
                now += Duration::from_millis(later_ms / 4);
                match what {
                    0 | 1 => {
                        let free = !claims.is_claimed(&address);
                        let granted = claims.claim(now, holder, address) == Claim::Granted;
                        prop_assert!(free || !granted, "two holders");
                    }
                    2 => {
                        let held = claims.renew(now, holder, &address, bytes);
                        prop_assert_eq!(held, claims.is_held_by(&address, holder));
                    }
                    3 => { claims.release(holder, &address); }
                    4 => { claims.abandon(holder); }
                    _ => {
                        claims.expire(now);
                        prop_assert!(claims.wake_at().is_none_or(|end| end > now));
                    }
                }
                prop_assert_eq!(claims.by_end.len(), claims.len());
                prop_assert_eq!(claims.by_holder.len(), claims.len());
                prop_assert_eq!(claims.held.values().sum::<usize>(), claims.len());
                prop_assert!(claims.held.values().all(|held| (1..=3).contains(held)));
            }
        }
    }
}

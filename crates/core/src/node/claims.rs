//! Claims: leases on missing blobs, so that each is fetched once (promise 3).
//!
//! A job that misses a blob claims it, fetches it and puts it; the other jobs wait. A claim is a
//! lease that its holder renews with the number of bytes fetched so far. It ends when
//!
//! - the holder does not renew it within the lease (the holder died),
//! - two consecutive renewals report no new bytes (the fetch is stuck),
//! - it has lasted a multiple of the usual fetch time and another job waits
//!   ([`super::fetch_pace`]), or
//! - ten leases have passed.
//!
//! So every waiter gets the bytes or the claim, whatever progress the holder reports.
//!
//! Claims are on addresses, not on ordinals: a blob that two datasets share is fetched once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use crate::Address;

/// Accepted values of `claim_lease`.
pub const LEASES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);
/// Consecutive renewals without new bytes after which a claim ends.
const IDLE_RENEWALS_MAX: u32 = 2;
/// Leases after which a claim ends, even if its holder reports progress.
pub(crate) const LEASES_MAX: u32 = 10;

/// The holder of a claim: one connection of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u64);

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The caller fetches the blob.
    Granted,
    /// A holder, perhaps the caller itself, is fetching it.
    Held,
    /// The caller holds `per_holder_max` claims.
    TooMany,
}

/// All claims of a node.
#[derive(Debug)]
pub struct Claims {
    lease: Duration,
    per_holder_max: usize,
    leases: BTreeMap<Address, Lease>,
    /// The same leases, ordered by end and by holder.
    by_end: BTreeSet<(Duration, Address)>,
    by_holder: BTreeSet<(Holder, Address)>,
    /// The same leases, oldest first.
    by_grant: BTreeSet<(Duration, Address)>,
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
    /// An empty table. A claim ends after `lease` unless it is renewed.
    pub fn new(lease: Duration, per_holder_max: usize) -> Self {
        assert!(lease > Duration::ZERO && per_holder_max > 0, "a lease and a limit above zero");
        Self {
            lease,
            per_holder_max,
            leases: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_holder: BTreeSet::new(),
            by_grant: BTreeSet::new(),
            held: BTreeMap::new(),
        }
    }

    /// Time after which a claim ends unless it is renewed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Number of claims held.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no claim is held.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether a claim on this blob is held.
    pub fn is_claimed(&self, address: &Address) -> bool {
        self.leases.contains_key(address)
    }

    /// Whether `holder` holds the claim on this blob.
    pub fn is_held_by(&self, address: &Address, holder: Holder) -> bool {
        self.leases.get(address).is_some_and(|lease| lease.holder == holder)
    }

    /// Claims a blob for `holder`.
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
        self.by_grant.insert((now, address));
        *self.held.entry(holder).or_default() += 1;
        Claim::Granted
    }

    /// Renews a claim; `bytes` is the number of bytes fetched so far. Returns false if `holder`
    /// does not hold the claim, or has just lost it; in the latter case the caller wakes the
    /// waiters.
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

    /// Releases a claim. Returns false if `holder` does not hold it.
    pub fn release(&mut self, holder: Holder, address: &Address) -> bool {
        self.is_held_by(address, holder) && self.remove(address).is_some()
    }

    /// Ends the claim on a blob that is now resident. Returns its holder, and when it was granted.
    pub fn fulfilled(&mut self, address: &Address) -> Option<(Holder, Duration)> {
        self.remove(address).map(|lease| (lease.holder, lease.granted_at))
    }

    /// Ends a claim that a waiter takes over.
    pub fn take_over(&mut self, address: &Address) {
        self.remove(address);
    }

    /// Blobs with the holders of their claims and the times of their grants, oldest first.
    pub fn oldest(&self) -> impl Iterator<Item = (Address, Holder, Duration)> {
        let holder = |address: &Address| self.leases[address].holder;
        self.by_grant.iter().map(move |(at, address)| (*address, holder(address), *at))
    }

    /// Ends all claims of a holder that has disconnected, and returns them.
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

    /// Ends all claims that were not renewed in time, and returns them.
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

    /// The earliest time at which [`Claims::expire`] ends a claim.
    pub fn wake_at(&self) -> Option<Duration> {
        self.by_end.first().map(|(ends_at, _)| *ends_at)
    }

    fn remove(&mut self, address: &Address) -> Option<Lease> {
        let lease = self.leases.remove(address)?;
        self.by_end.remove(&(lease.ends_at, *address));
        self.by_holder.remove(&(lease.holder, *address));
        self.by_grant.remove(&(lease.granted_at, *address));
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

    /// Promise 3: a blob that is claimed by a live holder is not fetched again.
    #[test]
    fn a_claim_lasts_while_its_fetch_makes_progress() {
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
    fn a_claim_ends_after_ten_leases() {
        let mut claims = Claims::new(LEASE, 8);
        claims.claim(at(0.0), A, blob(1));
        let lost = (1..100).find(|step: &u32| {
            !claims.renew(at(f64::from(*step) * 0.5), A, &blob(1), u64::from(*step))
        });
        assert_eq!(lost, Some(20), "ten leases of two renewals each");
    }

    #[test]
    fn claims_of_a_dead_holder_end() {
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
    fn claims_per_holder_are_bounded() {
        let mut claims = Claims::new(LEASE, 2);
        assert_eq!(claims.claim(at(0.0), A, blob(1)), Claim::Granted);
        assert_eq!(claims.claim(at(0.0), A, blob(2)), Claim::Granted);
        assert_eq!(claims.claim(at(0.0), A, blob(3)), Claim::TooMany);
        assert_eq!(claims.claim(at(0.0), B, blob(3)), Claim::Granted);
        assert!(!claims.release(B, &blob(1)), "the claim of another holder");
        assert!(claims.release(A, &blob(1)));
        assert_eq!(claims.claim(at(0.0), A, blob(4)), Claim::Granted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// For any sequence of calls: one holder per blob, bounded claims per holder, and no claim
        /// outlives its lease after `expire`.
        #[test]
        fn all_indexes_agree_after_any_sequence_of_calls(
            steps in proptest::collection::vec(
                (0_u8..6, 0_u64..4, 0_u8..6, 0_u64..2000, 0_u64..5),
                0..200,
            ),
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
                prop_assert_eq!(claims.by_grant.len(), claims.len());
                prop_assert_eq!(claims.held.values().sum::<usize>(), claims.len());
                prop_assert!(claims.held.values().all(|held| (1..=3).contains(held)));
            }
        }
    }
}

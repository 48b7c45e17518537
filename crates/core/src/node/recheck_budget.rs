//! Recheck budget: how much a node hashes because clients report wrong bytes.
//!
//! A client that received bytes with another hash than the blob's address reports it, and the node
//! hashes its own copy. A report costs the client 40 bytes and the node the whole blob, so each
//! tenant has a budget of bytes. A report beyond it is answered without a check: the client reads
//! the origin anyway.

use std::{collections::BTreeMap, time::Duration};

use super::tenants::TenantId;
use crate::{ByteSize, units::ByteRate, util::token_bucket::TokenBucket};

/// Bytes per second that are hashed for one tenant: 1 % of a core.
const RATE: ByteRate = ByteRate(ByteSize::mib(32));
/// Bytes that are hashed at once after a quiet time: a batch of long items.
const BURST: ByteSize = ByteSize::mib(256);

/// The budgets of all tenants. `None` is the owner, or all clients of a node without tenants.
#[derive(Debug, Default)]
pub struct RecheckBudget {
    buckets: BTreeMap<Option<TenantId>, TokenBucket>,
}

impl RecheckBudget {
    /// Whether a blob of this length may be hashed for a tenant; takes its bytes. A blob longer
    /// than what is left may be hashed once, and is paid for later.
    pub fn take(&mut self, now: Duration, tenant: Option<TenantId>, length: ByteSize) -> bool {
        let full = || TokenBucket::new(RATE, BURST);
        let bucket = self.buckets.entry(tenant).or_insert_with(full);
        // Empty blobs cost something as well.
        let cost = length.max(ByteSize::kib(64));
        let is_solvent = bucket.try_take(now, ByteSize::ZERO);
        if is_solvent {
            // The wait is for bytes that have yet to pass; these pass now, and the next ones wait.
            let _ = bucket.take(now, cost);
        }
        is_solvent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<TenantId> = Some(TenantId(0));
    const SECOND: Option<TenantId> = Some(TenantId(1));

    fn checked(budget: &mut RecheckBudget, second: u64, tenant: Option<TenantId>, mib: u64) -> u64 {
        let now = Duration::from_secs(second);
        (0..10_000).filter(|_| budget.take(now, tenant, ByteSize::mib(mib))).count() as u64
    }

    /// Promise 6: whatever is reported, a tenant causes at most the burst and the rate.
    #[test]
    fn a_tenant_is_limited_and_does_not_limit_another() {
        let mut budget = RecheckBudget::default();
        let first = checked(&mut budget, 0, FIRST, 1);
        assert!((256..=257).contains(&first), "{first} MiB at once");
        assert_eq!(checked(&mut budget, 0, FIRST, 1), 0);
        assert_eq!(checked(&mut budget, 0, SECOND, 1), first, "another tenant");
        let later = checked(&mut budget, 2, FIRST, 1);
        assert!((63..=65).contains(&later), "{later} MiB after 2 s at 32 MiB/s");
    }

    #[test]
    fn a_blob_longer_than_the_budget_is_hashed_once() {
        let mut budget = RecheckBudget::default();
        assert_eq!(checked(&mut budget, 0, None, 3200), 1);
        assert_eq!(checked(&mut budget, 90, None, 1), 0, "3,200 MiB are 100 s less the burst");
        assert!(checked(&mut budget, 100, None, 1) > 0);
        assert!(checked(&mut budget, 1000, None, 0) <= 4097, "empty blobs are limited as well");
    }
}

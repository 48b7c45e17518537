//! Fetch pace: how long a claim may last while others wait for its blob (promise 5).
//!
//! A holder reports its progress itself, so a claim that makes progress may still never end. The
//! limit does not depend on the report. It is a multiple of the usual fetch time of the
//! **waiter's** tenant, which no other tenant can change. After it, one waiter gets the claim.
//!
//! If the origin is slow, that does not help, and would load it further. So such claims are
//! **trials**, a few at a time. A trial whose new holder is fast shows that the former holder was
//! at fault: all its claims may end early. A trial whose new holder is too slow as well shows that
//! the origin is: the limit doubles.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// The limit is this multiple of the usual fetch time.
const MULTIPLE: u32 = 4;
/// The least limit: a fetch may need a retry.
const LIMIT_MIN: Duration = Duration::from_secs(4);
/// The largest factor of a slow origin.
const FACTOR_MAX: u32 = 1 << 10;
/// Fetches whose median is the usual time.
const RECENT: usize = 32;
/// Trials at the same time, unless their holders are at fault.
const TRIALS_MAX: usize = 4;
/// Time for which a holder is at fault after a trial.
const FAULT_TIME: Duration = Duration::from_mins(10);
/// Parties at fault that are remembered.
const FAULTY_MAX: usize = 1024;
/// Time that the waiters have to claim a blob that was taken from its holder.
const CLAIM_TIME: Duration = Duration::from_secs(1);

/// The job of a connection, and its tenant. The connections of a job do not compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// The tenant.
    pub tenant: u64,
    /// The job; `None` stands for all jobs of the tenant.
    pub job: Option<u64>,
}

impl Party {
    /// Whether this is, or includes, another party.
    fn includes(self, other: Self) -> bool {
        self.tenant == other.tenant && self.job.is_none_or(|job| other.job == Some(job))
    }
}

/// A claim that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldClaim {
    /// Its holder.
    pub holder: Party,
    /// A waiter of another party.
    pub waiter: Party,
    /// Time since it was granted.
    pub age: Duration,
}

/// A blob that was taken from its holder.
#[derive(Debug, Clone, Copy)]
struct Trial {
    former: Party,
    waiter: Party,
    /// The end of the time in which waiters claim it.
    claim_until: Duration,
}

#[derive(Debug, Default)]
struct TenantPace {
    recent: VecDeque<Duration>,
    /// Doublings of the limit, because the origin is slow.
    factor: u32,
}

/// Fetch times and trials. `A` identifies a blob.
#[derive(Debug)]
pub struct FetchPace<A> {
    tenants: BTreeMap<u64, TenantPace>,
    trials: BTreeMap<A, Trial>,
    faulty: BTreeMap<Party, Duration>,
}

impl<A> Default for FetchPace<A> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), trials: BTreeMap::new(), faulty: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> FetchPace<A> {
    /// Time for which a claim may last while a waiter of this tenant waits.
    pub fn limit(&self, tenant: u64) -> Duration {
        let Some(TenantPace { recent, factor }) = self.tenants.get(&tenant) else {
            return LIMIT_MIN;
        };
        let mut times: Vec<Duration> = recent.iter().copied().collect();
        times.sort_unstable();
        let usual = times.get(times.len() / 2).copied().unwrap_or_default();
        LIMIT_MIN.max(usual.saturating_mul(MULTIPLE)).saturating_mul((*factor).max(1))
    }

    /// The age from which claims are looked at.
    pub fn limit_min() -> Duration {
        LIMIT_MIN
    }

    /// Whether a claim ends, so that a waiter takes it over.
    pub fn may_take_over(&mut self, now: Duration, blob: A, claim: OldClaim) -> bool {
        let OldClaim { holder, waiter, age } = claim;
        if age < self.limit(waiter.tenant) {
            return false;
        }
        if let Some(trial) = self.trials.get(&blob).copied() {
            // The new holder is as slow as the former one.
            self.trials.remove(&blob);
            let pace = self.tenants.entry(trial.waiter.tenant).or_default();
            pace.factor = (pace.factor.max(1) * 2).min(FACTOR_MAX);
            return false;
        }
        let is_faulty =
            self.faulty.iter().any(|(party, until)| *until > now && party.includes(holder));
        if !is_faulty && self.trials.len() >= TRIALS_MAX {
            return false;
        }
        // Against another tenant, all jobs of the holder's tenant count as one.
        let job = holder.job.filter(|_| holder.tenant == waiter.tenant);
        let former = Party { tenant: holder.tenant, job };
        let claim_until = now.saturating_add(CLAIM_TIME);
        self.trials.insert(blob, Trial { former, waiter, claim_until });
        true
    }

    /// Whether a party may claim a blob. The former holder may not, while the waiters have their
    /// turn.
    pub fn may_claim(&self, now: Duration, blob: &A, party: Party) -> bool {
        let trial = self.trials.get(blob);
        trial.is_none_or(|trial| now >= trial.claim_until || !trial.former.includes(party))
    }

    /// A blob was put, this time after its claim was granted.
    pub fn on_fetched(&mut self, now: Duration, blob: &A, holder: Party, took: Duration) {
        if let Some(Trial { former, waiter, .. }) = self.trials.remove(blob)
            && took <= self.limit(waiter.tenant)
            && !former.includes(holder)
        {
            self.faulty.retain(|_, until| *until > now);
            if self.faulty.len() < FAULTY_MAX {
                self.faulty.insert(former, now.saturating_add(FAULT_TIME));
            }
            if let Some(pace) = self.tenants.get_mut(&waiter.tenant) {
                pace.factor /= 2;
            }
        }
        let TenantPace { recent, .. } = self.tenants.entry(holder.tenant).or_default();
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(took);
    }

    /// Ends trials whose blobs no waiter has claimed, or whose claims have ended without a put.
    pub fn end_trials(&mut self, now: Duration, is_claimed: impl Fn(&A) -> bool) {
        self.trials.retain(|blob, trial| now < trial.claim_until || is_claimed(blob));
    }

    /// The number of trials in progress.
    pub fn trials(&self) -> usize {
        self.trials.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HONEST: Party = Party { tenant: 1, job: Some(1) };
    const HOSTILE: Party = Party { tenant: 2, job: Some(9) };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn old(holder: Party, age: Duration) -> OldClaim {
        OldClaim { holder, waiter: HONEST, age }
    }

    /// Of `claims` blobs that `holder` has held since 0, those that are taken over by `now`.
    fn taken(pace: &mut FetchPace<u32>, now: Duration, claims: std::ops::Range<u32>) -> Vec<u32> {
        claims.filter(|blob| pace.may_take_over(now, *blob, old(HOSTILE, now))).collect()
    }

    /// Promise 5: a holder that invents progress costs a waiter 5 s, or 5 times its usual fetch.
    #[test]
    fn a_holder_that_never_delivers_loses_all_its_claims() {
        let mut pace = FetchPace::default();
        assert_eq!(taken(&mut pace, s(3), 0..100), [], "a fetch may take this long");
        let first = taken(&mut pace, s(4), 0..100);
        assert_eq!(first, [0, 1, 2, 3], "some at a time, as long as the cause is not known");
        assert!(!pace.may_claim(s(4), &0, HOSTILE) && pace.may_claim(s(4), &0, HONEST));
        assert!(
            !pace.may_claim(s(4), &0, Party { job: Some(10), ..HOSTILE }),
            "nor its other jobs"
        );
        for blob in first {
            pace.on_fetched(s(5), &blob, HONEST, Duration::from_millis(500));
        }
        assert_eq!(taken(&mut pace, s(5), 4..100).len(), 96, "the holder is at fault");
    }

    /// When the origin itself is slow, takeovers do not multiply its load.
    #[test]
    fn a_slow_origin_causes_few_trials() {
        let mut pace = FetchPace::default();
        (0..32).for_each(|blob| pace.on_fetched(s(0), &blob, HONEST, Duration::from_millis(100)));
        // A thousand claims are granted at 0, and every fetch takes 60 s.
        let (mut granted, mut trials): (BTreeMap<u32, Duration>, _) =
            ((0..1000).map(|blob| (blob, s(0))).collect(), 0);
        for now in (0..60).map(s) {
            pace.end_trials(now, |_| true);
            for blob in 0..1000 {
                let claim = old(HOSTILE, now.saturating_sub(granted[&blob]));
                if pace.may_take_over(now, blob, claim) {
                    granted.insert(blob, now);
                    trials += 1;
                }
            }
        }
        assert!((4..=20).contains(&trials), "{trials} of 1000 blobs were fetched twice");
        // When most fetches take this long, that is the usual time.
        (0..32).for_each(|blob| pace.on_fetched(s(60), &blob, HONEST, s(60)));
        assert!(pace.limit(HONEST.tenant) >= s(240));
    }

    /// A tenant that fetches slowly changes its own limit only.
    #[test]
    fn the_limit_follows_the_fetches_of_the_waiters_tenant() {
        let mut pace = FetchPace::<u32>::default();
        (0..100).for_each(|blob| pace.on_fetched(s(0), &blob, HOSTILE, s(90)));
        assert_eq!(pace.limit(HONEST.tenant), LIMIT_MIN);
        (0..100).for_each(|blob| pace.on_fetched(s(0), &blob, HONEST, s(3)));
        assert_eq!(pace.limit(HONEST.tenant), s(12));
    }

    /// Two jobs of one tenant: the slow one is at fault, its tenant is not.
    #[test]
    fn within_a_tenant_the_job_counts() {
        let mut pace = FetchPace::default();
        let slow = Party { tenant: 1, job: Some(2) };
        assert!(pace.may_take_over(s(5), 7, old(slow, s(5))));
        assert!(!pace.may_claim(s(5), &7, slow) && pace.may_claim(s(5), &7, HONEST));
        assert!(pace.may_claim(s(6), &7, slow), "no waiter has claimed it in a second");
        pace.end_trials(s(6), |_| false);
        assert_eq!(pace.trials(), 0);
    }
}

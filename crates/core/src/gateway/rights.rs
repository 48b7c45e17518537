//! Rights: which principal has been given what by the origin, and when (promise 4).
//!
//! A hit is authorised by an answer that the origin gave to the same principal within a stated
//! time. A refusal ends the right. A grant counts from the time its request was sent, so that it
//! does not outlive a refusal that was asked for later.

use std::time::Duration;

use super::bounded_map::BoundedMap;

/// Keyed hash of a tenant and its identity at the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrincipalId(pub u64);

/// Keyed hash of what one answer of the origin authorises: an object, a prefix or a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub u128);

/// How far an answer of the origin authorises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Authorise {
    /// The object alone.
    #[default]
    Object,
    /// All objects under the rule's prefix: the operator vouches that rights do not differ there.
    Prefix,
    /// All objects of the bucket.
    Bucket,
}

/// What a principal needs, or was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The head of an object. An object that is encrypted with a key of its own (SSE-KMS) shows its
    /// head to principals that may not decrypt it.
    Head,
    /// The bytes, and the head.
    Read,
}

/// A principal and a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The principal.
    pub principal: PrincipalId,
    /// The scope.
    pub scope: ScopeId,
}

/// The rights of a bounded number of holdings.
#[derive(Debug)]
pub struct Rights {
    holdings: BoundedMap<Holding, Times>,
    /// The latest refusal whose entry has been evicted.
    evicted_refusal: Option<Duration>,
}

/// When requests were sent that the origin granted or refused.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    head: Option<Duration>,
    read: Option<Duration>,
    refused: Option<Duration>,
}

impl Rights {
    /// Keeps at most this number of holdings.
    pub fn new(holdings_max: usize) -> Self {
        Self { holdings: BoundedMap::new(holdings_max), evicted_refusal: None }
    }

    /// Whether the principal was given this right by a request sent at `since` or later.
    pub fn is_granted(&mut self, holding: Holding, right: Right, since: Duration) -> bool {
        let Some(times) = self.holdings.get_mut(&holding) else { return false };
        let granted = match right {
            Right::Head => times.head.max(times.read),
            Right::Read => times.read,
        };
        granted.is_some_and(|granted| granted >= since)
    }

    /// The origin has granted a request that was sent at `sent`.
    pub fn on_granted(&mut self, holding: Holding, right: Right, sent: Duration) {
        let evicted_refusal = self.evicted_refusal;
        let known = self.holdings.get_mut(&holding).copied();
        let mut times = known.unwrap_or(Times { refused: evicted_refusal, ..Times::default() });
        if times.refused.is_some_and(|refused| refused >= sent) {
            return;
        }
        match right {
            Right::Head => times.head = times.head.max(Some(sent)),
            Right::Read => times.read = times.read.max(Some(sent)),
        }
        // A refusal that was evicted is not copied into every entry.
        times.refused = known.and_then(|known| known.refused);
        self.insert(holding, times);
    }

    /// The origin has refused a request that was sent at `sent`. It concerns no other principal.
    pub fn on_refused(&mut self, holding: Holding, sent: Duration) {
        let before = self.holdings.get_mut(&holding).and_then(|times| times.refused);
        let refused = before.max(Some(sent));
        self.insert(holding, Times { head: None, read: None, refused });
    }

    fn insert(&mut self, holding: Holding, times: Times) {
        if let Some((_, evicted)) = self.holdings.insert(holding, times) {
            self.evicted_refusal = self.evicted_refusal.max(evicted.refused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Holding = Holding { principal: PrincipalId(1), scope: ScopeId(7) };
    const OTHERS: Holding = Holding { principal: PrincipalId(2), scope: ScopeId(7) };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Promise 4: a hit is authorised.
    #[test]
    fn a_right_belongs_to_one_principal_and_ends() {
        let mut rights = Rights::new(8);
        rights.on_granted(MINE, Right::Read, s(10));
        assert!(rights.is_granted(MINE, Right::Read, s(10)));
        assert!(rights.is_granted(MINE, Right::Head, s(10)));
        assert!(!rights.is_granted(MINE, Right::Read, s(11)));
        assert!(!rights.is_granted(OTHERS, Right::Head, s(0)));
    }

    /// Promise 4: a hit is authorised.
    #[test]
    fn a_head_does_not_authorise_the_bytes() {
        let mut rights = Rights::new(8);
        rights.on_granted(MINE, Right::Head, s(10));
        assert!(rights.is_granted(MINE, Right::Head, s(10)));
        assert!(!rights.is_granted(MINE, Right::Read, s(0)));
    }

    #[test]
    fn a_refusal_ends_the_right_of_its_principal_alone() {
        let mut rights = Rights::new(8);
        rights.on_granted(MINE, Right::Read, s(10));
        rights.on_granted(OTHERS, Right::Read, s(10));
        rights.on_refused(MINE, s(12));
        assert!(!rights.is_granted(MINE, Right::Head, s(0)));
        assert!(rights.is_granted(OTHERS, Right::Read, s(10)));
        rights.on_granted(MINE, Right::Read, s(11));
        assert!(!rights.is_granted(MINE, Right::Read, s(0)), "asked for before the refusal");
        rights.on_granted(MINE, Right::Read, s(13));
        assert!(rights.is_granted(MINE, Right::Read, s(13)));
    }

    #[test]
    fn a_refusal_is_remembered_when_its_entry_is_evicted() {
        let mut rights = Rights::new(2);
        rights.on_refused(MINE, s(12));
        for scope in 100..120 {
            let holding = Holding { scope: ScopeId(scope), ..OTHERS };
            rights.on_granted(holding, Right::Read, s(13));
            assert!(rights.is_granted(holding, Right::Read, s(13)));
        }
        rights.on_granted(MINE, Right::Read, s(11));
        assert!(!rights.is_granted(MINE, Right::Read, s(0)));
    }
}

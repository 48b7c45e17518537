//! Versions: the tags and heads of objects, and whether they may be used without asking.
//!
//! An object is *known* while its rule calls the last answer of the origin fresh, *doubtful* after
//! that, and *gone* from the moment a write, a delete or a contradiction of the origin was seen.
//! An answer counts from the time its request was **sent**: what the origin said to an older
//! request may have been outdated before it arrived. So an answer to a request that was sent before
//! the object was gone is not kept.
//!
//! Not here: who may read the object ([`rights`](super::rights)).

use std::time::Duration;

use super::{bounded_map::BoundedMap, etag::StrongEtag};

/// Keyed hash of origin, bucket and key: the only name of an object that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u128);

/// When the origin's last answer may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// Only for requests that arrived before the answer was asked for.
    #[default]
    Always,
    /// For this time.
    Ttl(Duration),
    /// Without limit: objects under this rule never change.
    Immutable,
}

/// A version of an object, with what the caller keeps about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVersion<H> {
    /// Its tag.
    pub etag: StrongEtag,
    /// Its head.
    pub head: H,
    /// When the request was sent that the origin answered with this version.
    pub confirmed: Duration,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Knowledge<H> {
    /// The version may be used.
    Known(KnownVersion<H>),
    /// The version has to be confirmed by the origin.
    Doubtful(KnownVersion<H>),
    /// Nothing may be assumed.
    Unknown,
}

/// The versions of a bounded number of objects.
#[derive(Debug)]
pub struct Versions<H> {
    objects: BoundedMap<ObjectId, Entry<H>>,
    /// The latest time at which an object was gone whose entry has been evicted.
    evicted_gone: Option<Duration>,
}

#[derive(Debug)]
struct Entry<H> {
    known: Option<KnownVersion<H>>,
    gone: Option<Duration>,
}

impl Freshness {
    fn is_fresh(self, confirmed: Duration, arrived: Duration, now: Duration) -> bool {
        match self {
            Self::Always => confirmed >= arrived,
            Self::Ttl(ttl) => confirmed >= arrived || now < confirmed.saturating_add(ttl),
            Self::Immutable => true,
        }
    }
}

impl<H: Clone> Versions<H> {
    /// Keeps at most this number of objects.
    pub fn new(objects_max: usize) -> Self {
        Self { objects: BoundedMap::new(objects_max), evicted_gone: None }
    }

    /// What is known of an object, for a request that arrived at `arrived`.
    pub fn look_up(
        &mut self,
        object: ObjectId,
        rule: Freshness,
        arrived: Duration,
        now: Duration,
    ) -> Knowledge<H> {
        let known = self.objects.get_mut(&object).and_then(|entry| entry.known.as_ref());
        match known {
            None => Knowledge::Unknown,
            Some(known) if rule.is_fresh(known.confirmed, arrived, now) => {
                Knowledge::Known(known.clone())
            }
            Some(known) => Knowledge::Doubtful(known.clone()),
        }
    }

    /// The origin has answered a request, sent at `sent`, with this version. False if the answer
    /// is outdated, and was not kept.
    pub fn on_answer(
        &mut self,
        object: ObjectId,
        etag: StrongEtag,
        head: H,
        sent: Duration,
    ) -> bool {
        let known = KnownVersion { etag, head, confirmed: sent };
        let evicted_gone = self.evicted_gone;
        if let Some(entry) = self.objects.get_mut(&object) {
            let later = entry.known.as_ref().is_some_and(|other| other.confirmed > sent);
            if later || entry.gone.is_some_and(|gone| gone >= sent) {
                return false;
            }
            *entry = Entry { known: Some(known), gone: None };
            return true;
        }
        // An evicted entry may have been this object's.
        if evicted_gone.is_some_and(|gone| gone >= sent) {
            return false;
        }
        self.insert(object, Entry { known: Some(known), gone: None });
        true
    }

    /// The object is being written or deleted. No answer to a request sent up to now is kept.
    pub fn on_written(&mut self, object: ObjectId, now: Duration) {
        self.insert(object, Entry { known: None, gone: Some(now) });
    }

    /// The origin has contradicted this version: it has another one, or none.
    pub fn on_contradicted(&mut self, object: ObjectId, etag: &StrongEtag, sent: Duration) {
        if let Some(entry) = self.objects.get_mut(&object)
            && entry
                .known
                .as_ref()
                .is_some_and(|known| known.etag == *etag && known.confirmed <= sent)
        {
            entry.known = None;
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn insert(&mut self, object: ObjectId, entry: Entry<H>) {
        if let Some((_, evicted)) = self.objects.insert(object, entry) {
            self.evicted_gone = self.evicted_gone.max(evicted.gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ObjectId = ObjectId(1);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn etag(text: &str) -> StrongEtag {
        StrongEtag::parse(format!("\"{text}\"").as_bytes()).unwrap()
    }

    fn is_known(versions: &mut Versions<()>, rule: Freshness, arrived: u64, now: u64) -> bool {
        matches!(versions.look_up(A, rule, s(arrived), s(now)), Knowledge::Known(_))
    }

    #[test]
    fn each_rule_has_its_own_freshness() {
        let mut versions = Versions::new(8);
        assert_eq!(versions.look_up(A, Freshness::Immutable, s(0), s(0)), Knowledge::Unknown);
        assert!(versions.on_answer(A, etag("a"), (), s(10)));
        assert!(is_known(&mut versions, Freshness::Always, 9, 11));
        assert!(!is_known(&mut versions, Freshness::Always, 11, 11));
        let ttl = Freshness::Ttl(s(5));
        assert!(is_known(&mut versions, ttl, 14, 14));
        assert!(!is_known(&mut versions, ttl, 15, 15));
        assert!(is_known(&mut versions, Freshness::Immutable, 1000, 1000));
    }

    #[test]
    fn an_answer_to_a_request_sent_before_a_write_is_not_kept() {
        let mut versions = Versions::new(8);
        versions.on_written(A, s(10));
        assert!(!versions.on_answer(A, etag("a"), (), s(9)));
        assert!(!versions.on_answer(A, etag("a"), (), s(10)));
        assert!(versions.on_answer(A, etag("b"), (), s(11)));
        assert!(!versions.on_answer(A, etag("a"), (), s(9)), "a later answer is known");
        versions.on_written(A, s(12));
        assert!(!is_known(&mut versions, Freshness::Immutable, 0, 13));
    }

    #[test]
    fn a_write_is_remembered_when_its_entry_is_evicted() {
        let mut versions = Versions::new(2);
        versions.on_written(A, s(10));
        for other in 2..20 {
            assert!(versions.on_answer(ObjectId(other), etag("x"), (), s(11)));
        }
        assert_eq!(versions.len(), 2);
        assert!(!versions.on_answer(A, etag("a"), (), s(9)));
        assert!(versions.on_answer(A, etag("b"), (), s(11)));
    }

    #[test]
    fn a_contradiction_concerns_one_version() {
        let mut versions = Versions::new(8);
        assert!(versions.on_answer(A, etag("b"), (), s(10)));
        versions.on_contradicted(A, &etag("a"), s(11));
        versions.on_contradicted(A, &etag("b"), s(9));
        assert!(is_known(&mut versions, Freshness::Immutable, 12, 12));
        versions.on_contradicted(A, &etag("b"), s(11));
        assert!(!is_known(&mut versions, Freshness::Immutable, 12, 12));
    }
}

//! Settings of the object path: the device, memory, and the rules of prefixes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use forebay_core::{
    ByteSize,
    gateway::{rights::Authorise, versions::Freshness},
};

use super::admission::{AdmitAll, SegmentAdmission};
use crate::object_request::ObjectName;

/// Settings of an [`ObjectCache`](super::ObjectCache).
#[derive(Debug, Clone)]
pub struct ObjectCacheSettings {
    /// The file or block device; `None` keeps nothing and passes every request.
    pub device: Option<PathBuf>,
    /// Flash to reserve on it.
    pub capacity: ByteSize,
    /// Size of a region, used when the device is formatted. `None` for the engine's default.
    pub region_size: Option<ByteSize>,
    /// Secret of the names on flash. With another key, what is on flash is not found.
    pub key: [u8; 32],
    /// Memory for segments that were fetched lately. 0 for none.
    pub memory: ByteSize,
    /// Memory for bytes on their way from the origin.
    pub fill_memory: ByteSize,
    /// Memory for bytes that wait for clients. Reads beyond it are answered with `503 SlowDown`.
    pub send_memory: ByteSize,
    /// Memory for reads of the device.
    pub read_buffers: ByteSize,
    /// Objects whose version is known, and principals' rights that are known, at a time.
    pub objects_max: usize,
    /// Time for which an answer of the origin authorises a principal.
    pub rights_lifetime: Duration,
    /// Rules of prefixes.
    pub rules: Rules,
    /// Which segments are kept.
    pub admission: Arc<dyn SegmentAdmission>,
}

impl Default for ObjectCacheSettings {
    fn default() -> Self {
        Self {
            device: None,
            capacity: ByteSize(0),
            region_size: None,
            key: [0; 32],
            memory: ByteSize::mib(64),
            fill_memory: ByteSize::mib(128),
            send_memory: ByteSize::mib(512),
            read_buffers: ByteSize::mib(64),
            objects_max: 1 << 16,
            rights_lifetime: Duration::from_mins(1),
            rules: Rules::default(),
            admission: Arc::new(AdmitAll),
        }
    }
}

/// What applies to the objects below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixRule {
    /// The bucket; `None` for all buckets.
    pub bucket: Option<String>,
    /// The prefix of the key; may be empty.
    pub prefix: Vec<u8>,
    /// When the origin's last answer may be used.
    pub freshness: Freshness,
    /// How far an answer of the origin authorises.
    pub authorise: Authorise,
}

/// The rules of a gateway: the one with the longest prefix applies, and of two with the same
/// prefix the one that names the bucket.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<PrefixRule>);

impl Rules {
    /// These rules. Objects that no rule names are asked for on every request.
    pub fn new(mut rules: Vec<PrefixRule>) -> Self {
        rules.sort_by_key(|rule| std::cmp::Reverse((rule.prefix.len(), rule.bucket.is_some())));
        Self(rules)
    }

    /// The rule of an object.
    pub fn rule_of(&self, object: &ObjectName) -> ObjectRule<'_> {
        let applies = |rule: &&PrefixRule| {
            rule.bucket.as_deref().is_none_or(|bucket| *bucket == *object.bucket)
                && object.key.starts_with(&rule.prefix)
        };
        let Some(rule) = self.0.iter().find(applies) else { return ObjectRule::default() };
        ObjectRule { freshness: rule.freshness, authorise: rule.authorise, prefix: &rule.prefix }
    }
}

/// The rule of one object.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectRule<'a> {
    /// When the origin's last answer may be used.
    pub freshness: Freshness,
    /// How far an answer of the origin authorises.
    pub authorise: Authorise,
    /// The prefix of the rule.
    pub prefix: &'a [u8],
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object_request::OriginId;

    #[test]
    fn the_longest_prefix_applies() {
        let rule = |bucket: Option<&str>, prefix: &str, freshness| PrefixRule {
            bucket: bucket.map(str::to_owned),
            prefix: prefix.into(),
            freshness,
            authorise: Authorise::Object,
        };
        let ttl = |seconds| Freshness::Ttl(Duration::from_secs(seconds));
        let rules = Rules::new(vec![
            rule(None, "", ttl(1)),
            rule(Some("b"), "", ttl(2)),
            rule(None, "day=", Freshness::Immutable),
        ]);
        let freshness = |bucket: &str, key: &'static str| {
            let origin = OriginId::of_endpoint("http://o");
            let key = Bytes::from_static(key.as_bytes());
            rules.rule_of(&ObjectName { origin, bucket: bucket.into(), key }).freshness
        };
        assert_eq!(freshness("a", "x"), ttl(1));
        assert_eq!(freshness("b", "x"), ttl(2));
        assert_eq!(freshness("b", "day=1/x"), Freshness::Immutable);
    }
}

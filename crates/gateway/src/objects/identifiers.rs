//! Identifiers: keyed hashes of the names of objects and principals.
//!
//! No name is stored on flash or kept in the tables of rights and versions. The key is the
//! gateway's secret, so the contents of a device do not say which objects are on it.

use forebay_core::gateway::{
    etag::StrongEtag,
    read_plan::SegmentIndex,
    rights::{Authorise, PrincipalId, ScopeId},
    versions::ObjectId,
};
use forebay_flash::EntryKey;

use super::settings::ObjectRule;
use crate::object_request::{ObjectName, Principal};

/// Hashes names.
#[derive(Clone)]
pub struct Identifiers {
    key: [u8; 32],
}

/// Name of one version of an object on flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VersionHash([u8; 32]);

impl Identifiers {
    /// Identifiers under this secret.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// The id of an object.
    pub fn object(&self, object: &ObjectName) -> ObjectId {
        let ObjectName { origin, bucket, key } = object;
        ObjectId(self.short(b"object", &[origin.as_bytes(), bucket.as_bytes(), key]))
    }

    /// The id of a principal.
    pub fn principal(&self, principal: &Principal) -> PrincipalId {
        let identity = principal.identity().0.to_le_bytes();
        let id = self.short(b"principal", &[principal.tenant().as_bytes(), &identity]);
        let [half @ .., _, _, _, _, _, _, _, _] = id.to_le_bytes();
        PrincipalId(u64::from_le_bytes(half))
    }

    /// What a right to the object is a right to.
    pub fn scope(&self, object: &ObjectName, rule: &ObjectRule<'_>) -> ScopeId {
        let ObjectName { origin, bucket, key } = object;
        let bucket = bucket.as_bytes();
        ScopeId(match rule.authorise {
            Authorise::Object => self.short(b"object", &[origin.as_bytes(), bucket, key]),
            Authorise::Prefix => self.short(b"prefix", &[origin.as_bytes(), bucket, rule.prefix]),
            Authorise::Bucket => self.short(b"bucket", &[origin.as_bytes(), bucket]),
        })
    }

    /// The name of a version.
    pub fn version(&self, object: &ObjectName, etag: &StrongEtag) -> VersionHash {
        let ObjectName { origin, bucket, key } = object;
        let parts = [origin.as_bytes(), bucket.as_bytes(), key, etag.as_str().as_bytes()];
        VersionHash(self.hash(b"version", &parts))
    }

    /// The name of a segment.
    pub fn segment(&self, version: VersionHash, segment: SegmentIndex) -> EntryKey {
        EntryKey(self.hash(b"segment", &[&version.0, &segment.0.to_le_bytes()]))
    }

    fn short(&self, kind: &[u8], parts: &[&[u8]]) -> u128 {
        let [short @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = self.hash(kind, parts);
        u128::from_le_bytes(short)
    }

    /// Each part is preceded by its length, so that no two lists of parts are hashed alike.
    fn hash(&self, kind: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(kind);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object_request::OriginId;

    #[test]
    fn every_part_of_a_name_counts() {
        let origin = OriginId::of_endpoint("http://o");
        let name = |bucket: &str, key: &'static str| ObjectName {
            origin,
            bucket: bucket.into(),
            key: Bytes::from_static(key.as_bytes()),
        };
        let etag = |text: &str| StrongEtag::parse(text.as_bytes()).unwrap();
        let ids = Identifiers::new([1; 32]);
        let segment = |ids: &Identifiers, object: &ObjectName, tag: &str, at| {
            ids.segment(ids.version(object, &etag(tag)), SegmentIndex(at))
        };
        let first = segment(&ids, &name("ab", "c"), "\"1\"", 0);
        assert_eq!(first, segment(&ids, &name("ab", "c"), "\"1\"", 0));
        let elsewhere = ObjectName { origin: OriginId::of_endpoint("http://p"), ..name("ab", "c") };
        for other in [
            segment(&ids, &name("a", "bc"), "\"1\"", 0),
            segment(&ids, &name("ab", "d"), "\"1\"", 0),
            segment(&ids, &name("ab", "c"), "\"2\"", 0),
            segment(&ids, &name("ab", "c"), "\"1\"", 1),
            segment(&ids, &elsewhere, "\"1\"", 0),
            segment(&Identifiers::new([2; 32]), &name("ab", "c"), "\"1\"", 0),
        ] {
            assert_ne!(first, other);
        }
    }
}

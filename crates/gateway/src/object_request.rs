//! Object requests: what the front hands to the object path, and the names in it.
//!
//! The front has verified the signature. Nothing here is a secret, so every type may be stored,
//! compared and hashed.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;

/// The store behind the gateway, as a hash of its endpoint. Part of every stored segment's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId([u8; 16]);

impl OriginId {
    /// The id of an endpoint, such as `https://s3.eu-west-1.amazonaws.com`.
    pub fn of_endpoint(endpoint: &str) -> Self {
        let hash = blake3::derive_key("forebay gateway origin id v1", endpoint.as_bytes());
        Self(hash[..16].try_into().expect("a hash of 32 bytes"))
    }

    /// The bytes, for hashing.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Index of an origin identity in the configuration: the credential that signs requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdentityId(pub u32);

/// The caller as the origin sees it: a tenant, and the origin identity that signs its requests.
///
/// Rights to objects belong to a principal. Two access keys of one tenant are the same principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    tenant: Arc<str>,
    identity: IdentityId,
}

impl Principal {
    /// A tenant with the identity of its requests.
    pub fn new(tenant: Arc<str>, identity: IdentityId) -> Self {
        Self { tenant, identity }
    }

    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The identity that signs this principal's requests.
    pub fn identity(&self) -> IdentityId {
        self.identity
    }
}

/// An object of an origin. The key has the decoded bytes: `a%2Fb` and `a/b` are one key.
///
/// `Debug` omits the names, because logs must not have them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The store.
    pub origin: OriginId,
    /// The bucket.
    pub bucket: Arc<str>,
    /// The key: 1 to 1,024 bytes of UTF-8.
    pub key: Bytes,
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectName").finish_non_exhaustive()
    }
}

/// The two operations that the object path answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMethod {
    /// `GetObject`.
    Get,
    /// `HeadObject`.
    Head,
}

/// The job of a request: the suffix of its access key, `ranker-7` in `vision.ranker-7`.
///
/// Names of jobs belong to a tenant. 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobTag(Arc<str>);

impl JobTag {
    /// Longest tag.
    pub const LENGTH_MAX: usize = 64;

    /// Parses a tag. `None` if it has another length or other characters.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        ((1..=Self::LENGTH_MAX).contains(&text.len()) && text.bytes().all(is_valid))
            .then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A GET or HEAD of one object that the front understood: at most one `Range` header, no version,
/// no part number, no key of the customer.
#[derive(Debug, Clone)]
pub struct ObjectRequest {
    /// The caller.
    pub principal: Principal,
    /// The object.
    pub object: ObjectName,
    /// The operation.
    pub method: ObjectMethod,
    /// The client's headers for the origin: `range`, the conditional headers,
    /// `x-amz-checksum-mode` and harmless ones. Without authentication, `host` and hop-by-hop
    /// headers.
    pub headers: HeaderMap,
    /// The raw query for the origin: only `response-*` parameters and `x-id`. `None` if empty.
    pub query: Option<String>,
    /// The job, if the access key has a suffix.
    pub job: Option<JobTag>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_tag_is_short_and_plain() {
        for good in ["ranker-7", "a", "A.b_c", &"x".repeat(64)] {
            assert_eq!(JobTag::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a/b", "ü", &"x".repeat(65)] {
            assert!(JobTag::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn debug_output_has_no_object_name() {
        let object = ObjectName {
            origin: OriginId::of_endpoint("http://o"),
            bucket: "payroll".into(),
            key: Bytes::from_static(b"salaries"),
        };
        let text = format!("{object:?}");
        assert!(!text.contains("payroll") && !text.contains("salaries"), "{text}");
    }
}

//! What a request names: service, bucket or object, by path or by host.

use bytes::Bytes;
use http::StatusCode;
use s3s::{
    S3Result,
    host::{S3Host, VirtualHost},
};

use crate::{
    object_request::{ObjectName, OriginId},
    origin_client::OriginTarget,
    s3_error::S3Failure,
};

/// Longest key.
const KEY_LENGTH_MAX: usize = 1024;
/// Longest name of a bucket of any store.
const BUCKET_LENGTH_MAX: usize = 255;

/// Names of the endpoint whose subdomains are buckets.
#[derive(Debug, Clone, Default)]
pub struct Domains(Vec<String>);

impl Domains {
    /// These domains, in lower case and without a port.
    pub fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// The bucket in a `Host` header.
    fn bucket<'a>(&self, host: &'a str) -> Option<&'a str> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        self.0.iter().find_map(|domain| {
            let split = name.len().checked_sub(domain.len() + 1)?;
            let (bucket, rest) = (name.get(..split)?, name.get(split..)?);
            let is_below = rest.strip_prefix('.')?.eq_ignore_ascii_case(domain);
            (is_below && !bucket.is_empty()).then_some(bucket)
        })
    }

    /// What a request names.
    pub fn target(
        &self,
        host: &str,
        path: &str,
        origin: OriginId,
    ) -> Result<OriginTarget, S3Failure> {
        let bad = |code, message: &str| S3Failure::new(StatusCode::BAD_REQUEST, code, message);
        let decoded: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
        let decoded = String::from_utf8(decoded)
            .map_err(|_| bad("InvalidURI", "The path is not UTF-8 after decoding."))?;
        let path = decoded
            .strip_prefix('/')
            .ok_or_else(|| bad("InvalidURI", "The path does not begin with a slash."))?;
        let (bucket, key) = match self.bucket(host) {
            Some(bucket) => (bucket.to_ascii_lowercase(), path),
            None if path.is_empty() => return Ok(OriginTarget::Service),
            None => {
                let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
                (bucket.to_owned(), key)
            }
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_valid = (1..=BUCKET_LENGTH_MAX).contains(&bucket.len())
            && bucket.bytes().all(is_name)
            && bucket.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !is_valid {
            return Err(bad("InvalidBucketName", "The specified bucket is not valid."));
        }
        if key.is_empty() {
            return Ok(OriginTarget::Bucket(bucket.into()));
        }
        if key.len() > KEY_LENGTH_MAX {
            return Err(bad("KeyTooLongError", "Your key is too long"));
        }
        let key = Bytes::copy_from_slice(key.as_bytes());
        Ok(OriginTarget::Object(ObjectName { origin, bucket: bucket.into(), key }))
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = VirtualHost::new(host);
        Ok(match self.bucket(host) {
            Some(bucket) => name.with_bucket(bucket.to_ascii_lowercase()),
            None => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, path: &str) -> Result<String, &'static str> {
        let domains = Domains::new(vec!["s3.local".to_owned()]);
        let target = domains.target(host, path, OriginId::of_endpoint("http://o"));
        match target.map_err(|failure| failure.code)? {
            OriginTarget::Service => Ok(String::new()),
            OriginTarget::Bucket(bucket) => Ok(bucket.to_string()),
            OriginTarget::Object(object) => {
                Ok(format!("{} {}", object.bucket, String::from_utf8_lossy(&object.key)))
            }
        }
    }

    #[test]
    fn buckets_are_named_by_path_or_by_host() {
        for (host, path, named) in [
            ("127.0.0.1:9000", "/", ""),
            ("s3.local", "/", ""),
            ("127.0.0.1", "/b", "b"),
            ("127.0.0.1", "/b/", "b"),
            ("other.host", "/b/k", "b k"),
            ("b.s3.local:9000", "/", "b"),
            ("B.S3.Local", "/k/", "b k/"),
            ("a.b.s3.local", "/k", "a.b k"),
            ("[::1]:9000", "/b/k", "b k"),
        ] {
            assert_eq!(target(host, path).unwrap(), named, "{host}{path}");
        }
    }

    #[test]
    fn keys_are_decoded_once_and_nothing_is_resolved() {
        for (path, key) in [
            ("/b/a/../c", "a/../c"),
            ("/b/../c", "../c"),
            ("/b//a//", "/a//"),
            ("/b/%2e%2e/x%2Fy", "../x/y"),
            ("/b/a+b%20c%2520", "a+b c%20"),
            ("/b/%C3%BC", "ü"),
        ] {
            assert_eq!(target("h", path).unwrap(), format!("b {key}"), "{path}");
        }
        assert_eq!(target("b.s3.local", "/x/../y").unwrap(), "b x/../y");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert_eq!(target("h", "//k"), Err("InvalidBucketName"));
        assert_eq!(target("h", "/../k"), Err("InvalidBucketName"));
        assert_eq!(target("h", "/a%20b/k"), Err("InvalidBucketName"));
        assert_eq!(target("h", "/b/%ff"), Err("InvalidURI"));
        assert!(target("h", &format!("/b/{}", "k".repeat(1024))).is_ok());
        assert_eq!(target("h", &format!("/b/{}", "k".repeat(1025))), Err("KeyTooLongError"));
        assert_eq!(target("h", &format!("/b/{}", "%C3%BC".repeat(513))), Err("KeyTooLongError"));
    }
}

//! Signer: AWS Signature Version 4 in the `Authorization` header.
//!
//! Of the headers, it signs `host`, `date`, `range`, `content-*` but the length, the conditions
//! and every `x-amz-*`. The path must be encoded already ([`crate::encoding`]); S3 does not
//! normalise it.
//!
//! Not here: chunk signatures. Uploads travel as `UNSIGNED-PAYLOAD` or with the SHA-256 that the
//! client declared.

use std::{fmt::Write as _, time::SystemTime};

use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use parking_lot::Mutex;
use ring::{digest, hmac};
use zeroize::Zeroizing;

use crate::encoding;

/// `x-amz-content-sha256`.
pub const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// `x-amz-date`.
pub const DATE: HeaderName = HeaderName::from_static("x-amz-date");
/// `x-amz-security-token`.
pub const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// SHA-256 of nothing.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A credential that signs requests. Its secrets are overwritten when it is dropped.
pub struct Credential {
    /// The access key id, which is not secret.
    pub key_id: String,
    /// The secret access key.
    pub secret: Zeroizing<String>,
    /// The session token of a temporary credential.
    pub token: Option<Zeroizing<String>>,
    /// The signing key of the last day and region.
    derived: Mutex<Option<DerivedKey>>,
}

struct DerivedKey {
    scope: String,
    key: Zeroizing<[u8; 32]>,
}

impl Credential {
    /// A credential.
    pub fn new(key_id: String, secret: Zeroizing<String>, token: Option<String>) -> Self {
        Self { key_id, secret, token: token.map(Zeroizing::new), derived: Mutex::new(None) }
    }

    /// The signing key for a scope `DATE/REGION/SERVICE/aws4_request`.
    fn signing_key(&self, scope: &str) -> Zeroizing<[u8; 32]> {
        let mut derived = self.derived.lock();
        if let Some(derived) = derived.as_ref().filter(|derived| derived.scope == scope) {
            return derived.key.clone();
        }
        let secret = Zeroizing::new(format!("AWS4{}", *self.secret));
        let mut key = Zeroizing::new([0; 32]);
        for (at, part) in scope.split('/').enumerate() {
            let with = if at == 0 { secret.as_bytes() } else { key.as_slice() };
            let next = hmac_sha256(with, part.as_bytes());
            *key = next;
        }
        *derived = Some(DerivedKey { scope: scope.to_owned(), key: key.clone() });
        key
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

/// The scope and time of a signature.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The region.
    pub region: &'a str,
    /// `s3` or `sts`.
    pub service: &'a str,
    /// The time of the request.
    pub time: SystemTime,
}

/// The parts of a request that are signed, besides its headers.
#[derive(Debug, Clone, Copy)]
pub struct SignedTarget<'a> {
    /// The method.
    pub method: &'a Method,
    /// The encoded path.
    pub path: &'a str,
    /// The raw query, or nothing.
    pub query: &'a str,
    /// The value of `x-amz-content-sha256`.
    pub payload: &'a str,
}

/// Signs a request: sets `x-amz-date`, `x-amz-content-sha256`, `x-amz-security-token` and
/// `authorization`. The headers must have `host`.
pub fn sign(
    headers: &mut HeaderMap,
    target: SignedTarget<'_>,
    credential: &Credential,
    scope: Scope<'_>,
) {
    let date = DateTime::<Utc>::from(scope.time).format("%Y%m%dT%H%M%SZ").to_string();
    let plain = |text: &str| HeaderValue::from_str(text).expect("dates and hashes are ASCII");
    headers.insert(DATE, plain(&date));
    if let Ok(payload) = HeaderValue::from_str(target.payload) {
        headers.insert(CONTENT_SHA256, payload);
    }
    headers.remove(SECURITY_TOKEN);
    if let Some(token) = &credential.token
        && let Ok(mut token) = HeaderValue::from_str(token)
    {
        token.set_sensitive(true);
        headers.insert(SECURITY_TOKEN, token);
    }

    let (canonical_headers, signed) = canonical_headers(headers);
    let canonical = format!(
        "{}\n{}\n{}\n{canonical_headers}\n{signed}\n{}",
        target.method,
        target.path,
        encoding::canonical_query(target.query),
        target.payload,
    );
    let day = &date[..8];
    let credential_scope = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{credential_scope}\n{}",
        hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref())
    );
    let key = credential.signing_key(&credential_scope);
    let signature = hex(&hmac_sha256(key.as_slice(), text.as_bytes()));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{credential_scope}, SignedHeaders={signed}, \
         Signature={signature}",
        credential.key_id
    );
    if let Ok(mut authorization) = HeaderValue::from_str(&authorization) {
        authorization.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, authorization);
    }
}

/// The canonical headers, each with a newline, and the list of their names.
fn canonical_headers(headers: &HeaderMap) -> (String, String) {
    let mut names: Vec<&HeaderName> = headers.keys().filter(|name| is_signed(name)).collect();
    names.sort_by_key(|name| name.as_str());
    let mut text = String::new();
    for name in &names {
        let values: Vec<String> = headers.get_all(*name).iter().map(trimmed).collect();
        let _ = writeln!(text, "{name}:{}", values.join(","));
    }
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    (text, names.join(";"))
}

fn is_signed(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-amz-")
        || name.starts_with("if-")
        || (name.starts_with("content-") && name != "content-length")
        || ["host", "date", "range"].contains(&name)
}

/// A value without spaces at its ends, and with single spaces inside.
fn trimmed(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    let words: Vec<&str> = text.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// SHA-256 in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The examples of "Authenticating Requests: Using the Authorization Header", AWS's
    /// documentation of S3: bucket `examplebucket`, 24 May 2013.
    struct Vector {
        method: Method,
        path: &'static str,
        query: &'static str,
        headers: &'static [(&'static str, &'static str)],
        payload: &'static str,
        signature: &'static str,
    }

    const VECTORS: [Vector; 4] = [
        Vector {
            method: Method::GET,
            path: "/test.txt",
            query: "",
            headers: &[("range", "bytes=0-9")],
            payload: EMPTY_SHA256,
            signature: "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        },
        Vector {
            method: Method::PUT,
            path: "/test%24file.text",
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            payload: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            signature: "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        },
        Vector {
            method: Method::GET,
            path: "/",
            query: "lifecycle",
            headers: &[],
            payload: EMPTY_SHA256,
            signature: "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        },
        Vector {
            method: Method::GET,
            path: "/",
            query: "max-keys=2&prefix=J",
            headers: &[],
            payload: EMPTY_SHA256,
            signature: "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        },
    ];

    fn credential() -> Credential {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned();
        Credential::new("AKIAIOSFODNN7EXAMPLE".to_owned(), Zeroizing::new(secret), None)
    }

    #[test]
    fn the_published_examples_have_the_published_signatures() {
        let credential = credential();
        // 2013-05-24T00:00:00Z.
        let time = SystemTime::UNIX_EPOCH + Duration::from_hours(380_376);
        let scope = Scope { region: "us-east-1", service: "s3", time };
        for Vector { method, path, query, headers, payload, signature } in VECTORS {
            let mut map = HeaderMap::new();
            map.insert(header::HOST, "examplebucket.s3.amazonaws.com".parse().unwrap());
            for (name, value) in headers {
                map.insert(*name, value.parse().unwrap());
            }
            sign(
                &mut map,
                SignedTarget { method: &method, path, query, payload },
                &credential,
                scope,
            );
            let signed = map[header::AUTHORIZATION].to_str().unwrap();
            assert!(
                signed.ends_with(&format!("Signature={signature}")),
                "{path}?{query}: {signed}"
            );
        }
    }

    #[test]
    fn a_session_token_is_signed_and_the_derived_key_follows_the_scope() {
        let mut map = HeaderMap::new();
        map.insert(header::HOST, "h".parse().unwrap());
        let credential = Credential { token: Some("token".to_owned().into()), ..credential() };
        let target =
            SignedTarget { method: &Method::GET, path: "/", query: "", payload: EMPTY_SHA256 };
        let mut signature = |region| {
            let scope = Scope { region, service: "s3", time: SystemTime::UNIX_EPOCH };
            sign(&mut map, target, &credential, scope);
            let text = map[header::AUTHORIZATION].to_str().unwrap().to_owned();
            assert!(text.contains("x-amz-security-token"), "{text}");
            text
        };
        let first = signature("us-east-1");
        assert_ne!(first, signature("eu-west-1"));
        assert_eq!(first, signature("us-east-1"));
    }

    #[test]
    fn debug_output_has_no_secret() {
        assert!(!format!("{:?}", credential()).contains("wJalr"));
    }
}

//! Pass-through: everything that the object path does not answer, streamed in both directions.
//!
//! The origin receives the client's method, name, query and headers, signed again. Only framing
//! and authentication change:
//!
//! | the client's body | the origin's body |
//! |---|---|
//! | with a declared SHA-256 | the same, with the same SHA-256 |
//! | `UNSIGNED-PAYLOAD` | the same |
//! | `aws-chunked` with signed chunks | its content, unsigned; the chunks were verified |
//! | `aws-chunked` with a trailer | `aws-chunked` with the same trailer, unsigned |
//! | of `DeleteObjects` | the same, with its SHA-256; read whole for the keys |

mod delete_objects;
mod invalidation;
mod trailer;

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header};
use http_body_util::{BodyExt as _, Limited};
use s3s::{Body, S3Request};

pub use delete_objects::keys_of_delete;
use invalidation::Invalidation;
use trailer::{TrailerEncoder, TrailerNames};

use crate::{
    body::GatewayBody,
    cache_header::CacheOutcome,
    encoding::{self, Parameter},
    front::{CLIENT_ONLY, RequestPermit},
    metrics::GatewayCounters,
    object_request::{ObjectName, OriginId, Principal},
    objects::ObjectCache,
    origin_client::{
        OriginClient, OriginRequest, OriginTarget, Payload, RequestBody, client_body_failure,
        remove_hop_by_hop,
    },
    s3_error::S3Failure,
    sign,
};

/// Longest body of `DeleteObjects`: 1,000 keys of 1,024 bytes, each of up to 6 bytes in XML.
const DELETE_SIZE_MAX: u64 = 8 << 20;

/// A request that passes.
pub struct PassRequest {
    /// The request, after `s3s` has decoded its body.
    pub request: S3Request<Body>,
    /// What it names.
    pub target: OriginTarget,
    /// Its query without the parameters of a presigned URL.
    pub parameters: Vec<Parameter>,
    /// The caller.
    pub principal: Principal,
}

/// Removes the headers that do not go to the origin.
pub fn remove_client_headers(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    for name in &CLIENT_ONLY {
        headers.remove(name);
    }
    let encodings: Vec<&str> = headers
        .get(header::CONTENT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(',').map(str::trim).collect())
        .unwrap_or_default();
    if encodings.contains(&"aws-chunked") {
        let rest: Vec<&str> = encodings.into_iter().filter(|it| *it != "aws-chunked").collect();
        match HeaderValue::from_str(&rest.join(",")) {
            Ok(rest) if !rest.is_empty() => {
                headers.insert(header::CONTENT_ENCODING, rest);
            }
            _ => {
                headers.remove(header::CONTENT_ENCODING);
            }
        }
    }
}

/// Passes a request to the origin, and forgets the objects that it may change before the answer
/// goes to the client.
pub async fn forward(
    origin: &OriginClient,
    cache: &Arc<ObjectCache>,
    counters: &Arc<GatewayCounters>,
    passed: PassRequest,
    permit: &mut Option<RequestPermit>,
) -> Response<GatewayBody> {
    let principal = passed.principal.clone();
    let mut changed =
        changed_objects(&passed.request.method, &passed.target, &passed.request.headers);
    let outgoing = match outgoing(origin.origin(), passed, permit, &mut changed).await {
        Ok(outgoing) => outgoing,
        Err(failure) => return failure.into_response(),
    };
    // Its drop covers a client that leaves before the answer.
    let invalidation = Invalidation::new(Arc::clone(cache), counters, changed);
    match origin.send(&principal, outgoing).await {
        Ok(response) => {
            let (mut head, body) = response.into_parts();
            CacheOutcome::Pass.set(&mut head.headers);
            Response::from_parts(head, invalidation.around(body.boxed()))
        }
        Err(error) => {
            drop(invalidation);
            error.into_response()
        }
    }
}

/// The objects that a request may change, those of `DeleteObjects` excepted.
fn changed_objects(method: &Method, target: &OriginTarget, headers: &HeaderMap) -> Vec<ObjectName> {
    let OriginTarget::Object(object) = target else { return Vec::new() };
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        return Vec::new();
    }
    let mut changed = vec![object.clone()];
    // RenameObject of directory buckets removes its source, which is in the same bucket.
    if let Some(source) = headers.get("x-amz-rename-source") {
        let source = percent_encoding::percent_decode(source.as_bytes()).collect::<Vec<u8>>();
        let source = source.strip_prefix(b"/").unwrap_or(&source);
        let below = [object.bucket.as_bytes(), b"/"].concat();
        let key = source.strip_prefix(&*below).unwrap_or(source).to_vec().into();
        changed.push(ObjectName { key, ..object.clone() });
    }
    changed
}

/// The request for the origin. Adds the objects of `DeleteObjects` to `changed`.
async fn outgoing(
    origin: OriginId,
    passed: PassRequest,
    permit: &mut Option<RequestPermit>,
    changed: &mut Vec<ObjectName>,
) -> Result<OriginRequest, S3Failure> {
    let PassRequest { request, target, parameters, .. } = passed;
    let S3Request { input: body, method, mut headers, trailing_headers, .. } = request;
    let declared = Declared::of(&headers)?;
    remove_client_headers(&mut headers);
    let is_delete_objects = method == Method::POST
        && parameters.iter().any(|parameter| parameter.name == b"delete")
        && matches!(target, OriginTarget::Bucket(_));
    let mut outgoing = OriginRequest::new(method, target.clone(), headers);
    outgoing.query = encoding::query(&parameters);
    let Some(length) = declared.length else {
        // A body of unknown length is streamed as such; most origins refuse it with 411.
        if declared.is_chunked {
            let source = body.map_err(Into::into).boxed_unsync();
            return Ok(outgoing.with_body(RequestBody::stream(source, None), Payload::Unsigned));
        }
        return Ok(outgoing);
    };
    if is_delete_objects {
        let reserved = permit.as_mut().is_some_and(|permit| permit.reserve(length));
        if length > DELETE_SIZE_MAX {
            return Err(S3Failure::new(
                http::StatusCode::BAD_REQUEST,
                "MalformedXML",
                "The list of objects is too long.",
            ));
        }
        if !reserved {
            return Err(S3Failure::slow_down("Please reduce your request rate."));
        }
        let limit = usize::try_from(length).unwrap_or(usize::MAX);
        let collected = Limited::new(body, limit).collect().await;
        let bytes = collected.map_err(|error| client_body_failure(&error.to_string()))?.to_bytes();
        if bytes.len() as u64 != length {
            return Err(client_body_failure("Incomplete"));
        }
        if let OriginTarget::Bucket(bucket) = &target {
            changed.extend(keys_of_delete(&bytes).into_iter().map(|key| ObjectName {
                origin,
                bucket: Arc::clone(bucket),
                key: key.into(),
            }));
        }
        if let Some(names) = declared.trailer {
            names.move_to_headers(trailing_headers.as_ref(), &mut outgoing.headers)?;
        }
        outgoing.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        let payload = Payload::Sha256(sign::sha256_hex(&bytes));
        return Ok(outgoing.with_body(RequestBody::full(bytes), payload));
    }
    if length == 0 && declared.trailer.is_none() {
        // Reading to the end checks the declared hash.
        let ended = Limited::new(body, 0).collect().await;
        ended.map_err(|error| client_body_failure(&error.to_string()))?;
        outgoing.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        return Ok(outgoing);
    }
    let source: GatewayBody = body.map_err(Into::into).boxed_unsync();
    if let (Some(names), Some(handle)) = (declared.trailer, trailing_headers) {
        let encoder = TrailerEncoder::new(source, length, names, handle);
        let length_sent = encoder.encoded_length();
        encoder.set_headers(&mut outgoing.headers);
        let body = RequestBody::stream(encoder.boxed_unsync(), Some(length_sent));
        return Ok(outgoing.with_body(body, Payload::UnsignedTrailer));
    }
    outgoing.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let payload = declared.sha256.map_or(Payload::Unsigned, Payload::Sha256);
    Ok(outgoing.with_body(RequestBody::stream(source, Some(length)), payload))
}

/// What a client declares of its body.
struct Declared {
    /// Length of the content, without chunk framing.
    length: Option<u64>,
    /// Whether HTTP's own chunks end it.
    is_chunked: bool,
    /// Its SHA-256.
    sha256: Option<String>,
    /// The trailers that are announced.
    trailer: Option<TrailerNames>,
}

impl Declared {
    fn of(headers: &HeaderMap) -> Result<Self, S3Failure> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let hash = text(&sign::CONTENT_SHA256).unwrap_or_default();
        let is_streaming = hash.starts_with("STREAMING-");
        let length = if is_streaming {
            text(&HeaderName::from_static("x-amz-decoded-content-length"))
        } else {
            text(&header::CONTENT_LENGTH)
        };
        let length = match length {
            Some(length) => Some(length.parse().map_err(|_| {
                S3Failure::invalid_request("The length of the body is not a number.")
            })?),
            None => None,
        };
        let is_sha256 = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let trailer = if hash.ends_with("-TRAILER") {
            let names = text(&HeaderName::from_static("x-amz-trailer")).unwrap_or_default();
            Some(TrailerNames::parse(names)?)
        } else {
            None
        };
        Ok(Self {
            length,
            is_chunked: headers.contains_key(header::TRANSFER_ENCODING),
            sha256: is_sha256.then(|| hash.to_ascii_lowercase()),
            trailer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_framing_and_authentication_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "gateway"),
            ("authorization", "AWS4-HMAC-SHA256 …"),
            ("x-amz-date", "20261118T120000Z"),
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("content-encoding", "gzip, aws-chunked"),
            ("x-amz-meta-a", "kept"),
            ("x-amz-acl", "private"),
            ("content-type", "text/plain"),
            ("x-amz-decoded-content-length", "5"),
        ] {
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        remove_client_headers(&mut headers);
        let mut left: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        left.sort();
        let expected = [
            "content-encoding=gzip",
            "content-type=text/plain",
            "x-amz-acl=private",
            "x-amz-meta-a=kept",
        ];
        assert_eq!(left, expected);
        headers.insert("content-encoding", HeaderValue::from_static("aws-chunked"));
        remove_client_headers(&mut headers);
        assert!(!headers.contains_key("content-encoding"));
    }
}

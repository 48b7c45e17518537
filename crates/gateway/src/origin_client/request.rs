//! Requests to an origin: what they name, and the body that is sent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Addressing, OriginError};
use crate::{
    body::BodyError,
    encoding,
    metrics::GatewayCounters,
    object_request::{ObjectMethod, ObjectName, ObjectRequest},
    sign::EMPTY_SHA256,
};

/// What a request names.
#[derive(Clone, PartialEq, Eq)]
pub enum OriginTarget {
    /// The service: the list of buckets.
    Service,
    /// A bucket.
    Bucket(Arc<str>),
    /// An object.
    Object(ObjectName),
}

impl OriginTarget {
    /// The host and the encoded path.
    pub(super) fn host_and_path(
        &self,
        authority: &str,
        addressing: Addressing,
    ) -> (String, String) {
        let (bucket, key) = match self {
            Self::Service => return (authority.to_owned(), "/".to_owned()),
            Self::Bucket(bucket) => (bucket, None),
            Self::Object(object) => (&object.bucket, Some(encoding::key(&object.key))),
        };
        match (addressing, key) {
            (Addressing::Path, None) => {
                (authority.to_owned(), format!("/{}", encoding::component(bucket.as_bytes())))
            }
            (Addressing::Path, Some(key)) => {
                let bucket = encoding::component(bucket.as_bytes());
                (authority.to_owned(), format!("/{bucket}/{key}"))
            }
            (Addressing::Virtual, key) => {
                (format!("{bucket}.{authority}"), format!("/{}", key.unwrap_or_default()))
            }
        }
    }
}

impl std::fmt::Debug for OriginTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::Bucket(_) => "Bucket",
            Self::Object(_) => "Object",
        })
    }
}

/// How the body takes part in the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// There is no body.
    Empty,
    /// A body whose SHA-256 is known, in hexadecimal digits.
    Sha256(String),
    /// A body that is not part of the signature.
    Unsigned,
    /// A body in `aws-chunked` with a trailer, not part of the signature.
    UnsignedTrailer,
}

impl Payload {
    /// The value of `x-amz-content-sha256`.
    pub fn content_sha256(&self) -> &str {
        match self {
            Self::Empty => EMPTY_SHA256,
            Self::Sha256(hash) => hash,
            Self::Unsigned => "UNSIGNED-PAYLOAD",
            Self::UnsignedTrailer => "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        }
    }
}

/// A request to an origin, before it is signed.
#[derive(Debug)]
pub struct OriginRequest {
    /// The method.
    pub method: Method,
    /// What it names.
    pub target: OriginTarget,
    /// The raw query.
    pub query: Option<String>,
    /// Headers for the origin, without `host` and those of a signature.
    pub headers: HeaderMap,
    /// How the body takes part in the signature.
    pub payload: Payload,
    body: Option<RequestBody>,
}

impl OriginRequest {
    /// A request without a body.
    pub fn new(method: Method, target: OriginTarget, headers: HeaderMap) -> Self {
        Self { method, target, query: None, headers, payload: Payload::Empty, body: None }
    }

    /// The same request with a body. `headers` must have its `content-length`.
    #[must_use]
    pub fn with_body(mut self, body: RequestBody, payload: Payload) -> Self {
        self.body = Some(body);
        self.payload = payload;
        self
    }

    /// The request of a client for an object, unchanged.
    pub fn of_object(request: &ObjectRequest) -> Self {
        let method = match request.method {
            ObjectMethod::Get => Method::GET,
            ObjectMethod::Head => Method::HEAD,
        };
        let target = OriginTarget::Object(request.object.clone());
        let query = request.query.clone();
        Self { query, ..Self::new(method, target, request.headers.clone()) }
    }

    /// Whether a second attempt has the same effect as the first.
    pub(super) fn is_repeatable(&self) -> bool {
        self.body.is_none() && [Method::GET, Method::HEAD].contains(&self.method)
    }

    pub(super) fn take_body(&mut self) -> RequestBody {
        self.body.take().unwrap_or_else(RequestBody::empty)
    }
}

/// State of a request's body while it is sent.
#[derive(Debug, Clone)]
pub(super) struct SendProgress(Arc<Mutex<SendState>>);

#[derive(Debug)]
struct SendState {
    /// When the last part was taken.
    last: Instant,
    /// Why the client's side broke.
    client_failure: Option<String>,
}

impl SendProgress {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(SendState { last: Instant::now(), client_failure: None })))
    }

    /// The time of the last progress.
    pub fn last(&self) -> Instant {
        self.0.lock().last
    }

    /// Why a request failed.
    pub fn failure(&self, error: hyper_util::client::legacy::Error) -> OriginError {
        match self.0.lock().client_failure.take() {
            Some(failure) => OriginError::ClientBody(failure),
            None => error.into(),
        }
    }
}

/// The body of a request to an origin.
///
/// The last frame is held back until the source has ended without an error. The origin can not
/// commit an upload before its last byte, so a body whose checksum or chunk signature turns out
/// wrong is never stored.
#[derive(Debug)]
pub struct RequestBody {
    source: Option<UnsyncBoxBody<Bytes, BodyError>>,
    held: Option<Bytes>,
    length: Option<u64>,
    watch: Option<(SendProgress, Arc<GatewayCounters>)>,
}

impl RequestBody {
    /// No bytes.
    pub fn empty() -> Self {
        Self { source: None, held: None, length: Some(0), watch: None }
    }

    /// These bytes.
    pub fn full(bytes: Bytes) -> Self {
        let length = bytes.len() as u64;
        Self { source: None, held: Some(bytes), length: Some(length), watch: None }
    }

    /// A stream of `length` bytes, if known.
    pub fn stream(source: UnsyncBoxBody<Bytes, BodyError>, length: Option<u64>) -> Self {
        Self { source: Some(source), held: None, length, watch: None }
    }

    pub(super) fn watch(&mut self, counters: Arc<GatewayCounters>) -> SendProgress {
        let progress = SendProgress::new();
        self.watch = Some((progress.clone(), counters));
        progress
    }

    fn release(&self, bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some((progress, counters)) = &self.watch {
            progress.0.lock().last = Instant::now();
            counters.gateway_origin_sent_bytes.add(bytes.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        while let Some(source) = &mut this.source {
            match ready!(Pin::new(source).poll_frame(context)) {
                Some(Ok(frame)) => {
                    // Trailers of the client's HTTP message are not part of an S3 request.
                    let Ok(bytes) = frame.into_data() else { continue };
                    if bytes.is_empty() {
                        continue;
                    }
                    if let Some(earlier) = this.held.replace(bytes) {
                        return this.release(earlier);
                    }
                }
                Some(Err(error)) => {
                    this.source = None;
                    this.held = None;
                    if let Some((progress, _)) = &this.watch {
                        progress.0.lock().client_failure = Some(error.to_string());
                    }
                    return Poll::Ready(Some(Err(error)));
                }
                None => this.source = None,
            }
        }
        match this.held.take() {
            Some(bytes) if !bytes.is_empty() => this.release(bytes),
            _ => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none() && self.held.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_request::OriginId;

    fn object(key: &str) -> OriginTarget {
        OriginTarget::Object(ObjectName {
            origin: OriginId::of_endpoint("http://o"),
            bucket: "b".into(),
            key: Bytes::copy_from_slice(key.as_bytes()),
        })
    }

    #[test]
    fn a_key_is_sent_as_it_is_in_both_ways_of_addressing() {
        for (key, path) in [
            ("a/../b", "a/../b"),
            ("/a//b/", "/a//b/"),
            ("a+b c%2F", "a%2Bb%20c%252F"),
            ("..", ".."),
            ("ü\n?#", "%C3%BC%0A%3F%23"),
        ] {
            let target = object(key);
            let by_path = target.host_and_path("h:1", Addressing::Path);
            assert_eq!(by_path, ("h:1".to_owned(), format!("/b/{path}")));
            let by_host = target.host_and_path("h:1", Addressing::Virtual);
            assert_eq!(by_host, ("b.h:1".to_owned(), format!("/{path}")));
        }
        let bucket = OriginTarget::Bucket("b".into());
        assert_eq!(bucket.host_and_path("h", Addressing::Path).1, "/b");
        assert_eq!(bucket.host_and_path("h", Addressing::Virtual), ("b.h".into(), "/".into()));
    }
}

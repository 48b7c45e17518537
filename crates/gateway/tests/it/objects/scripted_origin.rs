//! An S3 server in memory that keeps the history of its objects and misbehaves on request.
//!
//! It does not verify signatures; the access key's id names the caller. Ranges and tags are
//! evaluated by code of its own, so that a wrong reading of a header is not shared with the
//! gateway.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// Size of the chunks of a body.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub etag: String,
    pub bytes: Bytes,
}

/// A state of an object, from a tick on.
#[derive(Debug, Clone)]
pub struct ObjectState {
    pub since: u64,
    /// `None` if it is absent.
    pub version: Option<Version>,
    /// Whether it was written through the gateway.
    pub is_through_gateway: bool,
    /// When the write was answered, if it was through the gateway.
    pub answered: Option<u64>,
}

/// How one request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Answered with this status.
    Status(u16),
    /// The connection breaks after half of the body.
    CutBody,
    /// The head comes late.
    SlowHead(Duration),
}

/// How all requests are answered wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quirk {
    #[default]
    None,
    WeakEtags,
    NoEtags,
    IgnoresIfMatch,
    IgnoresRanges,
    /// Each `Content-Range` begins one byte later than asked for.
    WrongContentRange,
    /// Bodies of parts end one byte early, without a length.
    ShortBodies,
    /// Bodies of parts have one byte more, without a length.
    LongBodies,
    /// Objects are encrypted with a key that only `key-0` may use.
    OwnKey,
}

#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub key_id: String,
    pub range: Option<String>,
    pub if_match: Option<String>,
}

#[derive(Debug, Default)]
pub struct Script {
    pub objects: BTreeMap<String, Vec<ObjectState>>,
    /// Paths that a key may not read.
    pub denied: BTreeSet<(String, String)>,
    pub quirk: Quirk,
    /// Faults of the next GETs.
    pub faults: VecDeque<Fault>,
    /// Faults of later requests: one in this number.
    pub one_fault_in: Option<u32>,
    /// Time between the chunks of a body.
    pub chunk_pause: Duration,
    pub injected: Vec<(u64, Fault)>,
    pub seen: Vec<Seen>,
    pub random: Option<fastrand::Rng>,
}

pub struct ScriptedOrigin {
    pub script: Mutex<Script>,
    pub clock: AtomicU64,
    /// Bytes of bodies that were handed to connections.
    pub bytes_sent: AtomicU64,
    address: std::net::SocketAddr,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

impl ScriptedOrigin {
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Arc::new(Self {
            script: Mutex::default(),
            clock: AtomicU64::new(1),
            bytes_sent: AtomicU64::new(0),
            address: listener.local_addr().unwrap(),
        });
        let server = Arc::clone(&origin);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let server = Arc::clone(&server);
                        async move { Ok::<_, Infallible>(server.answer(request).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    // A cut body is an error of the connection.
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        origin
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Writes a version, or deletes the object.
    pub fn write(&self, key: &str, bytes: Option<Bytes>, is_through_gateway: bool) {
        let mut script = self.script.lock();
        let since = self.tick();
        let version = bytes.map(|bytes| Version { etag: format!("\"v{since}\""), bytes });
        let history = script.objects.entry(format!("/bucket/{key}")).or_default();
        history.push(ObjectState { since, version, is_through_gateway, answered: None });
    }

    pub fn deny(&self, key_id: &str, key: &str) {
        let path = format!("/bucket/{key}");
        self.script.lock().denied.insert((key_id.to_owned(), path));
    }

    pub fn history(&self, key: &str) -> Vec<ObjectState> {
        self.script.lock().objects.get(&format!("/bucket/{key}")).cloned().unwrap_or_default()
    }

    pub fn etag(&self, key: &str) -> String {
        self.history(key).last().unwrap().version.as_ref().unwrap().etag.clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.script.lock().seen.clone()
    }

    /// Requests with this method since the last call of [`ScriptedOrigin::forget`].
    pub fn count(&self, method: &Method) -> usize {
        self.seen().iter().filter(|seen| seen.method == *method).count()
    }

    pub fn forget(&self) {
        self.script.lock().seen.clear();
        self.bytes_sent.store(0, Ordering::SeqCst);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let header = |name: header::HeaderName| {
            request.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        let authorization = header(header::AUTHORIZATION).unwrap_or_default();
        let key_id = authorization
            .split_once("Credential=")
            .and_then(|(_, rest)| rest.split_once('/'))
            .map_or(String::new(), |(id, _)| id.to_owned());
        let path = percent_encoding::percent_decode_str(request.uri().path());
        let path = path.decode_utf8().unwrap().into_owned();
        let fault = {
            let mut script = self.script.lock();
            let fault = script.next_fault(request.method() == Method::GET);
            if let Some(fault) = fault {
                let now = self.tick();
                script.injected.push((now, fault));
            }
            fault
        };
        if let Some(Fault::SlowHead(pause)) = fault {
            tokio::time::sleep(pause).await;
        }
        let mut script = self.script.lock();
        let (status, headers, body) = match fault {
            Some(Fault::Status(status)) => {
                (StatusCode::from_u16(status).unwrap(), HeaderMap::new(), Bytes::new())
            }
            _ => script.evaluate(&request, &key_id, &path),
        };
        script.seen.push(Seen {
            method: request.method().clone(),
            key_id,
            range: header(header::RANGE),
            if_match: header(header::IF_MATCH),
        });
        let (quirk, pause) = (script.quirk, script.chunk_pause);
        drop(script);
        let is_head = request.method() == Method::HEAD;
        let mut response = Response::builder().status(status);
        *response.headers_mut().unwrap() = headers;
        let is_part = status == StatusCode::PARTIAL_CONTENT;
        let body = match quirk {
            Quirk::ShortBodies if is_part => body.slice(..body.len() - 1),
            Quirk::LongBodies if is_part => [&body[..], b"x"].concat().into(),
            _ => {
                let length = response.headers_mut().unwrap();
                if !is_head {
                    length.insert(header::CONTENT_LENGTH, body.len().into());
                }
                body
            }
        };
        if is_head {
            return response.body(frames(Vec::new(), false, pause, &self)).unwrap();
        }
        let is_cut = fault == Some(Fault::CutBody) && body.len() > 1;
        let sent = if is_cut { body.slice(..body.len() / 2) } else { body };
        let chunks = (0..sent.len()).step_by(CHUNK);
        let chunks = chunks.map(|at| sent.slice(at..sent.len().min(at + CHUNK))).collect();
        response.body(frames(chunks, is_cut, pause, &self)).unwrap()
    }
}

/// A body of these chunks, which breaks at its end if it `is_cut`.
fn frames(chunks: Vec<Bytes>, is_cut: bool, pause: Duration, origin: &Arc<ScriptedOrigin>) -> Body {
    let mut items: VecDeque<_> = chunks.into_iter().map(Ok).collect();
    if is_cut {
        items.push_back(Err(std::io::Error::other("cut on purpose")));
    }
    let origin = Arc::clone(origin);
    let stream = stream::unfold((items, origin), move |(mut items, origin)| async move {
        let item = items.pop_front()?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if item.is_err() {
            // The chunks before are on the wire by then.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if let Ok(chunk) = &item {
            origin.bytes_sent.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
        Some((item.map(Frame::data), (items, origin)))
    });
    StreamBody::new(stream).boxed_unsync()
}

impl Script {
    fn next_fault(&mut self, is_get: bool) -> Option<Fault> {
        if is_get && let Some(fault) = self.faults.pop_front() {
            return Some(fault);
        }
        let (one_in, random) = (self.one_fault_in?, self.random.as_mut()?);
        (random.u32(..one_in) == 0).then(|| match random.u32(..8) {
            0 => Fault::Status(403),
            1 => Fault::Status(404),
            2 => Fault::Status(412),
            3 => Fault::Status(416),
            4 => Fault::Status(503),
            5 => Fault::SlowHead(Duration::from_millis(30)),
            _ => Fault::CutBody,
        })
    }

    fn evaluate(
        &self,
        request: &Request<Incoming>,
        key_id: &str,
        path: &str,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let fail = |status| (status, HeaderMap::new(), Bytes::from_static(b"<Error/>"));
        if self.denied.contains(&(key_id.to_owned(), path.to_owned())) {
            return fail(StatusCode::FORBIDDEN);
        }
        let history = self.objects.get(path);
        let Some(version) = history.and_then(|history| history.last()?.version.clone()) else {
            return fail(StatusCode::NOT_FOUND);
        };
        let is_get = request.method() == Method::GET;
        if self.quirk == Quirk::OwnKey && is_get && key_id != "key-0" {
            return fail(StatusCode::FORBIDDEN);
        }
        let header = |name: header::HeaderName| {
            request.headers().get(name).map(|value| value.to_str().unwrap())
        };
        let mut headers = HeaderMap::new();
        let etag = match self.quirk {
            Quirk::WeakEtags => Some(format!("W/{}", version.etag)),
            Quirk::NoEtags => None,
            _ => Some(version.etag.clone()),
        };
        if let Some(etag) = etag {
            headers.insert(header::ETAG, etag.parse().unwrap());
        }
        headers.insert(header::CONTENT_TYPE, "text/x-scripted".parse().unwrap());
        headers.insert("x-amz-meta-owner", "tests".parse().unwrap());
        if self.quirk == Quirk::OwnKey {
            headers.insert("x-amz-server-side-encryption", "aws:kms".parse().unwrap());
        }
        let checksum_wanted = request.headers().contains_key("x-amz-checksum-mode");
        if checksum_wanted && header(header::RANGE).is_none() {
            headers.insert("x-amz-checksum-crc32", "AAAAAA==".parse().unwrap());
        }
        if let Some(wanted) = header(header::IF_MATCH)
            && wanted != version.etag
            && self.quirk != Quirk::IgnoresIfMatch
        {
            return fail(StatusCode::PRECONDITION_FAILED);
        }
        if header(header::IF_NONE_MATCH) == Some(&*version.etag) {
            return (StatusCode::NOT_MODIFIED, headers, Bytes::new());
        }
        let length = version.bytes.len();
        let range = header(header::RANGE).filter(|_| self.quirk != Quirk::IgnoresRanges);
        let (status, mut part) = match range.map(|range| byte_range(range, length)) {
            None => (StatusCode::OK, 0..length),
            Some(None) => return fail(StatusCode::RANGE_NOT_SATISFIABLE),
            Some(Some(part)) => (StatusCode::PARTIAL_CONTENT, part),
        };
        if status == StatusCode::PARTIAL_CONTENT {
            if self.quirk == Quirk::WrongContentRange {
                part = (part.start + 1).min(length - 1)..(part.end + 1).min(length);
            }
            let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            headers.insert(header::CONTENT_RANGE, range.parse().unwrap());
        }
        if request.method() == Method::HEAD {
            headers.insert(header::CONTENT_LENGTH, part.len().into());
        }
        (status, headers, version.bytes.slice(part))
    }
}

/// The bytes that a well-formed range of one of three forms names; `None` if there are none.
pub fn byte_range(range: &str, length: usize) -> Option<Range<usize>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let part = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => first..(last + 1).min(length),
        (Ok(first), Err(_)) => first..length,
        (Err(_), Ok(suffix)) => length.saturating_sub(suffix)..length,
        (Err(_), Err(_)) => return None,
    };
    (part.start < part.end).then_some(part)
}

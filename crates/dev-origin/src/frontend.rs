//! HTTP frontend: everything between a connection and the S3 operations.
//!
//! It delays and counts requests, and limits, counts and (for injected failures) damages bodies.
//! `/-/…`, which no bucket can be called, is for the operator: unsigned, not limited, not counted.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use s3s::{HttpError, StdError, service::S3Service};
use tokio::time::{Sleep, sleep};

use crate::{
    access::RequestContext,
    config::Fault,
    counters::Counters,
    shaper::{Paced, Shaper},
};

/// Time for bytes in the socket's buffer to leave before a truncated connection closes.
const CUT_PAUSE: Duration = Duration::from_millis(20);

pub struct Frontend {
    pub s3: S3Service,
    pub counters: Arc<Counters>,
    pub shaper: Arc<Shaper>,
    pub latency: Duration,
}

/// The object of a response's body, as `bucket/key`, attached to the response as an extension.
#[derive(Debug, Clone)]
pub struct BodyObject(pub Arc<str>);

impl Frontend {
    pub async fn handle(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, HttpError> {
        if let Some(path) = request.uri().path().strip_prefix("/-/") {
            let (method, path) = (request.method().clone(), path.to_owned());
            return Ok(self.operator(&method, &path));
        }
        if !self.latency.is_zero() {
            sleep(self.latency).await;
        }
        let request_context = Arc::new(RequestContext::default());
        let mut request =
            request.map(|body| s3s::Body::http_body(Paced::new(body, Arc::clone(&self.shaper))));
        request.extensions_mut().insert(Arc::clone(&request_context));

        let response = self.s3.call(request).await;

        self.counters.request(request_context.operation.get().map(String::as_str));
        let (mut head, body) = response?.into_parts();
        // s3s answers 200 to a HEAD with a range.
        if head.status == StatusCode::OK && head.headers.contains_key(header::CONTENT_RANGE) {
            head.status = StatusCode::PARTIAL_CONTENT;
        }
        let object = head.extensions.remove::<BodyObject>().map(|BodyObject(name)| name);
        let half = body.size_hint().lower() / 2;
        let mut damage = None;
        match request_context.fault.get() {
            Some(Fault::SlowDown) => self.counters.failure_injected(),
            Some(fault) if object.is_some() => {
                self.counters.failure_injected();
                match fault {
                    Fault::SlowDown => unreachable!("answered without an object"),
                    Fault::CutBody => damage = Some(Damage::Cut { left: half, pause: None }),
                    Fault::HangInBody => damage = Some(Damage::Hang { left: half }),
                    Fault::CorruptBody => damage = Some(Damage::Corrupt),
                    Fault::HangBeforeHead => std::future::pending().await,
                    Fault::Redirect(to) => {
                        head.status = StatusCode::TEMPORARY_REDIRECT;
                        let to = header::HeaderValue::from_str(to).expect("a plain URL");
                        head.headers.insert(header::LOCATION, to);
                    }
                }
            }
            _ if head.status.as_u16() >= 400 => self.counters.error(),
            _ => {}
        }
        if let Some(name) = &object {
            self.counters.object_opened(name);
        }
        let body = ResponseBody {
            inner: Paced::new(body, Arc::clone(&self.shaper)),
            object: object.map(|name| (name, Arc::clone(&self.counters))),
            damage,
        };
        Ok(Response::from_parts(head, body))
    }

    fn operator(&self, method: &Method, path: &str) -> Response<ResponseBody> {
        let (status, json) = match (method, path) {
            (&Method::GET, "health") => (StatusCode::OK, r#"{"status": "ok"}"#.to_owned()),
            (&Method::GET, "counters") => {
                let json = serde_json::to_string(&self.counters.snapshot());
                (StatusCode::OK, json.expect("counters are plain numbers and strings"))
            }
            (&Method::POST, "counters/reset") => {
                self.counters.reset();
                (StatusCode::OK, r#"{"status": "reset"}"#.to_owned())
            }
            _ => {
                let hint = "GET /-/health, GET /-/counters, POST /-/counters/reset";
                (StatusCode::NOT_FOUND, format!(r#"{{"error": "unknown; use {hint}"}}"#))
            }
        };
        let unshaped = Arc::new(Shaper::new(None));
        let inner = Paced::new(s3s::Body::from(json), unshaped);
        let mut response = Response::new(ResponseBody { inner, object: None, damage: None });
        *response.status_mut() = status;
        let content_type = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

/// The body of a response: limited, counted and possibly damaged.
pub struct ResponseBody {
    inner: Paced<s3s::Body>,
    object: Option<(Arc<str>, Arc<Counters>)>,
    damage: Option<Damage>,
}

/// What is done to a body on purpose.
enum Damage {
    /// The connection closes after `left` more bytes.
    Cut { left: u64, pause: Option<Pin<Box<Sleep>>> },
    /// Nothing is sent after `left` more bytes.
    Hang { left: u64 },
    /// The next byte is changed.
    Corrupt,
}

impl Damage {
    /// Whether the body ends here.
    fn is_at_end(&self) -> bool {
        matches!(self, Self::Cut { left: 0, .. } | Self::Hang { left: 0 })
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<StdError> {
        let Self::Cut { pause, .. } = self else { return Poll::Pending };
        let pause = pause.get_or_insert_with(|| Box::pin(sleep(CUT_PAUSE)));
        ready!(pause.as_mut().poll(context));
        Poll::Ready(io::Error::other("the body was truncated on purpose").into())
    }

    fn apply(&mut self, data: &mut Bytes) {
        match self {
            Self::Cut { left, .. } | Self::Hang { left } => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
            }
            Self::Corrupt => {
                let mut changed = data.to_vec();
                changed.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                *data = changed.into();
            }
        }
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if let Some(damage) = this.damage.as_mut().filter(|damage| damage.is_at_end()) {
            return damage.poll_end(context).map(|error| Some(Err(error)));
        }
        let mut frame = match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        if let Some(damage) = &mut this.damage
            && let Some(data) = frame.data_mut()
        {
            damage.apply(data);
            if matches!(damage, Damage::Corrupt) {
                this.damage = None;
            }
        }
        if let Some((name, counters)) = &this.object
            && let Some(data) = frame.data_ref()
        {
            counters.object_sent(name, data.len() as u64);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.damage.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

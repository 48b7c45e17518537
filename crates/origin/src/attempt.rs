//! Attempts: one HTTP request and its whole answer, with timeouts of its own and no credentials for
//! other hosts.
//!
//! `object_store` retries requests that fail. A request that hangs does not fail, so every attempt
//! here has a timeout for its first byte and for its progress (`core::agent::attempt_timeout`). The
//! answer is read before it is returned: then an answer that hangs, ends early or trickles in is
//! retried like a request that was refused, listings included.
//!
//! A redirect to another host is refused where credentials are sent: the headers that S3 signs with
//! would go along. Plain web servers get no credentials, and often redirect to a mirror.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay_core::agent::attempt_timeout::{attempt_timeout, progress_min};
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use object_store::{
    ClientOptions, GetOptions, Result as StoreResult,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use reqwest::redirect::Policy;
use tokio::time::{Instant, timeout, timeout_at};

/// Answers up to this length are read before they are returned. Reads of objects are shorter
/// (`PIECE`), and so are pages of listings. Of a longer answer only the beginning is retried.
const READ_AHEAD_MAX: usize = 64 << 20;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most redirects of one request.
const REDIRECTS_MAX: usize = 5;

/// An attempt that was given up.
#[derive(Debug, thiserror::Error)]
#[error("no answer, or too slow an answer, within {}s", .0.as_secs_f32())]
pub struct AttemptTimedOut(Duration);

/// A redirect that was not followed.
#[derive(Debug, thiserror::Error)]
#[error("redirect to `{0}` refused")]
pub struct RedirectRefused(pub String);

/// Number of attempts of one read, shared by all its requests.
#[derive(Debug, Clone, Default)]
struct Attempts(Arc<AtomicU32>);

/// The options of a read whose attempts are counted, so that later ones may take longer.
pub fn with_attempts(mut options: GetOptions) -> GetOptions {
    options.extensions.insert(Attempts::default());
    options
}

/// Makes the HTTP clients of an origin.
#[derive(Debug, Clone)]
pub struct Connector {
    pub deadline: Duration,
    /// Whether redirects to another host are refused.
    pub same_host_only: bool,
}

impl HttpConnector for Connector {
    /// The options' own timeouts are not used.
    fn connect(&self, _: &ClientOptions) -> StoreResult<HttpClient> {
        let Self { deadline, same_host_only } = *self;
        let builder = reqwest::Client::builder()
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT.min(deadline))
            // For the part of an answer beyond `READ_AHEAD_MAX`. Longer than any attempt's own.
            .read_timeout(deadline)
            .redirect(redirects(same_host_only))
            .http1_only();
        let client = builder.build().map_err(|error| object_store::Error::Generic {
            store: "HTTP client",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(Attempter { client, deadline }))
    }
}

fn redirects(same_host_only: bool) -> Policy {
    Policy::custom(move |attempt| {
        let (from, to) = (attempt.previous().last(), attempt.url());
        let is_same = from.is_some_and(|from| from.origin() == to.origin());
        let is_weaker = from.is_some_and(|from| from.scheme() == "https" && to.scheme() == "http");
        if (same_host_only && !is_same) || is_weaker || attempt.previous().len() > REDIRECTS_MAX {
            let host = to.host_str().unwrap_or_default().to_owned();
            return attempt.error(RedirectRefused(host));
        }
        attempt.follow()
    })
}

/// A client whose requests are attempts.
#[derive(Debug)]
struct Attempter {
    client: reqwest::Client,
    deadline: Duration,
}

#[async_trait::async_trait]
impl HttpService for Attempter {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // A listing is not counted. Its answer may take the server longer to prepare.
        let attempt = request.extensions().get::<Attempts>();
        let attempt = attempt.map_or(u32::MAX, |attempts| attempts.0.fetch_add(1, Relaxed));
        let patience = attempt_timeout(self.deadline, attempt);
        let timed_out = || HttpError::new(HttpErrorKind::Timeout, AttemptTimedOut(patience));
        let answer = timeout(patience, HttpService::call(&self.client, request)).await;
        let (head, body) = answer.map_err(|_| timed_out())??.into_parts();
        let body = read_ahead(body, patience).await?.ok_or_else(timed_out)?;
        Ok(HttpResponse::from_parts(head, body))
    }
}

/// Reads an answer up to [`READ_AHEAD_MAX`]. `None` if it makes no progress.
async fn read_ahead(
    mut body: HttpResponseBody,
    window: Duration,
) -> Result<Option<HttpResponseBody>, HttpError> {
    let (mut frames, mut length) = (Vec::new(), 0);
    let (mut window_end, mut progress) = (Instant::now() + window, 0);
    while length < READ_AHEAD_MAX {
        let frame = match timeout_at(window_end, body.frame()).await {
            Err(_) if progress < progress_min(window) => return Ok(None),
            Err(_) => {
                (window_end, progress) = (Instant::now() + window, 0);
                continue;
            }
            Ok(None) => {
                return Ok(Some(HttpResponseBody::new(StreamBody::new(stream::iter(frames)))));
            }
            // An answer that ends early is retried like one that never came.
            Ok(Some(Err(error))) => return Err(HttpError::new(HttpErrorKind::Interrupted, error)),
            Ok(Some(Ok(frame))) => frame,
        };
        let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
        length += bytes;
        progress += bytes as u64;
        frames.push(Ok(frame));
    }
    let whole = stream::iter(frames).chain(BodyStream::new(body));
    Ok(Some(HttpResponseBody::new(StreamBody::new(whole))))
}

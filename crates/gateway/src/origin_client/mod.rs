//! Origin client: signs requests with a principal's origin identity and sends them.
//!
//! Not `object_store` or `reqwest`: both resolve `..` in paths, so that such keys could neither be
//! signed nor asked for. Not `crates/origin`: it reads whole bodies.
//!
//! - The path of an object is made from the bytes of its key ([`crate::encoding`]).
//! - A read that fails before the first byte of its response is sent once more.
//! - No redirect is followed, and none is returned: a `3xx` other than 304 is an error.
//! - The first byte and each part of a body must arrive in time.

mod body;
mod error;
mod request;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header, uri};
use http_body_util::BodyExt as _;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use tokio::time::Instant;

pub use body::OriginBody;
pub use error::OriginError;
pub(crate) use error::client_body_failure;
pub use request::{OriginRequest, OriginTarget, Payload, RequestBody};

use crate::{
    credentials::IdentitySource,
    metrics::GatewayCounters,
    object_request::{OriginId, Principal},
    sign,
};

/// Time to connect, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the answer to a write after its last byte was sent. Completing an upload of many parts
/// or copying a large object may take minutes.
const WRITE_TIMEOUT: Duration = Duration::from_mins(5);
/// Idle time after which a connection is closed. AWS closes after 20 s or less.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Idle connections that are kept.
const IDLE_MAX: usize = 256;

/// Headers that belong to one connection (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Removes the headers of one connection, and those that `connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// How buckets are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// `https://endpoint/bucket/key`.
    Path,
    /// `https://bucket.endpoint/key`.
    Virtual,
}

/// Settings of an origin client.
#[derive(Debug, Clone)]
pub struct OriginSettings {
    /// `http://` or `https://`, host and port, without a path.
    pub endpoint: Uri,
    /// The region that requests are signed for.
    pub region: String,
    /// How buckets are addressed.
    pub addressing: Addressing,
    /// Time from the last byte of a read request to the first byte of its response.
    pub first_byte_timeout: Duration,
    /// Longest pause in a body.
    pub progress_timeout: Duration,
    /// TLS, for `https://`.
    pub tls: Option<ClientConfig>,
}

/// A client of one origin. Cloning it is cheap.
#[derive(Clone)]
pub struct OriginClient(Arc<Inner>);

struct Inner {
    http: Client<HttpsConnector<HttpConnector>, RequestBody>,
    settings: OriginSettings,
    identities: Vec<IdentitySource>,
    id: OriginId,
    counters: Arc<GatewayCounters>,
}

impl fmt::Debug for OriginClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginClient").field("endpoint", &self.0.settings.endpoint).finish()
    }
}

impl OriginClient {
    /// A client. `identities` are indexed by the principals' [`IdentityId`].
    ///
    /// [`IdentityId`]: crate::object_request::IdentityId
    pub fn new(
        settings: OriginSettings,
        identities: Vec<IdentitySource>,
        counters: Arc<GatewayCounters>,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = settings.tls.clone().unwrap_or_else(crate::origin_tls::without_roots);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .set_host(false)
            .build(connector);
        let id = OriginId::of_endpoint(&settings.endpoint.to_string());
        Self(Arc::new(Inner { http, settings, identities, id, counters }))
    }

    /// The id of the origin.
    pub fn origin(&self) -> OriginId {
        self.0.id
    }

    /// The counters of the gateway.
    pub fn counters(&self) -> &Arc<GatewayCounters> {
        &self.0.counters
    }

    /// Signs a request as a principal, sends it, and returns the head of the response and its body
    /// as a stream.
    ///
    /// Sets `host` and all headers of the signature. The caller removes what a client sent of them.
    pub async fn send(
        &self,
        principal: &Principal,
        request: OriginRequest,
    ) -> Result<Response<OriginBody>, OriginError> {
        let sent = self.send_signed(principal, request).await;
        if sent.is_err() {
            self.0.counters.gateway_origin_failures.one();
        }
        sent
    }

    async fn send_signed(
        &self,
        principal: &Principal,
        mut request: OriginRequest,
    ) -> Result<Response<OriginBody>, OriginError> {
        let identity = usize::try_from(principal.identity().0).ok();
        let source = identity.and_then(|index| self.0.identities.get(index));
        let source = source.expect("principals are made from the same configuration");
        let credential = source.credential().await?;
        let is_repeatable = request.is_repeatable();
        let body = request.take_body();
        let mut body = Some(body);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let outgoing = self.signed(&request, credential.as_deref(), body.take())?;
            self.0.counters.gateway_origin_requests.one();
            match self.exchange(outgoing, is_repeatable).await {
                Err(OriginError::Connection(error)) if is_repeatable && attempt == 1 => {
                    tracing::debug!(%error, "origin request repeated");
                    self.0.counters.gateway_origin_retries.one();
                }
                outcome => return outcome,
            }
        }
    }

    /// The request with its headers, signed now.
    fn signed(
        &self,
        request: &OriginRequest,
        credential: Option<&sign::Credential>,
        body: Option<RequestBody>,
    ) -> Result<http::Request<RequestBody>, OriginError> {
        let Inner { settings, .. } = &*self.0;
        let authority = settings.endpoint.authority().expect("endpoints are checked").as_str();
        let (host, path) = request.target.host_and_path(authority, settings.addressing);
        let query = request.query.as_deref().unwrap_or("");
        let mut headers = request.headers.clone();
        remove_hop_by_hop(&mut headers);
        for name in [header::AUTHORIZATION, sign::DATE, sign::CONTENT_SHA256, sign::SECURITY_TOKEN]
        {
            headers.remove(name);
        }
        let host_value = HeaderValue::from_str(&host).map_err(|_| OriginError::Name)?;
        headers.insert(header::HOST, host_value);
        if let Some(credential) = credential {
            let target = sign::SignedTarget {
                method: &request.method,
                path: &path,
                query,
                payload: request.payload.content_sha256(),
            };
            let time = SystemTime::now();
            let scope = sign::Scope { region: &settings.region, service: "s3", time };
            sign::sign(&mut headers, target, credential, scope);
        }
        let path_and_query = if query.is_empty() { path } else { format!("{path}?{query}") };
        let uri = Uri::builder()
            .scheme(settings.endpoint.scheme().cloned().unwrap_or(uri::Scheme::HTTPS))
            .authority(host)
            .path_and_query(path_and_query)
            .build()
            .map_err(|_| OriginError::Name)?;
        let mut outgoing = http::Request::new(body.unwrap_or_else(RequestBody::empty));
        *outgoing.method_mut() = request.method.clone();
        *outgoing.uri_mut() = uri;
        *outgoing.headers_mut() = headers;
        Ok(outgoing)
    }

    async fn exchange(
        &self,
        mut outgoing: http::Request<RequestBody>,
        is_read: bool,
    ) -> Result<Response<OriginBody>, OriginError> {
        let Inner { settings, counters, .. } = &*self.0;
        let progress = outgoing.body_mut().watch(Arc::clone(counters));
        let limit = if is_read { settings.first_byte_timeout } else { WRITE_TIMEOUT };
        let mut response = std::pin::pin!(self.0.http.request(outgoing));
        let response = loop {
            let deadline = progress.last() + limit;
            tokio::select! {
                response = response.as_mut() => {
                    break response.map_err(|error| progress.failure(error))?;
                }
                () = tokio::time::sleep_until(deadline) => {
                    if progress.last() + limit <= Instant::now() {
                        return Err(OriginError::FirstByte(limit));
                    }
                }
            }
        };
        let (mut head, body) = response.into_parts();
        remove_hop_by_hop(&mut head.headers);
        if head.status.is_redirection() && head.status != StatusCode::NOT_MODIFIED {
            let region = head.headers.get("x-amz-bucket-region").and_then(|it| it.to_str().ok());
            return Err(OriginError::Redirect { region: region.map(str::to_owned) });
        }
        let body = OriginBody::new(body, settings.progress_timeout, Arc::clone(counters));
        Ok(Response::from_parts(head, body))
    }
}

impl OriginBody {
    /// The body as that of a response of the gateway.
    pub fn boxed(self) -> crate::body::GatewayBody {
        self.map_err(Into::into).boxed_unsync()
    }
}

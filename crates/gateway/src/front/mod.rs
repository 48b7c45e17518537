//! Front: connections, limits and the signature check, up to the route.

mod address;
mod classify;
mod client_body;
mod limits;
mod listener;
mod route;
mod stall_guard;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use parking_lot::Mutex;
use s3s::{
    S3,
    service::{S3Service, S3ServiceBuilder},
    validation::NameValidation,
};

pub use address::Domains;
pub use client_body::{PermittedBody, STALLED};
pub use limits::{EndpointLimits, RequestPermit};
pub use listener::Gateway;
pub(crate) use route::CLIENT_ONLY;

use crate::{
    body::{self, GatewayBody},
    metrics::GatewayCounters,
    object_request::OriginId,
    s3_error::S3Failure,
    verify,
};
use route::{Exchange, ExchangeState, GatewayRoute};

/// None of the typed operations of `s3s`: the route takes every request.
struct NoOperations;

impl S3 for NoOperations {}

/// [`Domains`] has checked the names.
struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, name: &str) -> bool {
        !name.is_empty()
    }
}

/// The front of a gateway, which all connections share.
pub(crate) struct Front {
    s3: S3Service,
    domains: Domains,
    origin: OriginId,
    limits: Arc<EndpointLimits>,
    counters: Arc<GatewayCounters>,
    progress_timeout: Duration,
}

impl Front {
    pub fn new(
        route: GatewayRoute,
        domains: Domains,
        limits: Arc<EndpointLimits>,
        progress_timeout: Duration,
    ) -> Self {
        let (origin, counters) = (route.origin.origin(), Arc::clone(&route.counters));
        let mut builder = S3ServiceBuilder::new(NoOperations);
        builder.set_auth(route.keys.clone());
        builder.set_host(domains.clone());
        builder.set_validation(AnyName);
        builder.set_route(route);
        Self { s3: builder.build(), domains, origin, limits, counters, progress_timeout }
    }

    pub fn limits(&self) -> &Arc<EndpointLimits> {
        &self.limits
    }

    pub fn counters(&self) -> &Arc<GatewayCounters> {
        &self.counters
    }

    /// Answers a request. `is_over_limit` is that of its connection.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        is_over_limit: bool,
    ) -> Response<PermittedBody> {
        if request.method() == Method::GET && request.uri().path() == "/-/health" {
            let response = Response::new(body::full("ok\n"));
            return response.map(|body| PermittedBody::new(body, None));
        }
        self.counters.gateway_requests.one();
        let permit = if is_over_limit { None } else { self.limits.request() };
        let Some(permit) = permit else {
            self.counters.gateway_slow_downs.one();
            let mut response =
                S3Failure::slow_down("Please reduce your request rate.").into_response();
            if is_over_limit {
                let close = http::HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            return response.map(|body| PermittedBody::new(body, None));
        };
        let exchange = match self.begin(&request, permit) {
            Ok(exchange) => exchange,
            Err(failure) => {
                self.counters.gateway_requests_refused.one();
                return route::refused(failure).map(|body| PermittedBody::new(body, None));
            }
        };
        let timeout = self.progress_timeout;
        let mut request = request
            .map(|body| s3s::Body::http_body_unsync(client_body::ClientBody::new(body, timeout)));
        request.extensions_mut().insert(exchange.clone());
        let checked = self.s3.call(request).await;
        let (response, permit) = {
            let mut state = exchange.0.lock();
            (state.response.take(), state.permit.take())
        };
        let response = response.unwrap_or_else(|| self.not_verified(checked));
        response.map(|body| PermittedBody::new(body, permit))
    }

    /// Checks a request before its signature.
    fn begin(
        &self,
        request: &Request<Incoming>,
        permit: RequestPermit,
    ) -> Result<Exchange, S3Failure> {
        let (uri, headers) = (request.uri(), request.headers());
        let query = uri.query().unwrap_or_default();
        verify::check(request.method(), headers, query, SystemTime::now())?;
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.ok_or_else(|| S3Failure::invalid_request("The header host is missing."))?;
        let target = self.domains.target(host, uri.path(), self.origin)?;
        let state = ExchangeState { target, permit: Some(permit), response: None };
        Ok(Exchange(Arc::new(Mutex::new(state))))
    }

    fn not_verified(
        &self,
        checked: Result<s3s::HttpResponse, s3s::HttpError>,
    ) -> Response<GatewayBody> {
        self.counters.gateway_signatures_refused.one();
        match checked {
            Ok(response) => route::of_signature_check(response),
            Err(_) => S3Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "The request could not be checked.",
            )
            .into_response(),
        }
    }
}

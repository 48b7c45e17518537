//! Route: what happens to a request after `s3s` has verified its signature.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, Response, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use s3s::{Body, S3Request, S3Response, S3Result, route::S3Route, s3_error};

use super::{classify, limits::RequestPermit};
use crate::{
    body::GatewayBody,
    encoding::{self, Parameter},
    metrics::GatewayCounters,
    object_request::{JobTag, ObjectRequest, Principal},
    objects::ObjectCache,
    origin_client::{OriginClient, OriginTarget, client_body_failure},
    pass,
    s3_error::S3Failure,
    sign,
    tenants::AccessKeys,
    verify,
};

/// The front's state of a request, attached to it; and the place for its response, which would
/// lose its type on the way back through `s3s`.
#[derive(Clone)]
pub struct Exchange(pub Arc<Mutex<ExchangeState>>);

/// State of an exchange.
pub struct ExchangeState {
    /// What the request names.
    pub target: OriginTarget,
    /// The limits that the request is counted in.
    pub permit: Option<RequestPermit>,
    /// The response, after the route was called.
    pub response: Option<Response<GatewayBody>>,
}

/// The one route: it matches every request.
pub struct GatewayRoute {
    /// Access keys, and whose they are.
    pub keys: AccessKeys,
    /// The origin.
    pub origin: OriginClient,
    /// The object path.
    pub cache: Arc<ObjectCache>,
    /// The counters.
    pub counters: Arc<GatewayCounters>,
}

#[async_trait::async_trait]
impl S3Route for GatewayRoute {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        true
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let exchange = request.extensions.remove::<Exchange>();
        let exchange = exchange.ok_or_else(|| s3_error!(InternalError))?;
        let presented = request.credentials.take().map(|known| known.access_key);
        let principal = presented.and_then(|key| self.keys.principal(&key));
        let (principal, job) = principal.ok_or_else(|| s3_error!(AccessDenied))?;
        let (target, mut permit) = {
            let mut state = exchange.0.lock();
            (state.target.clone(), state.permit.take())
        };
        let response = self.respond(request, target, principal, job, &mut permit).await;
        let mut state = exchange.0.lock();
        state.permit = permit;
        state.response = Some(response);
        Ok(S3Response::new(Body::empty()))
    }
}

impl GatewayRoute {
    async fn respond(
        &self,
        request: S3Request<Body>,
        target: OriginTarget,
        principal: Principal,
        job: Option<JobTag>,
        permit: &mut Option<RequestPermit>,
    ) -> Response<GatewayBody> {
        let parameters = encoding::parameters(request.uri.query().unwrap_or_default());
        let parameters: Vec<Parameter> =
            parameters.into_iter().filter(|it| !verify::is_presign_parameter(it)).collect();
        let method = classify::served(&request.method, &target, &parameters, &request.headers);
        if let (Some(method), OriginTarget::Object(object)) = (method, &target) {
            self.counters.gateway_requests_served.one();
            let query = encoding::query(&parameters);
            let object = object.clone();
            let mut headers = request.headers;
            pass::remove_client_headers(&mut headers);
            let request_body = request.input;
            let request = ObjectRequest { principal, object, method, headers, query, job };
            return self.serve(request, request_body).await;
        }
        self.counters.gateway_requests_passed.one();
        let passed = pass::PassRequest { request, target, parameters, principal };
        pass::forward(&self.origin, &self.cache, &self.counters, passed, permit).await
    }

    async fn serve(&self, request: ObjectRequest, body: Body) -> Response<GatewayBody> {
        // There is no body, but the hash of one may be declared. Reading to the end checks it.
        if let Err(error) = Limited::new(body, 0).collect().await {
            return client_body_failure(&error.to_string()).into_response();
        }
        self.cache.serve(request).await
    }
}

/// The response for an error of `s3s`, which has S3's code in its body already.
pub fn of_signature_check(response: s3s::HttpResponse) -> Response<GatewayBody> {
    let (mut head, body) = response.into_parts();
    crate::cache_header::CacheOutcome::Pass.set(&mut head.headers);
    Response::from_parts(head, body.boxed_unsync())
}

/// The response for a request that a check refused.
pub fn refused(failure: S3Failure) -> Response<GatewayBody> {
    failure.into_response()
}

/// Headers of authentication and of one connection, which do not go to the origin.
pub const CLIENT_ONLY: [http::HeaderName; 10] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::DATE,
    sign::DATE,
    sign::CONTENT_SHA256,
    sign::SECURITY_TOKEN,
    http::HeaderName::from_static("x-amz-decoded-content-length"),
    http::HeaderName::from_static("x-amz-trailer"),
];

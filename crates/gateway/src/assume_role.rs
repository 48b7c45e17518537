//! Assumed roles: `AssumeRole` of AWS STS, one signed request, and its temporary credential.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{sync::Mutex, time::Instant};
use zeroize::Zeroizing;

use crate::{
    config::{AssumedRole, GatewayConfig},
    credentials::{CredentialError, IdentitySource},
    encoding::component,
    origin_tls,
    sign::{self, Credential, Scope, SignedTarget},
};

/// Life of the credential that is asked for. The maximum of a chained role is one hour.
const DURATION: Duration = Duration::from_hours(1);
/// A credential is refreshed this time before it expires.
const REFRESH_BEFORE: Duration = Duration::from_mins(5);
/// Pause after a refresh that failed, while the old credential is valid.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const ANSWER_SIZE_MAX: usize = 64 << 10;

/// A role, and its current credential.
pub struct RoleSession {
    base: IdentitySource,
    role: AssumedRole,
    endpoint: Uri,
    region: String,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// One refresh at a time; other requests wait for it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Temporary>,
    failed: Option<Failure>,
}

struct Failure {
    at: Instant,
    error: CredentialError,
}

#[derive(Clone)]
struct Temporary {
    credential: Arc<Credential>,
    expires: DateTime<Utc>,
}

impl Temporary {
    fn is_valid_for(&self, time: Duration) -> bool {
        (self.expires - Utc::now()).to_std().is_ok_and(|left| left > time)
    }
}

impl RoleSession {
    pub(crate) fn new(
        base: IdentitySource,
        role: AssumedRole,
        config: &GatewayConfig,
    ) -> anyhow::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let endpoint = config.sts_endpoint.clone();
        let tls = if endpoint.scheme_str() == Some("https") {
            origin_tls::client_config(config.origin_ca.as_deref())?
        } else {
            origin_tls::without_roots()
        };
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = Client::builder(TokioExecutor::new()).set_host(false).build(connector);
        let state = Mutex::default();
        Ok(Self { base, role, endpoint, region: config.region.clone(), http, state })
    }

    /// The current credential, refreshed if it expires soon.
    pub(crate) async fn credential(&self) -> Result<Arc<Credential>, CredentialError> {
        let mut state = self.state.lock().await;
        if let Some(current) = &state.current
            && current.is_valid_for(REFRESH_BEFORE)
        {
            return Ok(Arc::clone(&current.credential));
        }
        let valid = state.current.clone().filter(|current| current.is_valid_for(Duration::ZERO));
        if let Some(failure) = state.failed.as_ref().filter(|it| it.at.elapsed() < RETRY_PAUSE) {
            return valid.map(|it| it.credential).ok_or_else(|| failure.error.clone());
        }
        match self.assume().await {
            Ok(new) => {
                let credential = Arc::clone(&new.credential);
                *state = State { current: Some(new), failed: None };
                Ok(credential)
            }
            Err(error) => {
                tracing::warn!(role = %self.role.arn, %error, "role not assumed");
                state.failed = Some(Failure { at: Instant::now(), error: error.clone() });
                valid.map(|it| it.credential).ok_or(error)
            }
        }
    }

    async fn assume(&self) -> Result<Temporary, CredentialError> {
        let failed = |what: String| CredentialError(format!("the role was not assumed: {what}"));
        let base = Box::pin(self.base.credential()).await?;
        let base = base.ok_or_else(|| failed("there is no credential to assume it".to_owned()))?;
        let request = self.request(&base).ok_or_else(|| failed("bad endpoint".to_owned()))?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|it| it.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_SIZE_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            let text = Zeroizing::new(String::from_utf8_lossy(&body).into_owned());
            if status.is_success() {
                return parse(&text).ok_or_else(|| "the answer has no credential".to_owned());
            }
            let code = element(&text, "Code").filter(|code| {
                code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric())
            });
            Err(format!("{status}, {}", code.unwrap_or("without a code")))
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed(format!("no answer within {TIMEOUT:?}"))),
        }
    }

    fn request(&self, base: &Credential) -> Option<Request<Full<Bytes>>> {
        let AssumedRole { arn, session_name, external_id } = &self.role;
        let mut form = format!(
            "Action=AssumeRole&Version=2011-06-15&DurationSeconds={}&RoleArn={}&RoleSessionName={}",
            DURATION.as_secs(),
            component(arn.as_bytes()),
            component(session_name.as_bytes()),
        );
        if let Some(id) = external_id {
            form.push_str("&ExternalId=");
            form.push_str(&component(id.as_bytes()));
        }
        let mut headers = HeaderMap::new();
        let host = self.endpoint.authority()?.as_str();
        headers.insert(header::HOST, HeaderValue::from_str(host).ok()?);
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(header::CONTENT_TYPE, form_type);
        let payload = sign::sha256_hex(form.as_bytes());
        let target =
            SignedTarget { method: &Method::POST, path: "/", query: "", payload: &payload };
        let time = std::time::SystemTime::now();
        sign::sign(
            &mut headers,
            target,
            base,
            Scope { region: &self.region, service: "sts", time },
        );
        let mut request = Request::new(Full::new(Bytes::from(form)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.clone();
        *request.headers_mut() = headers;
        Some(request)
    }
}

/// The credential of an answer of `AssumeRole`.
fn parse(text: &str) -> Option<Temporary> {
    let credentials = element(text, "Credentials")?;
    let secret = Zeroizing::new(element(credentials, "SecretAccessKey")?.to_owned());
    let token = element(credentials, "SessionToken")?.to_owned();
    let id = element(credentials, "AccessKeyId")?.to_owned();
    let expires = element(credentials, "Expiration")?.parse().ok()?;
    Some(Temporary { credential: Arc::new(Credential::new(id, secret, Some(token))), expires })
}

/// The text of the first element of this name. Keys and tokens have no characters that XML escapes.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(inner.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_token_service_is_read() {
        let text = "<AssumeRoleResponse><AssumeRoleResult><Credentials>\
            <AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>s/+=</SecretAccessKey>\
            <SessionToken>t//</SessionToken><Expiration>2040-11-09T13:34:41Z</Expiration>\
            </Credentials></AssumeRoleResult></AssumeRoleResponse>";
        let temporary = parse(text).unwrap();
        assert_eq!(temporary.credential.key_id, "ASIA1");
        assert_eq!(&**temporary.credential.secret, "s/+=");
        assert!(temporary.is_valid_for(REFRESH_BEFORE));
        assert!(parse(&text.replace("2040", "2020")).is_some_and(|it| !it.is_valid_for(TIMEOUT)));
        for cut in 0..text.len() - "</AssumeRoleResult></AssumeRoleResponse>".len() {
            assert!(parse(&text[..cut]).is_none());
        }
    }
}

//! What time it is at an origin. Signatures of S3 are refused if the clocks are a quarter of an hour apart,
//! and the refusal does not always say so.

use std::time::{Duration, SystemTime};

use chrono::DateTime;
use object_store::{
    ClientOptions,
    client::{HttpConnector as _, HttpRequest, HttpRequestBody, ReqwestConnector},
};

use crate::{Location, Options, OriginError};

/// No answer is waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The origin's clock, as its answers tell it; nothing, if there is no server, or it tells no time.
pub async fn clock(url: &str, options: &Options) -> Result<Option<SystemTime>, OriginError> {
    let Some(server) = server_of(&Location::parse(url)?, options) else { return Ok(None) };
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(tokio::time::timeout(PATIENCE, ask(&server)).await.ok().flatten())
}

async fn ask(server: &str) -> Option<SystemTime> {
    let allowed = ClientOptions::new().with_allow_http(true);
    let client = ReqwestConnector::default().connect(&allowed).ok()?;
    let request: HttpRequest = http::Request::head(server).body(HttpRequestBody::empty()).ok()?;
    let answer = client.execute(request).await.ok()?;
    let date = answer.headers().get(http::header::DATE)?.to_str().ok()?;
    Some(DateTime::parse_from_rfc2822(date).ok()?.into())
}

/// Whom to ask.
fn server_of(location: &Location, options: &Options) -> Option<String> {
    let from_environment = || {
        let named = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
        named.iter().find_map(|name| std::env::var(name).ok().filter(|url| !url.is_empty()))
    };
    match location {
        Location::Local(_) => None,
        _ if options.endpoint.is_some() => options.endpoint.clone(),
        Location::S3 { .. } => {
            Some(from_environment().unwrap_or_else(|| "https://s3.amazonaws.com".to_owned()))
        }
        other => Some(other.url()).filter(|url| url.starts_with("http")),
    }
}

//! The clock of an origin. S3 rejects signatures if the clocks are 15 minutes apart, and the error
//! does not always name the reason.

use std::time::{Duration, SystemTime};

use chrono::DateTime;
use object_store::{
    ClientOptions,
    client::{HttpConnector as _, HttpRequest, HttpRequestBody},
};

use crate::{Location, Options, OriginError, attempt::Connector};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The origin's time, from the `Date` header of an answer. `None` if there is no server or no
/// header.
pub async fn clock(url: &str, options: &Options) -> Result<Option<SystemTime>, OriginError> {
    let Some(server) = server_of(&Location::parse(url)?, options) else { return Ok(None) };
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(tokio::time::timeout(TIMEOUT, request_date(&server)).await.ok().flatten())
}

async fn request_date(server: &str) -> Option<SystemTime> {
    let connector = Connector { deadline: TIMEOUT, same_host_only: true };
    let client = connector.connect(&ClientOptions::new()).ok()?;
    let request: HttpRequest = http::Request::head(server).body(HttpRequestBody::empty()).ok()?;
    let answer = client.execute(request).await.ok()?;
    let date = answer.headers().get(http::header::DATE)?.to_str().ok()?;
    Some(DateTime::parse_from_rfc2822(date).ok()?.into())
}

/// URL of the origin's server.
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

//! S3 errors: responses with S3's own codes, as XML.

use std::fmt::Write as _;

use http::{HeaderValue, Response, StatusCode, header};

use crate::{
    body::{self, GatewayBody},
    cache_header::CacheOutcome,
};

/// An error that the gateway answers by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Failure {
    /// The HTTP status.
    pub status: StatusCode,
    /// S3's code.
    pub code: &'static str,
    /// One sentence, without names of objects.
    pub message: String,
}

impl S3Failure {
    /// An error.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// `503 SlowDown`: clients retry after a pause.
    pub fn slow_down(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message)
    }

    /// `403 AccessDenied`.
    pub fn access_denied(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "AccessDenied", message)
    }

    /// `400 InvalidRequest`.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidRequest", message)
    }

    /// The response.
    pub fn into_response(self) -> Response<GatewayBody> {
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>");
        text.push_str(self.code);
        text.push_str("</Code><Message>");
        for character in self.message.chars() {
            match character {
                '<' => text.push_str("&lt;"),
                '>' => text.push_str("&gt;"),
                '&' => text.push_str("&amp;"),
                '"' => text.push_str("&quot;"),
                control if control.is_control() => {
                    let _ = write!(text, "?");
                }
                plain => text.push(plain),
            }
        }
        text.push_str("</Message></Error>");
        let mut response = Response::new(body::full(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        CacheOutcome::Pass.set(headers);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_down_says_when_to_retry() {
        let response = S3Failure::slow_down("busy").into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}

//! Why an origin did not answer, and what the client of the gateway receives for it.

use std::{error::Error as _, time::Duration};

use http::{Response, StatusCode};

use crate::{body::GatewayBody, credentials::CredentialError, s3_error::S3Failure};

/// Why a request to an origin failed. No message names an object.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The credential of the identity.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// No connection, or it broke before the response's head.
    #[error("the origin could not be reached: {0}")]
    Connection(String),
    /// The head of the response took too long.
    #[error("the origin did not answer within {0:?}")]
    FirstByte(Duration),
    /// The body of the response paused too long.
    #[error("the origin's response paused for {0:?}")]
    Progress(Duration),
    /// The body of the response broke.
    #[error("the origin's response broke: {0}")]
    Body(String),
    /// The client's body broke while it was passed on.
    #[error("the client's body broke: {0}")]
    ClientBody(String),
    /// A redirect.
    #[error(
        "the origin redirects this bucket{}; set `endpoint` and `region` of the gateway to where \
         it is", region.as_ref().map(|it| format!(" to region {it}")).unwrap_or_default()
    )]
    Redirect {
        /// `x-amz-bucket-region`.
        region: Option<String>,
    },
    /// A bucket that cannot be part of a host name.
    #[error("the bucket's name cannot be sent to this origin; set `addressing` to \"path\"")]
    Name,
}

impl From<hyper_util::client::legacy::Error> for OriginError {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(source) = cause {
            causes.push(source.to_string());
            cause = source.source();
        }
        Self::Connection(causes.pop().unwrap_or_else(|| error.to_string()))
    }
}

impl OriginError {
    /// What the client of the gateway receives.
    pub fn into_failure(self) -> S3Failure {
        let unavailable = |message| {
            S3Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
        };
        match &self {
            Self::Credential(error) => S3Failure::access_denied(error.to_string()),
            Self::Connection(error) => {
                tracing::warn!(%error, "origin not reached");
                unavailable("The origin could not be reached.".to_owned())
            }
            Self::FirstByte(_) | Self::Progress(_) | Self::Body(_) => {
                tracing::warn!(error = %self, "origin failed");
                unavailable(format!("{self}."))
            }
            Self::ClientBody(reason) => client_body_failure(reason),
            Self::Redirect { .. } => {
                tracing::warn!(error = %self, "origin redirects");
                S3Failure::new(StatusCode::BAD_GATEWAY, "InternalError", self.to_string())
            }
            Self::Name => {
                S3Failure::new(StatusCode::BAD_REQUEST, "InvalidBucketName", self.to_string())
            }
        }
    }

    /// The response to the client of the gateway.
    pub fn into_response(self) -> Response<GatewayBody> {
        self.into_failure().into_response()
    }
}

/// The failure for a client's body that broke. `s3s` has no public type for the reason.
pub(crate) fn client_body_failure(reason: &str) -> S3Failure {
    let (status, code, message) = if reason.contains("SignatureMismatch") {
        (
            StatusCode::FORBIDDEN,
            "SignatureDoesNotMatch",
            "The signature of a chunk does not match what we calculated.",
        )
    } else if reason.contains("Sha256Mismatch") {
        (
            StatusCode::BAD_REQUEST,
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    } else if reason.contains(crate::front::STALLED) {
        (
            StatusCode::BAD_REQUEST,
            "RequestTimeout",
            "Your socket connection to the server was not read from or written to within the \
             timeout period.",
        )
    } else {
        (
            StatusCode::BAD_REQUEST,
            "IncompleteBody",
            "The request body is damaged or shorter than the request declares.",
        )
    };
    S3Failure::new(status, code, message)
}

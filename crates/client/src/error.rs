//! Errors of a connection.

use std::io;

use forebay_auth::TrustError;
use forebay_core::{BlobOrdinal, cluster::backoff::Failure};
use forebay_digest::DigestError;
use forebay_wire::{Malformed, Refusal};

use crate::OpenError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be opened.
    #[error("{} `{endpoint}`: {cause}", not_connected(cause))]
    Connect {
        /// The endpoint.
        endpoint: String,
        /// The cause. It is part of the message and therefore no source.
        cause: io::Error,
    },
    /// The server is not trusted.
    #[error("`{endpoint}`: {cause}")]
    Untrusted {
        /// The endpoint of the server.
        endpoint: String,
        /// The rule that it does not satisfy.
        cause: TrustError,
    },
    /// TLS failed, or the server requires it.
    #[error("{0}")]
    Tls(String),
    /// The connection broke. Open another.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The user has interrupted the job.
    #[error("interrupted")]
    Interrupted,
    /// An environment variable is malformed.
    #[error("`{name}` is `{value}`; set it to {fix}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// A valid value.
        fix: &'static str,
    },
    /// The reply is not a frame of this protocol.
    #[error("the server does not speak forebay's protocol: {0}")]
    Malformed(#[from] Malformed),
    /// The reply does not match the request.
    #[error("the server sent a reply that does not match the request; restart it")]
    Unexpected,
    /// The node refused.
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    /// The digest's namespace is malformed.
    #[error("the digest's namespace is neither `public` nor an id; build it again")]
    Namespace,
    /// A row of the digest cannot be read.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// A blob was read twice, and its bytes were wrong each time.
    #[error(
        "blob {blob} was read twice, and its bytes do not hash to its address; check the memory of \
         this machine"
    )]
    WrongBytes {
        /// The blob.
        blob: BlobOrdinal,
    },
}

impl From<OpenError> for ClientError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unexpected => Self::Unexpected,
            OpenError::Refused(refusal) => Self::Refused(refusal),
            OpenError::Namespace => Self::Namespace,
            OpenError::Digest(error) => Self::Digest(error),
        }
    }
}

/// The beginning of the message for [`ClientError::Connect`].
fn not_connected(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "no process listens at",
        io::ErrorKind::PermissionDenied => "this user may not connect to",
        _ => "cannot connect to",
    }
}

impl ClientError {
    /// The server answered cleartext with a TLS alert.
    pub(crate) fn tls_required() -> Self {
        Self::Tls("the node requires TLS; use tls:// instead of tcp://".to_owned())
    }

    /// Whether no process listens at the endpoint.
    pub fn is_not_running(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let Self::Connect { cause, .. } = self else { return false };
        matches!(cause.kind(), NotFound | ConnectionRefused)
    }

    /// How the node has failed.
    pub(crate) fn failure(&self) -> Failure {
        use io::ErrorKind::{TimedOut, WouldBlock};
        match self {
            Self::Connect { cause, .. } | Self::Broken(cause)
                if matches!(cause.kind(), TimedOut | WouldBlock) =>
            {
                Failure::Hung
            }
            _ => Failure::Dead,
        }
    }

    /// Whether the server refused this request only, so that the connection is still usable.
    pub fn is_refusal(&self) -> bool {
        let is_own = matches!(self, Self::Namespace | Self::Digest(_) | Self::WrongBytes { .. });
        is_own || matches!(self, Self::Refused(_))
    }
}

pub(crate) type Result<T> = std::result::Result<T, ClientError>;

//! Bodies of the gateway's responses.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full, combinators::UnsyncBoxBody};

/// Why a body ended early. The connection is closed, so that the client sees a short body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response: bytes in frames, which hyper writes without copying them.
pub type GatewayBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body without bytes.
pub fn empty() -> GatewayBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body of these bytes.
pub fn full(bytes: impl Into<Bytes>) -> GatewayBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

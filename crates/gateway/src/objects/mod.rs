//! Object path: answers `GetObject` and `HeadObject`, from flash where it can.

use std::path::PathBuf;

use forebay_core::ByteSize;
use http::Response;

use crate::{
    body::GatewayBody,
    cache_header::CacheOutcome,
    object_request::{ObjectName, ObjectRequest},
    origin_client::{OriginClient, OriginRequest},
};

/// Where the gateway keeps segments.
#[derive(Debug, Clone, Default)]
pub struct ObjectCacheSettings {
    /// The file or block device; `None` keeps nothing.
    pub device: Option<PathBuf>,
    /// Flash to reserve on it.
    pub capacity: ByteSize,
}

/// The object path.
#[derive(Debug)]
pub struct ObjectCache {
    origin: OriginClient,
}

impl ObjectCache {
    /// Opens the device. Returns at once: flash is recovered in the background, and requests pass
    /// to the origin until that is done.
    #[expect(clippy::unused_async, reason = "opening a device waits")]
    pub async fn open(
        _settings: &ObjectCacheSettings,
        origin: OriginClient,
    ) -> anyhow::Result<Self> {
        Ok(Self { origin })
    }

    /// Answers a GET or HEAD that the front understood.
    pub async fn serve(&self, request: ObjectRequest) -> Response<GatewayBody> {
        let outgoing = OriginRequest::of_object(&request);
        match self.origin.send(&request.principal, outgoing).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                CacheOutcome::Pass.set(&mut head.headers);
                Response::from_parts(head, body.boxed())
            }
            Err(error) => error.into_response(),
        }
    }

    /// Forgets what is known of an object. The front calls it before a write, delete, copy or
    /// completed upload of the object is answered.
    #[expect(clippy::unused_self, reason = "nothing is known yet")]
    pub fn invalidate(&self, _object: &ObjectName) {}
}

//! A gateway's object path over a temporary device.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use forebay_core::ByteSize;
use forebay_gateway::{
    credentials::IdentitySource,
    object_request::{IdentityId, ObjectMethod, ObjectName, ObjectRequest, OriginId, Principal},
    objects::{ObjectCache, ObjectCacheSettings},
    origin_client::{Addressing, OriginClient, OriginSettings},
    sign::Credential,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;

pub const BUCKET: &str = "bucket";
pub const SEGMENT: usize = 256 << 10;

/// An object path with its device.
pub struct Gateway {
    pub cache: Arc<ObjectCache>,
    origin: OriginId,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether the body ended before its announced length.
    pub is_cut: bool,
}

impl Answer {
    pub fn cache(&self) -> &str {
        self.header("x-forebay-cache").unwrap_or("")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Principals 0, 1 and 2, whose access keys at the origin are `key-0`, …
pub fn principal(index: u32) -> Principal {
    Principal::new(format!("tenant-{index}").into(), IdentityId(index))
}

pub fn identity(key_id: &str, secret: &str) -> IdentitySource {
    let secret = secret.to_owned().into();
    IdentitySource::Fixed(Arc::new(Credential::new(key_id.to_owned(), secret, None)))
}

/// The identities of a scripted origin, which reads the key's id alone.
pub fn scripted_identities() -> Vec<IdentitySource> {
    (0..3).map(|index| identity(&format!("key-{index}"), "secret")).collect()
}

pub fn settings(device: &std::path::Path) -> ObjectCacheSettings {
    ObjectCacheSettings {
        device: Some(device.join("segments")),
        capacity: ByteSize::mib(64),
        region_size: Some(ByteSize::mib(4)),
        key: [7; 32],
        ..ObjectCacheSettings::default()
    }
}

pub fn origin_client(endpoint: &str, identities: Vec<IdentitySource>) -> OriginClient {
    let settings = OriginSettings {
        endpoint: endpoint.parse().unwrap(),
        region: "us-east-1".to_owned(),
        addressing: Addressing::Path,
        first_byte_timeout: Duration::from_secs(20),
        progress_timeout: Duration::from_secs(20),
        tls: None,
    };
    OriginClient::new(settings, identities, Arc::default())
}

impl Gateway {
    /// Opens the object path and waits for its device.
    pub async fn open(origin: OriginClient, settings: &ObjectCacheSettings) -> Self {
        let id = origin.origin();
        let cache = Arc::new(ObjectCache::open(settings, origin).await.unwrap());
        while settings.device.is_some() && !cache.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { cache, origin: id }
    }

    pub fn name(&self, key: &str) -> ObjectName {
        ObjectName {
            origin: self.origin,
            bucket: BUCKET.into(),
            key: Bytes::copy_from_slice(key.as_bytes()),
        }
    }

    pub fn request(&self, of: u32, key: &str, headers: &[(&str, &str)]) -> ObjectRequest {
        let headers = headers.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        });
        ObjectRequest {
            principal: principal(of),
            object: self.name(key),
            method: ObjectMethod::Get,
            headers: headers.collect(),
            query: None,
            job: None,
        }
    }

    pub async fn get(&self, of: u32, key: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(self.request(of, key, headers)).await
    }

    pub async fn head(&self, of: u32, key: &str, headers: &[(&str, &str)]) -> Answer {
        let method = ObjectMethod::Head;
        self.send(ObjectRequest { method, ..self.request(of, key, headers) }).await
    }

    pub async fn send(&self, request: ObjectRequest) -> Answer {
        let (head, mut body) = self.cache.serve(request).await.into_parts();
        let mut bytes = BytesMut::new();
        let mut is_cut = false;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                is_cut = true;
                break;
            };
            bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        Answer { status: head.status, headers: head.headers, body: bytes.freeze(), is_cut }
    }

    /// Waits until no segment is on its way.
    pub async fn settled(&self) {
        while self.cache.segments_fetching() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Bytes of an object, as a function of a seed.
pub fn content(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

//! Object heads: what the origin said of one version, and the heads of answers made from it.

use std::{ops::Range, sync::Arc};

use forebay_core::gateway::{
    byte_range::ContentRange,
    conditions::{HttpTime, Validators},
    etag::StrongEtag,
    fill::AnswerHead,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response};

use super::request_terms::RequestTerms;

/// Longest head that is kept. S3 allows 2 KiB of user metadata.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Headers of an answer that do not belong to the version.
const OF_THE_ANSWER: [HeaderName; 9] = [
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::DATE,
    header::SERVER,
    header::VARY,
    header::AGE,
    HeaderName::from_static("x-amz-request-id"),
    HeaderName::from_static("x-amz-id-2"),
];

/// The head of one version. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct ObjectHead(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    etag: StrongEtag,
    length: u64,
    last_modified: Option<HttpTime>,
    headers: HeaderMap,
    has_checksums: bool,
}

impl ObjectHead {
    /// The head of a version, from an answer to HEAD or to a GET of a part. `None` if the gateway
    /// does not cache such an object: without a strong tag or a length, archived, or with a key of
    /// the customer.
    pub fn of(answer: &response::Parts, has_checksums: bool) -> Option<Self> {
        let headers = &answer.headers;
        let etag = strong_etag(headers)?;
        let length = match answer.status {
            StatusCode::OK => content_length(headers)?,
            StatusCode::PARTIAL_CONTENT => content_range(headers)?.length?,
            _ => return None,
        };
        let is_archived = headers
            .get("x-amz-storage-class")
            .is_some_and(|class| [&b"GLACIER"[..], b"DEEP_ARCHIVE"].contains(&class.as_bytes()));
        let is_opaque = headers.contains_key("x-amz-archive-status")
            || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
            || headers.contains_key(header::TRANSFER_ENCODING);
        let size: usize =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if is_archived || is_opaque || size > HEAD_BYTES_MAX {
            return None;
        }
        let mut kept = headers.clone();
        crate::origin_client::remove_hop_by_hop(&mut kept);
        for name in &OF_THE_ANSWER {
            kept.remove(name);
        }
        let last_modified =
            headers.get(header::LAST_MODIFIED).and_then(|value| HttpTime::parse(value.as_bytes()));
        Some(Self(Arc::new(Inner { etag, length, last_modified, headers: kept, has_checksums })))
    }

    /// Length of the object.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The version.
    pub fn etag(&self) -> &StrongEtag {
        &self.0.etag
    }

    /// What conditions compare with.
    pub fn validators(&self) -> Validators<'_> {
        Validators { etag: &self.0.etag, last_modified: self.0.last_modified }
    }

    /// Whether the origin was asked for the checksums of the object.
    pub fn has_checksums(&self) -> bool {
        self.0.has_checksums
    }

    /// Whether the object is encrypted with a key that only some principals may use (SSE-KMS).
    pub fn has_own_key(&self) -> bool {
        let encryption = self.0.headers.get("x-amz-server-side-encryption");
        encryption.is_some_and(|kind| kind.as_bytes().starts_with(b"aws:kms"))
    }

    /// The `Content-Encoding`.
    pub fn content_encoding(&self) -> Option<&HeaderValue> {
        self.0.headers.get(header::CONTENT_ENCODING)
    }

    /// The headers of a `304`.
    pub fn not_modified(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for name in [header::ETAG, header::LAST_MODIFIED, header::CACHE_CONTROL, header::EXPIRES] {
            if let Some(value) = self.0.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        headers
    }

    /// Status and headers of an answer with these bytes; `None` for the whole object.
    pub fn answer(
        &self,
        part: Option<&Range<u64>>,
        terms: &RequestTerms,
    ) -> (StatusCode, HeaderMap) {
        let Inner { length, headers, .. } = &*self.0;
        let mut headers = headers.clone();
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        for (name, value) in &terms.overrides {
            headers.insert(name.clone(), value.clone());
        }
        // The checksum of the whole object says nothing about a part of it.
        if part.is_some() || !terms.wants_checksums {
            let is_checksum = |name: &HeaderName| name.as_str().starts_with("x-amz-checksum-");
            let names: Vec<_> = headers.keys().filter(|name| is_checksum(name)).cloned().collect();
            for name in names {
                headers.remove(name);
            }
        }
        let sent = part.map_or(*length, |part| part.end - part.start);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(sent));
        let Some(part) = part.filter(|part| !part.is_empty()) else {
            return (StatusCode::OK, headers);
        };
        let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
        let range = HeaderValue::from_str(&range).expect("digits and punctuation");
        headers.insert(header::CONTENT_RANGE, range);
        (StatusCode::PARTIAL_CONTENT, headers)
    }

    /// An answer to a fill of this version, as far as it matters.
    pub fn answer_head(&self, answer: &response::Parts) -> AnswerHead {
        let headers = &answer.headers;
        AnswerHead {
            status: answer.status.as_u16(),
            etag: strong_etag(headers),
            content_range: content_range(headers),
            content_length: content_length(headers),
            is_other_encoding: headers.get(header::CONTENT_ENCODING) != self.content_encoding(),
        }
    }
}

fn strong_etag(headers: &HeaderMap) -> Option<StrongEtag> {
    StrongEtag::parse(headers.get(header::ETAG)?.as_bytes())
}

fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    ContentRange::parse(headers.get(header::CONTENT_RANGE)?.as_bytes())
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

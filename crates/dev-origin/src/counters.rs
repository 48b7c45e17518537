//! Counters of requests and bytes: the "origin requests" and "origin bytes" of tests and
//! benchmarks.
//!
//! One lock guards all of them, so that a snapshot is consistent and a reset loses nothing. It is
//! taken once per request and once per buffer of a body, which does not show up in profiles.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// All counters since the start or the last reset.
///
/// Requests to `/-/…` are never counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    /// S3 requests by kind, including failed ones.
    pub requests: RequestCounts,
    /// Injected failures: answered `503 SlowDown`, or with a truncated body.
    pub failures_injected: u64,
    /// Responses with a status of 400 or above that were not injected.
    pub errors: u64,
    /// Bytes of object bodies written to connections. If a client disconnects during a body, this
    /// may exceed what it received by the socket's buffer and one buffer (at most 256 KiB).
    pub bytes_sent: u64,
    /// Bytes of uploaded objects and parts, accepted or not, without the framing of chunked
    /// uploads.
    pub bytes_received: u64,
    /// By `bucket/key`, for objects that were read and not deleted since the last reset.
    pub objects: BTreeMap<String, ObjectCounts>,
}

/// Requests by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// `GetObject`.
    pub get: u64,
    /// `HeadObject` and `HeadBucket`.
    pub head: u64,
    /// `ListObjectsV2` and `ListObjects`, one per page.
    pub list: u64,
    /// `PutObject`, `UploadPart` and `CopyObject`.
    pub put: u64,
    /// `DeleteObject` and `DeleteObjects`.
    pub delete: u64,
    /// All others, and requests that were malformed or wrongly signed.
    pub other: u64,
}

/// Counters of one object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    /// `GetObject` requests answered with a body (200 or 206), complete or not.
    pub gets: u64,
    /// As [`CounterSnapshot::bytes_sent`], for this object. Bodies in progress at a reset count in
    /// the total only.
    pub bytes_sent: u64,
}

impl CounterSnapshot {
    /// All S3 requests.
    pub fn requests_total(&self) -> u64 {
        let RequestCounts { get, head, list, put, delete, other } = self.requests;
        get + head + list + put + delete + other
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<CounterSnapshot>);

impl Counters {
    pub fn snapshot(&self) -> CounterSnapshot {
        self.0.lock().clone()
    }

    pub fn reset(&self) {
        *self.0.lock() = CounterSnapshot::default();
    }

    /// Counts a request by its operation, or as "other" if it has none.
    pub fn request(&self, operation: Option<&str>) {
        let requests = &mut self.0.lock().requests;
        *match operation {
            Some("GetObject") => &mut requests.get,
            Some("HeadObject" | "HeadBucket") => &mut requests.head,
            Some("ListObjects" | "ListObjectsV2") => &mut requests.list,
            Some("PutObject" | "UploadPart" | "CopyObject") => &mut requests.put,
            Some("DeleteObject" | "DeleteObjects") => &mut requests.delete,
            _ => &mut requests.other,
        } += 1;
    }

    pub fn failure_injected(&self) {
        self.0.lock().failures_injected += 1;
    }

    pub fn error(&self) {
        self.0.lock().errors += 1;
    }

    pub fn received(&self, bytes: u64) {
        self.0.lock().bytes_received += bytes;
    }

    pub fn object_opened(&self, name: &str) {
        let objects = &mut self.0.lock().objects;
        if let Some(counts) = objects.get_mut(name) {
            counts.gets += 1;
        } else {
            objects.insert(name.to_owned(), ObjectCounts { gets: 1, bytes_sent: 0 });
        }
    }

    pub fn object_sent(&self, name: &str, bytes: u64) {
        let mut counters = self.0.lock();
        counters.bytes_sent += bytes;
        if let Some(counts) = counters.objects.get_mut(name) {
            counts.bytes_sent += bytes;
        }
    }

    pub fn object_deleted(&self, name: &str) {
        self.0.lock().objects.remove(name);
    }
}

//! What this origin did: the numbers that tests and benchmarks call "origin requests" and "origin
//! bytes".
//!
//! One lock guards them all, so that a snapshot is consistent and a reset loses nothing; it is taken
//! once per request and once per piece of a body, which no profile has ever noticed.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Everything counted since the start or the last reset.
///
/// Requests to `/-/…` are never counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    /// S3 requests by kind, including those that failed, on purpose or not.
    pub requests: RequestCounts,
    /// Requests made to fail by the fail rate: answered `503 SlowDown`, or with a body cut short.
    pub failures_injected: u64,
    /// Responses with a status of 400 or above that were not injected.
    pub errors: u64,
    /// Bytes of object bodies handed to connections. When a client goes away in mid-body, this may
    /// exceed what it has seen by the socket's buffer and one piece (at most 256 KiB).
    pub bytes_sent: u64,
    /// Bytes of objects and parts received for storing, without the framing of chunked uploads,
    /// whether or not they were accepted in the end.
    pub bytes_received: u64,
    /// By `bucket/key`, for objects that were read since the last reset and not deleted since.
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
    /// All others, and requests refused before their operation was known: malformed or wrongly
    /// signed.
    pub other: u64,
}

/// What one object has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    /// `GetObject` requests answered with a body (200 or 206), even if it was then cut short.
    pub gets: u64,
    /// As [`CounterSnapshot::bytes_sent`], for this object. Bodies still under way at a reset count
    /// in the total only.
    pub bytes_sent: u64,
}

impl CounterSnapshot {
    /// All S3 requests, of whatever kind.
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

    /// Counts a request by its operation's name, or as "other" if it never came to have one.
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

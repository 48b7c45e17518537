//! Counters of the object path.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start.
#[derive(Debug, Default)]
pub struct ObjectCounters {
    /// Requests that were passed to the origin unchanged.
    pub requests_passed: AtomicU64,
    /// Requests answered without a body: HEAD and 304.
    pub heads_answered: AtomicU64,
    /// Probes: requests to the origin that confirm a version and a right.
    pub probes: AtomicU64,
    /// Bytes sent from memory or flash.
    pub hit_bytes: AtomicU64,
    /// Bytes sent that were fetched to be kept.
    pub fill_bytes: AtomicU64,
    /// Bytes sent that were not kept.
    pub pass_bytes: AtomicU64,
    /// Fills: requests to the origin that feed segments.
    pub fills: AtomicU64,
    /// Requests of fills beyond the first one, after a busy or broken answer.
    pub fill_retries: AtomicU64,
    /// Segments whose fetch served another reader, too.
    pub segments_joined: AtomicU64,
    /// Segments stored on flash.
    pub segments_stored: AtomicU64,
    /// Segments that were fetched and not stored on flash.
    pub segments_not_stored: AtomicU64,
    /// Fills that ended early because no reader was left.
    pub fills_abandoned: AtomicU64,
    /// Answers that began again because the object changed before the first byte was sent.
    pub restarts: AtomicU64,
    /// Answers that were cut after the first byte.
    pub answers_cut: AtomicU64,
    /// Reads refused for lack of memory for bytes that wait for clients.
    pub slow_downs: AtomicU64,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

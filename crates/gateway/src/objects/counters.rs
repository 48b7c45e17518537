//! Counters of the object path.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_transport::counters::Row;

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
    /// Answers begun again: the object changed before the first byte was sent.
    pub restarts: AtomicU64,
    /// Answers that were cut after the first byte.
    pub answers_cut: AtomicU64,
    /// Reads refused for lack of memory for bytes that wait for clients.
    pub slow_downs: AtomicU64,
}

impl ObjectCounters {
    /// Name, meaning and value of each counter.
    pub fn rows(&self) -> Vec<Row> {
        let row = |name, help, value: &AtomicU64| (name, help, value.load(Ordering::Relaxed));
        vec![
            row(
                "gateway_objects_passed",
                "Requests that were passed to the origin unchanged.",
                &self.requests_passed,
            ),
            row(
                "gateway_heads_answered",
                "Requests answered without a body: HEAD and 304.",
                &self.heads_answered,
            ),
            row(
                "gateway_probes",
                "Probes: requests to the origin that confirm a version and a right.",
                &self.probes,
            ),
            row("gateway_hit_bytes", "Bytes sent from memory or flash.", &self.hit_bytes),
            row("gateway_fill_bytes", "Bytes sent that were fetched to be kept.", &self.fill_bytes),
            row("gateway_pass_bytes", "Bytes sent that were not kept.", &self.pass_bytes),
            row("gateway_fills", "Fills: requests to the origin that feed segments.", &self.fills),
            row(
                "gateway_fill_retries",
                "Requests of fills beyond the first one, after a busy or broken answer.",
                &self.fill_retries,
            ),
            row(
                "gateway_segments_joined",
                "Segments whose fetch served another reader, too.",
                &self.segments_joined,
            ),
            row("gateway_segments_stored", "Segments stored on flash.", &self.segments_stored),
            row(
                "gateway_segments_not_stored",
                "Segments that were fetched and not stored on flash.",
                &self.segments_not_stored,
            ),
            row(
                "gateway_fills_abandoned",
                "Fills that ended early because no reader was left.",
                &self.fills_abandoned,
            ),
            row(
                "gateway_answers_restarted",
                "Answers begun again because the object changed before the first byte was sent.",
                &self.restarts,
            ),
            row(
                "gateway_answers_cut",
                "Answers that were cut after the first byte.",
                &self.answers_cut,
            ),
            row(
                "gateway_send_memory_refused",
                "Reads refused for lack of memory for bytes that wait for clients.",
                &self.slow_downs,
            ),
        ]
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

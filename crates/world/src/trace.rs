//! Trace: the events of a world, their hash, and the first violated promise.
//!
//! The same seed gives the same events at the same times, and so the same hash. A world that
//! differs between two runs uses a clock, a random number or an order that is not the seed's.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use forebay_transport::Latch;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The events of a world.
pub struct Trace {
    started: Instant,
    state: Mutex<TraceState>,
    /// Set when a promise is violated.
    pub violated: Latch,
}

struct TraceState {
    hasher: blake3::Hasher,
    line: String,
    events: u64,
    operations: u64,
    slowest: Duration,
    /// All events as text, if they are kept.
    kept: Option<Vec<String>>,
    violation: Option<String>,
}

/// The result of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all events.
    pub hash: String,
    /// Number of events.
    pub events: u64,
    /// Items that jobs have read.
    pub operations: u64,
    /// Messages that hosts have sent.
    pub messages: u64,
    /// The longest time of a batch.
    pub slowest: Duration,
    /// The first violated promise, and how.
    pub violation: Option<String>,
    /// All events as text, if they were kept.
    pub kept: Vec<String>,
}

impl Trace {
    /// No events.
    pub fn new(keep: bool) -> Self {
        let state = TraceState {
            hasher: blake3::Hasher::new(),
            line: String::new(),
            events: 0,
            operations: 0,
            slowest: Duration::ZERO,
            kept: keep.then(Vec::new),
            violation: None,
        };
        Self { started: Instant::now(), state: Mutex::new(state), violated: Latch::default() }
    }

    /// Records an event.
    pub fn event(&self, text: fmt::Arguments<'_>) {
        let mut state = self.state.lock();
        let TraceState { hasher, line, events, kept, .. } = &mut *state;
        line.clear();
        let at = self.started.elapsed();
        let _ = writeln!(line, "{:>9}.{:03} {text}", at.as_millis(), at.subsec_micros() % 1000);
        hasher.update(line.as_bytes());
        *events += 1;
        if let Some(kept) = kept {
            kept.push(line.trim_end().to_owned());
        }
    }

    /// A job has read a batch of items in this time.
    pub fn on_read(&self, items: usize, took: Duration) {
        let mut state = self.state.lock();
        state.operations += items as u64;
        state.slowest = state.slowest.max(took);
    }

    /// A promise is violated. The first violation ends the world.
    pub fn violate(&self, promise: u8, text: fmt::Arguments<'_>) {
        self.event(format_args!("VIOLATED promise {promise}: {text}"));
        let mut state = self.state.lock();
        state.violation.get_or_insert_with(|| format!("promise {promise}: {text}"));
        drop(state);
        self.violated.set();
    }

    /// The result so far.
    pub fn outcome(&self, messages: u64) -> Outcome {
        let mut state = self.state.lock();
        Outcome {
            hash: state.hasher.finalize().to_hex()[..16].to_owned(),
            events: state.events,
            operations: state.operations,
            messages,
            slowest: state.slowest,
            violation: state.violation.clone(),
            kept: state.kept.take().unwrap_or_default(),
        }
    }
}

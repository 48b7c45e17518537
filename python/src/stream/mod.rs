//! Python binding of streams: stores, writers, readers, and Arrow's C data interface.
//!
//! - [`store`] opens stores, which are directories or nodes; it is the only part of the wheel that
//!   starts threads.
//! - [`writer`] and [`reader`] move bytes and batches without the GIL. A wait checks Python's
//!   signals, so that Ctrl-C interrupts it.
//! - [`batch`] is a record batch whose columns are views of a reader's slots.
//! - [`capsules`] exchanges Arrow data with other libraries by pointers, without importing them.
//!
//! A forked child has copies of these objects. `forebay_streams` refuses to use them there and
//! never drops them.

mod batch;
mod capsules;
mod guarded;
mod reader;
mod store;
mod writer;

use std::cell::RefCell;

use forebay_core::streams::{
    Lifetime,
    catalogue::{StreamInfo, StreamState},
};
use forebay_streams::{Interrupt, StreamError as NativeError, arrow::BatchError, block_on_unless};
use pyo3::{exceptions::PyKeyboardInterrupt, prelude::*};

pub use batch::{Batch, StreamColumn};
pub use reader::{StreamBlock, StreamReader};
pub use store::{StreamFamily, StreamStore};
pub use writer::StreamWriter;

use crate::errors::{StoreFull, StreamError, StreamLost, shown};

/// Name, family, state, blocks, bytes, readers, lifetime, seconds of a lease, lost blocks.
type InfoTuple =
    (String, String, &'static str, u64, u64, u32, &'static str, Option<f64>, Vec<(u64, u64)>);

/// Runs a future without the GIL. Signal handlers run meanwhile, and their exceptions end it.
fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    py.detach(|| block_on_unless(future, signals))
}

/// Runs the handlers of signals that have arrived; an exception of theirs is an error.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method has one lifetime")]
fn signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

thread_local! {
    /// The exception of a signal handler, raised while this thread waited for a node or an owner.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Interrupts a wait for a node when a signal handler raises an exception.
fn node_interrupt() -> forebay_client::Interrupt {
    forebay_client::Interrupt::new(has_raised)
}

/// Interrupts a wait for the owner of a store when a signal handler raises an exception.
fn owner_interrupt() -> Interrupt {
    Interrupt::new(has_raised)
}

/// Runs the handlers of signals that have arrived, and keeps an exception of theirs.
fn has_raised() -> bool {
    let raised = signals().err();
    let has_raised = raised.is_some();
    if has_raised {
        RAISED.with(|slot| slot.replace(raised));
    }
    has_raised
}

/// The exception of a signal handler that ended a wait.
fn interrupted() -> PyErr {
    RAISED.with(RefCell::take).unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}

/// The exception of an error of a stream.
fn stream_error(error: &NativeError) -> PyErr {
    let text = shown(error);
    match error {
        NativeError::Full { .. } | NativeError::RefusedFull(_) => StoreFull::new_err(text),
        NativeError::Lost { .. } | NativeError::Shorter { .. } | NativeError::RefusedLost(_) => {
            StreamLost::new_err(text)
        }
        NativeError::Interrupted => interrupted(),
        NativeError::Catalogue(error) if error.is_lost() => StreamLost::new_err(text),
        _ => StreamError::new_err(text),
    }
}

/// The exception of an error of a stream of batches.
fn batch_error(error: &BatchError) -> PyErr {
    match error {
        BatchError::Stream(error) => stream_error(error),
        other => StreamError::new_err(shown(other)),
    }
}

fn info_tuple(info: &StreamInfo) -> InfoTuple {
    let state = match info.state {
        StreamState::Writing => "writing",
        StreamState::Sealed => "sealed",
        StreamState::Consumed => "consumed",
        StreamState::Destroyed => "destroyed",
    };
    let (lifetime, seconds) = match info.lifetime {
        Lifetime::Process => ("process", None),
        Lifetime::Lease(time) => ("lease", Some(time.as_secs_f64())),
        Lifetime::Kept => ("kept", None),
    };
    let lost = info.lost.iter().map(|range| (range.start, range.end)).collect();
    let (name, family) = (info.name.to_string(), info.family.to_string());
    (name, family, state, info.blocks, info.bytes, info.readers, lifetime, seconds, lost)
}

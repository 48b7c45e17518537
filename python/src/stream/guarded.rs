//! State that one thread uses at a time, without the GIL.
//!
//! Another thread may hold the lock while Python forks, so a forked child never takes it.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::errors::StreamError;

/// The state of a writer or a reader.
pub struct Guarded<T> {
    state: Mutex<T>,
    process: u32,
}

impl<T: Send> Guarded<T> {
    pub fn new(state: T) -> Self {
        Self { state: Mutex::new(state), process: std::process::id() }
    }

    /// Runs `act` on the state. Fails in a forked child.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut T) -> PyResult<R> + Send,
    ) -> PyResult<R> {
        if self.process != std::process::id() {
            let text = "the stream was opened before this process was forked: open it in the child";
            return Err(StreamError::new_err(text));
        }
        py.detach(|| act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

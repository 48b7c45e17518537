//! State that one call uses at a time, without the GIL.
//!
//! Other threads wait for the call, and Ctrl-C ends their wait. A call that runs Python code, such
//! as a signal handler or the iterator of a table, can be entered again by its own thread, which
//! would wait for itself: that is an error. Another thread may hold the lock while Python forks, so
//! a forked child never takes it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread::{self, ThreadId},
    time::Duration,
};

use pyo3::prelude::*;

use super::signals;
use crate::errors::StreamError;

/// Interval at which a waiting thread tries the lock again and runs signal handlers.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The state of a writer or a reader.
pub struct Guarded<T> {
    state: Mutex<T>,
    /// The thread whose call uses the state.
    user: Mutex<Option<ThreadId>>,
    process: u32,
}

impl<T: Send> Guarded<T> {
    pub fn new(state: T) -> Self {
        Self { state: Mutex::new(state), user: Mutex::new(None), process: std::process::id() }
    }

    /// Runs `act` on the state. Fails in a forked child, and within another `act` of this thread.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut T) -> PyResult<R> + Send,
    ) -> PyResult<R> {
        if self.process != std::process::id() {
            let text = "the stream was opened before this process was forked: open it in the child";
            return Err(StreamError::new_err(text));
        }
        py.detach(|| {
            let mut state = self.lock()?;
            let _use = Use::begin(&self.user);
            act(&mut state)
        })
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, T>> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return Ok(state),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            if *locked(&self.user) == Some(thread::current().id()) {
                return Err(StreamError::new_err(
                    "the stream is in use by this call, which runs the code that uses it again: \
                     use it after the call has returned",
                ));
            }
            thread::sleep(RETRY_INTERVAL);
            signals()?;
        }
    }
}

/// The use of a state by this thread. It ends when this is dropped.
struct Use<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Use<'a> {
    fn begin(user: &'a Mutex<Option<ThreadId>>) -> Self {
        *locked(user) = Some(thread::current().id());
        Self(user)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        *locked(self.0) = None;
    }
}

fn locked(user: &Mutex<Option<ThreadId>>) -> MutexGuard<'_, Option<ThreadId>> {
    user.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Values of one process: a copy that a fork made is never dropped.
//!
//! A forked child has a copy of its parent's memory, but not of the parent's threads. Dropping the
//! copy of a store would wait for a thread that is not there, or for a lock that it held. The child
//! leaks such values instead; the memory is the parent's until one of both writes to it.

use std::ops::{Deref, DerefMut};

/// A value that is dropped by the process that made it, and by no other.
#[derive(Debug, Clone)]
pub(crate) struct OfProcess<T> {
    /// `None` only while it is dropped.
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// Whether this process made the value.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("kept until it is dropped")
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("kept until it is dropped")
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

//! Descriptors that forked children do not have.
//!
//! A forked child shares the open files of its parent. It would keep a device locked after its
//! parent has died, and connections open. So the child replaces these descriptors before `fork`
//! returns. The replacement leaves their numbers in use, so that no value of the parent that the
//! child drops closes a file of the child.
//!
//! **Invariant:** what the child runs takes one lock, which the forking thread holds since before
//! the fork, and calls `dup3`. Both are safe in the child of a process with many threads.

#![expect(unsafe_code, reason = "fork calls C functions, and works on raw descriptors")]

use std::{
    cell::Cell,
    io,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};

/// A value with a descriptor that forked children do not have.
#[derive(Debug)]
pub struct Uninherited<T> {
    /// Dropped before the value, so that no child replaces a descriptor that is in use again.
    _entry: Entry,
    value: T,
}

/// The descriptors of this process.
static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { replacement: None, descriptors: Vec::new() });

struct Registry {
    /// An eventfd. There is one as soon as there are descriptors.
    replacement: Option<OwnedFd>,
    descriptors: Vec<RawFd>,
}

thread_local! {
    /// The lock of a thread that forks.
    static HELD: Cell<Option<MutexGuard<'static, Registry>>> = const { Cell::new(None) };
}

impl<T: AsRawFd> Uninherited<T> {
    /// Makes a value. No fork happens between that and its registration.
    pub fn new<E: From<io::Error>>(make: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        let mut registry = lock();
        registry.install()?;
        let value = make()?;
        let descriptor = value.as_raw_fd();
        registry.descriptors.push(descriptor);
        Ok(Self { _entry: Entry(descriptor), value })
    }
}

impl Registry {
    /// Makes the replacement, and asks to be called by every fork, both once.
    fn install(&mut self) -> io::Result<()> {
        if self.replacement.is_none() {
            let replacement = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // SAFETY: the three functions live as long as the process. They do not unwind, and call
            // nothing that is unsafe in a forked child.
            let code = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
            self.replacement = Some(replacement);
        }
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before() {
    let registry = lock();
    // A thread that is ending may have no local values any more; then the child keeps all.
    let _ = HELD.try_with(|held| held.set(Some(registry)));
}

extern "C" fn after() {
    drop(HELD.try_with(Cell::take));
}

extern "C" fn in_child() {
    if let Ok(Some(registry)) = HELD.try_with(Cell::take)
        && let Some(replacement) = &registry.replacement
    {
        for descriptor in &registry.descriptors {
            // SAFETY: the values that own these descriptors are the parent's, which the child does
            // not use; their numbers stay valid.
            unsafe { libc::dup3(replacement.as_raw_fd(), *descriptor, libc::O_CLOEXEC) };
        }
    }
}

/// A descriptor in the registry.
#[derive(Debug)]
struct Entry(RawFd);

impl Drop for Entry {
    fn drop(&mut self) {
        lock().descriptors.retain(|descriptor| *descriptor != self.0);
    }
}

impl<T> Deref for Uninherited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Uninherited<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: AsFd> AsFd for Uninherited<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}

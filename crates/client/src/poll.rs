//! Waiting for several sockets at once, by `poll(2)`.

use std::{io, os::fd::BorrowedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Pause if a socket cannot be waited for: the full queue of a Unix socket is not reported.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket, and what it is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub socket: BorrowedFd<'a>,
    /// Space to write, instead of bytes to read.
    pub is_write: bool,
}

/// Waits until a socket is ready, `timeout` has passed or a signal has arrived. `None` is a socket
/// that has to be tried again soon.
pub(crate) fn wait_any(waits: &[Option<Wait<'_>>], timeout: Duration) -> io::Result<()> {
    let timeout = if waits.iter().any(Option::is_none) { timeout.min(PAUSE) } else { timeout };
    let mut descriptors = Vec::with_capacity(waits.len());
    for Wait { socket, is_write } in waits.iter().flatten() {
        let events = if *is_write { PollFlags::OUT } else { PollFlags::IN };
        descriptors.push(PollFd::from_borrowed_fd(*socket, events));
    }
    let timeout = Timespec::try_from(timeout).expect("a short time");
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

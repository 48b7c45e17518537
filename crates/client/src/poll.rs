//! Waiting for several sockets at once, by `poll(2)` or by what stands for it in another
//! environment.

use std::{io, os::fd::BorrowedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{ClientEnvironment, StreamNumber};

/// Pause if a socket cannot be waited for: the full queue of a Unix socket is not reported.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket, and what it is waited for.
#[derive(Debug, Clone, Copy)]
pub struct SocketWait<'a> {
    /// The socket.
    pub socket: WaitedSocket<'a>,
    /// Space to write, instead of bytes to read.
    pub is_write: bool,
}

/// A socket that is waited for.
#[derive(Debug, Clone, Copy)]
pub enum WaitedSocket<'a> {
    /// A socket of this machine.
    Descriptor(BorrowedFd<'a>),
    /// A stream of another environment.
    Stream(StreamNumber),
}

/// Waits until a socket is ready, `timeout` has passed or a signal has arrived. `None` is a socket
/// that has to be tried again soon.
pub(crate) fn wait_any<'a>(
    environment: &dyn ClientEnvironment,
    waits: impl Iterator<Item = Option<SocketWait<'a>>>,
    timeout: Duration,
) -> io::Result<()> {
    let (mut sockets, mut timeout) = (Vec::new(), timeout);
    for wait in waits {
        match wait {
            Some(wait) => sockets.push(wait),
            None => timeout = timeout.min(PAUSE),
        }
    }
    environment.wait_any(&sockets, timeout)
}

/// Waits for sockets of this machine.
pub(crate) fn poll_descriptors(sockets: &[SocketWait<'_>], timeout: Duration) -> io::Result<()> {
    let mut descriptors = Vec::with_capacity(sockets.len());
    for SocketWait { socket, is_write } in sockets {
        let WaitedSocket::Descriptor(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let events = if *is_write { PollFlags::OUT } else { PollFlags::IN };
        descriptors.push(PollFd::from_borrowed_fd(*socket, events));
    }
    let timeout = Timespec::try_from(timeout).expect("a short time");
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

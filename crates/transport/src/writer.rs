//! The way out of a connection: frames leave in the order in which they came, as many as there are in one
//! write, and each returns its room when it has left.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
};

use forebay_core::patience::STALLED;
use forebay_segment::pass;
use forebay_wire::Frame;
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, timeout, timeout_at},
};

use crate::peer::Outlet;

/// Frames that leave in one write.
const FRAMES_AT_ONCE: usize = 64;
/// What a socket of this machine may hold, as far as the system allows: the more, the less often both sides
/// have to wait for each other.
const SEND_BUFFER: usize = 1 << 20;

/// A frame on its way out.
pub(crate) struct Outgoing {
    pub frame: Frame,
    /// What leaves beside it, over a Unix socket.
    pub descriptor: Option<OwnedFd>,
    /// Returned when the frame has left.
    pub _room: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    fn length(&self) -> usize {
        self.frame.head.len() + self.frame.payload.len()
    }
}

/// Writes frames until there are no more, or nobody takes them.
pub(crate) async fn write(mut outgoing: mpsc::Receiver<Outgoing>, mut writer: impl Outlet) {
    if let Some(socket) = writer.unix() {
        widen(socket);
    }
    let (mut come, mut frames) = (Vec::new(), VecDeque::new());
    while outgoing.recv_many(&mut come, FRAMES_AT_ONCE).await > 0 {
        frames.extend(come.drain(..));
        // Gone, or as good as: those who still want to send find the channel closed.
        if write_all(&mut frames, &mut writer).await.is_err() {
            return;
        }
        // TLS may hold something back until the next frame.
        if outgoing.is_empty() && !matches!(timeout(STALLED, writer.flush()).await, Ok(Ok(()))) {
            return;
        }
    }
    // Over TLS, an end that is not announced looks like an attack.
    let _ = timeout(STALLED, writer.shutdown()).await;
}

/// Makes room in a socket of this machine for what is on its way.
pub(crate) fn widen(socket: impl AsFd) {
    // What it has by default will do, too.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}

async fn write_all(frames: &mut VecDeque<Outgoing>, writer: &mut impl Outlet) -> io::Result<()> {
    // Bytes of the first frame that have left.
    let mut left = 0;
    let mut deadline = Instant::now() + STALLED;
    while let Some(first) = frames.front() {
        let written = match &first.descriptor {
            Some(descriptor) if left == 0 => {
                let pass = pass_beside(writer, &first.frame.head, descriptor);
                timeout_at(deadline, pass).await??
            }
            _ => {
                let slices = slices(frames, left);
                timeout_at(deadline, writer.write_vectored(&slices)).await??
            }
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        left += written;
        while let Some(length) = frames.front().map(Outgoing::length).filter(|all| *all <= left) {
            frames.pop_front();
            left -= length;
            deadline = Instant::now() + STALLED;
        }
    }
    Ok(())
}

/// What is yet to be written, up to the next frame that has something beside it.
fn slices(frames: &VecDeque<Outgoing>, left: usize) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::with_capacity(2 * frames.len());
    for (at, Outgoing { frame, descriptor, .. }) in frames.iter().enumerate() {
        if at > 0 && descriptor.is_some() {
            break;
        }
        slices.push(IoSlice::new(&frame.head));
        if !frame.payload.is_empty() {
            slices.push(IoSlice::new(&frame.payload));
        }
    }
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, left);
    rest.to_vec()
}

async fn pass_beside(
    writer: &mut impl Outlet,
    head: &[u8],
    descriptor: &OwnedFd,
) -> io::Result<usize> {
    let socket = writer.unix().ok_or(io::ErrorKind::Unsupported)?;
    socket.async_io(Interest::WRITABLE, || pass(socket, head, descriptor.as_fd())).await
}

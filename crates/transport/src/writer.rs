//! Writer of a connection: sends queued frames in order, several per system call.
//!
//! Each frame carries a permit for its bytes ([`crate::session::ReplySpace`]), which is returned
//! when the frame has been written.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use forebay_core::cluster::backoff::STALL_TIMEOUT;
use forebay_shm::send_with_fd;
use forebay_wire::Frame;
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{memory::Account, peer::WriteHalf, session::FrameBytes};

/// Most frames in one write.
const FRAMES_PER_WRITE: usize = 64;
/// Send buffer of an outgoing Unix socket, as far as the system allows.
const SEND_BUFFER: usize = 1 << 20;

/// A frame in the queue of a connection.
pub(crate) struct QueuedFrame {
    pub frame: Frame,
    /// File descriptor to pass with the frame, over a Unix socket.
    pub descriptor: Option<OwnedFd>,
    /// Returned when the frame has been written.
    pub _bytes: Option<FrameBytes>,
}

impl QueuedFrame {
    fn length(&self) -> usize {
        self.frame.head.len() + self.frame.payload.len()
    }
}

/// Writes frames until the channel is closed, or the client does not read for [`STALL_TIMEOUT`].
pub(crate) async fn write(
    mut queue: mpsc::Receiver<QueuedFrame>,
    mut writer: impl WriteHalf,
    account: Arc<Account>,
) {
    if let Some(socket) = writer.unix() {
        set_send_buffer(socket, account.send_buffer());
    }
    let (mut received, mut frames) = (Vec::new(), VecDeque::new());
    while queue.recv_many(&mut received, FRAMES_PER_WRITE).await > 0 {
        frames.extend(received.drain(..));
        // The client is dead or hung. Dropping the receiver closes the channel for all senders.
        if write_all(&mut frames, &mut writer, &account).await.is_err() {
            return;
        }
        // TLS may buffer bytes until the next frame.
        if queue.is_empty() && !matches!(timeout(STALL_TIMEOUT, writer.flush()).await, Ok(Ok(()))) {
            return;
        }
    }
    // Without a close message, the end of a TLS stream looks like a truncation attack.
    let _ = timeout(STALL_TIMEOUT, writer.shutdown()).await;
}

/// Enlarges the send buffer of an outgoing Unix socket.
pub(crate) fn enlarge_send_buffer(socket: impl AsFd) {
    set_send_buffer(socket, SEND_BUFFER);
}

fn set_send_buffer(socket: impl AsFd, size: usize) {
    // The default size works as well.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, size);
}

async fn write_all(
    frames: &mut VecDeque<QueuedFrame>,
    writer: &mut impl WriteHalf,
    account: &Account,
) -> io::Result<()> {
    // Bytes of the first frame that have been written.
    let mut written = 0;
    let mut deadline = Instant::now() + STALL_TIMEOUT;
    while let Some(first) = frames.front() {
        let more = match &first.descriptor {
            Some(descriptor) if written == 0 => {
                let send = send_descriptor(writer, &first.frame.head, descriptor);
                timeout_at(deadline, send).await??
            }
            _ => {
                let slices = slices(frames, written);
                timeout_at(deadline, writer.write_vectored(&slices)).await??
            }
        };
        if more == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        account.add_moved(more);
        written += more;
        while let Some(length) = frames.front().map(QueuedFrame::length)
            && length <= written
        {
            frames.pop_front();
            written -= length;
            deadline = Instant::now() + STALL_TIMEOUT;
        }
    }
    Ok(())
}

/// The bytes still to be written, up to the next frame with a file descriptor. `written` bytes of
/// the first frame are skipped.
fn slices(frames: &VecDeque<QueuedFrame>, written: usize) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::with_capacity(2 * frames.len());
    for (at, QueuedFrame { frame, descriptor, .. }) in frames.iter().enumerate() {
        if at > 0 && descriptor.is_some() {
            break;
        }
        slices.push(IoSlice::new(&frame.head));
        if !frame.payload.is_empty() {
            slices.push(IoSlice::new(&frame.payload));
        }
    }
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, written);
    rest.to_vec()
}

async fn send_descriptor(
    writer: &mut impl WriteHalf,
    head: &[u8],
    descriptor: &OwnedFd,
) -> io::Result<usize> {
    let socket = writer.unix().ok_or(io::ErrorKind::Unsupported)?;
    socket.async_io(Interest::WRITABLE, || send_with_fd(socket, head, descriptor.as_fd())).await
}

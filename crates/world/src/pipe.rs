//! Pipe: one direction of a simulated stream. Bytes arrive in order, each chunk after a delay.
//!
//! A pipe holds a limited number of bytes, as a socket does: a reader that is slow stops its
//! writer. A pipe that is reset fails on both sides, and what it held is lost.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use forebay_transport::WriteHalf;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// When bytes that are sent now arrive, and until when the way is blocked.
pub trait Way: Send + Sync {
    /// Time of arrival of bytes that are sent now.
    fn arrival(&self) -> Instant;
    /// Until when nothing arrives.
    fn blocked_until(&self) -> Instant;
}

/// Counts a side of a stream as open until its last half is dropped.
pub type OpenGuard = Arc<()>;

/// One direction of a stream.
pub struct Pipe {
    way: Arc<dyn Way>,
    state: Mutex<PipeState>,
}

struct PipeState {
    capacity: usize,
    chunks: VecDeque<(Instant, Bytes)>,
    queued: usize,
    last_at: Instant,
    is_closed: bool,
    is_reset: bool,
    has_reader: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The receiving end of a pipe.
pub struct PipeReader {
    pipe: Arc<Pipe>,
    sleep: Pin<Box<Sleep>>,
    _open: OpenGuard,
}

/// The sending end of a pipe.
pub struct PipeWriter {
    pipe: Arc<Pipe>,
    _open: OpenGuard,
}

impl Pipe {
    /// A pipe that holds `capacity` bytes.
    pub fn new(way: Arc<dyn Way>, capacity: usize) -> Arc<Self> {
        let state = PipeState {
            capacity,
            chunks: VecDeque::new(),
            queued: 0,
            last_at: Instant::now(),
            is_closed: false,
            is_reset: false,
            has_reader: true,
            reader: None,
            writer: None,
        };
        Arc::new(Self { way, state: Mutex::new(state) })
    }

    /// The receiving end.
    pub fn reader(self: &Arc<Self>, open: OpenGuard) -> PipeReader {
        let sleep = Box::pin(sleep_until(Instant::now()));
        PipeReader { pipe: Arc::clone(self), sleep, _open: open }
    }

    /// The sending end.
    pub fn writer(self: &Arc<Self>, open: OpenGuard) -> PipeWriter {
        PipeWriter { pipe: Arc::clone(self), _open: open }
    }

    /// Loses what the pipe holds. Both ends fail.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.is_reset = true;
        state.chunks.clear();
        state.wake_both();
    }
}

impl PipeState {
    /// Whether nothing can be written any more.
    fn is_failed(&self) -> bool {
        self.is_reset || self.is_closed || !self.has_reader
    }

    fn wake_both(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl PipeReader {
    /// Completes when a read does not have to wait.
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.pipe.state.lock();
        poll_due(&self.pipe, &mut state, &mut self.sleep, context)
    }
}

/// Completes when a chunk has arrived, or none will.
fn poll_due(
    pipe: &Pipe,
    state: &mut PipeState,
    sleep: &mut Pin<Box<Sleep>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    if state.is_reset {
        return Poll::Ready(());
    }
    match state.chunks.front() {
        None if state.is_closed => return Poll::Ready(()),
        None => {}
        Some((at, _)) => {
            let due = (*at).max(pipe.way.blocked_until());
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
            if sleep.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
        }
    }
    state.reader = Some(context.waker().clone());
    Poll::Pending
}

impl AsyncRead for PipeReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { pipe, sleep, .. } = self.get_mut();
        let mut state = pipe.state.lock();
        ready!(poll_due(pipe, &mut state, sleep, context));
        if state.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let Some((_, chunk)) = state.chunks.front_mut() else { return Poll::Ready(Ok(())) };
        let length = chunk.len().min(into.remaining());
        into.put_slice(&chunk[..length]);
        chunk.advance(length);
        if chunk.is_empty() {
            state.chunks.pop_front();
        }
        state.queued -= length;
        if let Some(waker) = state.writer.take() {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl PipeWriter {
    /// Completes when a write does not have to wait.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.pipe.state.lock();
        if state.is_failed() || state.queued < state.capacity {
            return Poll::Ready(());
        }
        state.writer = Some(context.waker().clone());
        Poll::Pending
    }

    fn write(&self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = self.pipe.state.lock();
        if state.is_failed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let space = state.capacity - state.queued.min(state.capacity);
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        if space == 0 && wanted > 0 {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut chunk = BytesMut::with_capacity(wanted.min(space));
        for slice in slices {
            chunk.extend_from_slice(&slice[..slice.len().min(space - chunk.len())]);
        }
        let length = chunk.len();
        if length > 0 {
            let at = self.pipe.way.arrival().max(state.last_at);
            state.last_at = at;
            state.queued += length;
            state.chunks.push_back((at, chunk.freeze()));
            if let Some(waker) = state.reader.take() {
                waker.wake();
            }
        }
        Poll::Ready(Ok(length))
    }

    fn close(&self) {
        let mut state = self.pipe.state.lock();
        state.is_closed = true;
        state.wake_both();
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl WriteHalf for PipeWriter {}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.has_reader = false;
        state.chunks.clear();
        state.wake_both();
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.close();
    }
}

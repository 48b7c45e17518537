//! Stall guard: a socket whose client takes nothing for too long is closed.
//!
//! hyper has no limit for that. Without one, a client that stops reading holds a connection, the
//! buffers of its response and the origin's connection behind it.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// A socket with a limit on how long a write may wait.
pub struct StallGuard<S> {
    socket: S,
    timeout: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// Guards a socket.
    pub fn new(socket: S, timeout: Duration) -> Self {
        Self { socket, timeout, waiting: None }
    }

    fn guarded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let timeout = self.timeout;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if waiting.deadline() < Instant::now() || waiting.as_mut().poll(context).is_ready() {
            let text = format!("the client took nothing for {timeout:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.guarded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.guarded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.guarded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_left_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut guarded = StallGuard::new(near, Duration::from_secs(2));
        let slow = tokio::spawn(async move {
            for _ in 0..5 {
                sleep(Duration::from_millis(100)).await;
                tokio::io::AsyncReadExt::read_exact(&mut far, &mut [0; 4]).await.unwrap();
            }
            far
        });
        guarded.write_all(&[0; 24]).await.expect("it reads every 100 ms");
        let far = slow.await.unwrap();
        let stalled = guarded.write_all(&[0; 24]).await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }
}

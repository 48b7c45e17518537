//! Traffic shaping: all bodies, in both directions, share one token bucket, like one network link.
//!
//! A body takes tokens buffer by buffer, and buffers shrink with the rate. This lets many bodies
//! share the link fairly: none gets ahead by more than some milliseconds' worth of bytes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_core::{
    units::{ByteRate, ByteSize},
    util::token_bucket::TokenBucket,
};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

/// Largest buffer. Copying it takes longer than a trip through the blocking pool, and a hundred
/// bodies in flight (two buffers each) need only 50 MiB.
const BUFFER_SIZE_MAX: ByteSize = ByteSize::kib(256);
/// Smallest buffer.
const BUFFER_SIZE_MIN: ByteSize = ByteSize::kib(4);
/// Buffers per second at the limit. Each lasts 10 ms, well above the 1 ms resolution of timers.
const BUFFERS_PER_S: u64 = 100;

/// The rate limit, shared by all bodies.
#[derive(Debug)]
pub struct Shaper {
    buffer_size: ByteSize,
    link: Option<Link>,
}

#[derive(Debug)]
struct Link {
    start: Instant,
    bucket: Mutex<TokenBucket>,
}

impl Shaper {
    pub fn new(bandwidth: Option<ByteRate>) -> Self {
        let Some(rate) = bandwidth else {
            return Self { buffer_size: BUFFER_SIZE_MAX, link: None };
        };
        let buffer_size =
            ByteSize(rate.0.0 / BUFFERS_PER_S).clamp(BUFFER_SIZE_MIN, BUFFER_SIZE_MAX);
        // A burst of two buffers compensates for timers that fire late.
        let bucket = Mutex::new(TokenBucket::new(rate, buffer_size + buffer_size));
        Self { buffer_size, link: Some(Link { start: Instant::now(), bucket }) }
    }

    /// Bytes of a file that a body reads at a time.
    pub fn buffer_size(&self) -> ByteSize {
        self.buffer_size
    }

    /// Takes tokens for `bytes` bytes. Returns the time to wait before sending them.
    fn take(&self, bytes: usize) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| {
            link.bucket.lock().take(link.start.elapsed(), ByteSize(bytes as u64))
        })
    }
}

/// A body whose frames wait for tokens.
pub struct Paced<B> {
    inner: B,
    shaper: Arc<Shaper>,
    waiting: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
}

impl<B> Paced<B> {
    pub fn new(inner: B, shaper: Arc<Shaper>) -> Self {
        Self { inner, shaper, waiting: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.waiting.is_none() {
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            let wait = self.shaper.take(frame.data_ref().map_or(0, Bytes::len));
            if wait.is_zero() {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.waiting = Some((Box::pin(sleep(wait)), frame));
        }
        if let Some((sleep, _)) = &mut self.waiting {
            ready!(sleep.as_mut().poll(context));
        }
        Poll::Ready(self.waiting.take().map(|(_, frame)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let waiting =
            self.waiting.as_ref().and_then(|(_, frame)| frame.data_ref()).map_or(0, Bytes::len);
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + waiting as u64);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + waiting as u64);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_shrink_with_the_rate() {
        for (rate, size) in [
            (None, BUFFER_SIZE_MAX),
            (Some(ByteSize::gb(10)), BUFFER_SIZE_MAX),
            (Some(ByteSize(1_000_000)), ByteSize(10_000)),
            (Some(ByteSize(1)), BUFFER_SIZE_MIN),
        ] {
            assert_eq!(Shaper::new(rate.map(ByteRate)).buffer_size(), size);
        }
    }

    #[test]
    fn bodies_queue_up_for_one_link() {
        let shaper = Shaper::new(Some(ByteRate(ByteSize(1_000_000))));
        let waits: Vec<Duration> = (0..100).map(|_| shaper.take(10_000)).collect();
        // 1 MB at 1 MB/s, minus the burst of 20 kB (if the clock has run for that long) and the
        // time of the loop.
        let last = waits[99];
        assert!(last <= Duration::from_secs(1), "{last:?}");
        assert!(last >= Duration::from_millis(900), "{last:?}");
        assert_eq!(Shaper::new(None).take(usize::MAX), Duration::ZERO);
    }
}

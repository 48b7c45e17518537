//! Shaping: all bodies, in both directions, pass one token bucket, as they would one network link.
//!
//! A body takes its turn piece by piece, and pieces shrink with the rate, so that many bodies share
//! the link fairly and none jumps ahead by more than some milliseconds' worth.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_core::{
    rate::TokenBucket,
    units::{ByteRate, ByteSize},
};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

/// Large enough that a trip through the blocking pool is lost in the copying, small enough that a
/// hundred bodies in flight (two pieces each) need only 50 MiB.
const PIECE_SIZE_MAX: ByteSize = ByteSize::kib(256);
const PIECE_SIZE_MIN: ByteSize = ByteSize::kib(4);
/// Shaped pieces last about this long; timers, too, are only good to a millisecond.
const PIECES_PER_S: u64 = 100;

/// The link's rate, shared by all bodies.
#[derive(Debug)]
pub struct Shaper {
    piece_size: ByteSize,
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
            return Self { piece_size: PIECE_SIZE_MAX, link: None };
        };
        let piece_size = ByteSize(rate.0.0 / PIECES_PER_S).clamp(PIECE_SIZE_MIN, PIECE_SIZE_MAX);
        // Two pieces of burst make up for timers that fire late, and no more.
        let bucket = Mutex::new(TokenBucket::new(rate, piece_size + piece_size));
        Self { piece_size, link: Some(Link { start: Instant::now(), bucket }) }
    }

    /// How much of a file a body should read at a time.
    pub fn piece_size(&self) -> ByteSize {
        self.piece_size
    }

    /// How long so many bytes have to wait for their turn.
    fn take(&self, bytes: usize) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| {
            link.bucket.lock().take(link.start.elapsed(), ByteSize(bytes as u64))
        })
    }
}

/// A body whose frames wait for their turn on the link.
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
        if let Some((turn, _)) = &mut self.waiting {
            ready!(turn.as_mut().poll(context));
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
    fn pieces_shrink_with_the_rate_so_that_bodies_share_it() {
        for (rate, piece) in [
            (None, PIECE_SIZE_MAX),
            (Some(ByteSize::gb(10)), PIECE_SIZE_MAX),
            (Some(ByteSize(1_000_000)), ByteSize(10_000)),
            (Some(ByteSize(1)), PIECE_SIZE_MIN),
        ] {
            assert_eq!(Shaper::new(rate.map(ByteRate)).piece_size(), piece);
        }
    }

    #[test]
    fn takers_queue_up_on_one_link() {
        let shaper = Shaper::new(Some(ByteRate(ByteSize(1_000_000))));
        let waits: Vec<Duration> = (0..100).map(|_| shaper.take(10_000)).collect();
        // 1 MB at 1 MB/s, less the burst of 20 kB (if the clock has run for that long) and however
        // long the loop took.
        let last = waits[99];
        assert!(last <= Duration::from_secs(1), "{last:?}");
        assert!(last >= Duration::from_millis(900), "{last:?}");
        assert_eq!(Shaper::new(None).take(usize::MAX), Duration::ZERO);
    }
}

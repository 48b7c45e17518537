//! Body of an origin's response, with a limit on its pauses.

use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::OriginError;
use crate::metrics::GatewayCounters;

/// The body of an origin's response.
#[derive(Debug)]
pub struct OriginBody {
    inner: Incoming,
    /// Exists while the client waits for a frame.
    pause: Option<Pin<Box<Sleep>>>,
    progress_timeout: Duration,
    counters: Arc<GatewayCounters>,
}

impl OriginBody {
    pub(super) fn new(
        inner: Incoming,
        progress_timeout: Duration,
        counters: Arc<GatewayCounters>,
    ) -> Self {
        Self { inner, pause: None, progress_timeout, counters }
    }

    fn failed(&self, error: OriginError) -> Poll<Option<Result<Frame<Bytes>, OriginError>>> {
        self.counters.gateway_origin_failures.one();
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for OriginBody {
    type Data = Bytes;
    type Error = OriginError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, OriginError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(pause) = &mut this.pause {
                    pause.as_mut().reset(Instant::now() + this.progress_timeout);
                }
                if let Some(data) = frame.data_ref() {
                    this.counters.gateway_origin_received_bytes.add(data.len() as u64);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => this.failed(OriginError::Body(error.to_string())),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let limit = this.progress_timeout;
                let pause = this.pause.get_or_insert_with(|| Box::pin(sleep(limit)));
                if pause.as_mut().poll(context).is_ready() {
                    return this.failed(OriginError::Progress(limit));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

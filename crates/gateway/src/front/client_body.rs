//! Bodies between the endpoint and its clients: uploads with a limit on their pauses, and
//! downloads that hold their request's permit until the last byte.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::limits::RequestPermit;
use crate::body::{BodyError, GatewayBody};

/// In the error of a client that sends nothing for too long.
pub const STALLED: &str = "the client sent nothing";

/// The body of a client's request.
pub struct ClientBody {
    inner: Incoming,
    pause: Option<Pin<Box<Sleep>>>,
    timeout: Duration,
}

impl ClientBody {
    /// A body whose parts come at most `timeout` apart.
    pub fn new(inner: Incoming, timeout: Duration) -> Self {
        Self { inner, pause: None, timeout }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(frame) => {
                if let Some(pause) = &mut this.pause {
                    pause.as_mut().reset(Instant::now() + this.timeout);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let timeout = this.timeout;
                let pause = this.pause.get_or_insert_with(|| Box::pin(sleep(timeout)));
                if pause.as_mut().poll(context).is_ready() {
                    let stalled = io::Error::other(format!("{STALLED} for {timeout:?}"));
                    return Poll::Ready(Some(Err(stalled.into())));
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

/// The body of a response, with the permit of its request.
pub struct PermittedBody {
    inner: GatewayBody,
    _permit: Option<RequestPermit>,
}

impl PermittedBody {
    /// A body that holds a permit until it is dropped.
    pub fn new(inner: GatewayBody, permit: Option<RequestPermit>) -> Self {
        Self { inner, _permit: permit }
    }
}

impl Body for PermittedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

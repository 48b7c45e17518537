//! Answer bodies: the bytes of a reader, with a length that was announced.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::{Shared, counters::add, reader::Sent};
use crate::body::{BodyError, GatewayBody};

/// A body that a reader feeds.
pub struct AnswerBody {
    shared: Arc<Shared>,
    first: Option<Bytes>,
    rest: mpsc::Receiver<Sent>,
    left: u64,
}

impl AnswerBody {
    /// A body of `length` bytes, the first of which have arrived.
    pub(super) fn boxed(
        shared: Arc<Shared>,
        first: Bytes,
        rest: mpsc::Receiver<Sent>,
        length: u64,
    ) -> GatewayBody {
        Self { shared, first: Some(first), rest, left: length }.boxed_unsync()
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = match self.first.take() {
            Some(first) => Some(Ok(first)),
            None if self.left == 0 => return Poll::Ready(None),
            None => ready!(self.rest.poll_recv(context)),
        };
        match next {
            Some(Ok(bytes)) => {
                self.left -= bytes.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(error)) => {
                add(&self.shared.counters.answers_cut, 1);
                Poll::Ready(Some(Err(error.into())))
            }
            // The reader was stopped.
            None => Poll::Ready(Some(Err("the gateway is stopping".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

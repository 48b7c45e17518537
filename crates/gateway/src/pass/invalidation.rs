//! Invalidation: what a write may have changed is forgotten before any byte of its answer reaches
//! the client, and once more when the answer ends.
//!
//! Some origins send the head of a completed upload or a copy at once, and finish the write before
//! the end of the body. So the objects are forgotten at each part. A client that leaves before the
//! answer drops the value, which forgets them as well: the origin may have done the write.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};

use crate::{
    body::{BodyError, GatewayBody},
    metrics::GatewayCounters,
    object_request::ObjectName,
    objects::ObjectCache,
};

/// Objects to forget.
pub struct Invalidation {
    cache: Arc<ObjectCache>,
    objects: Vec<ObjectName>,
}

impl Invalidation {
    pub fn new(
        cache: Arc<ObjectCache>,
        counters: &GatewayCounters,
        objects: Vec<ObjectName>,
    ) -> Self {
        counters.gateway_invalidations.add(objects.len() as u64);
        Self { cache, objects }
    }

    fn forget(&self) {
        for object in &self.objects {
            self.cache.invalidate(object);
        }
    }

    /// The body of the answer, which forgets the objects before each of its parts.
    pub fn around(self, body: GatewayBody) -> GatewayBody {
        if self.objects.is_empty() {
            return body;
        }
        self.forget();
        InvalidatingBody { body, invalidation: self }.boxed_unsync()
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.forget();
    }
}

struct InvalidatingBody {
    body: GatewayBody,
    invalidation: Invalidation,
}

impl Body for InvalidatingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.invalidation.forget();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

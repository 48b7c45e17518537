//! Fill tasks: one stream of the origin that feeds the slots of neighbouring segments.
//!
//! A task runs apart from the reader that started it, so that it serves the others when that
//! reader leaves. With the last reader it ends, after the segment that has begun.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::gateway::{
    fill::{EndOutcome, Fill, FillError, HeadOutcome},
    read_plan::SEGMENT_BYTES,
};
use forebay_flash::RequestError;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::BodyExt as _;
use tokio::{sync::Semaphore, time::sleep};

use super::{
    Shared, counters::add, fetch_slot::FetchSlot, object_head::ObjectHead,
    segment_store::SegmentStore,
};
use crate::{
    object_request::{ObjectName, Principal},
    origin_client::{OriginBody, OriginRequest, OriginTarget},
};

/// Longest wait for memory.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for flash to take a segment. A device that takes longer gets no more of the fill.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause before a request is repeated; each further one is twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// One version of an object, read as one principal.
#[derive(Debug)]
pub struct VersionAccess {
    /// The principal, whose right was checked.
    pub principal: Principal,
    /// The object.
    pub object: ObjectName,
    /// The version.
    pub head: ObjectHead,
}

impl VersionAccess {
    /// A request for the bytes that are missing from a fill.
    pub fn request(&self, fill: &Fill) -> OriginRequest {
        let missing = fill.missing();
        let mut headers = HeaderMap::new();
        let range = format!("bytes={}-{}", missing.start, missing.end - 1);
        let range = HeaderValue::from_str(&range).expect("digits and punctuation");
        headers.insert(header::RANGE, range);
        let etag = HeaderValue::from_str(self.head.etag().as_str()).expect("came in a header");
        headers.insert(header::IF_MATCH, etag);
        OriginRequest::new(Method::GET, OriginTarget::Object(self.object.clone()), headers)
    }

    /// Sends requests for a fill until one is accepted, and returns its body.
    pub(super) async fn open(
        &self,
        shared: &Shared,
        fill: &mut Fill,
    ) -> Result<OriginBody, FillError> {
        loop {
            let outcome = match shared.origin.send(&self.principal, self.request(fill)).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    match fill.on_head(&self.head.answer_head(&head)) {
                        HeadOutcome::Accepted => return Ok(body),
                        outcome => outcome,
                    }
                }
                Err(_) => fill.on_no_answer(),
            };
            match outcome {
                HeadOutcome::Failed(error) => return Err(error),
                HeadOutcome::Accepted | HeadOutcome::Retry => pause(shared, fill).await,
            }
        }
    }
}

/// Waits before a request is repeated.
pub(super) async fn pause(shared: &Shared, fill: &Fill) {
    add(&shared.counters.fill_retries, 1);
    sleep(RETRY_PAUSE * 2_u32.pow(fill.attempt().saturating_sub(2))).await;
}

/// A fill of slots.
pub struct FillTask {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<SegmentStore>,
    pub(super) access: Arc<VersionAccess>,
    /// The slots, in the order of their bytes.
    pub(super) slots: Vec<Arc<FetchSlot>>,
    /// Position of the first slot that is not finished.
    pub(super) at: usize,
    /// Whether readers have left, and the slots after the current one were given up.
    pub(super) is_last: bool,
    /// Whether segments are stored: until the device takes too long.
    pub(super) is_storing: bool,
}

impl FillTask {
    /// Runs the fill to its end.
    pub async fn run(mut self) {
        add(&self.shared.counters.fills, 1);
        if let Err(error) = self.fill().await {
            self.finish_rest(error);
        }
    }

    async fn fill(&mut self) -> Result<(), FillError> {
        let (first, last) = (&self.slots[0], &self.slots[self.slots.len() - 1]);
        let bytes = first.bytes.start..last.bytes.end;
        let mut fill =
            Fill::new(self.access.head.etag().clone(), self.access.head.length(), &bytes);
        self.take_memory().await?;
        loop {
            let (access, shared) = (Arc::clone(&self.access), Arc::clone(&self.shared));
            let body = tokio::select! {
                body = access.open(&shared, &mut fill) => Some(body?),
                () = self.abandoned() => None,
            };
            let Some(mut body) = body else {
                if self.give_up(&mut fill) {
                    return Ok(());
                }
                continue;
            };
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => Some(frame),
                    () = self.abandoned() => None,
                };
                match frame {
                    None if self.give_up(&mut fill) => return Ok(()),
                    None => {}
                    Some(Some(Ok(frame))) => {
                        if let Ok(chunk) = frame.into_data() {
                            let taken = fill.on_bytes(chunk.len());
                            if taken > 0 {
                                fill.on_progress();
                            }
                            self.take(chunk.slice(..taken)).await?;
                        }
                        if fill.missing().is_empty() {
                            break;
                        }
                    }
                    Some(None | Some(Err(_))) => break,
                }
            }
            match fill.on_end() {
                EndOutcome::Complete => return Ok(()),
                EndOutcome::Retry => pause(&self.shared, &fill).await,
                EndOutcome::Failed(error) => return Err(error),
            }
        }
    }

    /// Returns when no reader waits for any slot that is not finished. Never after that was acted
    /// upon.
    async fn abandoned(&self) {
        if self.is_last {
            return std::future::pending().await;
        }
        for slot in &self.slots[self.at..] {
            slot.abandoned().await;
        }
    }

    /// Gives up the slots that have not begun, unless a reader has come. True if none is left.
    fn give_up(&mut self, fill: &mut Fill) -> bool {
        let mut table = self.shared.fetches.lock();
        if self.slots[self.at..].iter().any(|slot| slot.is_awaited()) {
            return false;
        }
        let is_over = fill.on_abandoned();
        let kept = if is_over { self.at } else { self.at + 1 };
        for slot in self.slots.drain(kept..) {
            table.remove(&slot);
            slot.finish(Err(FillError::Unavailable), false);
            self.shared.admission.on_not_stored(slot.key);
        }
        drop(table);
        add(&self.shared.counters.fills_abandoned, 1);
        self.is_last = true;
        is_over
    }

    /// Takes memory for the current slot.
    async fn take_memory(&self) -> Result<(), FillError> {
        let memory: &Arc<Semaphore> = &self.shared.fill_memory;
        let taken = tokio::time::timeout(MEMORY_TIMEOUT, Arc::clone(memory).acquire_owned()).await;
        let Ok(Ok(permit)) = taken else { return Err(FillError::Unavailable) };
        self.slots[self.at].hold(permit);
        Ok(())
    }

    /// Takes bytes of the stream.
    async fn take(&mut self, mut chunk: Bytes) -> Result<(), FillError> {
        while !chunk.is_empty() {
            let slot = Arc::clone(&self.slots[self.at]);
            let before = slot.received();
            let missing = slot.bytes.end - slot.bytes.start - before;
            let length = usize::try_from(missing).unwrap_or(usize::MAX).min(chunk.len());
            slot.push(chunk.split_to(length));
            if length as u64 == missing {
                self.store(&slot).await;
                self.at += 1;
                if self.at < self.slots.len() {
                    self.take_memory().await?;
                }
            }
        }
        Ok(())
    }

    /// Stores a complete segment, then ends its slot: it is always found in one of the two places.
    async fn store(&mut self, slot: &Arc<FetchSlot>) {
        let Shared { counters, admission, fetches, .. } = &*self.shared;
        let contents = slot.contents();
        debug_assert!(contents.len() as u64 <= SEGMENT_BYTES);
        let stored = if self.is_storing {
            let put = self.store.put(slot.key, contents);
            tokio::time::timeout(STORE_TIMEOUT, put).await.unwrap_or(Err(RequestError::TimedOut))
        } else {
            Err(RequestError::TimedOut)
        };
        let is_stored = match stored {
            Ok(place) => {
                add(&counters.segments_stored, 1);
                admission.on_stored(slot.key, place);
                true
            }
            Err(error) => {
                add(&counters.segments_not_stored, 1);
                admission.on_not_stored(slot.key);
                self.is_storing &= error != RequestError::TimedOut;
                tracing::debug!(%error, "segment not stored");
                false
            }
        };
        slot.finish(Ok(()), is_stored);
        fetches.lock().remove(slot);
    }

    fn finish_rest(&mut self, error: FillError) {
        let mut table = self.shared.fetches.lock();
        for slot in self.slots.drain(self.at..) {
            table.remove(&slot);
            slot.finish(Err(error), false);
            self.shared.admission.on_not_stored(slot.key);
        }
    }
}

impl Drop for FillTask {
    /// A task that is stopped leaves no slot behind.
    fn drop(&mut self) {
        self.at = self.at.min(self.slots.len());
        self.finish_rest(FillError::Unavailable);
    }
}

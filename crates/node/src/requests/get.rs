//! Gets: resident ranges are read and sent; ranges of claimed blobs wait for the put.
//!
//! A slow client must not delay the others. So nothing is read from a device before there is space
//! for the answer: in the client's shm region, or in the reply queue of its connection. Ranges in
//! the memory cache are answered at once, without a task.
//!
//! Waits do not count as ranges in flight, because the request that ends a wait may be a later one
//! on the same connection.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    dataset::blob_table::{BlobRow, BlobTable},
    node::{claims::Holder, fetch_table::BlobState},
};
use forebay_shm::{ShmRegion, SlotRange, SlotWriter};
use forebay_transport::session::{GetPermit, Replies, ReplySpace};
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Reply, ShmRange};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout_at},
};

use crate::{
    requests::{
        claims::BLOBS_PER_LOCK,
        service::{NodeService, Refused, row_of},
    },
    store::blob_store::Read,
};

/// Concurrent reads of one get.
const READS_MAX: usize = 32;
/// Bytes that are copied into a shm region before the task yields: 0.2 ms.
const COPY_BYTES_MAX: usize = 2 << 20;
/// Ranges of one get that are looked up in the memory cache before a task is spawned.
const MEMORY_LOOKUPS_MAX: u32 = 1024;

/// The destination of the answers to a get.
pub(crate) struct GetContext {
    pub replies: Replies,
    /// The connection.
    pub holder: Holder,
    /// The client's shm region, for a `get_shm`.
    pub shm: Option<Arc<ShmRegion>>,
}

impl GetContext {
    /// A slot for a range, if the shm region has space.
    fn take_slot(&self, range: &RequestedRange) -> Option<SlotWriter> {
        let length = u32::try_from(range.length()).expect("a range of a frame");
        self.shm.as_ref()?.take_slot(length)
    }

    /// Sends the positions of ranges in the shm region.
    async fn send_shm_ranges(&self, ranges: Vec<ShmRange>) {
        if !ranges.is_empty() {
            self.replies.send(&Reply::GetShm { ranges }).await;
        }
    }
}

/// The destination of one range.
enum Destination {
    Shm(SlotWriter),
    Socket(ReplySpace),
}

/// The result of reading a range that was resident.
enum Outcome {
    Shm(ShmRange),
    Payload(Reply, ReplySpace),
    /// The read failed, or the blob was evicted meanwhile.
    Miss(Reply),
}

/// One range of a get. It lies within its blob.
struct RequestedRange {
    index: u32,
    row: BlobRow,
    range: Range<u64>,
}

impl RequestedRange {
    fn new(table: &BlobTable, index: usize, range: BlobRange) -> Result<Self, Refused> {
        let row = row_of(table, range.blob)?;
        let end = range.offset.checked_add(u64::from(range.length));
        let end = end.filter(|end| *end <= row.length).ok_or_else(|| {
            (ErrorCode::Malformed, format!("a range exceeds the end of blob {}", range.blob))
        })?;
        let index = u32::try_from(index).expect("batches are bounded");
        Ok(Self { index, row, range: range.offset..end })
    }

    fn length(&self) -> usize {
        usize::try_from(self.range.end - self.range.start).expect("a range of a frame")
    }
}

impl NodeService {
    /// Answers a get. Ranges that are not in memory are answered from a task, which holds `permit`
    /// until only waits are left.
    pub(crate) async fn get(
        self: &Arc<Self>,
        table: &BlobTable,
        wait: Duration,
        ranges: &[BlobRange],
        context: GetContext,
        permit: GetPermit,
    ) -> Result<(), Refused> {
        let ranges: Result<Vec<RequestedRange>, Refused> = ranges
            .iter()
            .enumerate()
            .map(|(at, range)| RequestedRange::new(table, at, *range))
            .collect();
        self.blobs.on_use(table.dataset());
        let rest = self.answer_from_memory(ranges?, &context).await;
        if !rest.is_empty() {
            tokio::spawn(Arc::clone(self).get_rest(rest, wait, context, permit));
        }
        Ok(())
    }

    /// Answers the ranges that are in memory, as far as there is space for the answers. Returns the
    /// rest.
    async fn answer_from_memory(
        &self,
        ranges: Vec<RequestedRange>,
        context: &GetContext,
    ) -> Vec<RequestedRange> {
        let (mut rest, mut shm_ranges, mut copied) = (Vec::new(), Vec::new(), 0);
        for range in ranges {
            // A blob that the device has lost is a miss, even if it is still in memory.
            let is_resident =
                range.index < MEMORY_LOOKUPS_MAX && self.blobs.contains(&range.row.address);
            let in_memory = || self.blobs.in_memory(&range.row, &range.range);
            let Some(bytes) = is_resident.then(in_memory).flatten() else {
                rest.push(range);
                continue;
            };
            let index = range.index;
            if copied + bytes.len() <= COPY_BYTES_MAX
                && let Some(mut slot) = context.take_slot(&range)
            {
                slot.write(0, &bytes);
                copied += bytes.len();
                shm_ranges.push(self.grant_slot(index, slot));
            } else if context.shm.is_none()
                && let Some(space) = context.replies.try_reserve(bytes.len())
            {
                self.count_hit(bytes.len());
                let reply = Reply::Get { index, answer: GetAnswer::Hit, payload: bytes };
                context.replies.send_payload(&reply, space);
            } else {
                rest.push(range);
            }
        }
        context.send_shm_ranges(shm_ranges).await;
        rest
    }

    async fn get_rest(
        self: Arc<Self>,
        ranges: Vec<RequestedRange>,
        wait: Duration,
        context: GetContext,
        permit: GetPermit,
    ) {
        let _in_flight = self.count_get();
        let replies = &context.replies;
        let deadline = Instant::now() + wait;
        let (mut ready, mut waiting) = (Vec::new(), FuturesUnordered::new());
        let mut ranges = ranges.into_iter();
        while ranges.len() > 0 {
            {
                let mut fetches = self.fetch_table.lock();
                for range in ranges.by_ref().take(BLOBS_PER_LOCK) {
                    let state = self.blob_state(&fetches, &range.row);
                    let may_wait = state == BlobState::Claimed && !wait.is_zero();
                    let Some(wait_permit) = may_wait.then(|| replies.begin_wait()).flatten() else {
                        ready.push((state, range));
                        continue;
                    };
                    let (waker, mut woken) = oneshot::channel();
                    let ticket = fetches.wait(range.row.address, context.holder, waker);
                    self.counters.waits.one();
                    waiting.push(async move {
                        let in_time = tokio::select! {
                            biased;
                            woken = timeout_at(deadline, &mut woken) => woken.is_ok(),
                            () = replies.disconnected() => false,
                        };
                        (in_time, range, ticket, wait_permit)
                    });
                }
            }
            if ranges.len() > 0 {
                yield_now().await;
            }
        }
        self.answer(ready, &context).await;
        drop(permit);
        // A claim that ends without a put is a miss for its waiters; the next request claims the
        // blob. The permit of a wait is held until its answer is queued: otherwise a client that
        // does not read could accumulate answers.
        while let Some((in_time, range, ticket, wait_permit)) = waiting.next().await {
            let state = {
                let mut fetches = self.fetch_table.lock();
                if in_time {
                    self.blob_state(&fetches, &range.row)
                } else {
                    fetches.forget(&range.row.address, ticket);
                    BlobState::Claimed
                }
            };
            self.answer(vec![(state, range)], &context).await;
            drop(wait_permit);
        }
    }

    /// Answers ranges that do not wait.
    async fn answer(&self, answerable: Vec<(BlobState, RequestedRange)>, context: &GetContext) {
        let replies = &context.replies;
        let mut resident = Vec::new();
        for (state, range) in answerable {
            let answer = match state {
                BlobState::Resident => {
                    resident.push(range);
                    continue;
                }
                BlobState::Absent => GetAnswer::Miss,
                BlobState::Claimed => GetAnswer::Claimed,
            };
            replies.send(&self.reply_without_bytes(answer, range.index)).await;
        }
        let mut next = resident.into_iter().peekable();
        let mut pending = FuturesUnordered::new();
        loop {
            while pending.len() < READS_MAX
                && let Some(slot) = next.peek().and_then(|range| context.take_slot(range))
            {
                pending.push(self.read(next.next().expect("peeked"), Destination::Shm(slot)));
            }
            let length = next.peek().map(RequestedRange::length);
            let length = length.filter(|_| pending.len() < READS_MAX);
            tokio::select! {
                biased;
                // Sending an answer frees space for the next.
                Some(first) = pending.next() => {
                    let (mut shm_ranges, mut copied) = (Vec::new(), 0);
                    let mut done = Some(first);
                    while let Some(outcome) = done {
                        match outcome {
                            Outcome::Shm(range) => {
                                copied += range.length as usize;
                                shm_ranges.push(range);
                            }
                            Outcome::Payload(reply, space) => replies.send_payload(&reply, space),
                            Outcome::Miss(reply) => replies.send(&reply).await,
                        }
                        let may_go_on = copied < COPY_BYTES_MAX;
                        done = may_go_on.then(|| pending.next().now_or_never().flatten()).flatten();
                    }
                    context.send_shm_ranges(shm_ranges).await;
                    if copied >= COPY_BYTES_MAX {
                        yield_now().await;
                    }
                }
                space = replies.reserve(length.unwrap_or(0)), if length.is_some() => {
                    // The connection has ended.
                    let Some(space) = space else { return };
                    let range = next.next().expect("peeked");
                    pending.push(self.read(range, Destination::Socket(space)));
                }
                else => return,
            }
        }
    }

    /// Reads a range of a resident blob. Any failure is a miss.
    async fn read(&self, range: RequestedRange, destination: Destination) -> Outcome {
        let RequestedRange { index, row, range } = range;
        match self.blobs.read(row, range).await {
            Read::Hit(payload) => match destination {
                Destination::Shm(mut slot) => {
                    for (at, bytes) in payload.chunks(COPY_BYTES_MAX).enumerate() {
                        if at > 0 {
                            yield_now().await;
                        }
                        slot.write(at * COPY_BYTES_MAX, bytes);
                    }
                    Outcome::Shm(self.grant_slot(index, slot))
                }
                Destination::Socket(mut space) => {
                    self.count_hit(payload.len());
                    let payload = space.detach(payload);
                    Outcome::Payload(Reply::Get { index, answer: GetAnswer::Hit, payload }, space)
                }
            },
            // With a wrong length, the client's table is wrong. The blob stays, for the others.
            Read::Gone | Read::OtherLength => {
                Outcome::Miss(self.reply_without_bytes(GetAnswer::Miss, index))
            }
            Read::Failed => {
                self.counters.reads_failed.one();
                Outcome::Miss(self.reply_without_bytes(GetAnswer::Miss, index))
            }
        }
    }

    /// Passes a filled slot to the client, which holds it from now on.
    fn grant_slot(&self, index: u32, slot: SlotWriter) -> ShmRange {
        let SlotRange { offset, length } = slot.grant();
        self.count_hit(length as usize);
        self.counters.shm_hit_bytes.add(length.into());
        ShmRange { index, offset, length }
    }

    fn count_hit(&self, length: usize) {
        self.counters.hits.one();
        self.counters.hit_bytes.add(length as u64);
    }

    fn reply_without_bytes(&self, answer: GetAnswer, index: u32) -> Reply {
        match answer {
            GetAnswer::Claimed => self.counters.wait_timeouts.one(),
            _ => self.counters.misses.one(),
        }
        Reply::Get { index, answer, payload: Bytes::new() }
    }
}

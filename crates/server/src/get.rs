//! Gets: what is resident is read and sent, what somebody is fetching is waited for.
//!
//! A reader that takes its time must hold up nobody else: nothing is read before there is room for it on
//! the way to whoever asked. And waiting for somebody's fetch is not counted against the gets under way:
//! what ends the wait may be a later request on the same connection.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    node::Standing,
    table::{Row, Table},
};
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Reply};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    blobs::Read,
    node::{NodeService, Refused, row_of},
    session::{Replies, Room},
};

/// Reads that one get has under way.
const READS_MAX: usize = 32;

/// One range of a get, known to lie within its blob.
struct Wanted {
    index: u32,
    row: Row,
    range: Range<u64>,
}

impl Wanted {
    fn new(table: &Table, index: usize, range: BlobRange) -> Result<Self, Refused> {
        let row = row_of(table, range.blob)?;
        let end = range.offset.checked_add(u64::from(range.length));
        let end = end
            .filter(|end| *end <= row.length)
            .ok_or_else(|| (ErrorCode::Malformed, format!("a range leaves blob {}", range.blob)))?;
        let index = u32::try_from(index).expect("batches are bounded");
        Ok(Self { index, row, range: range.offset..end })
    }

    fn length(&self) -> usize {
        usize::try_from(self.range.end - self.range.start).expect("a range of a frame")
    }
}

impl NodeService {
    /// Answers a get. `turn` is returned when nothing is left but waiting.
    pub(crate) async fn get(
        self: Arc<Self>,
        table: Arc<Table>,
        wait: Duration,
        ranges: Vec<BlobRange>,
        replies: Replies,
        turn: OwnedSemaphorePermit,
    ) {
        let _under_way = self.begin_get();
        let checked: Result<Vec<Wanted>, Refused> =
            ranges.iter().enumerate().map(|(at, range)| Wanted::new(&table, at, *range)).collect();
        let wanted = match checked {
            Ok(wanted) => wanted,
            Err((code, text)) => return replies.refuse(code, text).await,
        };
        drop((ranges, table));
        let deadline = Instant::now() + wait;
        let (mut ready, mut waiting) = (Vec::new(), FuturesUnordered::new());
        {
            let mut state = self.state.lock();
            for wanted in wanted {
                let standing = self.standing(&state, &wanted.row);
                let may_wait = standing == Standing::Claimed && !wait.is_zero();
                let Some(place) = may_wait.then(|| replies.begin_wait()).flatten() else {
                    ready.push((standing, wanted));
                    continue;
                };
                let (waker, mut woken) = oneshot::channel();
                state.wait(wanted.row.address, waker);
                self.counters.waits.one();
                let replies = &replies;
                waiting.push(async move {
                    let in_time = tokio::select! {
                        woken = timeout_at(deadline, &mut woken) => woken.is_ok(),
                        () = replies.gone() => false,
                    };
                    drop((woken, place));
                    (in_time, wanted)
                });
            }
        }
        self.answer(ready, &replies).await;
        drop(turn);
        // A claim that ends without its blob is a miss for those who waited: whoever asks next claims it.
        while let Some((in_time, wanted)) = waiting.next().await {
            let standing = {
                let mut state = self.state.lock();
                if in_time {
                    self.standing(&state, &wanted.row)
                } else {
                    state.forget(&wanted.row.address, oneshot::Sender::is_closed);
                    Standing::Claimed
                }
            };
            self.answer(vec![(standing, wanted)], &replies).await;
        }
    }

    /// Answers what need not wait any more.
    async fn answer(self: &Arc<Self>, ready: Vec<(Standing, Wanted)>, replies: &Replies) {
        let mut resident = Vec::new();
        for (standing, wanted) in ready {
            let answer = match standing {
                Standing::Resident => {
                    resident.push(wanted);
                    continue;
                }
                Standing::Absent => GetAnswer::Miss,
                Standing::Claimed => GetAnswer::Claimed,
            };
            replies.send(&self.without_bytes(answer, wanted.index)).await;
        }
        let mut next = resident.into_iter().peekable();
        let mut reading = FuturesUnordered::new();
        loop {
            let length = next.peek().map(Wanted::length).filter(|_| reading.len() < READS_MAX);
            tokio::select! {
                // What has been read makes room by being sent.
                Some((reply, room)) = reading.next() => replies.send_payload(&reply, room),
                room = replies.room_for(length.unwrap_or(0)), if length.is_some() => {
                    // Nobody is left to read it.
                    let Some(room) = room else { return };
                    reading.push(self.read(next.next().expect("just seen"), room));
                }
                else => return,
            }
        }
    }

    /// Reads a range of a resident blob. Whatever is wrong with it is a miss.
    async fn read(&self, wanted: Wanted, room: Room) -> (Reply, Room) {
        let length = wanted.length();
        let Wanted { index, row, range } = wanted;
        let reply = match self.blobs.read(row, range).await {
            Read::Hit(payload) => {
                self.counters.hits.one();
                self.counters.hit_bytes.add(length as u64);
                Reply::Get { index, answer: GetAnswer::Hit, payload }
            }
            // Whoever uploads a table with wrong lengths must not cost others their blobs.
            Read::Gone | Read::OtherLength => self.without_bytes(GetAnswer::Miss, index),
            Read::Failed => {
                self.counters.reads_failed.one();
                self.without_bytes(GetAnswer::Miss, index)
            }
        };
        (reply, room)
    }

    fn without_bytes(&self, answer: GetAnswer, index: u32) -> Reply {
        match answer {
            GetAnswer::Claimed => self.counters.waits_in_vain.one(),
            _ => self.counters.misses.one(),
        }
        Reply::Get { index, answer, payload: Bytes::new() }
    }
}

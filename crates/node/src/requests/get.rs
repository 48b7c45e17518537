//! Gets: what is resident is read and sent, what somebody is fetching is waited for.
//!
//! A reader that takes its time must hold up nobody else: nothing is read before there is room for it on
//! the way to whoever asked: in its segment, or else in the queue of its socket. And waiting for somebody's
//! fetch is not counted against the gets under way: what ends the wait may be a later request on the same
//! connection. What lies in memory is answered at once, without a task of its own.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    node::Standing,
    table::{Row, Table},
};
use forebay_segment::{Place, Segment};
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Placed, Reply};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    task::yield_now,
    time::{Instant, timeout_at},
};

use crate::{
    blobs::Read,
    node::{NodeService, Refused, row_of},
    session::{Replies, Room},
};

/// Reads that one get has under way.
const READS_MAX: usize = 32;
/// Bytes that are copied into a segment before others have a turn: a fifth of a millisecond.
const COPIED_AT_ONCE: usize = 2 << 20;

/// Ranges that are looked for in memory before others have a turn.
const LOOKED_FOR_AT_ONCE: u32 = 1024;

/// Where the answers to a get go.
pub(crate) struct Asker {
    pub replies: Replies,
    /// Where bytes are to be placed, if there is room.
    pub segment: Option<Arc<Segment>>,
}

impl Asker {
    fn place(&self, wanted: &Wanted) -> Option<Place> {
        let length = u32::try_from(wanted.length()).expect("a range of a frame");
        self.segment.as_ref()?.place(length)
    }

    /// Says where bytes were placed.
    async fn tell(&self, places: Vec<Placed>) {
        if !places.is_empty() {
            self.replies.send(&Reply::Placed { places }).await;
        }
    }
}

/// Where a range is read to.
enum Goal {
    Segment(Place),
    Socket(Room),
}

/// What became of a range that was resident.
enum Outcome {
    Placed(Placed),
    Payload(Reply, Room),
    /// It was not, after all.
    Without(Reply),
}

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
    /// Answers a get. What takes long is answered later, from a task of its own; `turn` is returned when nothing
    /// is left but waiting.
    pub(crate) async fn get(
        self: &Arc<Self>,
        table: &Table,
        wait: Duration,
        ranges: &[BlobRange],
        asker: Asker,
        turn: OwnedSemaphorePermit,
    ) -> Result<(), Refused> {
        let checked: Result<Vec<Wanted>, Refused> =
            ranges.iter().enumerate().map(|(at, range)| Wanted::new(table, at, *range)).collect();
        self.blobs.used(table.dataset());
        let rest = self.answer_from_memory(checked?, &asker).await;
        if !rest.is_empty() {
            tokio::spawn(Arc::clone(self).get_rest(rest, wait, asker, turn));
        }
        Ok(())
    }

    /// Answers what lies in memory and can be told now. Returns the rest.
    async fn answer_from_memory(&self, wanted: Vec<Wanted>, asker: &Asker) -> Vec<Wanted> {
        let (mut rest, mut places, mut copied) = (Vec::new(), Vec::new(), 0);
        for wanted in wanted {
            // What the device has lost is missed, wherever else it may lie.
            let is_resident =
                wanted.index < LOOKED_FOR_AT_ONCE && self.blobs.contains(&wanted.row.address);
            let in_memory = || self.blobs.in_memory(&wanted.row, &wanted.range);
            let Some(bytes) = is_resident.then(in_memory).flatten() else {
                rest.push(wanted);
                continue;
            };
            let index = wanted.index;
            if copied + bytes.len() <= COPIED_AT_ONCE
                && let Some(mut place) = asker.place(&wanted)
            {
                place.write(0, &bytes);
                copied += bytes.len();
                places.push(self.placed(index, place));
            } else if asker.segment.is_none()
                && let Some(room) = asker.replies.try_room_for(bytes.len())
            {
                self.count_hit(bytes.len());
                let reply = Reply::Get { index, answer: GetAnswer::Hit, payload: bytes };
                asker.replies.send_payload(&reply, room);
            } else {
                rest.push(wanted);
            }
        }
        asker.tell(places).await;
        rest
    }

    async fn get_rest(
        self: Arc<Self>,
        wanted: Vec<Wanted>,
        wait: Duration,
        asker: Asker,
        turn: OwnedSemaphorePermit,
    ) {
        let _under_way = self.begin_get();
        let replies = &asker.replies;
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
                let ticket = state.wait(wanted.row.address, waker);
                self.counters.waits.one();
                waiting.push(async move {
                    let in_time = tokio::select! {
                        woken = timeout_at(deadline, &mut woken) => woken.is_ok(),
                        () = replies.gone() => false,
                    };
                    (in_time, wanted, ticket, place)
                });
            }
        }
        self.answer(ready, &asker).await;
        drop(turn);
        // A claim that ends without its blob is a miss for those who waited: whoever asks next claims it.
        // Nor is a wait over before its answer has left for whoever asked, or slow readers would pile them up.
        while let Some((in_time, wanted, ticket, place)) = waiting.next().await {
            let standing = {
                let mut state = self.state.lock();
                if in_time {
                    self.standing(&state, &wanted.row)
                } else {
                    state.forget(&wanted.row.address, ticket);
                    Standing::Claimed
                }
            };
            self.answer(vec![(standing, wanted)], &asker).await;
            drop(place);
        }
    }

    /// Answers what need not wait any more.
    async fn answer(&self, ready: Vec<(Standing, Wanted)>, asker: &Asker) {
        let replies = &asker.replies;
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
            while reading.len() < READS_MAX
                && let Some(place) = next.peek().and_then(|wanted| asker.place(wanted))
            {
                reading.push(self.read(next.next().expect("just seen"), Goal::Segment(place)));
            }
            let length = next.peek().map(Wanted::length).filter(|_| reading.len() < READS_MAX);
            tokio::select! {
                // What has been read makes room by being sent.
                Some(first) = reading.next() => {
                    let (mut places, mut copied) = (Vec::new(), 0);
                    let mut done = Some(first);
                    while let Some(outcome) = done {
                        match outcome {
                            Outcome::Placed(place) => {
                                copied += place.length as usize;
                                places.push(place);
                            }
                            Outcome::Payload(reply, room) => replies.send_payload(&reply, room),
                            Outcome::Without(reply) => replies.send(&reply).await,
                        }
                        let may_go_on = copied < COPIED_AT_ONCE;
                        done = may_go_on.then(|| reading.next().now_or_never().flatten()).flatten();
                    }
                    asker.tell(places).await;
                    if copied >= COPIED_AT_ONCE {
                        yield_now().await;
                    }
                }
                room = replies.room_for(length.unwrap_or(0)), if length.is_some() => {
                    // Nobody is left to read it.
                    let Some(room) = room else { return };
                    reading.push(self.read(next.next().expect("just seen"), Goal::Socket(room)));
                }
                else => return,
            }
        }
    }

    /// Reads a range of a resident blob. Whatever is wrong with it is a miss.
    async fn read(&self, wanted: Wanted, goal: Goal) -> Outcome {
        let Wanted { index, row, range } = wanted;
        match self.blobs.read(row, range).await {
            Read::Hit(payload) => match goal {
                Goal::Segment(mut place) => {
                    for (piece, bytes) in payload.chunks(COPIED_AT_ONCE).enumerate() {
                        if piece > 0 {
                            yield_now().await;
                        }
                        place.write(piece * COPIED_AT_ONCE, bytes);
                    }
                    Outcome::Placed(self.placed(index, place))
                }
                Goal::Socket(room) => {
                    self.count_hit(payload.len());
                    Outcome::Payload(Reply::Get { index, answer: GetAnswer::Hit, payload }, room)
                }
            },
            // Whoever uploads a table with wrong lengths must not cost others their blobs.
            Read::Gone | Read::OtherLength => {
                Outcome::Without(self.without_bytes(GetAnswer::Miss, index))
            }
            Read::Failed => {
                self.counters.reads_failed.one();
                Outcome::Without(self.without_bytes(GetAnswer::Miss, index))
            }
        }
    }

    /// A place that was filled is the client's from now on.
    fn placed(&self, index: u32, place: Place) -> Placed {
        let (offset, length) = place.give();
        self.count_hit(length as usize);
        self.counters.placed_bytes.add(length.into());
        Placed { index, offset, length }
    }

    fn count_hit(&self, length: usize) {
        self.counters.hits.one();
        self.counters.hit_bytes.add(length as u64);
    }

    fn without_bytes(&self, answer: GetAnswer, index: u32) -> Reply {
        match answer {
            GetAnswer::Claimed => self.counters.waits_in_vain.one(),
            _ => self.counters.misses.one(),
        }
        Reply::Get { index, answer, payload: Bytes::new() }
    }
}

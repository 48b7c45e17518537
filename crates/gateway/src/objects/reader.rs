//! Readers: one answer's bytes, in order, from memory, flash, fetches in progress and the origin.
//!
//! A reader plans a window of segments at a time. It starts the reads of its window at once, and
//! one fill for neighbours that are absent. What a fetch does not deliver, because it failed or
//! because its segment was evicted again, the reader asks the origin for by itself, as its own
//! principal, for exactly the bytes that are missing.

use std::{
    collections::VecDeque,
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_core::gateway::{
    fill::{EndOutcome, Fill, FillError},
    read_ahead::ReadAheadWindow,
    read_plan::{
        FetchStep, PlanStep, SEGMENT_BYTES, SegmentIndex, SegmentPart, SegmentState, plan,
    },
};
use forebay_flash::EntryKey;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{
    Shared,
    admission::SegmentRead,
    counters::add,
    fetch_slot::{FetchSlot, SlotRead, SlotReader},
    fill_task::{FillTask, VersionAccess, pause},
    identifiers::VersionHash,
    segment_store::SegmentStore,
};
use crate::object_request::JobTag;

/// Segments that one reader has under way at a time.
const WINDOW_MAX: usize = 8;
/// Segments of one fill: 8 MiB.
const FILL_SEGMENTS_MAX: usize = 32;
/// Longest wait for bytes that another reader's fill fetches.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a reader sends: bytes, or why the answer ends early.
pub type Sent = Result<Bytes, FillError>;

type StoredRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// A reader of a range of one version.
pub struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<SegmentStore>,
    pub(super) access: Arc<VersionAccess>,
    pub(super) version: VersionHash,
    pub(super) job: Option<JobTag>,
    pub(super) wanted: Range<u64>,
    pub(super) sink: mpsc::Sender<Sent>,
    /// Set when bytes come from a fetch whose segments are kept.
    pub(super) is_fill: Arc<AtomicBool>,
    /// Memory for the bytes that wait for the client.
    pub(super) _memory: OwnedSemaphorePermit,
}

/// A part of the answer that is under way.
struct Upcoming {
    bytes: Range<u64>,
    source: Source,
    /// Memory of a read ahead of its turn.
    memory: Option<OwnedSemaphorePermit>,
}

enum Source {
    Stored(StoredRead),
    Fetching { slot: SlotReader, is_own: bool },
    Origin,
}

/// The client has left.
struct ClientGone;

enum Stop {
    ClientGone,
    Failed(FillError),
}

impl From<ClientGone> for Stop {
    fn from(_: ClientGone) -> Self {
        Self::ClientGone
    }
}

impl Reader {
    /// Sends all bytes, or an error.
    pub async fn run(self) {
        if let Err(Stop::Failed(error)) = self.read().await {
            let _ = self.sink.send(Err(error)).await;
        }
    }

    async fn read(&self) -> Result<(), Stop> {
        let mut window = ReadAheadWindow::new(WINDOW_MAX);
        let mut upcoming: VecDeque<Upcoming> = VecDeque::new();
        let mut planned = self.wanted.start;
        loop {
            while planned < self.wanted.end && upcoming.len() < window.segments() {
                let part = self.next_window(planned);
                // Memory of what is read ahead of its turn; without it, nothing is.
                let memory = if upcoming.is_empty() {
                    None
                } else {
                    match Arc::clone(&self.shared.read_ahead_memory).try_acquire_owned() {
                        Ok(memory) => Some(memory),
                        Err(_) => break,
                    }
                };
                planned = part.end;
                self.plan(&part, memory, &mut upcoming);
            }
            let Some(next) = upcoming.pop_front() else { return Ok(()) };
            tokio::select! {
                done = self.send_part(next) => done?,
                () = self.sink.closed() => return Err(Stop::ClientGone),
            }
            window.on_taken();
        }
    }

    /// The bytes to plan next: one segment if it is in the store, else a whole fill.
    fn next_window(&self, start: u64) -> Range<u64> {
        let segment = SegmentIndex::of(start);
        let key = self.key(segment);
        let is_here = self.store.contains(&key);
        let segments = if is_here { 1 } else { FILL_SEGMENTS_MAX as u64 };
        let end = (segment.0 + segments).saturating_mul(SEGMENT_BYTES);
        start..end.min(self.wanted.end)
    }

    fn key(&self, segment: SegmentIndex) -> EntryKey {
        self.shared.identifiers.segment(self.version, segment)
    }

    /// Plans bytes, starts what they need, and queues their parts.
    fn plan(
        &self,
        bytes: &Range<u64>,
        mut memory: Option<OwnedSemaphorePermit>,
        upcoming: &mut VecDeque<Upcoming>,
    ) {
        let length = self.access.head.length();
        let mut fills = Vec::new();
        // Residency is looked up and slots are made under one lock, so that no segment is fetched
        // twice: a fetch ends only after its segment is stored.
        let mut table = self.shared.fetches.lock();
        let steps = plan(bytes, length, FILL_SEGMENTS_MAX, |segment| {
            let key = self.key(segment);
            let state = if table.get(&key).is_some() {
                SegmentState::Fetching
            } else if self.store.contains(&key) {
                SegmentState::Resident
            } else {
                SegmentState::Passed
            };
            let is_resident = state != SegmentState::Passed;
            let whole = segment.bytes(length);
            let read = SegmentRead {
                principal: &self.access.principal,
                object: &self.access.object,
                job: self.job.as_ref(),
                key,
                segment,
                length: whole.end - whole.start,
                bytes: whole.end.min(bytes.end) - whole.start.max(bytes.start),
                is_resident,
            };
            let is_admitted = self.shared.admission.on_read(&read);
            if is_admitted && !is_resident { SegmentState::Admitted } else { state }
        });
        for step in steps {
            let memory = memory.take();
            match step {
                PlanStep::Send(part) => {
                    let source = Source::Stored(self.stored(&part, !upcoming.is_empty()));
                    upcoming.push_back(Upcoming { bytes: part.bytes, source, memory });
                }
                PlanStep::Join(part) => {
                    self.is_fill.store(true, Ordering::Relaxed);
                    let slot = table.get(&self.key(part.segment)).expect("just seen").reader();
                    let source = Source::Fetching { slot, is_own: false };
                    upcoming.push_back(Upcoming { bytes: part.bytes, source, memory });
                }
                PlanStep::Fetch(fetch) if fetch.is_admitted => {
                    self.is_fill.store(true, Ordering::Relaxed);
                    let mut slots = Vec::with_capacity(fetch.count);
                    self.queue_fetch(&fetch, length, &mut slots, upcoming);
                    for slot in &slots {
                        table.insert(Arc::clone(slot));
                    }
                    fills.push(slots);
                }
                PlanStep::Fetch(fetch) => {
                    let source = Source::Origin;
                    upcoming.push_back(Upcoming { bytes: fetch.sent, source, memory });
                }
            }
        }
        drop(table);
        for slots in fills {
            let task = FillTask {
                shared: Arc::clone(&self.shared),
                store: Arc::clone(&self.store),
                access: Arc::clone(&self.access),
                slots,
                at: 0,
                is_last: false,
                is_storing: true,
            };
            tokio::spawn(task.run());
        }
    }

    /// Makes the slots of a fill, and queues what this reader wants of them.
    fn queue_fetch(
        &self,
        fetch: &FetchStep,
        length: u64,
        slots: &mut Vec<Arc<FetchSlot>>,
        upcoming: &mut VecDeque<Upcoming>,
    ) {
        for part in fetch.parts(length) {
            let slot = FetchSlot::new(self.key(part.segment), part.bytes.clone());
            let bytes = part.bytes.start.max(fetch.sent.start)..part.bytes.end.min(fetch.sent.end);
            let source = Source::Fetching { slot: slot.reader(), is_own: true };
            upcoming.push_back(Upcoming { bytes, source, memory: None });
            slots.push(slot);
        }
    }

    /// A read of the store. If it `is_ahead` of its turn, a task drives it: a read that has
    /// completed holds the engine's buffers until it is taken, and a slow client takes nothing.
    fn stored(&self, part: &SegmentPart, is_ahead: bool) -> StoredRead {
        let (store, key) = (Arc::clone(&self.store), self.key(part.segment));
        let start = part.segment.bytes(self.access.head.length()).start;
        let range = part.bytes.start - start..part.bytes.end - start;
        let read = async move { store.read(key, range).await };
        if !is_ahead {
            return Box::pin(read);
        }
        let task = tokio::spawn(read);
        Box::pin(async move { task.await.ok().flatten() })
    }

    /// Sends one part.
    async fn send_part(&self, part: Upcoming) -> Result<(), Stop> {
        let Upcoming { bytes, source, memory } = part;
        let counters = &self.shared.counters;
        match source {
            Source::Stored(read) => match read.await {
                Some(read) => {
                    add(&counters.hit_bytes, read.len() as u64);
                    self.send(read).await?;
                }
                // Evicted or damaged since it was planned.
                None => self.send_from_origin(bytes).await?,
            },
            Source::Fetching { slot, is_own } => {
                if !is_own {
                    add(&counters.segments_joined, 1);
                }
                self.send_from_slot(bytes, slot, is_own).await?;
            }
            Source::Origin => self.send_from_origin(bytes).await?,
        }
        drop(memory);
        Ok(())
    }

    async fn send_from_slot(
        &self,
        mut bytes: Range<u64>,
        mut slot: SlotReader,
        is_own: bool,
    ) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let read = slot.next(bytes.start, bytes.end);
            let read = match tokio::time::timeout(JOIN_TIMEOUT, read).await {
                Ok(read) => read,
                // The origin client has limits of its own for the fill that this reader started.
                Err(_) if is_own => continue,
                Err(_) => return self.send_from_origin(bytes).await,
            };
            match read {
                SlotRead::Bytes(chunk) => {
                    bytes.start += chunk.len() as u64;
                    add(&self.shared.counters.fill_bytes, chunk.len() as u64);
                    self.send(chunk).await?;
                }
                SlotRead::Stored => {
                    let start = slot.bytes().start;
                    let range = bytes.start - start..bytes.end - start;
                    let Some(rest) = self.store.read(slot.key(), range).await else {
                        return self.send_from_origin(bytes).await;
                    };
                    bytes.start += rest.len() as u64;
                    add(&self.shared.counters.fill_bytes, rest.len() as u64);
                    self.send(rest).await?;
                }
                SlotRead::Failed(FillError::Changed) => {
                    return Err(Stop::Failed(FillError::Changed));
                }
                SlotRead::Failed(error @ (FillError::Refused | FillError::Unusable)) if is_own => {
                    return Err(Stop::Failed(error));
                }
                // The fill was refused another principal, broke, or found no memory.
                SlotRead::Failed(_) => return self.send_from_origin(bytes).await,
            }
        }
        Ok(())
    }

    /// Streams bytes from the origin to the client without keeping them.
    async fn send_from_origin(&self, bytes: Range<u64>) -> Result<(), Stop> {
        let (access, shared) = (&self.access, &self.shared);
        let mut fill = Fill::new(access.head.etag().clone(), access.head.length(), &bytes);
        loop {
            let mut body = access.open(shared, &mut fill).await.map_err(Stop::Failed)?;
            while !fill.missing().is_empty() {
                let Some(Ok(frame)) = body.frame().await else { break };
                let Ok(chunk) = frame.into_data() else { continue };
                let taken = fill.on_bytes(chunk.len());
                if taken > 0 {
                    fill.on_progress();
                    add(&shared.counters.pass_bytes, taken as u64);
                    self.send(chunk.slice(..taken)).await?;
                }
            }
            match fill.on_end() {
                EndOutcome::Complete => return Ok(()),
                EndOutcome::Retry => pause(shared, &fill).await,
                EndOutcome::Failed(error) => return Err(Stop::Failed(error)),
            }
        }
    }

    async fn send(&self, bytes: Bytes) -> Result<(), ClientGone> {
        self.sink.send(Ok(bytes)).await.map_err(|_| ClientGone)
    }
}

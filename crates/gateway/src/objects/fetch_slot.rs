//! Fetch slots: segments on their way from the origin, shared by all their readers (promise 3).
//!
//! A slot has the chunks that have arrived. It keeps them until the segment is stored, or for as
//! long as a reader holds the slot if it could not be stored. The number of receivers of its
//! progress is the number of readers that wait for it.

use std::{collections::HashMap, ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use forebay_core::gateway::fill::FillError;
use forebay_flash::EntryKey;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Progress of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotProgress {
    /// Bytes that have arrived, from the start of the slot.
    pub received: u64,
    /// The result, once there is one.
    pub end: Option<Result<(), FillError>>,
}

/// A segment on its way.
#[derive(Debug)]
pub struct FetchSlot {
    /// The segment's name.
    pub key: EntryKey,
    /// Its bytes of the object.
    pub bytes: Range<u64>,
    progress: watch::Sender<SlotProgress>,
    data: Mutex<SlotData>,
}

#[derive(Debug, Default)]
struct SlotData {
    chunks: Vec<Bytes>,
    is_cleared: bool,
    /// Given back with the chunks.
    memory: Option<OwnedSemaphorePermit>,
}

/// A reader's hold on a slot.
#[derive(Debug)]
pub struct SlotReader {
    slot: Arc<FetchSlot>,
    progress: watch::Receiver<SlotProgress>,
}

/// What a reader of a slot gets next.
#[derive(Debug)]
pub enum SlotRead {
    /// Bytes from the position asked for.
    Bytes(Bytes),
    /// The segment was stored, and its chunks are gone.
    Stored,
    /// The fetch has failed.
    Failed(FillError),
}

impl FetchSlot {
    /// A slot without readers.
    pub fn new(key: EntryKey, bytes: Range<u64>) -> Arc<Self> {
        let (progress, _) = watch::channel(SlotProgress::default());
        Arc::new(Self { key, bytes, progress, data: Mutex::default() })
    }

    /// A hold on the slot.
    pub fn reader(self: &Arc<Self>) -> SlotReader {
        SlotReader { slot: Arc::clone(self), progress: self.progress.subscribe() }
    }

    /// Whether a reader waits for it.
    pub fn is_awaited(&self) -> bool {
        self.progress.receiver_count() > 0
    }

    /// Returns when no reader waits for it.
    pub async fn abandoned(&self) {
        self.progress.closed().await;
    }

    /// The memory that its chunks take.
    pub fn hold(&self, permit: OwnedSemaphorePermit) {
        self.data.lock().memory = Some(permit);
    }

    /// Bytes that have arrived.
    pub fn received(&self) -> u64 {
        self.progress.borrow().received
    }

    /// Adds bytes.
    pub fn push(&self, chunk: Bytes) {
        let length = chunk.len() as u64;
        self.data.lock().chunks.push(chunk);
        self.progress.send_modify(|progress| progress.received += length);
    }

    /// All bytes, contiguous.
    pub fn contents(&self) -> Bytes {
        let data = self.data.lock();
        if let [only] = &data.chunks[..] {
            return only.clone();
        }
        let length = data.chunks.iter().map(Bytes::len).sum();
        let mut bytes = BytesMut::with_capacity(length);
        data.chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        bytes.freeze()
    }

    /// Ends the slot. The chunks of a stored segment are dropped.
    pub fn finish(&self, result: Result<(), FillError>, is_stored: bool) {
        if is_stored {
            *self.data.lock() = SlotData { is_cleared: true, ..SlotData::default() };
        }
        self.progress.send_modify(|progress| progress.end = Some(result));
    }

    /// Bytes at `position`, up to `end`, that have arrived.
    fn chunk_at(&self, position: u64, end: u64) -> Option<Bytes> {
        let data = self.data.lock();
        let mut offset = self.bytes.start;
        for chunk in &data.chunks {
            let after = offset + chunk.len() as u64;
            if position < after {
                let from = usize::try_from(position - offset).expect("inside a chunk");
                let to = usize::try_from(end.min(after) - offset).expect("inside a chunk");
                return (from < to).then(|| chunk.slice(from..to));
            }
            offset = after;
        }
        None
    }
}

impl SlotReader {
    /// The slot's key.
    pub fn key(&self) -> EntryKey {
        self.slot.key
    }

    /// The slot's bytes of the object.
    pub fn bytes(&self) -> &Range<u64> {
        &self.slot.bytes
    }

    /// Waits for bytes at `position`, up to `end`.
    pub async fn next(&mut self, position: u64, end: u64) -> SlotRead {
        let wanted = position - self.slot.bytes.start;
        let arrived =
            |progress: &SlotProgress| progress.received > wanted || progress.end.is_some();
        let progress = match self.progress.wait_for(arrived).await {
            Ok(progress) => *progress,
            // The fill has ended without a result: its task was stopped.
            Err(_) => return SlotRead::Failed(FillError::Unavailable),
        };
        if let Some(bytes) = self.slot.chunk_at(position, end) {
            return SlotRead::Bytes(bytes);
        }
        match progress.end {
            Some(Err(error)) => SlotRead::Failed(error),
            _ if self.slot.data.lock().is_cleared => SlotRead::Stored,
            _ => SlotRead::Failed(FillError::Unavailable),
        }
    }
}

/// All slots of a gateway.
#[derive(Debug, Default)]
pub struct FetchTable {
    slots: HashMap<EntryKey, Arc<FetchSlot>>,
}

impl FetchTable {
    /// The slot of a segment that is being fetched.
    pub fn get(&self, key: &EntryKey) -> Option<&Arc<FetchSlot>> {
        self.slots.get(key)
    }

    /// Adds a slot. Its segment must not be there.
    pub fn insert(&mut self, slot: Arc<FetchSlot>) {
        let before = self.slots.insert(slot.key, slot);
        assert!(before.is_none(), "a segment is fetched once");
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: &Arc<FetchSlot>) {
        if self.slots.get(&slot.key).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            self.slots.remove(&slot.key);
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}

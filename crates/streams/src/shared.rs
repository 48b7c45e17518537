//! State that a store, its families, writers and readers share.
//!
//! Locks are taken one at a time and never while a buffer is dropped: a dropped buffer may start
//! another read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forebay_core::{
    ByteSize,
    streams::{
        BlockNumber, FamilyId, Lifetime, StreamId, StreamName, StreamNumber,
        catalogue::{OpenMode, StreamCatalogue},
        record::{SealedRecord, family_group_name},
        seal_list::{SealEntry, StreamKey},
    },
};
use forebay_flash::{
    RequestError,
    device_thread::{AnswerSink, Engine},
    format::{CLASS_EPHEMERAL, CLASS_STREAM},
    index::GroupId,
    shard::{GuardKind, RequestResult, ShardAnswer, ShardRequest},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    error::StreamError, owned_reader::ReaderShared, read_memory::ReadMemory, recovery::Recovered,
    seal_file::SealFile, write_memory::WriteMemory,
};

/// What all handles of a store share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) catalogue: Mutex<StreamCatalogue>,
    /// The engine's group of each family.
    pub(crate) groups: Mutex<BTreeMap<FamilyId, GroupId>>,
    /// Readers of streams that are being written.
    followers: Mutex<BTreeMap<StreamId, Vec<Weak<ReaderShared>>>>,
    /// Destroyers that wait for the last reader.
    pub(crate) destroyers: Mutex<BTreeMap<StreamId, Vec<oneshot::Sender<()>>>>,
    pub(crate) memory: Arc<WriteMemory>,
    pub(crate) read_memory: Arc<ReadMemory>,
    /// Called when a stream with a lease has been sealed.
    pub(crate) leases_begun: Notify,
    /// `None` if the store has no directory.
    seals: Option<SealFile>,
    pub(crate) block_length: u64,
    /// Milliseconds since 1970.
    pub(crate) clock: Clock,
    pub(crate) counts: Counts,
    /// The process that opened the store.
    process: u32,
}

/// A stream that has been opened for reading.
pub(crate) struct OpenedStream {
    pub(crate) id: StreamId,
    pub(crate) group: GroupId,
    pub(crate) number: StreamNumber,
}

/// Returns the milliseconds since 1970.
pub(crate) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Counters of a store.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) copied_in: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) outside_bytes: AtomicU64,
    pub(crate) blocks_lost: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        recovered: Recovered,
        seals: Option<SealFile>,
        block_length: u64,
        clock: Clock,
    ) -> Arc<Self> {
        let Recovered { catalogue, groups, .. } = recovered;
        let memory = WriteMemory::new(Arc::clone(&engine.pools().in_place));
        let read_memory = ReadMemory::new(&engine.pools().read);
        Arc::new(Self {
            engine,
            catalogue: Mutex::new(catalogue),
            groups: Mutex::new(groups),
            followers: Mutex::default(),
            destroyers: Mutex::default(),
            memory,
            read_memory,
            leases_begun: Notify::new(),
            seals,
            block_length,
            clock,
            counts: Counts::default(),
            process: std::process::id(),
        })
    }

    /// Fails in a child that was forked after the store was opened: the threads of the store, and
    /// what holds its locks, are in the parent.
    pub(crate) fn check_process(&self) -> Result<(), StreamError> {
        let (owner, process) = (self.process, std::process::id());
        if owner == process { Ok(()) } else { Err(StreamError::Forked { owner, process }) }
    }

    /// Sends a request to the engine and waits for the answer.
    pub(crate) async fn request(&self, request: ShardRequest) -> RequestResult {
        self.engine.request(request).await.unwrap_or(Err(RequestError::Gone))
    }

    /// Sends a request whose answer is not needed.
    pub(crate) fn post(&self, request: ShardRequest) {
        self.engine.post(AnswerSink::None, request);
    }

    /// Releases one entry of a family.
    pub(crate) fn release(&self, group: GroupId, ordinal: u64) {
        let ordinals = std::iter::once(ordinal..ordinal + 1).collect();
        self.post(ShardRequest::ReleaseOrdinals { group, ordinals });
    }

    pub(crate) fn capacity(&self) -> ByteSize {
        let geometry = self.engine.geometry();
        ByteSize(u64::from(geometry.regions) * geometry.region_size)
    }

    /// Creates a family: a group of the engine that is not evicted.
    pub(crate) fn add_family(
        &self,
        name: StreamName,
        lifetime: Lifetime,
        ends_with_streams: bool,
    ) -> Result<FamilyId, StreamError> {
        let class = if lifetime.is_durable() { CLASS_STREAM } else { CLASS_EPHEMERAL };
        // No other family of this device has had this number.
        let number = fastrand::u64(..);
        let group = self.open_group(family_group_name(number, &name), class).map_err(|error| {
            let stream = name.to_string();
            StreamError::Write { stream, error }
        })?;
        let mut catalogue = self.catalogue.lock();
        let family = catalogue.add_family(name, number, lifetime, ends_with_streams);
        drop(catalogue);
        self.groups.lock().insert(family, group);
        Ok(family)
    }

    /// The engine answers these requests at once.
    pub(crate) fn open_group(&self, name: Vec<u8>, class: u8) -> Result<GroupId, RequestError> {
        let open = ShardRequest::Open { name, class, dense: true };
        let answer = self.engine.request(open).try_recv().unwrap_or(Err(RequestError::Gone))?;
        let ShardAnswer::Group(group) = answer else {
            unreachable!("Open is answered with a group")
        };
        // A group without regions is forgotten otherwise.
        let pin = ShardRequest::Acquire { group, guard: GuardKind::Pin };
        self.engine.request(pin).try_recv().unwrap_or(Err(RequestError::Gone))?;
        Ok(group)
    }

    pub(crate) fn group(&self, family: FamilyId) -> Option<GroupId> {
        self.groups.lock().get(&family).copied()
    }

    /// Whether a family has an entry under this ordinal.
    pub(crate) fn is_there(&self, group: Option<GroupId>, ordinal: u64) -> bool {
        let index = self.engine.index().read();
        group.is_some_and(|group| index.find_ordinal(group, ordinal).is_some())
    }

    /// Opens a stream for a reader, or for a borrower. [`Shared::close`] ends that.
    pub(crate) fn open_stream(
        &self,
        name: &StreamName,
        mode: OpenMode,
    ) -> Result<OpenedStream, StreamError> {
        self.end_leases();
        let groups = self.groups.lock().clone();
        let (id, family, number) = {
            let mut catalogue = self.catalogue.lock();
            let id = catalogue.open(name, mode, |family, ordinal| {
                self.is_there(groups.get(&family).copied(), ordinal)
            })?;
            let (family, number) = catalogue.place(id).expect("just opened");
            (id, family, number)
        };
        let Some(group) = self.group(family) else {
            self.catalogue.lock().close(id);
            return Err(StreamError::Destroyed(name.to_string()));
        };
        Ok(OpenedStream { id, group, number })
    }

    /// A reader or a borrower has closed a stream.
    pub(crate) fn close(self: &Arc<Self>, id: StreamId) {
        let is_last = self.catalogue.lock().close(id);
        if is_last {
            self.on_last_reader_closed(id);
        }
    }

    /// Registers a reader of a stream that may still be written.
    pub(crate) fn follow(&self, id: StreamId, reader: &Arc<ReaderShared>) {
        let mut followers = self.followers.lock();
        followers.entry(id).or_default().push(Arc::downgrade(reader));
    }

    /// Tells the readers of a stream that it has grown, has been sealed or is gone.
    pub(crate) fn notify_followers(&self, id: StreamId, has_ended: bool) {
        let readers: Vec<_> = {
            let mut followers = self.followers.lock();
            let Some(all) = followers.get_mut(&id) else { return };
            all.retain(|reader| reader.strong_count() > 0);
            let readers = all.iter().filter_map(Weak::upgrade).collect();
            if has_ended || all.is_empty() {
                followers.remove(&id);
            }
            readers
        };
        for reader in readers {
            reader.on_stream_changed();
        }
    }

    /// Lists a stream whose record is durable.
    pub(crate) fn list_sealed(&self, id: StreamId, record: &SealedRecord) {
        let Some(seals) = &self.seals else { return };
        let listed = {
            let catalogue = self.catalogue.lock();
            catalogue.recorded_key(id).zip(catalogue.info(id))
        };
        if let Some((key, info)) = listed {
            // After a power failure the record is found, and listed again.
            seals.add(&SealEntry::Sealed(key, record.listed(info.family)), false);
        }
    }

    /// Lists a stream as destroyed, if its record has been written. False if it is not listed.
    pub(crate) fn list_destroyed(&self, id: StreamId, is_durable: bool) -> bool {
        let key = self.catalogue.lock().recorded_key(id);
        key.is_some_and(|key| self.list_destroyed_key(key, is_durable))
    }

    pub(crate) fn list_destroyed_key(&self, key: StreamKey, is_durable: bool) -> bool {
        let seals = self.seals.as_ref();
        seals.is_some_and(|seals| seals.add(&SealEntry::Destroyed(key), is_durable))
    }

    /// The error of a writer that finds the store full.
    pub(crate) fn full(&self, stream: &StreamName, length: u64) -> StreamError {
        let (stream, needed) = (stream.to_string(), ByteSize(length));
        StreamError::Full { stream, needed, capacity: self.capacity() }
    }

    /// Records that a block is lost.
    pub(crate) fn on_lost(&self, id: StreamId, block: BlockNumber) {
        self.counts.blocks_lost.fetch_add(1, Relaxed);
        self.catalogue.lock().on_lost(id, block);
    }
}

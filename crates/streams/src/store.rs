//! Stores: a directory with one device file, owned by one process.

use std::{
    convert::Infallible,
    io::ErrorKind,
    path::PathBuf,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forebay_core::{
    ByteSize,
    streams::{
        Lifetime, StreamName, catalogue::StreamInfo, record::parse_family_group_name,
        seal_list::SealList,
    },
};
use forebay_flash::{
    DeviceConfig, FlashConfig, RequestError,
    device_thread::Engine,
    format::{REGION_SIZE_MAX, REGION_SIZE_MIN},
    io::Backend,
    open_engine,
    reservation::{Reservation, STREAM_BLOCK, stream_block_length},
    shard::{Settings, ShardAnswer, ShardRequest},
};
use futures::future::{Either, select};

use crate::{
    block_on::{block_on, block_on_for},
    borrowed_store::BorrowedStore,
    error::{StoreError, StreamError},
    family::Family,
    interrupt::Interrupt,
    lender::{Lender, LenderCall},
    of_process::OfProcess,
    owned_reader::{OwnedReader, slot_length},
    owned_writer::OwnedWriter,
    read_memory::{MemoryWait, ReadMemory},
    reader::{OpenOptions, Reader},
    recovery::recover,
    seal_file::SealFile,
    shared::{Clock, Shared},
    writer::{CreateOptions, Writer},
};

/// Owner of the device file of a store. A node's device has the node's id.
const OWNER: [u8; 16] = *b"forebay streams\0";
/// Name of the device file.
const DEVICE: &str = "store.flash";
/// Memory for the index and for what is not a buffer: 8 bytes per block, 16 per run.
const INDEX_MEMORY: u64 = 1 << 20;
/// Memory for region headers, footers and records.
const ENGINE_MEMORY: u64 = 4 << 20;
/// Blocks in memory for writing: one is filled while the device writes four. Three blocks in all
/// cost a writer 8 % of its speed.
const WRITE_SLOTS: u64 = 5;
/// A read or append that takes longer has failed. A stream has no origin to fall back to, so it
/// waits longer than a cache.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the last reads of closed readers.
const CLOSED_WAIT_MAX: Duration = Duration::from_millis(500);
/// Fewest regions of a store, so that a consumed stream's space comes back in small steps.
const REGIONS_MIN: u64 = 16;

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The directory, which is created if it is missing.
    pub directory: PathBuf,
    /// Size of the device file, which is reserved at once.
    pub capacity: ByteSize,
    /// Memory for writing, reading and the index, taken at once.
    pub memory: ByteSize,
    /// I/O backend.
    pub backend: Backend,
    /// Ends waits for the owner of a store that is borrowed.
    pub interrupt: Interrupt,
}

impl StoreConfig {
    /// A store in this directory, with 64 MiB of memory.
    pub fn new(directory: impl Into<PathBuf>, capacity: ByteSize) -> Self {
        let (directory, memory) = (directory.into(), ByteSize::mib(64));
        let interrupt = Interrupt::default();
        Self { directory, capacity, memory, backend: Backend::Auto, interrupt }
    }

    /// The store that is in this directory, with its capacity and 64 MiB of memory.
    pub fn existing(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = directory.into();
        match forebay_flash::size_of(&directory.join(DEVICE)) {
            Ok(Some(capacity)) => Ok(Self::new(directory, capacity)),
            Ok(None) => Err(StoreError::NotFound(directory)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(StoreError::NotPermitted(directory))
            }
            Err(source) => Err(StoreError::Path { path: directory, source }),
        }
    }

    /// Opens the store, or creates it. Sealed streams that outlive their process are found; what
    /// else a previous owner left is freed.
    pub fn open(&self) -> Result<Store, StoreError> {
        let path = self.directory.clone();
        create_private(&path).map_err(|source| StoreError::Directory { path, source })?;
        let region_size = region_size(self.capacity);
        let block = stream_block_length(region_size);
        let memory = self.split_memory(block)?;
        let device = DeviceConfig {
            path: self.directory.join(DEVICE),
            capacity: self.capacity,
            region_size: Some(ByteSize(region_size)),
            owner: OWNER,
        };
        let path = self.directory.clone();
        let not_lent = |source| StoreError::Lender { path, source };
        let call = match LenderCall::new() {
            Ok(call) => call,
            Err(error) => return Err(not_lent(error)),
        };
        let settings =
            Settings { read_deadline: TIMEOUT, append_deadline: TIMEOUT, ..Settings::default() };
        let config = FlashConfig {
            backend: self.backend,
            staging_buffers: ByteSize(memory.staging),
            in_place_buffers: ByteSize(memory.staging - ENGINE_MEMORY),
            read_buffers: ByteSize(memory.read),
            settings,
            watch: Some(call.watch()),
            ..FlashConfig::new(Vec::new())
        };
        let engine = Arc::new(open_engine(&device, &config)?);
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        };
        let (seals, list) = SealFile::open(&self.directory);
        let store = Store::with_seals(engine, clock, Some(seals), list);
        let store = block_on(store).map_err(StoreError::Recovery)?;
        let lender = Lender::listen(call, &store.shared, &self.directory, &device.path);
        let lender = lender.map_err(not_lent)?;
        Ok(Store { lender: Some(OfProcess::new(Arc::new(lender))), ..store })
    }

    /// The smallest memory with which a store of this capacity has room for `slots` slots of
    /// readers.
    pub fn memory_for(capacity: ByteSize, slots: u64) -> ByteSize {
        let slot = slot_length(stream_block_length(region_size(capacity))) as u64;
        let read = INDEX_MEMORY + slots.max(4) * slot;
        let few = (read.div_ceil(5) * 8).min(read + ENGINE_MEMORY + WRITE_SLOTS * slot);
        ByteSize(few.max(read + ENGINE_MEMORY + 2 * slot).max(read.div_ceil(3) * 4))
    }

    /// Opens the store, or borrows it from the process that has it open.
    pub fn open_or_borrow(&self) -> Result<OpenedStore, StoreError> {
        let borrow =
            || BorrowedStore::connect(&self.directory, self.memory, self.interrupt.clone());
        if let Some(store) = borrow()? {
            return Ok(OpenedStore::Borrowed(store));
        }
        match self.open() {
            Ok(store) => Ok(OpenedStore::Owned(store)),
            // Another process was faster.
            Err(error) if error.is_locked() => borrow()?.map(OpenedStore::Borrowed).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// For writing, [`WRITE_SLOTS`] blocks, but at most three eighths, or a quarter if that is
    /// more. The rest is for reading.
    fn split_memory(&self, block: u64) -> Result<SplitMemory, StoreError> {
        let slot = slot_length(block) as u64;
        let min = INDEX_MEMORY + ENGINE_MEMORY + 2 * slot + 4 * slot;
        if self.memory.0 < min {
            let (memory, block, min) = (self.memory, ByteSize(block), ByteSize(min));
            return Err(StoreError::Memory { memory, block, min });
        }
        let wanted = (self.memory.0 / 8 * 3).min(ENGINE_MEMORY + WRITE_SLOTS * slot);
        let staging = wanted.max(self.memory.0 / 4).max(ENGINE_MEMORY + 2 * slot);
        Ok(SplitMemory { staging, read: self.memory.0 - INDEX_MEMORY - staging })
    }
}

struct SplitMemory {
    staging: u64,
    read: u64,
}

/// A store of streams.
#[derive(Clone)]
pub struct Store {
    shared: OfProcess<Arc<Shared>>,
    /// Ends with the last handle of the store. Readers and writers may live longer.
    lender: Option<OfProcess<Arc<Lender>>>,
}

/// A store that this process owns, or one of another process.
#[derive(Clone)]
pub enum OpenedStore {
    /// This process owns it.
    Owned(Store),
    /// Another process owns it.
    Borrowed(BorrowedStore),
}

/// What a store holds and has done since it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFacts {
    /// Size of all regions.
    pub capacity: ByteSize,
    /// Size of the free regions.
    pub free: ByteSize,
    /// Streams by name.
    pub streams: u64,
    /// Longest block.
    pub block_length: ByteSize,
    /// Memory for writing and how much of it is free.
    pub write_memory: ByteSize,
    /// See `write_memory`.
    pub write_memory_free: ByteSize,
    /// Memory for reading and how much of it no reader has reserved.
    pub read_memory: ByteSize,
    /// See `read_memory`.
    pub read_memory_free: ByteSize,
    /// Payload bytes written.
    pub written: ByteSize,
    /// Bytes written to the device.
    pub device_written: ByteSize,
    /// Payload bytes handed out.
    pub read: ByteSize,
    /// Bytes that `append` copied; blocks filled in place are not copied.
    pub copied: ByteSize,
    /// Memory taken for blocks that were read while their consumer held all slots.
    pub outside_slots: ByteSize,
    /// Blocks that readers found to be lost.
    pub blocks_lost: u64,
}

impl Store {
    /// A store on an engine that is open. `clock` returns the milliseconds since 1970.
    pub async fn on_engine(
        engine: Arc<dyn Engine>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, RequestError> {
        Self::with_seals(engine, clock, None, SealList::default()).await
    }

    async fn with_seals(
        engine: Arc<dyn Engine>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
        seals: Option<SealFile>,
        list: SealList,
    ) -> Result<Self, RequestError> {
        let recovered = recover(&engine, clock(), list).await?;
        if let Some(seals) = &seals {
            seals.replace(&recovered.seals);
        }
        let block_length = stream_block_length(engine.geometry().region_size);
        let memory = Reservation::memory(usize::try_from(block_length).expect("in memory"));
        assert!(memory <= engine.pools().in_place.size(), "a block fits into memory");
        let clock: Clock = Box::new(clock);
        let shared = Shared::new(engine, recovered, seals, block_length, clock);
        Ok(Self { shared: OfProcess::new(shared), lender: None })
    }

    /// Creates a stream in a family of its own.
    pub fn create(&self, name: &str, options: CreateOptions) -> Result<Writer, StreamError> {
        self.check_process()?;
        let family = StreamName::for_new(name)?;
        let family = self.shared.add_family(family, options.lifetime, true)?;
        let writer = OwnedWriter::create(&self.shared, name, family, options.full);
        if writer.is_err() {
            self.shared.drop_empty_family(family);
        }
        writer.map(Writer::from)
    }

    /// Creates a family: streams of one lifetime that share regions.
    pub fn family(&self, name: &str, lifetime: Lifetime) -> Result<Family, StreamError> {
        self.check_process()?;
        let id = self.shared.add_family(StreamName::for_new(name)?, lifetime, false)?;
        Ok(Family { shared: self.shared.clone(), id, lifetime })
    }

    /// Opens a stream for reading. Fails if the stream is not complete.
    pub fn open(&self, name: &str, options: OpenOptions) -> Result<Reader, StreamError> {
        self.check_process()?;
        // A device thread ends the last reads of a closed reader. A simulated engine has none.
        let waits = self.lender.is_some();
        let reserve = |memory: &ReadMemory, depth, length| {
            let slots = memory.try_reserve(depth, length);
            if slots.is_some() || !waits {
                return slots;
            }
            let reserved = memory.reserve(depth, length, MemoryWait::ClosedReaders);
            let reserved = block_on_for(reserved, CLOSED_WAIT_MAX, || Ok::<(), Infallible>(()));
            match reserved {
                Ok(slots) => slots.flatten(),
            }
        };
        OwnedReader::open(&self.shared, name, options, reserve).map(Reader::from)
    }

    /// [`Store::open`] that waits until `deadline` for memory that readers are about to return, and
    /// for memory of blocks that are held.
    pub async fn open_until(
        &self,
        name: &str,
        options: OpenOptions,
        deadline: impl Future<Output = ()>,
    ) -> Result<Reader, StreamError> {
        self.check_process()?;
        let name = StreamName::new(name)?;
        self.shared.id_of(&name)?;
        let (depth, length) = (options.depth.max(1), slot_length(self.shared.block_length));
        let reserved = self.shared.read_memory.reserve(depth, length, MemoryWait::Any);
        let slots = match select(pin!(reserved), pin!(deadline)).await {
            Either::Left((slots, _)) => slots,
            Either::Right(_) => None,
        };
        OwnedReader::open_in(&self.shared, name, options, slots).map(Reader::from)
    }

    /// Fails in a forked child, in which no other call of this store may be used.
    pub fn check_process(&self) -> Result<(), StreamError> {
        self.shared.check_process()
    }

    /// Destroys a stream. Waits up to `timeout` for its readers, which then get an error.
    pub fn destroy(&self, name: &str, timeout: Duration) -> Result<(), StreamError> {
        match self.destroy_unless(name, timeout, || Ok::<(), Infallible>(())) {
            Ok(destroyed) => destroyed,
        }
    }

    /// [`Store::destroy`] whose wait ends if `interrupt` returns an error. The stream is then
    /// removed with its last reader.
    pub fn destroy_unless<E>(
        &self,
        name: &str,
        timeout: Duration,
        interrupt: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<(), StreamError>, E> {
        let begin = || {
            self.check_process()?;
            let name = StreamName::new(name)?;
            Ok((self.shared.begin_destroy(&name)?, name))
        };
        let (id, name) = match begin() {
            Ok(stream) => stream,
            Err(error) => return Ok(Err(error)),
        };
        block_on_for(self.shared.readers_closed(id), timeout, interrupt)?;
        Ok(block_on(self.shared.remove(id, &name)))
    }

    /// Destroys a stream when its last reader has closed it. Its name is free at once.
    pub async fn destroy_async(&self, name: &str) -> Result<(), StreamError> {
        self.destroy_until(name, std::future::pending()).await
    }

    /// Destroys a stream. Waits for its readers until `deadline` completes; then they get an error.
    pub async fn destroy_until(
        &self,
        name: &str,
        deadline: impl Future<Output = ()>,
    ) -> Result<(), StreamError> {
        self.check_process()?;
        let name = StreamName::new(name)?;
        let id = self.shared.begin_destroy(&name)?;
        select(pin!(self.shared.readers_closed(id)), pin!(deadline)).await;
        self.shared.remove(id, &name).await
    }

    /// The stream of this name.
    pub fn find(&self, name: &StreamName) -> Option<StreamInfo> {
        let catalogue = self.shared.catalogue.lock();
        catalogue.find(name).and_then(|id| catalogue.info(id))
    }

    /// Size of a region of the device.
    pub fn region_size(&self) -> ByteSize {
        ByteSize(self.shared.engine.geometry().region_size)
    }

    /// The number of regions that each family takes, by the family's name.
    pub async fn regions(&self) -> Result<Vec<(StreamName, u64)>, RequestError> {
        let ShardAnswer::Groups(groups) = self.shared.request(ShardRequest::Groups).await? else {
            unreachable!("Groups is answered with a list")
        };
        let families = groups.iter().filter_map(|group| {
            let (_, name) = parse_family_group_name(&group.name)?;
            Some((name, group.regions as u64))
        });
        Ok(families.collect())
    }

    /// The streams, by name.
    pub fn list(&self) -> Vec<StreamInfo> {
        self.shared.end_leases();
        self.shared.catalogue.lock().list()
    }

    /// At most `max` streams whose names begin with `prefix` and are greater than `after`, by name.
    pub fn page(&self, prefix: &str, after: &str, max: usize) -> Vec<StreamInfo> {
        self.shared.end_leases();
        self.shared.catalogue.lock().page(prefix, after, max)
    }

    /// Removes the streams whose leases have ended. Readers that have one open may finish.
    pub fn end_leases(&self) {
        self.shared.end_leases();
    }

    /// The end of a stream's lease, in milliseconds since 1970; `None` without a lease.
    pub fn lease_end(&self, name: &StreamName) -> Option<u64> {
        let catalogue = self.shared.catalogue.lock();
        catalogue.find(name).and_then(|id| catalogue.lease_end(id))
    }

    /// Milliseconds since 1970, by the store's clock.
    pub fn now_ms(&self) -> u64 {
        (self.shared.clock)()
    }

    /// Longest block. Streams of blocks of this length fill regions.
    pub fn block_length(&self) -> u64 {
        self.shared.block_length
    }

    /// Addresses of the memory for reading, in which the blocks of all readers lie.
    pub fn read_memory(&self) -> std::ops::Range<usize> {
        let pool = &self.shared.engine.pools().read;
        let start = pool.base() as usize;
        start..start + pool.size()
    }

    /// What the store holds and has done.
    pub fn facts(&self) -> StoreFacts {
        let shared = &self.shared;
        let (engine, counts) = (&shared.engine, &shared.counts);
        let counters = engine.counters();
        let size = |bytes: usize| ByteSize(bytes as u64);
        StoreFacts {
            capacity: shared.capacity(),
            free: ByteSize(counters.regions_free * engine.geometry().region_size),
            streams: self.list().len() as u64,
            block_length: ByteSize(shared.block_length),
            write_memory: size(shared.memory.size()),
            write_memory_free: size(shared.memory.free_bytes()),
            read_memory: size(engine.pools().read.size()),
            read_memory_free: size(engine.pools().read.free_bytes()),
            written: ByteSize(counters.inserted_bytes),
            device_written: ByteSize(counters.device_bytes_written),
            read: ByteSize(counts.read_bytes.load(Relaxed)),
            copied: ByteSize(counts.copied_in.load(Relaxed)),
            outside_slots: ByteSize(counts.outside_bytes.load(Relaxed)),
            blocks_lost: counts.blocks_lost.load(Relaxed),
        }
    }
}

/// Regions of at least 4 MiB hold whole blocks of the default length. A small store has smaller
/// ones, so that it has at least [`REGIONS_MIN`].
fn region_size(capacity: ByteSize) -> u64 {
    let whole_block = STREAM_BLOCK.next_power_of_two();
    let size = (capacity.0 / 256).clamp(whole_block, REGION_SIZE_MAX);
    let size = size.min(capacity.0 / REGIONS_MIN).clamp(REGION_SIZE_MIN, REGION_SIZE_MAX);
    1 << size.ilog2()
}

/// Creates a directory for this user alone.
fn create_private(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

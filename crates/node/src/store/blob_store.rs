//! Blob store: the blobs of a node on flash, behind a memory cache.
//!
//! A blob is one entry of the flash engine, or several if it is long ([`super::long_blob`]).
//! Entries are in groups, one per half-chunk ([`super::groups`]). The flash index decides whether a
//! blob is resident; the memory cache only holds copies.
//!
//! Devices come and go between runs, and with them the length from which blobs are stored in parts.
//! So a blob is read as it was written: the length and the tag of its entry decide, never the
//! current part length.
//!
//! **Invariant:** a blob that is resident and cannot be read is forgotten by the read that finds
//! it, so that the next request can claim it.

use std::{
    collections::HashMap,
    fs,
    ops::Range,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use forebay_auth::ensure_own_directory;
use forebay_core::{Address, ByteSize, DatasetId, dataset::blob_table::BlobRow};
use forebay_flash::{
    DeviceConfig, EntryKey, Flash, FlashConfig, Group, RequestError, shard::Counters, size_of,
};
use forebay_transport::Entropy;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    config::{Config, temporary_directory},
    ops::memory_limit,
    store::{
        eviction::{DatasetUses, EvictionPolicy},
        groups::GroupName,
        long_blob::{PART_LENGTH_MAX, TAG_WHOLE},
        memory_cache::MemoryCache,
        owner_id,
    },
};

/// All blobs of a node.
pub(crate) struct BlobStore {
    pub(super) flash: Flash,
    /// Length of the parts of a long blob that is written now. Shorter blobs become one entry.
    pub(super) part_length: u64,
    pub(super) region_size: u64,
    /// Handles of groups.
    pub(super) groups: Mutex<HashMap<GroupName, Group>>,
    pub(super) memory_cache: MemoryCache,
    /// Memory for the buffers of writes, in bytes.
    pub(super) write_buffers: Arc<Semaphore>,
    write_buffers_max: usize,
    dataset_uses: DatasetUses,
    /// Source of the keys of parts.
    pub(super) entropy: Entropy,
}

/// Result of a read.
pub(crate) enum Read {
    Hit(Bytes),
    /// The blob is not resident, or damaged.
    Gone,
    /// The blob is resident with another length: the client's table is wrong.
    OtherLength,
    /// The device failed.
    Failed,
}

/// How a blob is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredAs {
    /// One entry with all its bytes.
    Whole,
    /// A head and its parts.
    Parts,
}

impl BlobStore {
    /// Opens the devices of a configuration and recovers their blobs.
    pub fn open(config: &Config, entropy: Entropy) -> anyhow::Result<Self> {
        let directory = &config.directory;
        let shown = directory.display();
        let shared = temporary_directory();
        if directory.starts_with(&shared) {
            ensure_own_directory(&shared, 0o700)?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
            anyhow!(
                "cannot create the directory `{shown}`: {error}; choose another with --directory"
            )
        })?;
        let is_known = directory.join(owner_id::FILE).exists();
        let owner = owner_id::read_or_create(directory)
            .with_context(|| format!("cannot use the directory `{shown}`"))?;
        let devices = match config.devices.as_slice() {
            [] => vec![directory.join("cache.flash")],
            named => named.to_vec(),
        };
        // A device that does not exist was lost, unless the node is new.
        let is_lost = |path: &&PathBuf| is_known && !path.exists();
        let lost: Vec<PathBuf> = devices.iter().filter(is_lost).cloned().collect();
        let free = free_space(directory)?;
        let share = ByteSize(config.capacity_of(free).0 / devices.len() as u64);
        let device = |path: PathBuf| {
            // Without `capacity`, a file keeps its size and a block device is used whole.
            // The opening reports a path that cannot be read.
            let existing = || size_of(&path).ok().flatten().unwrap_or(share);
            let capacity = if config.capacity.is_none() { existing() } else { share };
            DeviceConfig { path, capacity, region_size: config.region_size, owner }
        };
        let mut flash = FlashConfig::new(devices.into_iter().map(device).collect());
        flash.backend = config.io;
        let dataset_uses = DatasetUses::new();
        flash.eviction = dataset_uses.policy();
        let flash = Flash::open(&flash).inspect_err(|_| {
            // Without a device that bears the id, the next start is again the first.
            if !is_known && flash.devices.iter().all(|device| !device.path.exists()) {
                owner_id::remove(directory);
            }
        })?;
        for lost in lost {
            tracing::warn!(
                device = %lost.display(),
                "missing device created again: its content is lost; is its disk mounted?"
            );
        }
        Ok(Self::new(flash, dataset_uses, config.memory_cache_size(), entropy))
    }

    /// A store on devices that are open already.
    pub fn on_devices(
        config: &Config,
        entropy: Entropy,
        open: impl FnOnce(EvictionPolicy) -> Flash,
    ) -> Self {
        let dataset_uses = DatasetUses::new();
        let flash = open(dataset_uses.policy());
        Self::new(flash, dataset_uses, config.memory_cache_size(), entropy)
    }

    pub(super) fn new(
        flash: Flash,
        dataset_uses: DatasetUses,
        memory_cache: ByteSize,
        entropy: Entropy,
    ) -> Self {
        let write_buffers_max = memory_limit::plan().write_buffers.0;
        let write_buffers_max = usize::try_from(write_buffers_max).expect("64-bit addresses");
        Self {
            part_length: PART_LENGTH_MAX.min(flash.entry_length_max()),
            region_size: flash.region_size(),
            flash,
            groups: Mutex::default(),
            memory_cache: MemoryCache::new(memory_cache),
            write_buffers: Arc::new(Semaphore::new(write_buffers_max)),
            write_buffers_max,
            dataset_uses,
            entropy,
        }
    }

    /// A blob of the dataset was read or put.
    pub fn on_use(&self, dataset: DatasetId) {
        self.dataset_uses.on_use(dataset);
    }

    /// A job of the dataset has left.
    pub fn on_leave(&self, dataset: &DatasetId) {
        self.dataset_uses.on_leave(dataset);
    }

    /// The memory cache.
    pub fn memory_cache(&self) -> &MemoryCache {
        &self.memory_cache
    }

    /// Memory for the buffers of all writes in progress.
    pub fn write_buffers_max(&self) -> usize {
        self.write_buffers_max
    }

    /// Number of configured devices.
    pub fn devices_configured(&self) -> u64 {
        self.flash.devices_configured() as u64
    }

    /// Bytes of blobs that fit.
    pub fn capacity(&self) -> ByteSize {
        self.flash.capacity()
    }

    /// Counters of the flash engine, per device.
    pub fn counters(&self) -> Vec<Counters> {
        self.flash.counters()
    }

    /// Whether a device accepts blobs.
    pub fn is_accepting(&self) -> bool {
        self.flash.is_accepting()
    }

    /// Whether a blob is resident, by the index in memory. Does not block.
    pub fn contains(&self, address: &Address) -> bool {
        self.flash.contains(&key(address))
    }

    /// Makes all blobs durable.
    pub async fn flush(&self) -> Result<(), RequestError> {
        self.flash.flush().await
    }

    /// A range of a blob, if it is in the memory cache.
    pub fn in_memory(&self, row: &BlobRow, range: &Range<u64>) -> Option<Bytes> {
        let inside = |at: u64| usize::try_from(at).expect("a blob in memory");
        let bytes = self.memory_cache.get(row).filter(|_| range.end <= row.length)?;
        Some(bytes.slice(inside(range.start)..inside(range.end)))
    }

    /// Reads a range of a blob.
    pub async fn read(&self, row: BlobRow, range: Range<u64>) -> Read {
        if let Some(bytes) = self.in_memory(&row, &range) {
            return Read::Hit(bytes);
        }
        let is_whole = range == (0..row.length);
        let read = self.read_stored(row, range).await;
        if let Read::Hit(bytes) = &read
            && is_whole
        {
            self.memory_cache.on_read(row.address, bytes);
        }
        read
    }

    /// The same from flash, even if the blob is in memory.
    pub async fn read_stored(&self, row: BlobRow, range: Range<u64>) -> Read {
        let mut last = Read::Gone;
        // Each round reads another device's copy.
        while let Some(stored) = self.stored_as(&row) {
            let read = match stored {
                StoredAs::Whole => self.read_whole(row, range.clone()).await,
                StoredAs::Parts => self.read_parts(row, range.clone()).await,
            };
            last = match read {
                Ok(Read::Hit(bytes)) => return Read::Hit(bytes),
                Ok(Read::OtherLength) | Err(RequestError::Range) => return Read::OtherLength,
                Ok(Read::Gone) => Read::Gone,
                Ok(Read::Failed) | Err(RequestError::Failed) => Read::Failed,
                Err(_) => return Read::Failed,
            };
            // Otherwise every later read would fail as well, and no client could claim the blob.
            self.flash.forget_copy(key(&row.address));
        }
        last
    }

    /// Removes all copies of a blob, on flash and in memory, until it is put again. After a restart
    /// a copy on flash may be found again.
    pub async fn discard(&self, row: &BlobRow) {
        self.forget(row).await;
        self.memory_cache.remove(&row.address);
    }

    /// How a resident blob is stored: an entry that is shorter than the blob is the head of its
    /// parts. `None` if it is not resident.
    pub(super) fn stored_as(&self, row: &BlobRow) -> Option<StoredAs> {
        let bound = self.flash.length_bound(&key(&row.address))?;
        Some(if row.length <= bound { StoredAs::Whole } else { StoredAs::Parts })
    }

    async fn read_whole(&self, row: BlobRow, range: Range<u64>) -> Result<Read, RequestError> {
        Ok(match self.flash.read(key(&row.address), Some(range)).await? {
            Some(read) if read.tag == TAG_WHOLE && u64::from(read.length) == row.length => {
                Read::Hit(Bytes::from_owner(read.bytes))
            }
            Some(read) if read.tag == TAG_WHOLE => Read::OtherLength,
            Some(_) | None => Read::Gone,
        })
    }
}

/// The key of a blob's entry.
pub(super) fn key(address: &Address) -> EntryKey {
    EntryKey(*address.as_bytes())
}

/// Free bytes of a directory's file system.
fn free_space(directory: &Path) -> anyhow::Result<ByteSize> {
    let space = rustix::fs::statvfs(directory).context("read the free space")?;
    Ok(ByteSize(space.f_bavail.saturating_mul(space.f_frsize)))
}

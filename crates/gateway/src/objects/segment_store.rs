//! Segment store: segments on flash, and those that were fetched lately in memory.
//!
//! Reads of flash are views of the engine's read buffers. Bytes that wait for slow clients may hold
//! at most half of these buffers as views; beyond that they are copied, so that slow clients do not
//! block the reads of others.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{
    Appended, DeviceConfig, EntryKey, Flash, FlashConfig, FlashError, Group, RequestError,
};
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::settings::ObjectCacheSettings;

/// Name of the group of all segments.
const GROUP: &[u8] = b"forebay gateway segments";
/// Lifetime class of that group.
const CLASS: u8 = 2;
/// Unit of the permits for views.
const VIEW_UNIT: usize = 64 << 10;
/// Memory per cached segment beside its bytes.
const OVERHEAD: u64 = 128;

/// The store.
pub struct SegmentStore {
    flash: Flash,
    group: Mutex<Group>,
    memory: Option<Cache<EntryKey, Bytes, ByLength>>,
    views: Arc<Semaphore>,
}

#[derive(Clone)]
struct ByLength;

impl Weighter<EntryKey, Bytes> for ByLength {
    fn weight(&self, _: &EntryKey, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + OVERHEAD
    }
}

/// A view of the engine's buffers, with its share of them.
struct CountedView {
    view: forebay_flash::buffers::View,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for CountedView {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}

impl SegmentStore {
    /// Opens the device and recovers its contents. Blocks, on a thread of the runtime that may.
    pub fn open(settings: &ObjectCacheSettings) -> Result<Self, FlashError> {
        let device = settings.device.clone().ok_or(FlashError::NoDevice)?;
        let owner = blake3::derive_key("forebay gateway device owner v1", &settings.key);
        let [owner @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = owner;
        let device = DeviceConfig {
            path: device,
            capacity: settings.capacity,
            region_size: settings.region_size,
            owner,
        };
        let config =
            FlashConfig { read_buffers: settings.read_buffers, ..FlashConfig::new(vec![device]) };
        let admission = Arc::clone(&settings.admission);
        let config = FlashConfig { eviction: Arc::new(move || admission.eviction()), ..config };
        let flash = Flash::open(&config)?;
        let runtime = tokio::runtime::Handle::current();
        let group = runtime.block_on(flash.group(GROUP, CLASS, false));
        let group = group.map_err(|error| FlashError::AllFailed(error.to_string()))?;
        let memory = (settings.memory > ByteSize(0)).then(|| {
            let expected = usize::try_from(settings.memory.0 >> 18).unwrap_or(usize::MAX).max(16);
            Cache::with_weighter(expected, settings.memory.0, ByLength)
        });
        let views = usize::try_from(settings.read_buffers.0 / 2).unwrap_or(usize::MAX) / VIEW_UNIT;
        let views = Arc::new(Semaphore::new(views.min(Semaphore::MAX_PERMITS)));
        Ok(Self { flash, group: Mutex::new(group), memory, views })
    }

    /// Whether a segment is in memory or on flash.
    pub fn contains(&self, key: &EntryKey) -> bool {
        let in_memory = self.memory.as_ref().is_some_and(|memory| memory.contains_key(key));
        in_memory || self.flash.contains(key)
    }

    /// Bytes of a segment. `None` if it is not there, or flash failed.
    pub async fn read(&self, key: EntryKey, range: Range<u64>) -> Option<Bytes> {
        if let Some(memory) = &self.memory
            && let Some(bytes) = memory.get(&key)
        {
            let start = usize::try_from(range.start).ok()?;
            let end = usize::try_from(range.end).ok()?;
            return (end <= bytes.len()).then(|| bytes.slice(start..end));
        }
        let read = self.flash.read(key, Some(range.clone())).await.ok()??;
        if read.bytes.len() as u64 != range.end - range.start {
            return None;
        }
        let units = u32::try_from(read.bytes.len().div_ceil(VIEW_UNIT)).ok()?;
        Some(match Arc::clone(&self.views).try_acquire_many_owned(units) {
            Ok(permit) => Bytes::from_owner(CountedView { view: read.bytes, _permit: permit }),
            Err(_) => Bytes::copy_from_slice(&read.bytes),
        })
    }

    /// Stores a segment. When this returns, it is readable.
    pub async fn put(&self, key: EntryKey, bytes: Bytes) -> Result<Appended, RequestError> {
        if let Some(memory) = &self.memory {
            memory.insert(key, bytes.clone());
        }
        let group = self.group.lock().clone();
        match group.append(key, 0, bytes.clone()).await {
            // The group was empty, and its handle is stale.
            Err(RequestError::Gone) => {}
            outcome => return outcome,
        }
        let group = self.flash.group(GROUP, CLASS, false).await?;
        *self.group.lock() = group.clone();
        group.append(key, 0, bytes).await
    }

    /// The engine.
    pub fn flash(&self) -> &Flash {
        &self.flash
    }
}

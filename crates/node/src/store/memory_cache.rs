//! Memory cache: blobs in DRAM that were just put or are read repeatedly.
//!
//! Jobs that read a dataset together read a blob shortly after each other: the first job has put
//! it, and the others get it without reading the device. While there is space, every blob that is
//! read is admitted. In a full cache the [`Doorkeeper`] admits only blobs that are read again soon:
//! of a dataset larger than the cache, any part is as good as another. Blobs are immutable, so
//! entries are never stale; a blob that must not be found is removed.

use bytes::Bytes;
use forebay_core::{Address, ByteSize, dataset::blob_table::BlobRow, node::doorkeeper::Doorkeeper};
use forebay_transport::Counter;
use parking_lot::RwLock;
use quick_cache::{Weighter, sync::Cache};

/// Longest blob in the cache. Longer ones are read from the device as fast.
const LENGTH_MAX: u64 = 1 << 20;
/// Memory per blob beside its bytes.
const OVERHEAD: u64 = 128;
/// Expected length of a blob.
const LENGTH_EXPECTED: u64 = 64 << 10;
/// Below this many eighths of its capacity the cache counts as not full. It is sharded, and some
/// shards are full earlier.
const FULL_EIGHTHS: u64 = 7;

/// The memory cache of a node.
pub(crate) struct MemoryCache {
    /// `None` if its size is 0.
    cache: RwLock<Option<AdmissionCache>>,
    hits: Counter,
}

struct AdmissionCache {
    blobs: Cache<Address, Bytes, ByLength>,
    doorkeeper: Doorkeeper,
}

#[derive(Clone)]
struct ByLength;

impl Weighter<Address, Bytes> for ByLength {
    fn weight(&self, _: &Address, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + OVERHEAD
    }
}

impl MemoryCache {
    /// A cache of `memory` bytes.
    pub fn new(memory: ByteSize) -> Self {
        Self { cache: RwLock::new(AdmissionCache::new(memory)), hits: Counter::default() }
    }

    /// Changes the size. Blobs that do not fit are evicted.
    pub fn resize(&self, memory: ByteSize) {
        let mut cache = self.cache.write();
        match &mut *cache {
            Some(cache) if memory.0 > 0 => {
                cache.blobs.set_capacity(memory.0);
                cache.doorkeeper = Doorkeeper::new(memory, expected_blobs(memory));
            }
            cache => *cache = AdmissionCache::new(memory),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.cache.read().as_ref().map_or(0, |cache| cache.blobs.capacity())
    }

    /// Ranges that were answered from the cache.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// A blob, if it is in the cache with this length.
    pub fn get(&self, row: &BlobRow) -> Option<Bytes> {
        let cache = self.cache.read();
        let AdmissionCache { blobs, doorkeeper } = cache.as_ref()?;
        let bytes = blobs.get(&row.address)?;
        (bytes.len() as u64 == row.length).then(|| {
            self.hits.one();
            doorkeeper.on_hit(row.length);
            bytes
        })
    }

    /// The same without counting: for a check of the bytes.
    pub fn peek(&self, row: &BlobRow) -> Option<Bytes> {
        let cache = self.cache.read();
        let bytes = cache.as_ref()?.blobs.peek(&row.address)?;
        (bytes.len() as u64 == row.length).then_some(bytes)
    }

    /// A blob was put.
    pub fn on_put(&self, address: Address, bytes: &Bytes) {
        if let Some(cache) = &*self.cache.read()
            && bytes.len() as u64 <= LENGTH_MAX
        {
            cache.blobs.insert(address, bytes.clone());
        }
    }

    /// A whole blob was read from the device. If it is admitted it is copied, because the buffer
    /// belongs to the device.
    pub fn on_read(&self, address: Address, bytes: &[u8]) {
        if let Some(cache) = &*self.cache.read()
            && bytes.len() as u64 <= LENGTH_MAX
            && (cache.doorkeeper.admits(&address, bytes.len() as u64) || cache.has_space())
        {
            cache.blobs.insert(address, Bytes::copy_from_slice(bytes));
        }
    }

    /// Removes a blob.
    pub fn remove(&self, address: &Address) {
        if let Some(cache) = &*self.cache.read() {
            cache.blobs.remove(address);
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.cache.read().as_ref().map_or(0, |cache| cache.blobs.weight())
    }
}

impl AdmissionCache {
    fn new(memory: ByteSize) -> Option<Self> {
        let count = expected_blobs(memory);
        let blobs = (memory.0 > 0).then(|| Cache::with_weighter(count, memory.0, ByLength))?;
        Some(Self { blobs, doorkeeper: Doorkeeper::new(memory, count) })
    }

    fn has_space(&self) -> bool {
        self.blobs.weight() < self.blobs.capacity() / 8 * FULL_EIGHTHS
    }
}

/// Expected number of blobs in a cache of this size.
fn expected_blobs(memory: ByteSize) -> usize {
    usize::try_from(memory.0 / LENGTH_EXPECTED).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u8, length: u64) -> BlobRow {
        BlobRow { address: Address::from_bytes([number; 32]), length }
    }

    fn numbered(number: u64, length: u64) -> BlobRow {
        let address = Address::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes());
        BlobRow { address, length }
    }

    #[test]
    fn a_blob_that_was_put_or_read_is_found() {
        let cache = MemoryCache::new(ByteSize::mib(64));
        let bytes = Bytes::from(vec![1; 1000]);
        cache.on_put(row(1, 1000).address, &bytes);
        assert_eq!(cache.get(&row(1, 1000)), Some(bytes.clone()));
        assert_eq!(cache.get(&row(1, 999)), None, "another length: the client's table is wrong");
        cache.on_read(row(2, 1000).address, &bytes);
        assert_eq!(cache.get(&row(2, 1000)), Some(bytes), "the cache is not full");
        cache.remove(&row(2, 1000).address);
        assert_eq!((cache.get(&row(2, 1000)), cache.hits()), (None, 2));
    }

    /// Several epochs of a dataset of twice the size: the first blobs stay, because no other is
    /// better. Blobs that several jobs read at the same time replace them.
    #[test]
    fn reads_once_per_epoch_do_not_replace_the_blobs_of_a_full_cache() {
        let memory = ByteSize::mib(64);
        check_admission(&MemoryCache::new(memory), memory);
        let resized = MemoryCache::new(ByteSize::mib(1 << 10));
        resized.resize(memory);
        check_admission(&resized, memory);
    }

    fn check_admission(cache: &MemoryCache, memory: ByteSize) {
        let length = 100_000;
        let blobs = 2 * memory.0 / length;
        let bytes = Bytes::from(vec![1; 100_000]);
        let read = |number| {
            let row = numbered(number, length);
            let found = cache.get(&row).is_some();
            if !found {
                cache.on_read(row.address, &bytes);
            }
            found
        };
        let epoch = || (0..blobs).filter(|number| read(*number)).count() as u64;
        assert_eq!(epoch(), 0);
        for _ in 0..5 {
            let hits = epoch();
            assert!(hits > blobs / 8 * 3, "{hits} hits of {blobs} blobs; half of them fit");
        }
        let shared: Vec<u64> = (0..blobs).filter(|number| !read(*number)).collect();
        let three_reads = |number: &u64| [(); 3].map(|()| read(*number));
        let kept =
            shared.iter().filter(|number| three_reads(number) == [false, false, true]).count();
        assert!(
            kept > shared.len() / 2,
            "{kept} of {} blobs that were read again soon",
            shared.len()
        );
    }

    /// Promise 6: the size is not exceeded.
    #[test]
    fn the_size_is_a_limit() {
        let (memory, none) = (ByteSize::mib(64), MemoryCache::new(ByteSize(0)));
        let cache = MemoryCache::new(memory);
        for number in 0..2000_u64 {
            let bytes = Bytes::from(vec![0; 100_000]);
            let BlobRow { address, .. } = numbered(number, 100_000);
            cache.on_put(address, &bytes);
            none.on_put(address, &bytes);
            assert!(cache.bytes() <= memory.0);
        }
        assert!(cache.bytes() > memory.0 / 2);
        assert_eq!(none.bytes(), 0);
        cache.resize(ByteSize::mib(8));
        assert!(cache.bytes() <= 8 << 20, "blobs that do not fit are evicted");
        cache.resize(ByteSize(0));
        assert_eq!((cache.bytes(), cache.capacity()), (0, 0));
        cache.resize(memory);
        cache.on_put(row(1, 2 << 20).address, &Bytes::from(vec![0; 2 << 20]));
        assert_eq!(cache.get(&row(1, 2 << 20)), None, "too long");
    }
}

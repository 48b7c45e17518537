//! What is hot, in memory: blobs that were just put, and those that are read again.
//!
//! Jobs that go through a dataset together read a blob shortly after each other: the first has just put it,
//! the others need not wait for the device. While there is room, whatever is read is kept as well; then only what is
//! read again soon ([`Doorkeeper`]): of a dataset that is larger than the memory, any part is as good as another. Blobs never change, so nothing here is ever wrong; what must not be
//! found any more is removed.

use bytes::Bytes;
use forebay_core::{Address, ByteSize, doorkeeper::Doorkeeper, table::Row};
use parking_lot::RwLock;
use quick_cache::{Weighter, sync::Cache};

use crate::counters::Counter;

/// Longer blobs are as fast from the device.
const LENGTH_MAX: u64 = 1 << 20;
/// What a blob takes beside its bytes.
const OVERHEAD: u64 = 128;
/// What a blob is expected to take.
const LENGTH_EXPECTED: u64 = 64 << 10;
/// There is room as long as so many parts of eight are filled: the cache is in shards, some of which are full before.
const ROOMY_EIGHTHS: u64 = 7;

/// Blobs in memory.
pub(crate) struct Hot {
    /// None, if there is to be no memory for it.
    shelf: RwLock<Option<Shelf>>,
    hits: Counter,
}

struct Shelf {
    blobs: Cache<Address, Bytes, ByLength>,
    door: Doorkeeper,
}

#[derive(Clone)]
struct ByLength;

impl Weighter<Address, Bytes> for ByLength {
    fn weight(&self, _: &Address, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + OVERHEAD
    }
}

impl Hot {
    /// Room for so much.
    pub fn new(memory: ByteSize) -> Self {
        Self { shelf: RwLock::new(Shelf::new(memory)), hits: Counter::default() }
    }

    /// From now on there is room for so much. What is here stays, as far as it fits.
    pub fn resize(&self, memory: ByteSize) {
        let mut place = self.shelf.write();
        match &mut *place {
            Some(there) if memory.0 > 0 => {
                there.blobs.set_capacity(memory.0);
                there.door = Doorkeeper::new(memory, expected(memory));
            }
            place => *place = Shelf::new(memory),
        }
    }

    /// Room for how much.
    pub fn capacity(&self) -> u64 {
        self.shelf.read().as_ref().map_or(0, |shelf| shelf.blobs.capacity())
    }

    /// Ranges that were answered from here.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// A whole blob, if it is here.
    pub fn get(&self, row: &Row) -> Option<Bytes> {
        let place = self.shelf.read();
        let Shelf { blobs, door } = place.as_ref()?;
        let bytes = blobs.get(&row.address)?;
        (bytes.len() as u64 == row.length).then(|| {
            self.hits.one();
            door.found(row.length);
            bytes
        })
    }

    /// A blob was put.
    pub fn put(&self, address: Address, bytes: &Bytes) {
        if let Some(shelf) = &*self.shelf.read()
            && bytes.len() as u64 <= LENGTH_MAX
        {
            shelf.blobs.insert(address, bytes.clone());
        }
    }

    /// A whole blob was read from the device, into memory that belongs to the device.
    pub fn read(&self, address: Address, bytes: &[u8]) {
        if let Some(shelf) = &*self.shelf.read()
            && bytes.len() as u64 <= LENGTH_MAX
            && (shelf.door.knows(&address, bytes.len() as u64) || shelf.is_roomy())
        {
            shelf.blobs.insert(address, Bytes::copy_from_slice(bytes));
        }
    }

    /// A blob must not be found any more.
    pub fn remove(&self, address: &Address) {
        if let Some(shelf) = &*self.shelf.read() {
            shelf.blobs.remove(address);
        }
    }

    /// How much is here.
    pub fn bytes(&self) -> u64 {
        self.shelf.read().as_ref().map_or(0, |shelf| shelf.blobs.weight())
    }
}

impl Shelf {
    fn new(memory: ByteSize) -> Option<Self> {
        let count = expected(memory);
        let blobs = (memory.0 > 0).then(|| Cache::with_weighter(count, memory.0, ByLength))?;
        Some(Self { blobs, door: Doorkeeper::new(memory, count) })
    }

    fn is_roomy(&self) -> bool {
        self.blobs.weight() < self.blobs.capacity() / 8 * ROOMY_EIGHTHS
    }
}

/// About so many blobs find a place there.
fn expected(memory: ByteSize) -> usize {
    usize::try_from(memory.0 / LENGTH_EXPECTED).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u8, length: u64) -> Row {
        Row { address: Address::from_bytes([number; 32]), length }
    }

    fn numbered(number: u64, length: u64) -> Row {
        let address = Address::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes());
        Row { address, length }
    }

    #[test]
    fn what_is_put_or_read_is_found() {
        let hot = Hot::new(ByteSize::mib(64));
        let bytes = Bytes::from(vec![1; 1000]);
        hot.put(row(1, 1000).address, &bytes);
        assert_eq!(hot.get(&row(1, 1000)), Some(bytes.clone()));
        assert_eq!(hot.get(&row(1, 999)), None, "of another length: the caller's table is wrong");
        hot.read(row(2, 1000).address, &bytes);
        assert_eq!(hot.get(&row(2, 1000)), Some(bytes), "there is room");
        hot.remove(&row(2, 1000).address);
        assert_eq!((hot.get(&row(2, 1000)), hot.hits()), (None, 2));
    }

    /// Epoch after epoch of a dataset of twice the memory: whoever came first stays, since nobody is better; and what
    /// is read by several jobs at a time is kept, whoever was there before.
    #[test]
    fn a_full_memory_is_not_turned_over_by_what_is_read_once() {
        let memory = ByteSize::mib(64);
        keeps_what_it_has(&Hot::new(memory), memory);
        let resized = Hot::new(ByteSize::mib(1 << 10));
        resized.resize(memory);
        keeps_what_it_has(&resized, memory);
    }

    fn keeps_what_it_has(hot: &Hot, memory: ByteSize) {
        let length = 100_000;
        let blobs = 2 * memory.0 / length;
        let bytes = Bytes::from(vec![1; 100_000]);
        let read = |number| {
            let row = numbered(number, length);
            let found = hot.get(&row).is_some();
            if !found {
                hot.read(row.address, &bytes);
            }
            found
        };
        let epoch = || (0..blobs).filter(|number| read(*number)).count() as u64;
        assert_eq!(epoch(), 0);
        for _ in 0..5 {
            let hits = epoch();
            assert!(hits > blobs / 8 * 3, "{hits} of {blobs}, of which half has room");
        }
        let shared: Vec<u64> = (0..blobs).filter(|number| !read(*number)).collect();
        let twice = |number: &u64| [(); 3].map(|()| read(*number));
        let kept = shared.iter().filter(|number| twice(number) == [false, false, true]).count();
        assert!(kept > shared.len() / 2, "{kept} of {} that were read again soon", shared.len());
    }

    /// Promise 6: no more memory than was said.
    #[test]
    fn it_keeps_to_its_memory() {
        let (memory, none) = (ByteSize::mib(64), Hot::new(ByteSize(0)));
        let hot = Hot::new(memory);
        for number in 0..2000_u64 {
            let bytes = Bytes::from(vec![0; 100_000]);
            let Row { address, .. } = numbered(number, 100_000);
            hot.put(address, &bytes);
            none.put(address, &bytes);
            assert!(hot.bytes() <= memory.0);
        }
        assert!(hot.bytes() > memory.0 / 2);
        assert_eq!(none.bytes(), 0);
        hot.resize(ByteSize::mib(8));
        assert!(hot.bytes() <= 8 << 20, "less, and what does not fit is gone");
        hot.resize(ByteSize(0));
        assert_eq!((hot.bytes(), hot.capacity()), (0, 0));
        hot.resize(memory);
        hot.put(row(1, 2 << 20).address, &Bytes::from(vec![0; 2 << 20]));
        assert_eq!(hot.get(&row(1, 2 << 20)), None, "too long");
    }
}

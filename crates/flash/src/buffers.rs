//! Buffer pools: all memory for I/O, allocated once at the start.
//!
//! A pool is one mapping of a fixed size, aligned for direct I/O and touched in advance, so that
//! `io_uring` can register it whole. A [`Buffer`] has one owner at a time: the code that fills it,
//! or the kernel while a command runs. Frozen into a [`View`], it can be shared and sliced, and
//! returns to the pool when its last view is dropped.
//!
//! A pool can be carved out of another one, for a caller that reserves memory of its own: a stream
//! reader's slots return to the reader, and to the parent pool when the reader is gone.

#![expect(
    unsafe_code,
    reason = "buffers are disjoint parts of one mapping, which the compiler cannot check"
)]

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use memmap2::{Advice, MmapMut, MmapOptions};
use parking_lot::Mutex;

use crate::format::BLOCK_SIZE;

/// A pool of aligned blocks.
pub struct BufferPool {
    /// Keeps the memory mapped. Only buffers access its bytes.
    _memory: Memory,
    base: *mut u8,
    size: usize,
    /// Free runs of blocks: first block to count.
    free: Mutex<BTreeMap<usize, usize>>,
    /// Whether a `take` has failed since the last release.
    has_waiter: AtomicBool,
    wakers: Mutex<Vec<ReleaseWaker>>,
}

/// Called after a release.
type ReleaseWaker = Arc<dyn Fn() + Send + Sync>;

/// Where a pool's memory comes from.
enum Memory {
    Mapping {
        _mapping: MmapMut,
    },
    /// Carved out of another pool.
    Part {
        _buffer: Buffer,
    },
}

// SAFETY: `base` points into `_memory`, which lives as long as the pool and never moves. Its bytes
// are reached through buffers only, and no two buffers overlap (`free` hands out every block once).
unsafe impl Send for BufferPool {}
// SAFETY: as above; `free` is locked.
unsafe impl Sync for BufferPool {}

/// A run of blocks with exclusive access.
pub struct Buffer {
    pool: Arc<BufferPool>,
    first: usize,
    blocks: usize,
}

/// Immutable bytes of a buffer.
#[derive(Clone)]
pub struct View {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl BufferPool {
    /// Allocates `size` bytes, rounded up to whole blocks, and touches them.
    pub fn new(size: usize) -> std::io::Result<Arc<Self>> {
        let blocks = size.div_ceil(BLOCK_SIZE).max(1);
        let mut mapping = MmapOptions::new().len(blocks * BLOCK_SIZE).map_anon()?;
        // Huge pages make each command cheaper: the kernel has fewer pages to map.
        let _ = mapping.advise(Advice::HugePage);
        mapping.chunks_mut(BLOCK_SIZE).for_each(|block| block[0] = 0);
        let base = mapping.as_mut_ptr();
        Ok(Self::of(Memory::Mapping { _mapping: mapping }, base, blocks))
    }

    /// A pool of at least `length` bytes of this pool's memory, which come back when the new pool
    /// and its buffers are dropped. `None` if no run is long enough.
    pub fn carve(self: &Arc<Self>, length: usize) -> Option<Arc<Self>> {
        let buffer = self.take(length)?;
        let (base, blocks) = (buffer.start(), buffer.blocks);
        Some(Self::of(Memory::Part { _buffer: buffer }, base, blocks))
    }

    fn of(memory: Memory, base: *mut u8, blocks: usize) -> Arc<Self> {
        let free = Mutex::new(BTreeMap::from([(0, blocks)]));
        let (has_waiter, wakers) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self {
            _memory: memory,
            base,
            size: blocks * BLOCK_SIZE,
            free,
            has_waiter,
            wakers,
        })
    }

    /// Size of the pool in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes that no buffer holds.
    pub fn free_bytes(&self) -> usize {
        self.free.lock().values().sum::<usize>() * BLOCK_SIZE
    }

    /// Start of the memory, for registration with the kernel.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Adds a function that is called when a buffer is released after a failed `take`, whichever
    /// caller's attempt failed.
    pub fn on_release(&self, waker: impl Fn() + Send + Sync + 'static) {
        self.wakers.lock().push(Arc::new(waker));
    }

    /// A buffer of at least `length` bytes, in whole blocks. `None` if no run is long enough.
    pub fn take(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        self.find(length).or_else(|| {
            // Later releases see the flag. Earlier ones are found by the second attempt.
            self.has_waiter.store(true, SeqCst);
            self.find(length)
        })
    }

    fn find(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let blocks = length.div_ceil(BLOCK_SIZE).max(1);
        let mut free = self.free.lock();
        let (&first, &run) = free.iter().find(|(_, run)| **run >= blocks)?;
        free.remove(&first);
        if run > blocks {
            free.insert(first + blocks, run - blocks);
        }
        drop(free);
        Some(Buffer { pool: Arc::clone(self), first, blocks })
    }

    fn release(&self, mut first: usize, mut blocks: usize) {
        let mut free = self.free.lock();
        if let Some(after) = free.remove(&(first + blocks)) {
            blocks += after;
        }
        if let Some((&before, run)) = free.range_mut(..first).next_back()
            && before + *run == first
        {
            first = before;
            blocks += *run;
        }
        free.insert(first, blocks);
        drop(free);
        if self.has_waiter.swap(false, SeqCst) {
            // A waker may release buffers itself.
            let wakers = self.wakers.lock().clone();
            for waker in wakers {
                waker();
            }
        }
    }
}

impl Buffer {
    /// Splits the buffer after `length` bytes, which must be whole blocks, and returns the rest.
    #[must_use = "dropping the rest releases it"]
    pub fn split_off(&mut self, length: usize) -> Self {
        assert!(
            length.is_multiple_of(BLOCK_SIZE) && length < self.len(),
            "both parts are whole blocks"
        );
        let blocks = length / BLOCK_SIZE;
        let (first, rest) = (self.first + blocks, self.blocks - blocks);
        self.blocks = blocks;
        Self { pool: Arc::clone(&self.pool), first, blocks: rest }
    }

    /// Makes the buffer immutable and shareable.
    pub fn freeze(self) -> View {
        let range = 0..self.len();
        View { buffer: Arc::new(self), range }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the run was cut out of the mapping, so it lies inside it.
        unsafe { self.pool.base.add(self.first * BLOCK_SIZE) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the blocks lie in the mapping and are initialised (zeros, or earlier writes).
        // They belong to this buffer alone until it is dropped. The kernel writes to them only
        // while it owns the buffer.
        unsafe { std::slice::from_raw_parts(self.start(), self.blocks * BLOCK_SIZE) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.blocks * BLOCK_SIZE) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.release(self.first, self.blocks);
    }
}

impl View {
    /// A part of the view.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "the range lies inside the view"
        );
        let start = self.range.start + range.start;
        Self { buffer: Arc::clone(&self.buffer), range: start..start + range.len() }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} blocks at {})", self.blocks, self.first)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?} of {:?})", self.range, self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// Promise 6: DRAM is bounded. No two buffers share a byte.
    #[test]
    fn buffers_are_disjoint_and_all_memory_comes_back() {
        let pool = BufferPool::new(64 * BLOCK_SIZE).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut taken: Vec<(u8, Buffer)> = Vec::new();
        for round in 0..5000_u32 {
            if random.bool() {
                let label = round.to_le_bytes()[0];
                if let Some(mut buffer) = pool.take(random.usize(1..12 * BLOCK_SIZE)) {
                    assert_eq!(buffer.as_ptr().align_offset(BLOCK_SIZE), 0);
                    buffer.fill(label);
                    taken.push((label, buffer));
                }
            } else if !taken.is_empty() {
                let (label, buffer) = taken.swap_remove(random.usize(..taken.len()));
                assert!(buffer.iter().all(|byte| *byte == label));
            }
            assert!(taken.iter().map(|(_, buffer)| buffer.blocks).sum::<usize>() <= 64);
        }
        taken.clear();
        assert!(pool.take(64 * BLOCK_SIZE).is_some(), "all blocks are one run again");
    }

    #[test]
    fn a_carved_pool_returns_its_memory_with_its_last_view() {
        let pool = BufferPool::new(8 * BLOCK_SIZE).unwrap();
        let part = pool.carve(6 * BLOCK_SIZE).unwrap();
        assert_eq!((part.size(), pool.free_bytes()), (6 * BLOCK_SIZE, 2 * BLOCK_SIZE));
        assert!(pool.carve(3 * BLOCK_SIZE).is_none(), "no run is long enough");
        let mut slot = part.take(6 * BLOCK_SIZE).unwrap();
        slot.fill(7);
        let inside = pool.base() as usize..pool.base() as usize + pool.size();
        assert!(inside.contains(&(slot.as_ptr() as usize)), "the memory is the parent's");
        let view = slot.freeze();
        drop(part);
        assert!(pool.take(3 * BLOCK_SIZE).is_none(), "a view remains");
        assert!(view.iter().all(|byte| *byte == 7));
        drop(view);
        assert_eq!(pool.free_bytes(), 8 * BLOCK_SIZE);
    }

    #[test]
    fn a_release_after_a_failed_take_calls_the_waker() {
        let pool = BufferPool::new(2 * BLOCK_SIZE).unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&calls);
        pool.on_release(move || {
            count.fetch_add(1, Relaxed);
        });
        let view = pool.take(1).unwrap().freeze();
        let part = view.slice(10..20);
        drop(pool.take(1));
        assert_eq!(calls.load(Relaxed), 0, "no take has failed");
        assert!(pool.take(2 * BLOCK_SIZE).is_none());
        drop(view);
        assert_eq!(calls.load(Relaxed), 0, "one view remains");
        drop(part);
        assert_eq!(calls.load(Relaxed), 1);
        let count = Arc::clone(&calls);
        pool.on_release(move || {
            count.fetch_add(10, Relaxed);
        });
        let all = pool.take(2 * BLOCK_SIZE).unwrap();
        assert!(pool.take(1).is_none());
        drop(all);
        assert_eq!(calls.load(Relaxed), 12, "each waker is called");
    }
}

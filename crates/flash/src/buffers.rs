//! All memory for I/O, taken once at the start: aligned for direct I/O, touched, of a fixed size, and in
//! one piece, so that a ring can register it as it is.
//!
//! A [`Buffer`] is somebody's alone: whoever fills it, or the kernel while a command runs. Frozen into a
//! [`View`] it can be shared and cut, and goes back when the last view of it is dropped.

#![expect(unsafe_code, reason = "buffers are disjoint parts of one mapping, which Rust cannot see")]

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use memmap2::{Advice, MmapMut, MmapOptions};
use parking_lot::Mutex;

use crate::layout::BLOCK_SIZE;

/// The memory.
pub struct Arena {
    /// Keeps the mapping; only the buffers touch its bytes.
    mapping: MmapMut,
    base: *mut u8,
    /// Free runs of blocks: first block to count.
    free: Mutex<BTreeMap<usize, usize>>,
    /// Whether somebody was turned away since a buffer last came back.
    wanted: AtomicBool,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

// SAFETY: `base` points into `mapping`, which lives as long as the arena and is never moved; its bytes are
// reached through buffers only, and no two of these overlap (`free` gives out every block once).
unsafe impl Send for Arena {}
// SAFETY: as above; `free` is locked.
unsafe impl Sync for Arena {}

/// Some blocks of the arena that are somebody's alone.
pub struct Buffer {
    arena: Arc<Arena>,
    first: usize,
    blocks: usize,
}

/// Bytes of a buffer that does not change any more.
#[derive(Clone)]
pub struct View {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Arena {
    /// Takes so much memory, in whole blocks, and touches it.
    pub fn new(size: usize) -> std::io::Result<Arc<Self>> {
        let blocks = size.div_ceil(BLOCK_SIZE).max(1);
        let mut mapping = MmapOptions::new().len(blocks * BLOCK_SIZE).map_anon()?;
        // Large pages, where the system has them, make every command cheaper: fewer of them to hand over.
        let _ = mapping.advise(Advice::HugePage);
        mapping.chunks_mut(BLOCK_SIZE).for_each(|block| block[0] = 0);
        let base = mapping.as_mut_ptr();
        let free = Mutex::new(BTreeMap::from([(0, blocks)]));
        let (wanted, waker) = (AtomicBool::new(false), OnceLock::new());
        Ok(Arc::new(Self { mapping, base, free, wanted, waker }))
    }

    /// How much there is in all.
    pub fn size(&self) -> usize {
        self.mapping.len()
    }

    /// Where it lies, for those who register it with the kernel.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Whom to tell that a buffer came back after somebody had been turned away. Said once.
    pub fn on_release(&self, waker: impl Fn() + Send + Sync + 'static) {
        let _ = self.waker.set(Box::new(waker));
    }

    /// A buffer of at least so many bytes, in whole blocks; `None` if there is no such run now.
    pub fn take(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        self.find(length).or_else(|| {
            // Seen by whoever gives one back from here on; what came back before is found now.
            self.wanted.store(true, SeqCst);
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
        Some(Buffer { arena: Arc::clone(self), first, blocks })
    }

    fn give_back(&self, mut first: usize, mut blocks: usize) {
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
        if self.wanted.swap(false, SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker();
        }
    }
}

impl Buffer {
    /// Cuts off what lies behind so many bytes, which are whole blocks.
    #[must_use = "else it goes back"]
    pub fn split_off(&mut self, length: usize) -> Self {
        assert!(length.is_multiple_of(BLOCK_SIZE) && length < self.len(), "both have blocks");
        let blocks = length / BLOCK_SIZE;
        let (first, rest) = (self.first + blocks, self.blocks - blocks);
        self.blocks = blocks;
        Self { arena: Arc::clone(&self.arena), first, blocks: rest }
    }

    /// Shares it: nobody changes it any more.
    pub fn freeze(self) -> View {
        let range = 0..self.len();
        View { buffer: Arc::new(self), range }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the run was cut out of the mapping, so it lies inside.
        unsafe { self.arena.base.add(self.first * BLOCK_SIZE) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the blocks lie in the mapping, are initialised (zeros, or what was written), and are this
        // buffer's alone until it is dropped; the kernel writes to them only while it owns the buffer.
        unsafe { std::slice::from_raw_parts(self.start(), self.blocks * BLOCK_SIZE) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` says that nobody else looks.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.blocks * BLOCK_SIZE) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.arena.give_back(self.first, self.blocks);
    }
}

impl View {
    /// A part of it.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "inside the view");
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

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("size", &self.size()).finish_non_exhaustive()
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

    /// Promise 6: DRAM is bounded; and no two buffers ever share a byte.
    #[test]
    fn buffers_are_disjoint_and_all_memory_comes_back() {
        let arena = Arena::new(64 * BLOCK_SIZE).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for round in 0..5000_u32 {
            if random.bool() {
                let label = round.to_le_bytes()[0];
                if let Some(mut buffer) = arena.take(random.usize(1..12 * BLOCK_SIZE)) {
                    assert_eq!(buffer.as_ptr().align_offset(BLOCK_SIZE), 0);
                    buffer.fill(label);
                    held.push((label, buffer));
                }
            } else if !held.is_empty() {
                let (label, buffer) = held.swap_remove(random.usize(..held.len()));
                assert!(buffer.iter().all(|byte| *byte == label));
            }
            assert!(held.iter().map(|(_, buffer)| buffer.blocks).sum::<usize>() <= 64);
        }
        held.clear();
        assert!(arena.take(64 * BLOCK_SIZE).is_some(), "one run again");
    }

    #[test]
    fn whoever_was_turned_away_hears_of_the_next_release() {
        let arena = Arena::new(2 * BLOCK_SIZE).unwrap();
        let heard = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&heard);
        arena.on_release(move || {
            count.fetch_add(1, Relaxed);
        });
        let view = arena.take(1).unwrap().freeze();
        let part = view.slice(10..20);
        drop(arena.take(1));
        assert_eq!(heard.load(Relaxed), 0, "nobody was turned away");
        assert!(arena.take(2 * BLOCK_SIZE).is_none());
        drop(view);
        assert_eq!(heard.load(Relaxed), 0, "a part is still held");
        drop(part);
        assert_eq!(heard.load(Relaxed), 1);
        assert!(arena.take(2 * BLOCK_SIZE).is_some());
    }
}

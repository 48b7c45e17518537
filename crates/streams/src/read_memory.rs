//! Memory for reading: readers have their slots in one pool. A reader that finds too little
//! waits for readers that were closed just now, whose last reads are in progress.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use forebay_flash::buffers::BufferPool;
use tokio::sync::Notify;

use crate::slots::Slots;

/// The pool, and the readers that are about to return a part of it.
pub(crate) struct ReadMemory {
    pool: Arc<BufferPool>,
    /// Called when memory has come back after a failed attempt, and when a closed reader has ended.
    returned: Arc<Notify>,
    /// Closed readers whose last reads have not ended.
    closing: AtomicUsize,
}

/// Held by a reader as its last field, so that its slots have been returned when this is dropped.
pub(crate) struct SlotsReturned {
    memory: Arc<ReadMemory>,
    is_closed: AtomicBool,
}

/// What a reader waits for if there is too little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    /// For closed readers, if there are any.
    ClosedReaders,
    /// For any memory, such as blocks that are being sent.
    Any,
}

impl ReadMemory {
    pub(crate) fn new(pool: &Arc<BufferPool>) -> Arc<Self> {
        let returned = Arc::new(Notify::new());
        let notified = Arc::downgrade(&returned);
        pool.on_release(move || {
            if let Some(returned) = notified.upgrade() {
                returned.notify_waiters();
            }
        });
        Arc::new(Self { pool: Arc::clone(pool), returned, closing: AtomicUsize::new(0) })
    }

    /// Reserves memory without waiting.
    pub(crate) fn try_reserve(&self, depth: u32, length: usize) -> Option<Slots> {
        Slots::reserve(&self.pool, depth, length)
    }

    /// Reserves memory. `None` if there is too little and nothing to wait for.
    pub(crate) async fn reserve(
        &self,
        depth: u32,
        length: usize,
        wait: MemoryWait,
    ) -> Option<Slots> {
        loop {
            let returned = self.returned.notified();
            // Counted before the attempt: a reader that ends in between has returned its memory.
            let is_returning = wait == MemoryWait::Any || self.closing.load(SeqCst) > 0;
            let slots = self.try_reserve(depth, length);
            if slots.is_some() || !is_returning {
                return slots;
            }
            returned.await;
        }
    }

    /// For a new reader.
    pub(crate) fn slots_returned(self: &Arc<Self>) -> SlotsReturned {
        SlotsReturned { memory: Arc::clone(self), is_closed: AtomicBool::new(false) }
    }

    /// Bytes that no reader has reserved.
    pub(crate) fn free_bytes(&self) -> usize {
        self.pool.free_bytes()
    }
}

impl SlotsReturned {
    /// The reader is closed. Its reads may be in progress.
    pub(crate) fn on_closed(&self) {
        if !self.is_closed.swap(true, SeqCst) {
            self.memory.closing.fetch_add(1, SeqCst);
        }
    }

    /// Whether the reader is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }
}

impl Drop for SlotsReturned {
    fn drop(&mut self) {
        if self.is_closed() {
            self.memory.closing.fetch_sub(1, SeqCst);
        }
        self.memory.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const LENGTH: usize = 4 * 4096;

    /// What wakes a waiting reader is the memory or the end of a closed reader, and no clock.
    #[test]
    fn closed_readers_wake_those_that_wait_for_their_memory() {
        let pool = BufferPool::new(LENGTH).unwrap();
        let memory = ReadMemory::new(&pool);
        let held = memory.try_reserve(1, LENGTH).unwrap();
        let reader = memory.slots_returned();
        let refused = memory.reserve(1, LENGTH, MemoryWait::ClosedReaders).now_or_never();
        assert!(refused.expect("no wait").is_none(), "no reader is closed");
        reader.on_closed();
        let mut waiting = Box::pin(memory.reserve(1, LENGTH, MemoryWait::ClosedReaders));
        assert!(waiting.as_mut().now_or_never().is_none(), "its memory will come back");
        drop(held);
        drop(reader);
        let slots = waiting.now_or_never().expect("woken");
        // Blocks that a consumer holds are not waited for, but by a node.
        assert!(slots.is_some());
        let mut any = Box::pin(memory.reserve(1, LENGTH, MemoryWait::Any));
        assert!(any.as_mut().now_or_never().is_none());
        drop(slots);
        assert!(any.now_or_never().expect("woken").is_some());

        let held = memory.try_reserve(1, LENGTH).unwrap();
        let reader = memory.slots_returned();
        reader.on_closed();
        let mut waiting = Box::pin(memory.reserve(1, LENGTH, MemoryWait::ClosedReaders));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(reader);
        assert!(waiting.now_or_never().expect("woken").is_none(), "its blocks are held");
        drop(held);
    }
}

//! Memory for writing: one pool for all writers, given out in the order of their requests.

use std::{collections::VecDeque, sync::Arc};

use forebay_flash::buffers::{Buffer, BufferPool};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The pool and the requests that wait for it.
pub(crate) struct WriteMemory {
    pool: Arc<BufferPool>,
    waiters: Mutex<VecDeque<Waiter>>,
}

struct Waiter {
    length: usize,
    sender: oneshot::Sender<Buffer>,
}

impl WriteMemory {
    /// Takes over a pool that no other code waits for.
    pub(crate) fn new(pool: Arc<BufferPool>) -> Arc<Self> {
        let memory = Arc::new(Self { pool, waiters: Mutex::default() });
        let waiting = Arc::downgrade(&memory);
        memory.pool.on_release(move || {
            if let Some(memory) = waiting.upgrade() {
                memory.pump();
            }
        });
        memory
    }

    /// Waits for memory of this length, which is at most the pool's size.
    pub(crate) async fn take(&self, length: usize) -> Buffer {
        assert!(length <= self.pool.size(), "a block fits into the memory for writing");
        let (sender, receiver) = oneshot::channel();
        self.waiters.lock().push_back(Waiter { length, sender });
        self.pump();
        receiver.await.expect("a waiter is dropped only with its memory")
    }

    /// Memory of this length, if no other request waits and there is some.
    pub(crate) fn try_take(&self, length: usize) -> Option<Buffer> {
        let waiters = self.waiters.lock();
        if waiters.is_empty() { self.pool.take(length) } else { None }
    }

    /// Bytes that are free.
    pub(crate) fn free_bytes(&self) -> usize {
        self.pool.free_bytes()
    }

    /// Size of the memory.
    pub(crate) fn size(&self) -> usize {
        self.pool.size()
    }

    /// Serves the first requests. Buffers are sent without the lock: one whose receiver is gone is
    /// released, and that calls this function again.
    fn pump(&self) {
        loop {
            let (waiter, buffer) = {
                let mut waiters = self.waiters.lock();
                let Some(first) = waiters.front() else { return };
                let Some(buffer) = self.pool.take(first.length) else { return };
                (waiters.pop_front().expect("just seen"), buffer)
            };
            drop(waiter.sender.send(buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A long request is not overtaken by short ones, and abandoned requests cost nothing.
    #[test]
    fn memory_is_given_out_in_order() {
        let memory = WriteMemory::new(BufferPool::new(8 * 4096).unwrap());
        let first = memory.try_take(6 * 4096).unwrap();
        let mut long = Box::pin(memory.take(5 * 4096));
        assert!(long.as_mut().now_or_never().is_none());
        let mut abandoned = Box::pin(memory.take(4096));
        assert!(abandoned.as_mut().now_or_never().is_none());
        let mut short = Box::pin(memory.take(4096));
        assert!(short.as_mut().now_or_never().is_none(), "the long request is first");
        assert!(memory.try_take(4096).is_none());
        drop(abandoned);
        drop(first);
        let long = long.now_or_never().expect("served by the release");
        let short = short.now_or_never().expect("there is room for both");
        assert_eq!(memory.free_bytes(), 2 * 4096, "nothing is kept for the abandoned one");
        drop((long, short));
        assert_eq!(memory.free_bytes(), memory.size());
    }
}

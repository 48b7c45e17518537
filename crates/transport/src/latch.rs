//! Latch: an event that happens once, and the tasks that wait for it.
//!
//! Waiting tasks are woken in the order in which they began to wait, so that a simulated world can
//! repeat a run; `tokio::sync::watch` wakes its receivers in a random order.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use tokio::sync::Notify;

/// An event that happens once.
#[derive(Debug, Default)]
pub struct Latch {
    is_set: AtomicBool,
    waiting: Notify,
}

/// Sets a latch when it is dropped.
#[derive(Debug)]
pub struct SetOnDrop(Arc<Latch>);

impl Latch {
    /// The event has happened. Returns whether this is the first call.
    pub fn set(&self) -> bool {
        let was_set = self.is_set.swap(true, SeqCst);
        self.waiting.notify_waiters();
        !was_set
    }

    /// Whether the event has happened.
    pub fn is_set(&self) -> bool {
        self.is_set.load(SeqCst)
    }

    /// Completes when the event has happened.
    pub async fn wait(&self) {
        let mut waiting = std::pin::pin!(self.waiting.notified());
        // Before the check: an event in between wakes this task.
        waiting.as_mut().enable();
        if !self.is_set() {
            waiting.await;
        }
    }

    /// A guard whose end is the event.
    pub fn set_on_drop(self: &Arc<Self>) -> SetOnDrop {
        SetOnDrop(Arc::clone(self))
    }
}

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn tasks_wait_until_the_event_and_not_after_it() {
        let latch = Arc::new(Latch::default());
        let guard = latch.set_on_drop();
        assert!(latch.wait().now_or_never().is_none());
        let waiting = tokio::spawn({
            let latch = Arc::clone(&latch);
            async move { latch.wait().await }
        });
        tokio::task::yield_now().await;
        drop(guard);
        waiting.await.unwrap();
        assert!(latch.is_set() && !latch.set());
        latch.wait().await;
    }
}

//! Work queue: threads that do long work in slices, one tenant's after the other.
//!
//! The runtime's workers serve hits, so they do no work of more than 1 ms. Hashes, scans of blob
//! tables, reports and splits of space run here. `core::node::fair_queue` decides whose slice is
//! next. These threads have a lower priority than the workers, and are half the number of cores.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Instant,
};

use forebay_core::node::{fair_queue::FairQueue, tenants::TenantId};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// Nice value of the threads.
const NICE: i32 = 5;

/// Rows of a blob table per slice: 0.1 to 0.5 ms.
pub(crate) const ROWS_PER_SLICE: usize = 1 << 11;
/// Bytes that are hashed per slice: 0.3 ms.
pub(crate) const HASHED_PER_SLICE: usize = 1 << 20;

/// Whose time a work uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// The node itself: ticks, messages of other nodes, blobs that arrived.
    Node,
    /// A tenant, or all clients of a node without tenants.
    Tenant(Option<TenantId>),
}

/// The result of a slice.
pub(crate) enum Slice<T> {
    /// There is more to do.
    More,
    /// This is the result.
    Done(T),
}

/// Does one slice. Returns whether all is done.
type Work = Box<dyn FnMut() -> bool + Send>;

/// The queue, and its threads. They end when it is dropped.
pub(crate) struct WorkQueue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: FairQueue<Lane, Work>,
    /// Slices that are being done.
    running: usize,
    is_closed: bool,
}

impl WorkQueue {
    /// Starts the threads.
    pub fn start() -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores / 2).max(1) {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name("forebay-work".to_owned());
            thread.spawn(move || shared.work()).expect("a thread at start-up");
        }
        Self(shared)
    }

    /// Does `slice` until it is done. If the caller does not wait any more, the rest is left out.
    pub async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        mut slice: impl FnMut() -> Slice<T> + Send + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        let mut sender = Some(sender);
        self.push(
            lane,
            Box::new(move || {
                if sender.as_ref().is_none_or(oneshot::Sender::is_closed) {
                    return true;
                }
                let Slice::Done(result) = slice() else { return false };
                let _ = sender.take().map(|sender| sender.send(result));
                true
            }),
        );
        let result = receiver.await;
        if result.is_err() && self.0.state.lock().is_closed {
            // The node stops, and drops its tasks.
            std::future::pending::<()>().await;
        }
        result.expect("work does not panic")
    }

    /// Does work that fits into one slice.
    pub async fn run_once<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let mut work = Some(work);
        self.run(lane, move || Slice::Done(work.take().expect("once")())).await
    }

    /// Does work of one slice without waiting for it.
    pub fn post(&self, lane: Lane, work: impl FnOnce() + Send + 'static) {
        let mut work = Some(work);
        self.push(
            lane,
            Box::new(move || {
                if let Some(work) = work.take() {
                    work();
                }
                true
            }),
        );
    }

    fn push(&self, lane: Lane, work: Work) {
        let mut state = self.0.state.lock();
        if state.is_closed {
            drop(state);
            return drop(work);
        }
        state.queue.push(lane, work);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Drops all work, and waits for slices that are being done.
    pub async fn close(&self) {
        let queue = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.queue)
        };
        self.0.changed.notify_all();
        drop(queue);
        while self.0.state.lock().running > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        // Without the right to change priorities, the work competes with hits.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some((lane, mut work)) = state.queue.pop() else {
                self.changed.wait(&mut state);
                continue;
            };
            state.running += 1;
            drop(state);
            let began = Instant::now();
            // A panic ends the request that waits for the result, and nothing else.
            let outcome = catch_unwind(AssertUnwindSafe(&mut work));
            let is_done = outcome.unwrap_or(true);
            // Work that is done is dropped here, and not under the lock.
            let rest = (!is_done).then_some(work);
            let took = began.elapsed();
            state = self.state.lock();
            if state.is_closed {
                drop(state);
                drop(rest);
                self.state.lock().running -= 1;
                return;
            }
            state.running -= 1;
            state.queue.on_ran(lane, took, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    const GREEDY: Lane = Lane::Tenant(Some(TenantId(0)));
    const HONEST: Lane = Lane::Tenant(Some(TenantId(1)));

    /// A tenant's long work is not complete before another tenant's short work is.
    #[tokio::test]
    async fn short_work_overtakes_long_work() {
        let (queue, slices) = (WorkQueue::start(), Arc::new(AtomicU64::new(0)));
        let done = Arc::clone(&slices);
        let long = queue.run(GREEDY, move || {
            thread::sleep(std::time::Duration::from_millis(1));
            if done.fetch_add(1, Relaxed) < 10_000 { Slice::More } else { Slice::Done(()) }
        });
        let mut long = std::pin::pin!(long);
        let short = async {
            for number in 0..10 {
                assert_eq!(queue.run_once(HONEST, move || number).await, number);
            }
        };
        tokio::select! {
            biased;
            () = &mut long => panic!("the long work came first"),
            () = short => {}
        }
        assert!(slices.load(Relaxed) < 10_000);
    }

    #[tokio::test]
    async fn a_panic_does_not_end_the_queue() {
        let queue = WorkQueue::start();
        queue.post(GREEDY, || panic!("on purpose"));
        assert_eq!(queue.run_once(HONEST, || 7).await, 7);
    }
}

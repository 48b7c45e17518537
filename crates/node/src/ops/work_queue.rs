//! Work queue: workers that do long work in slices, one tenant's after the other.
//!
//! The runtime's workers serve hits, so they do no work of more than 1 ms. Hashes, scans of blob
//! tables, reports and splits of space run here. `core::node::fair_queue` decides whose slice is
//! next. In a node a [`Worker`] is a thread with a lower priority than the runtime's workers, one
//! for two cores. In a simulated world it is a task.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use forebay_core::node::{fair_queue::FairQueue, tenants::TenantId};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

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

/// The queue. Its workers end when it is dropped.
pub struct WorkQueue(Arc<Shared>);

/// Does the work of a queue. If it ends first, the queue is closed.
pub struct Worker(Arc<Shared>);

/// The next slice of a work. If it is not run, the work goes back into the queue.
pub struct WorkSlice {
    shared: Arc<Shared>,
    lane: Lane,
    work: Option<Work>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes workers that are threads.
    changed: Condvar,
    /// Wakes a worker that is a task.
    pushed: Notify,
}

#[derive(Default)]
struct State {
    queue: FairQueue<Lane, Work>,
    /// Slices that are being done.
    running: usize,
    is_closed: bool,
}

impl WorkQueue {
    /// A queue, and the first of its workers.
    pub fn new() -> (Self, Worker) {
        let (state, changed, pushed) = Default::default();
        let shared = Arc::new(Shared { state, changed, pushed });
        (Self(Arc::clone(&shared)), Worker(shared))
    }

    /// A queue whose workers are threads.
    pub(crate) fn on_threads() -> Self {
        let (queue, first) = Self::new();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let others = (1..cores / 2).map(|_| Worker(Arc::clone(&queue.0)));
        for worker in [first].into_iter().chain(others) {
            let thread = thread::Builder::new().name("forebay-work".to_owned());
            thread.spawn(move || worker.run()).expect("a thread at start-up");
        }
        queue
    }

    /// Does `slice` until it is done. If the caller does not wait any more, the rest is left out.
    pub(crate) async fn run<T: Send + 'static>(
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
    pub(crate) async fn run_once<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let mut work = Some(work);
        self.run(lane, move || Slice::Done(work.take().expect("once")())).await
    }

    /// Does work of one slice without waiting for it.
    pub(crate) fn post(&self, lane: Lane, work: impl FnOnce() + Send + 'static) {
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
        self.0.pushed.notify_one();
    }

    /// Drops all work, and waits for slices that are being done.
    pub(crate) async fn close(&self) {
        self.0.close();
        while self.0.state.lock().running > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Worker {
    /// Does slices until the queue is closed. For a thread.
    fn run(&self) {
        // Without the right to change priorities, the work competes with hits.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        while let Some(slice) = self.wait() {
            let began = Instant::now();
            slice.run(|| began.elapsed());
        }
    }

    fn wait(&self) -> Option<WorkSlice> {
        let mut state = self.0.state.lock();
        while !state.is_closed {
            if let Some(slice) = self.take(&mut state) {
                return Some(slice);
            }
            self.0.changed.wait(&mut state);
        }
        None
    }

    /// The next slice, or `None` when the queue is closed. For a task, the only one of its queue.
    pub async fn next(&self) -> Option<WorkSlice> {
        loop {
            {
                let mut state = self.0.state.lock();
                if state.is_closed {
                    return None;
                }
                if let Some(slice) = self.take(&mut state) {
                    return Some(slice);
                }
            }
            self.0.pushed.notified().await;
        }
    }

    fn take(&self, state: &mut State) -> Option<WorkSlice> {
        let (lane, work) = state.queue.pop()?;
        state.running += 1;
        Some(WorkSlice { shared: Arc::clone(&self.0), lane, work: Some(work) })
    }
}

impl WorkSlice {
    /// Does the slice. `took` is the time that it has used then.
    pub fn run(mut self, took: impl FnOnce() -> Duration) {
        let Some(mut work) = self.work.take() else { return };
        // A panic ends the request that waits for the result, and nothing else.
        let outcome = catch_unwind(AssertUnwindSafe(&mut work));
        // Work that is done is dropped here, and not under the lock.
        let rest = (!outcome.unwrap_or(true)).then_some(work);
        self.end(took(), rest);
    }

    fn end(&self, took: Duration, rest: Option<Work>) {
        let mut state = self.shared.state.lock();
        if state.is_closed {
            drop(state);
            drop(rest);
            self.shared.state.lock().running -= 1;
            return;
        }
        state.running -= 1;
        state.queue.on_ran(self.lane, took, rest);
    }
}

impl Drop for WorkSlice {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.end(Duration::ZERO, Some(work));
        }
    }
}

impl Shared {
    /// Drops all work.
    fn close(&self) {
        let queue = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.queue)
        };
        self.changed.notify_all();
        self.pushed.notify_one();
        drop(queue);
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
        let (queue, slices) = (WorkQueue::on_threads(), Arc::new(AtomicU64::new(0)));
        let done = Arc::clone(&slices);
        let long = queue.run(GREEDY, move || {
            thread::sleep(Duration::from_millis(1));
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
        let queue = WorkQueue::on_threads();
        queue.post(GREEDY, || panic!("on purpose"));
        assert_eq!(queue.run_once(HONEST, || 7).await, 7);
    }
}

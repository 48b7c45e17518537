//! Lock-step: blocking code on a thread of its own, in turn with the runtime.
//!
//! Of the runtime and all such threads, exactly one runs at a time. A thread that would block hands
//! what it waits for to the runtime as a future, and stands still until the future is complete.
//! The task of the thread awaits the future, lets the thread go on, and blocks the runtime until
//! the thread waits again or ends. So virtual time passes only while every thread waits, and the
//! same seed gives the same events.
//!
//! A thread ends with its task: from then on each of its waits fails at once.

use std::{
    fmt,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;

/// Stack of a thread.
const STACK_SIZE: usize = 1 << 20;

/// The connection of a thread to the runtime.
pub struct Turns {
    ends: Mutex<ThreadEnds>,
    has_ended: AtomicBool,
}

struct ThreadEnds {
    waits: mpsc::Sender<BoxFuture<'static, ()>>,
    turns: mpsc::Receiver<()>,
}

/// The runtime's side of a thread. Its end is that of the thread.
struct Runner<T> {
    waits: Option<mpsc::Receiver<BoxFuture<'static, ()>>>,
    turns: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<T>>,
}

/// The world has ended, and so must the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

impl Turns {
    /// Whether a wait has failed.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    /// Waits for a future, which the runtime completes.
    pub fn wait_for<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Ended> {
        let result = Arc::new(Mutex::new(None));
        let completed = Arc::clone(&result);
        let wait = async move {
            let value = future.await;
            *completed.lock() = Some(value);
        };
        let ends = self.ends.lock();
        let is_done = ends.waits.send(Box::pin(wait)).is_ok() && ends.turns.recv().is_ok();
        let result = result.lock().take().filter(|_| is_done);
        self.has_ended.fetch_or(result.is_none(), SeqCst);
        result.ok_or(Ended)
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

/// Runs `act` on a thread of its own, in turn with the runtime. Panics if `act` does.
pub async fn run<T: Send + 'static>(act: impl FnOnce(Arc<Turns>) -> T + Send + 'static) -> T {
    let (send_wait, waits) = mpsc::channel::<BoxFuture<'static, ()>>();
    let (turns, take_turn) = mpsc::channel();
    let ends = Mutex::new(ThreadEnds { waits: send_wait, turns: take_turn });
    let runtime = Handle::current();
    let body = move || {
        // The clock and the timers of the runtime.
        let _runtime = runtime.enter();
        act(Arc::new(Turns { ends, has_ended: AtomicBool::new(false) }))
    };
    let thread = thread::Builder::new().stack_size(STACK_SIZE).spawn(body).expect("a thread");
    let runner = Runner { waits: Some(waits), turns: Some(turns), thread: Some(thread) };
    while let Some(wait) = runner.next_wait() {
        wait.await;
        runner.let_go_on();
    }
    runner.join()
}

impl<T> Runner<T> {
    /// Blocks until the thread waits or ends.
    fn next_wait(&self) -> Option<BoxFuture<'static, ()>> {
        self.waits.as_ref()?.recv().ok()
    }

    fn let_go_on(&self) {
        if let Some(turns) = &self.turns {
            // A thread that has panicked takes no turn.
            let _ = turns.send(());
        }
    }

    /// The result of the thread, which has ended.
    fn join(mut self) -> T {
        let thread = self.thread.take().expect("joined once");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Drop for Runner<T> {
    fn drop(&mut self) {
        // The thread's waits fail from now on.
        (self.waits, self.turns) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, time::Duration};

    use tokio::{
        runtime::{Builder, Runtime},
        time::{Instant, sleep},
    };

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    /// Threads that wait for virtual time interleave in its order, and real time plays no part.
    #[test]
    fn threads_take_turns_in_virtual_time() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let took = runtime().block_on(async {
            let began = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for (thread, step) in [(0, 300), (1, 200)] {
                let order = Arc::clone(&order);
                tasks.spawn(run(move |turns| {
                    for _ in 0..3 {
                        turns.wait_for(sleep(Duration::from_secs(step))).unwrap();
                        order.lock().push((thread, began.elapsed().as_secs()));
                    }
                }));
            }
            while tasks.join_next().await.is_some() {}
            began.elapsed()
        });
        let expected = [(1, 200), (0, 300), (1, 400), (0, 600), (1, 600), (0, 900)];
        let mut sorted = order.lock().clone();
        // Two events at one time may come in either order, the same one in each run.
        sorted.sort_by_key(|(thread, at)| (*at, *thread));
        assert_eq!(sorted, expected);
        assert_eq!(took.as_secs(), 900);
    }

    /// A world that ends leaves no thread behind.
    #[test]
    fn a_thread_ends_with_its_task() {
        let ends = Arc::new(AtomicU32::new(0));
        let ended = Arc::clone(&ends);
        runtime().block_on(async move {
            let thread = run(move |turns| {
                while turns.wait_for(sleep(Duration::from_secs(1))).is_ok() {}
                assert!(turns.has_ended());
                ended.fetch_add(1, SeqCst);
            });
            let task = tokio::spawn(thread);
            sleep(Duration::from_secs(10)).await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(ends.load(SeqCst), 1);
        });
    }

    #[test]
    fn a_panic_on_a_thread_is_one_of_its_task() {
        runtime().block_on(async {
            let task = tokio::spawn(run(|turns| {
                turns.wait_for(sleep(Duration::from_secs(1))).unwrap();
                // Not a failed assertion, which would be printed as one.
                resume_unwind(Box::new("on the thread"));
            }));
            assert!(task.await.unwrap_err().is_panic());
        });
    }
}

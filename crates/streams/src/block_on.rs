//! Blocking on a future without a runtime: the calling thread polls it, and sleeps in between.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::{Duration, Instant},
};

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    run(future, None).expect("without a deadline it ends with the future")
}

/// Runs a future on this thread for at most `timeout`. `None` if it has not ended then.
pub(crate) fn block_on_for<T>(future: impl Future<Output = T>, timeout: Duration) -> Option<T> {
    // A time too far away to be represented is no deadline.
    run(future, Instant::now().checked_add(timeout))
}

fn run<T>(future: impl Future<Output = T>, deadline: Option<Instant>) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

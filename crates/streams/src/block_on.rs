//! Blocking on a future without a runtime: the calling thread polls it, and sleeps in between.

use std::{
    convert::Infallible,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::{Duration, Instant},
};

/// Interval at which a wait that can be interrupted looks whether it is.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let park = || {
        std::thread::park();
        Ok::<(), Infallible>(())
    };
    match run(future, park) {
        Ok(output) => output,
    }
}

/// [`block_on_unless`] for at most `timeout`. `None` if the future has not ended then.
pub(crate) fn block_on_for<T, E>(
    future: impl Future<Output = T>,
    timeout: Duration,
    mut interrupt: impl FnMut() -> Result<(), E>,
) -> Result<Option<T>, E> {
    // A time too far away to be represented is no deadline.
    let deadline = Instant::now().checked_add(timeout);
    let park = || {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(None);
        }
        std::thread::park_timeout(INTERRUPT_INTERVAL.min(left.unwrap_or(INTERRUPT_INTERVAL)));
        interrupt().map_err(Some)
    };
    match run(future, park) {
        Ok(output) => Ok(Some(output)),
        Err(None) => Ok(None),
        Err(Some(error)) => Err(error),
    }
}

/// Runs a future on this thread until `interrupt` returns an error, which is asked 20 times per
/// second while the future waits.
pub fn block_on_unless<T, E>(
    future: impl Future<Output = T>,
    mut interrupt: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let mut asked = Instant::now();
    let park = || {
        std::thread::park_timeout(INTERRUPT_INTERVAL);
        if asked.elapsed() < INTERRUPT_INTERVAL {
            return Ok(());
        }
        asked = Instant::now();
        interrupt()
    };
    run(future, park)
}

/// Polls the future, and calls `park` in between. Ends early if that returns an error.
fn run<T, E>(
    future: impl Future<Output = T>,
    mut park: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        park()?;
    }
}

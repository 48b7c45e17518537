//! Environment: what a client uses of the outside: the clock, pauses, random numbers and sockets.
//!
//! [`ThisMachine`] is the environment of a process. A simulated world has one whose clock moves
//! when every process waits, and whose streams cross a simulated network. Each method stands for a
//! system call and costs one virtual call.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    io::{self, Read, Write},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use forebay_core::Endpoint;

use crate::{
    Result,
    poll::{SocketWait, poll_descriptors},
    socket::Connecting,
};

/// The outside of a client.
pub trait ClientEnvironment: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Instant;

    /// Waits for this time.
    fn sleep(&self, pause: Duration);

    /// A random number.
    fn random(&self) -> u64;

    /// Begins to connect to an endpoint. The name of a host is resolved here, which may block.
    fn connect(&self, endpoint: &Endpoint) -> Result<Connecting>;

    /// Waits until a socket is ready, `timeout` has passed or a signal has arrived.
    fn wait_any(&self, sockets: &[SocketWait<'_>], timeout: Duration) -> io::Result<()>;
}

/// A stream that takes the place of a socket in another environment than [`ThisMachine`]. Like a
/// socket it does not block at first.
pub trait ClientStream: Read + Write + fmt::Debug + Send + Sync {
    /// The number by which [`ClientEnvironment::wait_any`] knows it.
    fn number(&self) -> StreamNumber;

    /// Whether it is connected. An error if it cannot be.
    fn is_connected(&mut self) -> io::Result<bool>;

    /// Lets reads and writes block for this time at most. Then they fail with
    /// [`io::ErrorKind::WouldBlock`].
    fn set_slice(&self, slice: Duration) -> io::Result<()>;
}

/// The number of a stream in its environment, as a descriptor is that of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamNumber(pub u64);

/// The environment of a process: the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisMachine;

impl ThisMachine {
    /// The environment, as clients hold it.
    pub(crate) fn shared() -> Arc<dyn ClientEnvironment> {
        Arc::new(Self)
    }
}

impl ClientEnvironment for ThisMachine {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, pause: Duration) {
        thread::sleep(pause);
    }

    fn random(&self) -> u64 {
        RandomState::new().hash_one(0)
    }

    fn connect(&self, endpoint: &Endpoint) -> Result<Connecting> {
        Connecting::over_socket(endpoint)
    }

    fn wait_any(&self, sockets: &[SocketWait<'_>], timeout: Duration) -> io::Result<()> {
        poll_descriptors(sockets, timeout)
    }
}

/// The time since a clock was made, by the clock of an environment.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    environment: Arc<dyn ClientEnvironment>,
    started: Instant,
}

impl Clock {
    /// Starts at zero.
    pub fn start(environment: &Arc<dyn ClientEnvironment>) -> Self {
        Self { started: environment.now(), environment: Arc::clone(environment) }
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        self.environment.now().saturating_duration_since(self.started)
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }
}

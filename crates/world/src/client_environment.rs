//! Client environment: the outside of a blocking client in a world: virtual time, and streams in
//! place of sockets.
//!
//! The client is `forebay-client` itself, on a thread that takes turns with the runtime
//! ([`crate::lockstep`]). A read or write that is possible happens on the client's thread; a wait
//! is a turn of the runtime. A paused host stops its client as well: a wait ends after the pause.
//!
//! The environment adds up the time that the client waits for nodes, so that a job can check what
//! hung nodes cost one call (promise 5).

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use forebay_client::{
    ClientEnvironment, ClientError, ClientStream, Connecting, SocketWait, StreamNumber,
    WaitedSocket,
};
use forebay_core::Endpoint;
use forebay_transport::Peer;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    agent_host::LocalAgent,
    lockstep::{Ended, Turns},
    network::{HostId, Network, host_of},
    pipe::{PipeReader, PipeWriter},
};

/// The environment of one client.
pub struct WorldEnvironment {
    shared: Arc<Shared>,
    agent: LocalAgent,
    random: Mutex<Rng>,
}

struct Shared {
    turns: Arc<Turns>,
    network: Network,
    host: HostId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_number: u64,
    streams: BTreeMap<StreamNumber, Weak<SimStream>>,
    waited_for_nodes: Duration,
}

/// A stream of a client.
struct SimStream {
    number: StreamNumber,
    /// To the agent, not to a node.
    is_local: bool,
    state: Mutex<StreamState>,
}

enum StreamState {
    Connecting(BoxFuture<'static, io::Result<(PipeReader, PipeWriter)>>),
    Open(PipeReader, PipeWriter),
    Failed(io::ErrorKind),
}

/// A stream in the hands of the client.
struct ClientSide {
    stream: Arc<SimStream>,
    shared: Arc<Shared>,
    /// `None`: reads and writes do not block.
    slice: Mutex<Option<Duration>>,
}

impl WorldEnvironment {
    /// The environment of a client on this host, which may also reach the agent of its job.
    pub fn new(
        turns: Arc<Turns>,
        network: Network,
        host: HostId,
        agent: LocalAgent,
        random: Rng,
    ) -> Self {
        let shared = Arc::new(Shared { turns, network, host, state: Mutex::default() });
        Self { shared, agent, random: Mutex::new(random) }
    }

    /// The time that the client has waited for nodes since the last call.
    pub fn take_waited_for_nodes(&self) -> Duration {
        std::mem::take(&mut self.shared.state.lock().waited_for_nodes)
    }
}

impl fmt::Debug for WorldEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorldEnvironment of {:?}", self.shared.host)
    }
}

impl ClientEnvironment for WorldEnvironment {
    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }

    fn sleep(&self, pause: Duration) {
        let (network, host) = (self.shared.network.clone(), self.shared.host);
        // After the end of the world no time passes.
        let _ = self.shared.turns.wait_for(async move {
            sleep(pause).await;
            sleep_until(network.paused_until(host)).await;
        });
    }

    fn random(&self) -> u64 {
        self.random.lock().u64(..)
    }

    fn connect(&self, endpoint: &Endpoint) -> Result<Connecting, ClientError> {
        let node = host_of(endpoint);
        let connect: BoxFuture<'static, _> = if let Some(to) = node {
            let (network, host) = (self.shared.network.clone(), self.shared.host);
            Box::pin(async move { network.connect(host, to, Peer::Tcp).await })
        } else {
            let agent = self.agent.clone();
            Box::pin(async move { agent.connect() })
        };
        let mut state = self.shared.state.lock();
        state.last_number += 1;
        let number = StreamNumber(state.last_number);
        let stream = StreamState::Connecting(connect);
        let is_local = node.is_none();
        let stream = Arc::new(SimStream { number, is_local, state: Mutex::new(stream) });
        state.streams.retain(|_, stream| stream.strong_count() > 0);
        state.streams.insert(number, Arc::downgrade(&stream));
        let shared = Arc::clone(&self.shared);
        let side = ClientSide { stream, shared, slice: Mutex::new(None) };
        Ok(Connecting::over_stream(endpoint, Box::new(side)))
    }

    fn wait_any(&self, sockets: &[SocketWait<'_>], timeout: Duration) -> io::Result<()> {
        let mut waits = Vec::with_capacity(sockets.len());
        let state = self.shared.state.lock();
        for SocketWait { socket, is_write } in sockets {
            if let WaitedSocket::Stream(number) = socket
                && let Some(stream) = state.streams.get(number).and_then(Weak::upgrade)
            {
                waits.push((stream, *is_write));
            }
        }
        drop(state);
        self.shared.wait_any(waits, timeout).map(drop)
    }
}

fn ended(_: Ended) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the world has ended")
}

impl Shared {
    /// Waits until one of these is ready. Returns whether one is.
    fn wait_any(&self, waits: Vec<(Arc<SimStream>, bool)>, time: Duration) -> io::Result<bool> {
        let mut context = Context::from_waker(Waker::noop());
        let is_ready = |context: &mut Context<'_>, waits: &[(Arc<SimStream>, bool)]| {
            // All are polled, so that each of them wakes the task.
            let ready = waits.iter().map(|(stream, is_write)| stream.poll(context, *is_write));
            ready.fold(false, |any, ready| any | ready.is_ready())
        };
        if is_ready(&mut context, &waits) {
            return Ok(true);
        }
        let for_nodes = waits.iter().all(|(stream, _)| !stream.is_local);
        let began = Instant::now();
        let (network, host) = (self.network.clone(), self.host);
        let any = poll_fn(
            move |context| {
                if is_ready(context, &waits) { Poll::Ready(()) } else { Poll::Pending }
            },
        );
        let is_ready = self.turns.wait_for(async move {
            let is_ready = timeout(time, any).await.is_ok();
            sleep_until(network.paused_until(host)).await;
            is_ready
        });
        if for_nodes {
            self.state.lock().waited_for_nodes += began.elapsed();
        }
        is_ready.map_err(ended)
    }
}

impl SimStream {
    /// Whether it is connected, or cannot be.
    fn poll_connected(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if let StreamState::Connecting(connecting) = &mut *state {
            match connecting.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok((reader, writer))) => *state = StreamState::Open(reader, writer),
                Poll::Ready(Err(error)) => *state = StreamState::Failed(error.kind()),
            }
        }
        Poll::Ready(match &*state {
            StreamState::Failed(kind) => Err((*kind).into()),
            _ => Ok(()),
        })
    }

    /// Whether a read or write does not have to wait.
    fn poll(&self, context: &mut Context<'_>, is_write: bool) -> Poll<()> {
        if self.poll_connected(context).is_pending() {
            return Poll::Pending;
        }
        match (&mut *self.state.lock(), is_write) {
            (StreamState::Open(reader, _), false) => reader.poll_ready(context),
            (StreamState::Open(_, writer), true) => writer.poll_ready(context),
            _ => Poll::Ready(()),
        }
    }
}

impl ClientSide {
    /// Repeats `act` until it does not have to wait, or a slice is over.
    fn within_slice(
        &self,
        is_write: bool,
        mut act: impl FnMut(
            &mut Context<'_>,
            &mut PipeReader,
            &mut PipeWriter,
        ) -> Poll<io::Result<usize>>,
    ) -> io::Result<usize> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match &mut *self.stream.state.lock() {
                StreamState::Connecting(_) => {}
                StreamState::Failed(kind) => return Err((*kind).into()),
                StreamState::Open(reader, writer) => {
                    if let Poll::Ready(done) = act(&mut context, reader, writer) {
                        return done;
                    }
                }
            }
            let slice = *self.slice.lock();
            let wait = vec![(Arc::clone(&self.stream), is_write)];
            let is_ready = match slice {
                Some(slice) => self.shared.wait_any(wait, slice)?,
                None => false,
            };
            if !is_ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.stream.number.0)
    }
}

impl ClientStream for ClientSide {
    fn number(&self) -> StreamNumber {
        self.stream.number
    }

    fn is_connected(&mut self) -> io::Result<bool> {
        match self.stream.poll_connected(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Ok(false),
            Poll::Ready(connected) => connected.map(|()| true),
        }
    }

    fn set_slice(&self, slice: Duration) -> io::Result<()> {
        *self.slice.lock() = Some(slice);
        Ok(())
    }
}

impl Read for ClientSide {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.within_slice(false, |context, reader, _| {
            let mut into = ReadBuf::new(bytes);
            let poll = Pin::new(reader).poll_read(context, &mut into);
            poll.map_ok(|()| into.filled().len())
        })
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.within_slice(false, |context, reader, _| {
            let mut all = 0;
            for slice in slices.iter_mut().filter(|slice| !slice.is_empty()) {
                let mut into = ReadBuf::new(slice);
                let poll = Pin::new(&mut *reader).poll_read(context, &mut into);
                let read = into.filled().len();
                match poll {
                    Poll::Ready(Ok(())) => all += read,
                    // What was read before the failure comes first.
                    _ if all > 0 => break,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
                if read < slice.len() {
                    break;
                }
            }
            Poll::Ready(Ok(all))
        })
    }
}

impl Write for ClientSide {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.within_slice(true, |context, _, writer| {
            Pin::new(writer).poll_write_vectored(context, slices)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

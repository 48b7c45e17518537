//! Network: hosts, the streams between them, and what happens to those: delay, partitions, pauses,
//! resets.
//!
//! A stream is reliable and in order, as TCP is, so a lost packet is a delay, and reordering is
//! between streams. A partition delays all bytes until it ends, and lets new connections time out.
//! A paused host accepts connections, as its kernel would, and moves no byte.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fastrand::Rng;
use forebay_auth::Credentials;
use forebay_core::{Endpoint, node::pre_auth::Source};
use forebay_transport::{Accepted, Connector, Incoming, Outgoing, Peer};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::pipe::{OpenGuard, Pipe, PipeReader, PipeWriter, Way};

/// Bytes that a stream holds in each direction.
const CAPACITY: usize = 64 << 10;

/// A machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u8);

/// A connection that a host has accepted.
pub struct Arrived {
    /// The stream, with the identity of its peer.
    pub accepted: Accepted<PipeReader, PipeWriter>,
    /// Where it comes from.
    pub source: Source,
}

/// The network of a world.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    delay_max: Duration,
    messages: AtomicU64,
}

struct State {
    random: Rng,
    listening: BTreeMap<HostId, mpsc::UnboundedSender<Arrived>>,
    /// Until when a pair of hosts is partitioned.
    partitions: BTreeMap<(HostId, HostId), Instant>,
    /// Until when a host is paused.
    pauses: BTreeMap<HostId, Instant>,
    streams: Vec<Stream>,
}

struct Stream {
    hosts: (HostId, HostId),
    pipes: [Weak<Pipe>; 2],
    /// The side of the host that accepted it.
    accepted: Weak<()>,
}

/// The way of the bytes from one host to another.
struct Route {
    network: Network,
    from: HostId,
    to: HostId,
}

impl Way for Route {
    fn arrival(&self) -> Instant {
        self.network.0.messages.fetch_add(1, Relaxed);
        Instant::now() + self.network.delay(self.from, self.to)
    }

    fn blocked_until(&self) -> Instant {
        self.network.blocked_until(self.from, self.to)
    }
}

fn pair(a: HostId, b: HostId) -> (HostId, HostId) {
    (a.min(b), a.max(b))
}

impl Network {
    /// A network whose bytes take up to `delay_max`, and rarely 20 times as long.
    pub fn new(random: Rng, delay_max: Duration) -> Self {
        let state = State {
            random,
            listening: BTreeMap::new(),
            partitions: BTreeMap::new(),
            pauses: BTreeMap::new(),
            streams: Vec::new(),
        };
        Self(Arc::new(Shared { state: Mutex::new(state), delay_max, messages: AtomicU64::new(0) }))
    }

    /// Messages that hosts have sent: requests, replies, and pieces of long ones.
    pub fn messages(&self) -> u64 {
        self.0.messages.load(Relaxed)
    }

    /// The delay of bytes that are sent now. There is none within a host.
    fn delay(&self, from: HostId, to: HostId) -> Duration {
        if from == to {
            return Duration::ZERO;
        }
        let random = &mut self.0.state.lock().random;
        let max = self.0.delay_max;
        match random.u8(..) {
            0 => max * 20,
            1..=100 => max.mul_f64(random.f64()),
            _ => Duration::ZERO,
        }
    }

    fn blocked_until(&self, from: HostId, to: HostId) -> Instant {
        let state = self.0.state.lock();
        let partition = state.partitions.get(&pair(from, to));
        let pauses = [from, to].map(|host| state.pauses.get(&host));
        let latest = partition.into_iter().chain(pauses.into_iter().flatten()).max();
        latest.copied().unwrap_or_else(Instant::now)
    }

    /// Accepts connections at a host. Earlier receivers get none any more.
    pub fn listen(&self, host: HostId) -> mpsc::UnboundedReceiver<Arrived> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.state.lock().listening.insert(host, sender);
        receiver
    }

    /// Ends a host: it accepts no connections, and its streams are reset.
    pub fn fail(&self, host: HostId) {
        self.0.state.lock().listening.remove(&host);
        self.reset(|hosts| hosts.0 == host || hosts.1 == host);
    }

    /// Resets the streams between two hosts.
    pub fn cut(&self, a: HostId, b: HostId) {
        self.reset(|hosts| pair(hosts.0, hosts.1) == pair(a, b));
    }

    fn reset(&self, is_meant: impl Fn((HostId, HostId)) -> bool) {
        let mut state = self.0.state.lock();
        state.streams.retain(Stream::is_open);
        let streams = state.streams.iter().filter(|stream| is_meant(stream.hosts));
        let pipes: Vec<Arc<Pipe>> =
            streams.flat_map(|stream| &stream.pipes).filter_map(Weak::upgrade).collect();
        drop(state);
        for pipe in pipes {
            pipe.reset();
        }
    }

    /// Nothing passes between two hosts for this time.
    pub fn partition(&self, a: HostId, b: HostId, lasts: Duration) {
        extend(self.0.state.lock().partitions.entry(pair(a, b)), lasts);
    }

    /// A host stops for this time.
    pub fn pause(&self, host: HostId, lasts: Duration) {
        extend(self.0.state.lock().pauses.entry(host), lasts);
    }

    /// Until when a host is paused.
    pub fn paused_until(&self, host: HostId) -> Instant {
        self.0.state.lock().pauses.get(&host).copied().unwrap_or_else(Instant::now)
    }

    /// Whether a host was paused at some time after this.
    pub fn was_paused_since(&self, host: HostId, since: Instant) -> bool {
        self.0.state.lock().pauses.get(&host).is_some_and(|until| *until > since)
    }

    /// Ends all partitions and pauses.
    pub fn heal(&self) {
        let mut state = self.0.state.lock();
        state.partitions.clear();
        state.pauses.clear();
    }

    /// Connections that a host has accepted and not closed, in either direction.
    pub fn open_at(&self, host: HostId) -> usize {
        let mut state = self.0.state.lock();
        state.streams.retain(Stream::is_open);
        let is_open =
            |stream: &&Stream| stream.hosts.1 == host && stream.accepted.strong_count() > 0;
        state.streams.iter().filter(is_open).count()
    }

    /// Connects to a host, as `peer`.
    pub async fn connect(
        &self,
        from: HostId,
        to: HostId,
        peer: Peer,
    ) -> io::Result<(PipeReader, PipeWriter)> {
        sleep(self.delay(from, to)).await;
        let partition = self.0.state.lock().partitions.get(&pair(from, to)).copied();
        if let Some(until) = partition {
            sleep_until(until).await;
        }
        let way =
            |from, to| -> Arc<dyn Way> { Arc::new(Route { network: self.clone(), from, to }) };
        let there = Pipe::new(way(from, to), CAPACITY);
        let back = Pipe::new(way(to, from), CAPACITY);
        let (near, far) = (OpenGuard::default(), OpenGuard::default());
        let ends = (back.reader(Arc::clone(&near)), there.writer(near));
        let accepted =
            Accepted::new(peer, there.reader(Arc::clone(&far)), back.writer(Arc::clone(&far)));
        let stream = Stream {
            hosts: (from, to),
            pipes: [Arc::downgrade(&there), Arc::downgrade(&back)],
            accepted: Arc::downgrade(&far),
        };
        drop(far);
        let source = source_of(from);
        let mut state = self.0.state.lock();
        let listening = state.listening.get(&to).cloned();
        state.streams.push(stream);
        drop(state);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listening = listening.ok_or_else(refused)?;
        listening.send(Arrived { accepted, source }).map_err(|_| refused())?;
        Ok(ends)
    }
}

/// Sets the end of a fault that begins now. An earlier one may last longer.
fn extend<K: Ord>(end: Entry<'_, K, Instant>, lasts: Duration) {
    let until = Instant::now() + lasts;
    end.and_modify(|end| *end = until.max(*end)).or_insert(until);
}

impl Stream {
    fn is_open(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.strong_count() > 0)
    }
}

/// The address of a host.
pub fn source_of(host: HostId) -> Source {
    Source::from(IpAddr::from(Ipv4Addr::new(10, 0, 0, host.0)))
}

/// The endpoint of a host.
pub fn endpoint_of(host: HostId) -> Endpoint {
    format!("tcp://host-{}:7440", host.0).parse().expect("an endpoint")
}

/// The host of an endpoint. `None` for the agent on the machine of a job.
pub fn host_of(endpoint: &Endpoint) -> Option<HostId> {
    match endpoint {
        Endpoint::Tcp(address) => Some(HostId(address.host().strip_prefix("host-")?.parse().ok()?)),
        Endpoint::Unix(_) | Endpoint::Tls(_) => None,
    }
}

/// Connects from one host, over TCP.
pub struct HostConnector {
    /// The network.
    pub network: Network,
    /// The host.
    pub host: HostId,
}

impl Connector for HostConnector {
    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        _credentials: &'a Credentials,
        timeout_after: Duration,
    ) -> BoxFuture<'a, io::Result<(Incoming, Outgoing)>> {
        Box::pin(async move {
            let to = host_of(endpoint).ok_or(io::ErrorKind::InvalidInput)?;
            let connect = self.network.connect(self.host, to, Peer::Tcp);
            let (reader, writer) = timeout(timeout_after, connect).await??;
            Ok::<(Incoming, Outgoing), io::Error>((Box::new(reader), Box::new(writer)))
        })
    }
}

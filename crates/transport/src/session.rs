//! Connections: frames in, requests to a service, replies out.
//!
//! A node and an agent speak the same wire, so this is all they share: who may connect, the hello, the
//! limits, and a writer that a slow reader holds up without anything growing. What requests mean is for
//! the [`Service`].

use std::{
    future::Future, io, os::fd::OwnedFd, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use bytes::{Bytes, BytesMut};
use forebay_core::patience::STALLED;
use forebay_wire::{BATCH_MAX, ErrorCode, HEADER_SIZE, Header, Refusal, Reply, Request, VERSIONS};
use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    peer::{Accepted, Inlet, Outlet, Peer},
    writer::{Outgoing, write},
};

/// Bytes of payload that may wait for one slow reader: two of the largest.
pub(crate) const PAYLOAD_IN_FLIGHT: usize = 32 << 20;
/// Replies that may wait for one slow reader.
const REPLIES_IN_FLIGHT: usize = 256;
/// Ranges of one connection that may be under way, and as how many of them a get counts at least; the next get
/// waits to be read from the socket.
const RANGES_IN_FLIGHT: usize = BATCH_MAX;
const RANGES_PER_GET: usize = 1024;
/// A longer reply needs room as payloads do.
const SHORT: usize = 4 << 10;
/// Ranges of one connection that may wait for somebody's fetch; for the next, the wait is over at once.
const WAITS_MAX: usize = 4096;
/// Whoever connects says hello within this.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(20);
/// Space beyond this is taken as bytes arrive, not when they are announced.
const READ_AHEAD: usize = 256 << 10;
/// What is read at once, so that a short frame costs one look at the socket. Long bodies go past it.
pub const READ_BEHIND: usize = 4 << 10;

/// What requests mean.
pub trait Service: Send + Sync + 'static {
    /// What is kept for a connection.
    type Session: Send;

    /// How long a claim lives without being renewed.
    fn lease(&self) -> Duration;

    /// Somebody has said hello, and is let in or not.
    fn connected(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
    ) -> Result<Self::Session, Refusal>;

    /// Answers a request; what takes long is answered later, from a task of its own.
    fn handle(
        self: &Arc<Self>,
        session: &mut Self::Session,
        request: Request,
        replies: Replies,
    ) -> impl Future<Output = ()> + Send;

    /// Completes when connections are to end, once their replies have left.
    fn closing(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The connection has ended.
    fn gone(self: &Arc<Self>, session: Self::Session) -> impl Future<Output = ()> + Send;
}

/// Where the answers to one request go.
#[derive(Clone)]
pub struct Replies {
    id: u64,
    connection: Arc<Connection>,
}

/// What all requests of one connection share.
struct Connection {
    frames: mpsc::Sender<Outgoing>,
    bytes: Arc<Semaphore>,
    ranges: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    /// Its other end is dropped when nothing more will be read.
    gone: watch::Receiver<()>,
}

/// Room for a payload that has not been read yet, and a place in the queue for it.
pub struct Room {
    bytes: OwnedSemaphorePermit,
    place: mpsc::OwnedPermit<Outgoing>,
}

impl Replies {
    /// Sends a reply without a payload. That the other side is gone is noticed elsewhere.
    pub async fn send(&self, reply: &Reply) {
        let frame = reply.encode(self.id);
        if frame.head.len() > SHORT {
            if let Some(Room { bytes, place }) = self.room_for(frame.head.len()).await {
                place.send(Outgoing { frame, descriptor: None, _room: Some(bytes) });
            }
            return;
        }
        self.queue(Outgoing { frame, descriptor: None, _room: None }).await;
    }

    /// Sends a reply with a descriptor beside it, to a client of this machine.
    pub(crate) async fn send_with(&self, reply: &Reply, descriptor: OwnedFd) {
        let descriptor = Some(descriptor);
        self.queue(Outgoing { frame: reply.encode(self.id), descriptor, _room: None }).await;
    }

    async fn queue(&self, outgoing: Outgoing) {
        let _ = self.connection.frames.send(outgoing).await;
    }

    /// Refuses the request.
    pub async fn refuse(&self, code: ErrorCode, text: impl Into<String>) {
        self.send(&Reply::Error(Refusal { code, text: text.into() })).await;
    }

    /// Waits until a payload of this length may be brought into memory. Nothing, if nobody reads any more.
    pub async fn room_for(&self, length: usize) -> Option<Room> {
        // Bytes first: whoever has a place in the queue waits for nothing, so that it always empties.
        let bytes = Arc::clone(&self.connection.bytes).acquire_many_owned(permits(length)).await;
        let place = self.connection.frames.clone().reserve_owned().await.ok()?;
        Some(Room { bytes: bytes.expect("never closed"), place })
    }

    /// The same, if there is no need to wait.
    pub fn try_room_for(&self, length: usize) -> Option<Room> {
        let bytes = Arc::clone(&self.connection.bytes).try_acquire_many_owned(permits(length));
        let place = self.connection.frames.clone().try_reserve_owned().ok()?;
        Some(Room { bytes: bytes.ok()?, place })
    }

    /// Sends a reply whose payload there was room for.
    pub fn send_payload(&self, reply: &Reply, room: Room) {
        let (frame, Room { bytes, place }) = (reply.encode(self.id), room);
        place.send(Outgoing { frame, descriptor: None, _room: Some(bytes) });
    }

    /// Waits until another get of so many ranges may be under way; it is, until the permit is dropped.
    pub async fn begin_get(&self, ranges: usize) -> OwnedSemaphorePermit {
        let counted = ranges.clamp(RANGES_PER_GET, RANGES_IN_FLIGHT);
        let counted = u32::try_from(counted).expect("a batch is short");
        let taken = Arc::clone(&self.connection.ranges).acquire_many_owned(counted).await;
        taken.expect("never closed")
    }

    /// A place for one more range that waits, if there is one.
    pub fn begin_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connection.waits).try_acquire_owned().ok()
    }

    /// Completes when nothing more will be read from the other side.
    pub async fn gone(&self) {
        let mut gone = self.connection.gone.clone();
        while gone.changed().await.is_ok() {}
    }
}

/// A payload larger than all the room there is takes all of it.
fn permits(length: usize) -> u32 {
    u32::try_from(length.clamp(1, PAYLOAD_IN_FLIGHT)).expect("limits fit")
}

/// A challenge that nobody has seen before; nothing, if the system has no randomness.
pub fn fresh_nonce() -> Option<[u8; 32]> {
    let mut nonce = [0; 32];
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    (filled == Ok(nonce.len())).then_some(nonce)
}

/// Says that there are too many, to somebody who will not be served. Closing at once would break off what they
/// are still saying, and they might see that instead of the reason; so they are heard first, for a moment, if
/// `leaving` are not too many themselves.
pub fn turn_away(
    leaving: &mut JoinSet<()>,
    mut socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    const HEARD: Duration = Duration::from_secs(1);
    const LEAVING_MAX: usize = 64;
    while leaving.try_join_next().is_some() {}
    if leaving.len() >= LEAVING_MAX {
        return;
    }
    let text = "too many are connected; close some, or raise `connections`".to_owned();
    let refusal = Reply::Error(Refusal { code: ErrorCode::TooMuch, text }).encode(0).to_bytes();
    leaving.spawn(async move {
        let last_words = async {
            socket.write_all(&refusal).await?;
            socket.read(&mut [0; READ_BEHIND]).await
        };
        // Whether they have understood is their affair.
        let _ = timeout(HEARD, last_words).await;
    });
}

/// Serves one connection until it ends. What is held for it as long as nobody knows who it is, is dropped when
/// it has been let in.
pub async fn serve<S: Service>(
    service: Arc<S>,
    accepted: Accepted<impl Inlet, impl Outlet>,
    stranger: impl Send,
) -> io::Result<()> {
    let Accepted { peer, reader, writer } = accepted;
    let mut reader = BufReader::with_capacity(READ_BEHIND, reader);
    let (frames, outgoing) = mpsc::channel(REPLIES_IN_FLIGHT);
    let writer = tokio::spawn(write(outgoing, writer));
    let (here, gone) = watch::channel(());
    let connection = Arc::new(Connection {
        frames,
        bytes: Arc::new(Semaphore::new(PAYLOAD_IN_FLIGHT)),
        ranges: Arc::new(Semaphore::new(RANGES_IN_FLIGHT)),
        waits: Arc::new(Semaphore::new(WAITS_MAX)),
        gone,
    });
    let mut session = None;
    let talk = async {
        let greeted = greet(&service, &peer, stranger, &mut session, &mut reader, &connection);
        if timeout(HELLO_WITHIN, greeted).await?? {
            converse(&service, &mut session, &mut reader, &connection).await?;
        }
        Ok(())
    };
    // Whatever goes wrong with one, the others must not pay for what it held.
    let talked = AssertUnwindSafe(talk).catch_unwind().await;
    drop(here);
    if let Some(session) = session {
        service.gone(session).await;
    }
    // Replies under way keep the channel open; the writer ends when the last of them has left.
    drop(connection);
    let _ = writer.await;
    talked.unwrap_or_else(|_| Err(io::Error::other("serving it panicked")))
}

/// Takes the hello. Whether there is more to be said.
async fn greet<S: Service>(
    service: &Arc<S>,
    peer: &Peer,
    stranger: impl Send,
    session: &mut Option<S::Session>,
    reader: &mut impl Inlet,
    connection: &Arc<Connection>,
) -> io::Result<bool> {
    let Some((request, replies)) = next_request(reader, connection).await? else {
        return Ok(false);
    };
    let Request::Hello { version_min, version_max, job, token } = request else {
        let text = "a connection begins with hello";
        replies.refuse(ErrorCode::Malformed, text).await;
        return Ok(false);
    };
    let (oldest, newest) = VERSIONS;
    if version_min > newest || version_max < oldest {
        let text = format!(
            "you speak versions {version_min} to {version_max}, this node {oldest} to {newest}; install the \
             same forebay on both sides"
        );
        replies.refuse(ErrorCode::Version, text).await;
        return Ok(false);
    }
    match service.connected(peer, &job, &token.0) {
        Ok(begun) => {
            *session = Some(begun);
            // Before anything else is awaited: whatever has begun is ended in order.
            drop(stranger);
        }
        Err(refusal) => {
            replies.send(&Reply::Error(refusal)).await;
            return Ok(false);
        }
    }
    let lease_ms = u32::try_from(service.lease().as_millis()).unwrap_or(u32::MAX);
    replies.send(&Reply::Hello { version: newest.min(version_max), lease_ms }).await;
    Ok(true)
}

/// Takes requests until there are no more.
async fn converse<S: Service>(
    service: &Arc<S>,
    session: &mut Option<S::Session>,
    reader: &mut impl Inlet,
    connection: &Arc<Connection>,
) -> io::Result<()> {
    let session = session.as_mut().expect("greeted");
    loop {
        let next = tokio::select! {
            next = next_request(reader, connection) => next?,
            () = service.closing() => return Ok(()),
        };
        let Some((request, replies)) = next else { return Ok(()) };
        if matches!(request, Request::Hello { .. }) {
            replies.refuse(ErrorCode::Malformed, "a connection says hello once").await;
            return Ok(());
        }
        service.handle(session, request, replies).await;
    }
}

/// The next request, and where its answers go; nothing, if there are no more. Whoever says something that makes
/// no sense is told so, and heard no more.
async fn next_request(
    reader: &mut impl Inlet,
    connection: &Arc<Connection>,
) -> io::Result<Option<(Request, Replies)>> {
    let replies = |id| Replies { id, connection: Arc::clone(connection) };
    let incoming = tokio::select! {
        incoming = read_frame(reader) => incoming?,
        // Nobody takes the answers any more.
        () = connection.frames.closed() => return Ok(None),
    };
    let (id, problem) = match incoming {
        Incoming::Frame(header, body) => match Request::decode(&header, &body) {
            Ok(request) => return Ok(Some((request, replies(header.id)))),
            Err(problem) => (header.id, problem),
        },
        Incoming::End => return Ok(None),
        Incoming::Nonsense(problem) => (0, problem),
    };
    replies(id).refuse(ErrorCode::Malformed, problem.to_string()).await;
    Ok(None)
}

enum Incoming {
    Frame(Header, Bytes),
    End,
    Nonsense(forebay_wire::Malformed),
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Incoming> {
    let mut header = [0; HEADER_SIZE];
    // A connection that ends between frames has simply ended, and may rest there.
    if reader.read(&mut header[..1]).await? == 0 {
        return Ok(Incoming::End);
    }
    timeout(STALLED, read_rest(reader, header)).await?
}

async fn read_rest(
    reader: &mut (impl AsyncRead + Unpin),
    mut header: [u8; HEADER_SIZE],
) -> io::Result<Incoming> {
    reader.read_exact(&mut header[1..]).await?;
    let header = match Header::decode(&header) {
        Ok(header) => header,
        Err(problem) => return Ok(Incoming::Nonsense(problem)),
    };
    let mut body = BytesMut::with_capacity(header.body_size.min(READ_AHEAD));
    let mut rest = reader.take(header.body_size as u64);
    while body.len() < header.body_size {
        if rest.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Incoming::Frame(header, body.freeze()))
}

//! Session: serves one connection. Reads frames, passes requests to a [`Service`], writes replies.
//!
//! The session does the hello, and enforces limits per connection: bytes and replies in flight,
//! ranges in flight, waits. A client that reads slowly fills its own queue; then the session stops
//! reading its requests, and memory does not grow (promise 6).
//!
//! Not here: the handling of requests, which is the [`Service`]'s.

use std::{
    future::Future, io, os::fd::OwnedFd, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use bytes::{Bytes, BytesMut};
use forebay_core::cluster::backoff::STALL_TIMEOUT;
use forebay_wire::{BATCH_MAX, ErrorCode, HEADER_SIZE, Header, Refusal, Reply, Request, VERSIONS};
use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    peer::{Accepted, Peer, ReadHalf, WriteHalf},
    writer::{QueuedFrame, write},
};

/// Payload bytes in flight to one client: two of the longest payloads.
pub const PAYLOAD_IN_FLIGHT: usize = 32 << 20;
/// Replies in flight to one client.
const REPLIES_IN_FLIGHT: usize = 256;
/// Ranges in flight on one connection. At the limit the next get is not read from the socket.
const RANGES_IN_FLIGHT: usize = BATCH_MAX;
/// Ranges that a get counts as at least, so that small gets are limited as well.
const RANGES_PER_GET_MIN: usize = 1024;
/// Longest reply that needs no [`ReplySpace`].
const SHORT_REPLY_MAX: usize = 4 << 10;
/// Ranges of one connection that wait for a claimed blob. Further ones are answered `claimed` at
/// once.
const WAITS_MAX: usize = 4096;
/// Longest time from accepting a connection to its hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// Memory that is allocated for an announced body. Beyond it, memory grows as bytes arrive.
const BODY_PREALLOCATED_MAX: usize = 256 << 10;
/// Size of the read buffer, so that a short frame costs one system call. Long bodies bypass it.
pub const READ_BUFFER_SIZE: usize = 4 << 10;

/// Handles the requests of all connections.
pub trait Service: Send + Sync + 'static {
    /// State of one connection.
    type Session: Send;

    /// Time after which a claim expires unless it is renewed.
    fn lease(&self) -> Duration;

    /// A client has sent its hello. Returns its session, or the reason to reject it.
    fn on_hello(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
    ) -> Result<Self::Session, Refusal>;

    /// Answers a request. A slow answer is sent later, from a task of its own.
    fn handle(
        self: &Arc<Self>,
        session: &mut Self::Session,
        request: Request,
        replies: Replies,
    ) -> impl Future<Output = ()> + Send;

    /// Completes when the service closes its connections. Queued replies are still sent.
    fn closing(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The connection has ended.
    fn on_disconnect(self: &Arc<Self>, session: Self::Session) -> impl Future<Output = ()> + Send;
}

/// Sends the replies to one request.
#[derive(Clone)]
pub struct Replies {
    id: u64,
    connection: Arc<Connection>,
}

/// State that all requests of one connection share.
struct Connection {
    frames: mpsc::Sender<QueuedFrame>,
    bytes: Arc<Semaphore>,
    ranges: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    /// Its sender is dropped when no more requests will be read.
    ended: watch::Receiver<()>,
}

/// Reserved space for one payload: its bytes, and a slot in the queue of replies. It is taken
/// before the payload is read from the device.
pub struct ReplySpace {
    bytes: OwnedSemaphorePermit,
    slot: mpsc::OwnedPermit<QueuedFrame>,
}

impl Replies {
    /// Sends a reply without a payload. If the connection has ended, the reply is dropped.
    pub async fn send(&self, reply: &Reply) {
        let frame = reply.encode(self.id);
        if frame.head.len() > SHORT_REPLY_MAX {
            if let Some(ReplySpace { bytes, slot }) = self.reserve(frame.head.len()).await {
                slot.send(QueuedFrame { frame, descriptor: None, _bytes: Some(bytes) });
            }
            return;
        }
        self.queue(QueuedFrame { frame, descriptor: None, _bytes: None }).await;
    }

    /// Sends a reply with a file descriptor, over a Unix socket.
    pub async fn send_with(&self, reply: &Reply, descriptor: OwnedFd) {
        let descriptor = Some(descriptor);
        self.queue(QueuedFrame { frame: reply.encode(self.id), descriptor, _bytes: None }).await;
    }

    async fn queue(&self, frame: QueuedFrame) {
        let _ = self.connection.frames.send(frame).await;
    }

    /// Refuses the request.
    pub async fn refuse(&self, code: ErrorCode, text: impl Into<String>) {
        self.send(&Reply::Error(Refusal { code, text: text.into() })).await;
    }

    /// Waits until a payload of this length may be brought into memory. `None` if the connection
    /// has ended.
    pub async fn reserve(&self, length: usize) -> Option<ReplySpace> {
        // Bytes first: the holder of a slot then waits for nothing, so the queue always drains.
        let bytes = Arc::clone(&self.connection.bytes).acquire_many_owned(permits(length)).await;
        let slot = self.connection.frames.clone().reserve_owned().await.ok()?;
        Some(ReplySpace { bytes: bytes.expect("never closed"), slot })
    }

    /// Like [`Replies::reserve`], without waiting. `None` if there is no space now.
    pub fn try_reserve(&self, length: usize) -> Option<ReplySpace> {
        let bytes = Arc::clone(&self.connection.bytes).try_acquire_many_owned(permits(length));
        let slot = self.connection.frames.clone().try_reserve_owned().ok()?;
        Some(ReplySpace { bytes: bytes.ok()?, slot })
    }

    /// Sends a reply with a payload for which space was reserved.
    pub fn send_payload(&self, reply: &Reply, space: ReplySpace) {
        let (frame, ReplySpace { bytes, slot }) = (reply.encode(self.id), space);
        slot.send(QueuedFrame { frame, descriptor: None, _bytes: Some(bytes) });
    }

    /// Waits until a get with this number of ranges may start. The permit counts it as in flight.
    pub async fn begin_get(&self, ranges: usize) -> OwnedSemaphorePermit {
        let counted = ranges.clamp(RANGES_PER_GET_MIN, RANGES_IN_FLIGHT);
        let counted = u32::try_from(counted).expect("a batch is short");
        let permit = Arc::clone(&self.connection.ranges).acquire_many_owned(counted).await;
        permit.expect("never closed")
    }

    /// Permit for one range to wait for a claimed blob, or `None` at the limit.
    pub fn begin_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connection.waits).try_acquire_owned().ok()
    }

    /// Completes when no more requests will be read from the connection.
    pub async fn disconnected(&self) {
        let mut ended = self.connection.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

/// A payload longer than the limit takes all permits.
fn permits(length: usize) -> u32 {
    u32::try_from(length.clamp(1, PAYLOAD_IN_FLIGHT)).expect("limits fit")
}

/// A random nonce, or `None` if cannot read random bytes from the kernel.
pub fn fresh_nonce() -> Option<[u8; 32]> {
    let mut nonce = [0; 32];
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    (filled == Ok(nonce.len())).then_some(nonce)
}

/// Rejects a connection because there are too many. The refusal is sent from a task in `rejected`,
/// which also reads the client's hello: if the socket were closed with unread data, the client
/// would see a reset instead of the refusal. With too many tasks in `rejected` the socket is closed
/// at once.
pub fn reject(
    rejected: &mut JoinSet<()>,
    mut socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    const REJECT_TIMEOUT: Duration = Duration::from_secs(1);
    const REJECTED_MAX: usize = 64;
    while rejected.try_join_next().is_some() {}
    if rejected.len() >= REJECTED_MAX {
        return;
    }
    let text = "too many connections; close some, or raise `max_connections`".to_owned();
    let refusal = Reply::Error(Refusal { code: ErrorCode::TooMuch, text }).encode(0).to_bytes();
    rejected.spawn(async move {
        let refuse = async {
            socket.write_all(&refusal).await?;
            socket.read(&mut [0; READ_BUFFER_SIZE]).await
        };
        // The connection is closed in any case.
        let _ = timeout(REJECT_TIMEOUT, refuse).await;
    });
}

/// Serves one connection until it ends. `pre_auth` is dropped when the client has authenticated.
pub async fn serve<S: Service>(
    service: Arc<S>,
    accepted: Accepted<impl ReadHalf, impl WriteHalf>,
    pre_auth: impl Send,
) -> io::Result<()> {
    let Accepted { peer, reader, writer } = accepted;
    let mut reader = BufReader::with_capacity(READ_BUFFER_SIZE, reader);
    let (frames, queue) = mpsc::channel(REPLIES_IN_FLIGHT);
    let writer = tokio::spawn(write(queue, writer));
    let (alive, ended) = watch::channel(());
    let connection = Arc::new(Connection {
        frames,
        bytes: Arc::new(Semaphore::new(PAYLOAD_IN_FLIGHT)),
        ranges: Arc::new(Semaphore::new(RANGES_IN_FLIGHT)),
        waits: Arc::new(Semaphore::new(WAITS_MAX)),
        ended,
    });
    let mut session = None;
    let requests = async {
        let hello = authenticate(&service, &peer, pre_auth, &mut session, &mut reader, &connection);
        if timeout(HELLO_TIMEOUT, hello).await?? {
            serve_requests(&service, &mut session, &mut reader, &connection).await?;
        }
        Ok(())
    };
    // After a panic the session's claims and permits must still be released.
    let outcome = AssertUnwindSafe(requests).catch_unwind().await;
    drop(alive);
    if let Some(session) = session {
        service.on_disconnect(session).await;
    }
    // Replies in progress keep the channel open; the writer ends after the last of them.
    drop(connection);
    let _ = writer.await;
    outcome.unwrap_or_else(|_| Err(io::Error::other("the session panicked")))
}

/// Reads the hello and authenticates the client. Returns whether it is accepted.
async fn authenticate<S: Service>(
    service: &Arc<S>,
    peer: &Peer,
    pre_auth: impl Send,
    session: &mut Option<S::Session>,
    reader: &mut impl ReadHalf,
    connection: &Arc<Connection>,
) -> io::Result<bool> {
    let Some((request, replies)) = next_request(reader, connection).await? else {
        return Ok(false);
    };
    let Request::Hello { version_min, version_max, job, token } = request else {
        let text = "the first request must be hello";
        replies.refuse(ErrorCode::Malformed, text).await;
        return Ok(false);
    };
    let (oldest, newest) = VERSIONS;
    if version_min > newest || version_max < oldest {
        let text = format!(
            "the client supports versions {version_min} to {version_max}, this node {oldest} to \
             {newest}; install the same forebay on both sides"
        );
        replies.refuse(ErrorCode::Version, text).await;
        return Ok(false);
    }
    match service.on_hello(peer, &job, &token.0) {
        Ok(accepted) => {
            *session = Some(accepted);
            // Before the next await: an evicted pre-auth connection is aborted, and a session that
            // has begun must not be.
            drop(pre_auth);
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

/// Passes requests to the service until the connection ends.
async fn serve_requests<S: Service>(
    service: &Arc<S>,
    session: &mut Option<S::Session>,
    reader: &mut impl ReadHalf,
    connection: &Arc<Connection>,
) -> io::Result<()> {
    let session = session.as_mut().expect("authenticated");
    loop {
        let next = tokio::select! {
            next = next_request(reader, connection) => next?,
            () = service.closing() => return Ok(()),
        };
        let Some((request, replies)) = next else { return Ok(()) };
        if matches!(request, Request::Hello { .. }) {
            replies.refuse(ErrorCode::Malformed, "hello must be sent once").await;
            return Ok(());
        }
        service.handle(session, request, replies).await;
    }
}

/// The next request and the sender of its replies, or `None` at the end of the connection. A
/// malformed request is refused and ends the connection.
async fn next_request(
    reader: &mut impl ReadHalf,
    connection: &Arc<Connection>,
) -> io::Result<Option<(Request, Replies)>> {
    let replies = |id| Replies { id, connection: Arc::clone(connection) };
    let received = tokio::select! {
        received = read_frame(reader) => received?,
        // The writer has given up: no reply could be sent.
        () = connection.frames.closed() => return Ok(None),
    };
    let (id, problem) = match received {
        Received::Frame(header, body) => match Request::decode(&header, &body) {
            Ok(request) => return Ok(Some((request, replies(header.id)))),
            Err(problem) => (header.id, problem),
        },
        Received::End => return Ok(None),
        Received::Malformed(problem) => (0, problem),
    };
    replies(id).refuse(ErrorCode::Malformed, problem.to_string()).await;
    Ok(None)
}

enum Received {
    Frame(Header, Bytes),
    End,
    Malformed(forebay_wire::Malformed),
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Received> {
    let mut header = [0; HEADER_SIZE];
    // Between frames a connection may be idle without limit, and may end.
    if reader.read(&mut header[..1]).await? == 0 {
        return Ok(Received::End);
    }
    timeout(STALL_TIMEOUT, read_rest(reader, header)).await?
}

async fn read_rest(
    reader: &mut (impl AsyncRead + Unpin),
    mut header: [u8; HEADER_SIZE],
) -> io::Result<Received> {
    reader.read_exact(&mut header[1..]).await?;
    let header = match Header::decode(&header) {
        Ok(header) => header,
        Err(problem) => return Ok(Received::Malformed(problem)),
    };
    let mut body = BytesMut::with_capacity(header.body_size.min(BODY_PREALLOCATED_MAX));
    let mut rest = reader.take(header.body_size as u64);
    while body.len() < header.body_size {
        if rest.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Received::Frame(header, body.freeze()))
}

//! Session: serves one connection. Reads frames, passes requests to a [`Service`], writes replies.
//!
//! The session does the hello, and enforces limits per connection: bytes and replies in flight,
//! ranges in flight, waits. A client that reads slowly fills its own queue; then the session stops
//! reading its requests, and memory does not grow (promise 6). All connections together are limited
//! by [`ConnectionMemory`].
//!
//! The slot of a connection is held until both directions have ended. After the client has stopped
//! sending, it has to read on: otherwise its queued replies are dropped.
//!
//! Every `select!` is biased: the order of its branches decides, not a random number, so that a
//! simulated world can repeat a run.
//!
//! Not here: the handling of requests, which is the [`Service`]'s.

use std::{
    future::Future, io, os::fd::OwnedFd, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use bytes::{Bytes, BytesMut};
use forebay_core::{cluster::backoff::STALL_TIMEOUT, node::byte_budget::ShareId};
use forebay_wire::{
    BATCH_MAX, BODY_SIZE_MAX, ErrorCode, HEADER_SIZE, HELLO_SIZE_MAX, Header, Malformed, Refusal,
    Reply, Request, VERSIONS,
};
use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};

use crate::{
    Latch,
    memory::{Account, BudgetPermit, ConnectionMemory},
    peer::{Accepted, Peer, ReadHalf, WriteHalf},
    writer::{QueuedFrame, write},
};

/// Payload bytes in flight to one client at most: two of the longest payloads. Less if the memory
/// for connections is small.
const PAYLOAD_IN_FLIGHT: usize = 32 << 20;
/// Replies in flight to one client.
const REPLIES_IN_FLIGHT: usize = 256;
/// Ranges in flight on one connection. At the limit the next get is not read from the socket.
const RANGES_IN_FLIGHT: usize = BATCH_MAX;
/// Ranges that a get counts as at least, so that small gets are limited as well.
const RANGES_PER_GET_MIN: usize = 1024;
/// Longest reply that needs no space of its own: the queue of replies bounds them.
const SHORT_REPLY_MAX: usize = 512;
/// Longest request that needs no space of its own.
const SHORT_REQUEST_MAX: usize = 4 << 10;
/// Requests up to this length may be lists, which take up to `DECODED_FACTOR` times their memory
/// when they are decoded.
const LIST_SIZE_MAX: usize = 4 << 20;
const DECODED_FACTOR: usize = 5;
/// Memory of one connection besides requests and replies: its tasks, buffers and short replies.
pub const CONNECTION_OVERHEAD: usize = REPLIES_IN_FLIGHT * (SHORT_REPLY_MAX + 128) + (32 << 10);
/// Ranges of one connection that wait for a claimed blob. Further ones are answered `claimed` at
/// once.
const WAITS_MAX: usize = 4096;
/// Longest time from accepting a connection to its hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// After the end of its requests a client has to read [`DRAIN_BYTES_MIN`] within each of these.
const DRAIN_WINDOW: Duration = Duration::from_secs(5);
/// Bytes that a client reads per [`DRAIN_WINDOW`] at least.
const DRAIN_BYTES_MIN: u64 = 64 << 10;
/// Memory that is allocated for an announced body. Beyond it, memory grows as bytes arrive.
const BODY_PREALLOCATED_MAX: usize = 256 << 10;
/// Size of the read buffer, so that a short frame costs one system call. Long bodies bypass it.
pub const READ_BUFFER_SIZE: usize = 4 << 10;

/// Handles the requests of all connections.
pub trait Service: Send + Sync + 'static {
    /// State of one connection.
    type Session: Send;
    /// The slot of one connection, held until both directions have ended.
    type Slot: Send + 'static;

    /// Memory for the requests and replies of all connections.
    fn memory(&self) -> &Arc<ConnectionMemory>;

    /// The tenant whose share of the memory a connection uses.
    fn share(&self, session: &Self::Session) -> ShareId;

    /// Time after which a claim expires unless it is renewed.
    fn lease(&self) -> Duration;

    /// A client has sent its hello. Returns its session, or the reason to reject it.
    fn on_hello(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
        slot: &mut Self::Slot,
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
    /// Space of the request, until its handler has returned or a get has ended.
    request: Arc<Mutex<Option<BudgetPermit>>>,
}

/// State that all requests of one connection share.
struct Connection {
    frames: mpsc::Sender<QueuedFrame>,
    account: Arc<Account>,
    /// Of `bytes_max`, those that this connection may still take.
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    ranges: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    /// Set when no more requests will be read.
    ended: Arc<Latch>,
}

/// Reserved space for one payload: its bytes, and a slot in the queue of replies. It is taken
/// before the payload is read from the device.
pub struct ReplySpace {
    bytes: FrameBytes,
    slot: mpsc::OwnedPermit<QueuedFrame>,
    account: Arc<Account>,
}

impl ReplySpace {
    /// A payload that was read into a buffer of a device: copied if the replies that wait keep many
    /// buffers already, so that clients that read slowly do not take all of them.
    pub fn detach(&mut self, payload: Bytes) -> Bytes {
        self.bytes.borrowed = self.account.try_borrow(payload.len());
        if self.bytes.borrowed.is_some() { payload } else { Bytes::copy_from_slice(&payload) }
    }
}

/// The bytes of a frame, of its connection and of all connections.
pub(crate) struct FrameBytes {
    _connection: OwnedSemaphorePermit,
    /// `None` for a short payload.
    _all: Option<BudgetPermit>,
    /// `None` for a payload that is not in a buffer of a device.
    borrowed: Option<OwnedSemaphorePermit>,
}

/// Counts a get as in flight.
pub struct GetPermit {
    _ranges: OwnedSemaphorePermit,
    _request: Option<BudgetPermit>,
}

/// Counts a range that waits for a claimed blob.
pub struct WaitPermit {
    _connection: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Replies {
    /// Sends a reply without a payload. If the connection has ended, the reply is dropped.
    pub async fn send(&self, reply: &Reply) {
        let frame = reply.encode(self.id);
        if frame.head.len() > SHORT_REPLY_MAX {
            if let Some(ReplySpace { bytes, slot, .. }) = self.reserve(frame.head.len()).await {
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
        let Connection { frames, account, bytes, .. } = &*self.connection;
        let permits = self.connection.permits(length);
        let connection = tokio::select! {
            biased;
            permit = Arc::clone(bytes).acquire_many_owned(permits) => permit.expect("never closed"),
            () = frames.closed() => return None,
        };
        let all = if length > SHORT_REPLY_MAX {
            tokio::select! {
                biased;
                permit = account.take_reply(length) => Some(permit?),
                () = frames.closed() => return None,
            }
        } else {
            None
        };
        let slot = frames.clone().reserve_owned().await.ok()?;
        let bytes = FrameBytes { _connection: connection, _all: all, borrowed: None };
        Some(ReplySpace { bytes, slot, account: Arc::clone(account) })
    }

    /// Like [`Replies::reserve`], without waiting. `None` if there is no space now.
    pub fn try_reserve(&self, length: usize) -> Option<ReplySpace> {
        let Connection { frames, account, bytes, .. } = &*self.connection;
        let permits = self.connection.permits(length);
        let connection = Arc::clone(bytes).try_acquire_many_owned(permits).ok()?;
        let is_short = length <= SHORT_REPLY_MAX;
        let all = if is_short { None } else { Some(account.try_take_reply(length)?) };
        let slot = frames.clone().try_reserve_owned().ok()?;
        let bytes = FrameBytes { _connection: connection, _all: all, borrowed: None };
        Some(ReplySpace { bytes, slot, account: Arc::clone(account) })
    }

    /// Sends a reply with a payload for which space was reserved.
    pub fn send_payload(&self, reply: &Reply, space: ReplySpace) {
        let (frame, ReplySpace { bytes, slot, .. }) = (reply.encode(self.id), space);
        slot.send(QueuedFrame { frame, descriptor: None, _bytes: Some(bytes) });
    }

    /// Waits until a get with this number of ranges may start. The permit counts it as in flight,
    /// with the memory of its request.
    pub async fn begin_get(&self, ranges: usize) -> GetPermit {
        let counted = ranges.clamp(RANGES_PER_GET_MIN, RANGES_IN_FLIGHT);
        let counted = u32::try_from(counted).expect("a batch is short");
        let permit = Arc::clone(&self.connection.ranges).acquire_many_owned(counted).await;
        GetPermit { _ranges: permit.expect("never closed"), _request: self.request.lock().take() }
    }

    /// Permit for one range to wait for a claimed blob, or `None` at the limit.
    pub fn begin_wait(&self) -> Option<WaitPermit> {
        let connection = Arc::clone(&self.connection.waits).try_acquire_owned().ok()?;
        let all = self.connection.account.try_take_wait()?;
        Some(WaitPermit { _connection: connection, _all: all })
    }

    /// Completes when no more requests will be read from the connection.
    pub async fn disconnected(&self) {
        self.connection.ended.wait().await;
    }
}

impl Connection {
    /// A payload longer than the limit takes all permits.
    fn permits(&self, length: usize) -> u32 {
        u32::try_from(length.clamp(1, self.bytes_max)).expect("limits fit")
    }
}

/// Rejects a connection because there are too many. The refusal is sent from a task in `rejected`,
/// which also reads the client's hello: if the socket were closed with unread data, the client
/// would see a reset instead of the refusal. With too many tasks in `rejected` the socket is closed
/// at once. `handshake` completes before the refusal is sent.
pub fn reject<S: AsyncRead + AsyncWrite + Unpin + Send>(
    rejected: &mut JoinSet<()>,
    handshake: impl Future<Output = io::Result<S>> + Send + 'static,
    text: impl Into<String>,
) {
    const REJECT_TIMEOUT: Duration = Duration::from_secs(1);
    const REJECTED_MAX: usize = 64;
    while rejected.try_join_next().is_some() {}
    if rejected.len() >= REJECTED_MAX {
        return;
    }
    let refusal = Refusal { code: ErrorCode::TooMuch, text: text.into() };
    let refusal = Reply::Error(refusal).encode(0).to_bytes();
    rejected.spawn(async move {
        let refuse = async {
            let mut socket = handshake.await?;
            socket.write_all(&refusal).await?;
            socket.flush().await?;
            let _ = socket.read(&mut [0; READ_BUFFER_SIZE]).await?;
            socket.shutdown().await
        };
        // The connection is closed in any case.
        let _ = timeout(REJECT_TIMEOUT, refuse).await;
    });
}

/// Serves one connection until both directions have ended. Then `slot` is dropped.
pub async fn serve<S: Service>(
    service: Arc<S>,
    accepted: Accepted<impl ReadHalf, impl WriteHalf>,
    mut slot: S::Slot,
) -> io::Result<()> {
    let Accepted { peer, reader, writer } = accepted;
    let mut reader = BufReader::with_capacity(READ_BUFFER_SIZE, reader);
    let (frames, queue) = mpsc::channel(REPLIES_IN_FLIGHT);
    let account = service.memory().open_account();
    // In a set, which aborts it if this task is aborted.
    let mut writers = JoinSet::new();
    writers.spawn(write_until_closed(queue, writer, Arc::clone(&account)));
    let ended = Arc::<Latch>::default();
    // Set as well if this task is aborted.
    let alive = ended.set_on_drop();
    let bytes_max = service.memory().replies_per_connection().clamp(1, PAYLOAD_IN_FLIGHT);
    let connection = Arc::new(Connection {
        frames,
        account: Arc::clone(&account),
        bytes: Arc::new(Semaphore::new(bytes_max)),
        bytes_max,
        ranges: Arc::new(Semaphore::new(RANGES_IN_FLIGHT)),
        waits: Arc::new(Semaphore::new(WAITS_MAX)),
        ended,
    });
    let mut session = None;
    let requests = async {
        let hello =
            authenticate(&service, &peer, &mut slot, &mut session, &mut reader, &connection);
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
    drain(&mut writers, &account).await;
    drop(slot);
    outcome.unwrap_or_else(|_| Err(io::Error::other("the session panicked")))
}

/// Writes replies until the last, or until the connection is closed because it is too slow. The end
/// of the queue of replies ends its requests: they are not aborted, because they may hold a claim.
async fn write_until_closed(
    queue: mpsc::Receiver<QueuedFrame>,
    writer: impl WriteHalf,
    account: Arc<Account>,
) {
    tokio::select! {
        biased;
        () = account.closed() => {}
        () = write(queue, writer, Arc::clone(&account)) => {}
    }
}

/// Waits until all replies are written, while the client reads them.
async fn drain(writers: &mut JoinSet<()>, account: &Account) {
    loop {
        let before = account.moved();
        tokio::select! {
            biased;
            _ = writers.join_next() => return,
            () = tokio::time::sleep(DRAIN_WINDOW) => {}
        }
        if account.moved() - before < DRAIN_BYTES_MIN {
            return writers.shutdown().await;
        }
    }
}

/// Reads the hello and authenticates the client. Returns whether it is accepted.
async fn authenticate<S: Service>(
    service: &Arc<S>,
    peer: &Peer,
    slot: &mut S::Slot,
    session: &mut Option<S::Session>,
    reader: &mut impl ReadHalf,
    connection: &Arc<Connection>,
) -> io::Result<bool> {
    let next = next_request(reader, connection, HELLO_SIZE_MAX).await?;
    let Some((request, replies)) = next else {
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
    // From here on the slot is not that of a pre-auth connection, which could be evicted.
    match service.on_hello(peer, &job, &token.0, slot) {
        Ok(accepted) => {
            connection.account.set_share(service.share(&accepted));
            *session = Some(accepted);
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
            // A client that never stops sending must not keep the connection open.
            biased;
            () = service.closing() => return Ok(()),
            next = next_request(reader, connection, BODY_SIZE_MAX) => next?,
        };
        let Some((request, replies)) = next else { return Ok(()) };
        if matches!(request, Request::Hello { .. }) {
            replies.refuse(ErrorCode::Malformed, "hello must be sent once").await;
            return Ok(());
        }
        let space = Arc::clone(&replies.request);
        service.handle(session, request, replies).await;
        drop(space.lock().take());
    }
}

/// The next request and the sender of its replies, or `None` at the end of the connection. A
/// malformed request, or one whose body is longer than `size_max`, is refused and ends the
/// connection.
async fn next_request(
    reader: &mut impl ReadHalf,
    connection: &Arc<Connection>,
    size_max: usize,
) -> io::Result<Option<(Request, Replies)>> {
    let replies = |id, space| Replies {
        id,
        connection: Arc::clone(connection),
        request: Arc::new(Mutex::new(space)),
    };
    let received = tokio::select! {
        biased;
        // The writer has given up: no reply could be sent.
        () = connection.frames.closed() => return Ok(None),
        received = read_frame(reader, &connection.account, size_max) => received?,
    };
    let (id, problem) = match received {
        Received::Frame { header, body, space } => match Request::decode(&header, &body) {
            Ok(request) => return Ok(Some((request, replies(header.id, space)))),
            Err(problem) => (header.id, problem),
        },
        Received::End => return Ok(None),
        Received::Malformed(problem) => (0, problem),
    };
    replies(id, None).refuse(ErrorCode::Malformed, problem.to_string()).await;
    Ok(None)
}

enum Received {
    Frame { header: Header, body: Bytes, space: Option<BudgetPermit> },
    End,
    Malformed(Malformed),
}

async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    account: &Arc<Account>,
    size_max: usize,
) -> io::Result<Received> {
    let mut header = [0; HEADER_SIZE];
    // Between frames a connection may be idle without limit, and may end.
    if reader.read(&mut header[..1]).await? == 0 {
        return Ok(Received::End);
    }
    timeout(STALL_TIMEOUT, read_rest(reader, header, account, size_max)).await?
}

async fn read_rest(
    reader: &mut (impl AsyncRead + Unpin),
    mut header: [u8; HEADER_SIZE],
    account: &Arc<Account>,
    size_max: usize,
) -> io::Result<Received> {
    reader.read_exact(&mut header[1..]).await?;
    let header = match Header::decode(&header) {
        Ok(header) if header.body_size > size_max => {
            return Ok(Received::Malformed(Malformed::OverLimit));
        }
        Ok(header) => header,
        Err(problem) => return Ok(Received::Malformed(problem)),
    };
    let space = match header.body_size {
        ..=SHORT_REQUEST_MAX => None,
        size => {
            let is_list = size <= LIST_SIZE_MAX && !Request::has_payload(&header);
            let factor = if is_list { DECODED_FACTOR } else { 1 };
            let closed = || io::Error::other("the connection is closed");
            Some(account.take_request(size * factor).await.ok_or_else(closed)?)
        }
    };
    let mut body = BytesMut::with_capacity(header.body_size.min(BODY_PREALLOCATED_MAX));
    let mut rest = reader.take(header.body_size as u64);
    while body.len() < header.body_size {
        let read = rest.read_buf(&mut body).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        account.add_moved(read);
    }
    Ok(Received::Frame { header, body: body.freeze(), space })
}

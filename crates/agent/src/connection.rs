//! One connection to a node: many requests at once, each with one reply and a deadline.
//!
//! One task carries the frames of all requests. While requests are pending and the node is silent,
//! it is pinged ([`crate::liveness`]). The claims of the agent belong to the connection
//! ([`crate::claims`]).

use std::{collections::BTreeMap, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_client::{Handle, OpenError, Welcome};
use forebay_core::{
    BlobOrdinal, Endpoint,
    agent::free_space::FreeSpace,
    cluster::backoff::{Failure, NODE_TIMEOUT, PendingAnswer},
    node::presence::KnownPresence,
};
use forebay_transport::{ByteChain, Incoming, Outgoing, session::READ_BUFFER_SIZE};
use forebay_wire::{
    BlobRange, Frame, GetAnswer, HEADER_SIZE, Header, PAYLOAD_SIZE_MAX, PRESENCE_MAX,
    RecheckAnswer, Refusal, Reply, Request,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    sync::{Notify, mpsc, oneshot},
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use crate::{
    claims::HeldClaims,
    cluster::Login,
    liveness::{PingTarget, Silence},
};

/// Requests that may wait to be written.
const FRAMES_MAX: usize = 64;
/// Slowest check of a reported blob that is waited for: 16 MB/s. The node reads and hashes the blob
/// beside other work.
const HASHED_PER_MICROSECOND_MIN: u64 = 16;
/// Interval at which a pending request checks the silence of the node.
const SLICE: Duration = Duration::from_millis(100);

/// Why a request to a node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("no node is configured")]
    None,
    #[error("{0}")]
    Unreachable(String),
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    #[error("the connection to the node broke: {0}")]
    Broken(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the node does not answer")]
    Silent,
    #[error("the node sent a reply that does not match the request; restart it")]
    Malformed,
    #[error("found {found} instead of `{expected}`; correct its endpoint, or its name")]
    WrongNode { expected: String, found: String },
}

impl LinkError {
    /// How the node has failed.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Silent => Failure::Hung,
            Self::Broken(error) if error.kind() == io::ErrorKind::TimedOut => Failure::Hung,
            _ => Failure::Dead,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, LinkError>;

/// A connection with the dataset open.
pub(crate) struct Connection {
    pub(crate) handle: u32,
    welcome: Welcome,
    frames: mpsc::Sender<Frame>,
    shared: Arc<Shared>,
    pub(crate) claims: HeldClaims,
    carrier: AbortHandle,
    /// Set once the node has answered hello.
    ping: Option<PingTarget>,
}

/// The state that the carrier task shares with pending requests.
struct Shared {
    started: Instant,
    pending: Mutex<PendingReplies>,
}

#[derive(Default)]
struct PendingReplies {
    next_id: u64,
    replies: BTreeMap<u64, oneshot::Sender<Reply>>,
    silence: Silence,
    is_closed: bool,
}

impl Shared {
    fn close(&self) {
        let mut pending = self.pending.lock();
        pending.is_closed = true;
        // Dropping the senders fails the pending requests.
        pending.replies.clear();
    }
}

impl Connection {
    /// Starts to carry frames. Until the dataset is open, only [`Connection::exchange`] may be
    /// used.
    pub fn new((reader, writer): (Incoming, Outgoing)) -> Self {
        let (frames, outgoing) = mpsc::channel(FRAMES_MAX);
        let shared = Arc::new(Shared { started: Instant::now(), pending: Mutex::default() });
        let carrier = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                tokio::select! {
                    biased;
                    () = read(reader, &shared) => {}
                    () = write(writer, outgoing) => {}
                }
                shared.close();
            }
        });
        Self {
            handle: 0,
            welcome: Welcome { lease: NODE_TIMEOUT, ..Welcome::default() },
            frames,
            shared,
            claims: HeldClaims::default(),
            carrier: carrier.abort_handle(),
            ping: None,
        }
    }

    /// The node has answered hello. From now on it is pinged when it is silent, and `silence` is
    /// notified.
    pub fn on_hello(&mut self, endpoint: &Endpoint, login: &Login, silence: Arc<Notify>) {
        let (endpoint, login) = (endpoint.clone(), login.clone());
        self.ping = Some(PingTarget { endpoint, login, silence });
    }

    /// Closes the connection if the node does not answer a ping.
    pub async fn check(&self) {
        let Some(ping) = self.ping.as_ref().filter(|_| !self.is_closed()) else { return };
        let began = self.shared.started.elapsed();
        if !ping.answers().await {
            self.on_hung(began);
        }
    }

    /// The dataset is open.
    pub fn on_open(&mut self, Handle(handle): Handle, welcome: Welcome) {
        (self.handle, self.welcome) = (handle, welcome);
    }

    pub fn is_closed(&self) -> bool {
        self.shared.pending.lock().is_closed
    }

    /// How long the node had been silent when it was found hung, if that closed the connection.
    pub fn hung_for(&self) -> Option<Duration> {
        self.shared.pending.lock().silence.hung_for()
    }

    pub fn lease(&self) -> Duration {
        self.welcome.lease
    }

    /// Sends a request and receives its reply, which may be a refusal.
    pub async fn exchange(&self, request: &Request) -> Result<Reply> {
        self.exchange_waiting(request, Duration::ZERO).await
    }

    /// The same for a request that lets the node wait up to `wait` before it replies.
    async fn exchange_waiting(&self, request: &Request, wait: Duration) -> Result<Reply> {
        let broken = || LinkError::Broken(io::ErrorKind::ConnectionReset.into());
        let (sender, receiver) = oneshot::channel();
        let pending = Pending::new(&self.shared, sender).ok_or_else(broken)?;
        let frame = request.encode(pending.id);
        let mut exchange = pin!(async {
            self.frames.send(frame).await.map_err(|_| broken())?;
            receiver.await.map_err(|_| broken())
        });
        let asked_at = self.shared.started.elapsed();
        loop {
            let heard_at = self.shared.pending.lock().silence.heard_at();
            let by = PendingAnswer { asked_at, wait, heard_at }.deadline(NODE_TIMEOUT);
            let now = self.shared.started.elapsed();
            if now >= by {
                // Other requests would time out as well.
                self.on_hung(asked_at);
                return Err(LinkError::Silent);
            }
            if let Some((ping, silent_since)) = self.take_due_ping(now) {
                ping.silence.notify_one();
                tokio::select! {
                    biased;
                    outcome = &mut exchange => return outcome,
                    answers = ping.answers() => if !answers {
                        self.on_hung(silent_since);
                        return Err(LinkError::Silent);
                    },
                }
                continue;
            }
            let slice = self.shared.started + by.min(now + SLICE);
            if let Ok(outcome) = timeout_at(slice, &mut exchange).await {
                return outcome;
            }
        }
    }

    /// If a ping is due: its target, and since when the node is silent.
    fn take_due_ping(&self, now: Duration) -> Option<(&PingTarget, Duration)> {
        let target = self.ping.as_ref()?;
        let since = self.shared.pending.lock().silence.take_due_ping(now)?;
        Some((target, since))
    }

    /// The node is hung: it has not answered since `since`.
    fn on_hung(&self, since: Duration) {
        let now = self.shared.started.elapsed();
        self.shared.pending.lock().silence.on_hung(since, now);
        self.shared.close();
        self.carrier.abort();
    }

    /// Sends a request and receives its reply. A refusal is an error.
    pub(crate) async fn ask(&self, request: &Request) -> Result<Reply> {
        match self.exchange(request).await? {
            Reply::Error(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    /// Sends a request whose reply is ignored, if the queue has room.
    pub(crate) fn send_without_reply(&self, request: &Request) {
        // Ids of other requests start at 1.
        let _ = self.frames.try_send(request.encode(0));
    }

    /// A whole blob, if it is resident or becomes so within `wait`.
    pub async fn get(
        &self,
        blob: BlobOrdinal,
        length: u64,
        wait: Duration,
    ) -> Result<(GetAnswer, Bytes)> {
        let mut content = ByteChain::new(usize::try_from(length).unwrap_or(0));
        loop {
            let offset = content.length() as u64;
            let part = (length - offset).min(PAYLOAD_SIZE_MAX as u64);
            let part = u32::try_from(part).expect("a payload is small");
            let ranges = vec![BlobRange { blob, offset, length: part }];
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            let request = Request::Get { handle: self.handle, wait_ms, ranges };
            match self.exchange_waiting(&request, wait).await? {
                Reply::Get { answer: GetAnswer::Hit, payload, .. }
                    if payload.len() == part as usize =>
                {
                    content.add(payload);
                    if content.length() as u64 == length {
                        return Ok((GetAnswer::Hit, content.take()));
                    }
                }
                Reply::Get { answer, .. } if answer != GetAnswer::Hit => {
                    return Ok((answer, Bytes::new()));
                }
                Reply::Error(refusal) => return Err(refusal.into()),
                _ => return Err(LinkError::Malformed),
            }
        }
    }

    /// Reports that wrong bytes of a blob were received. Does nothing if the node is older than
    /// such reports.
    pub async fn report_wrong_bytes(
        &self,
        blob: BlobOrdinal,
        length: u64,
    ) -> Result<RecheckAnswer> {
        if !self.welcome.accepts_wrong_bytes() {
            return Ok(RecheckAnswer::Unchecked);
        }
        let request = Request::WrongBytes { handle: self.handle, blobs: vec![blob] };
        let wait = Duration::from_micros(length / HASHED_PER_MICROSECOND_MIN);
        match self.exchange_waiting(&request, wait).await? {
            Reply::WrongBytes { answers } => answers.first().copied().ok_or(LinkError::Malformed),
            Reply::Error(refusal) => Err(refusal.into()),
            _ => Err(LinkError::Malformed),
        }
    }

    /// Which blobs are resident: one bit per blob, lowest first.
    pub async fn presence(&self, blobs: u64) -> Result<KnownPresence> {
        // No node opens a dataset with more.
        let count = u32::try_from(blobs).unwrap_or(PRESENCE_MAX).min(PRESENCE_MAX);
        let mut known = KnownPresence::new(count);
        let request = Request::Presence { handle: self.handle, first: 0, count, since: 0 };
        match self.ask(&request).await? {
            Reply::Presence { version, update } => {
                known.apply(version, &update).map_err(|_| LinkError::Malformed)?;
                Ok(known)
            }
            _ => Err(LinkError::Malformed),
        }
    }

    /// The space that the node has left.
    pub async fn free_space(&self) -> Result<FreeSpace> {
        match self.ask(&Request::FreeSpace).await? {
            Reply::FreeSpace(space) => Ok(space),
            _ => Err(LinkError::Malformed),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

/// A request whose reply is expected. It is removed when dropped.
struct Pending<'a> {
    shared: &'a Shared,
    id: u64,
}

impl<'a> Pending<'a> {
    /// `None` if the connection is closed.
    fn new(shared: &'a Shared, reply: oneshot::Sender<Reply>) -> Option<Self> {
        let mut pending = shared.pending.lock();
        if pending.is_closed {
            return None;
        }
        if pending.replies.is_empty() {
            pending.silence.on_first_request(shared.started.elapsed());
        }
        pending.next_id += 1;
        let id = pending.next_id;
        pending.replies.insert(id, reply);
        Some(Self { shared, id })
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.pending.lock().replies.remove(&self.id);
    }
}

async fn write(mut writer: Outgoing, mut outgoing: mpsc::Receiver<Frame>) {
    while let Some(frame) = outgoing.recv().await {
        let mut both = bytes::Buf::chain(&frame.head[..], &frame.payload[..]);
        if writer.write_all_buf(&mut both).await.is_err() {
            return;
        }
        // TLS may buffer until the next frame.
        if outgoing.is_empty() && writer.flush().await.is_err() {
            return;
        }
    }
}

async fn read(reader: Incoming, shared: &Shared) {
    let mut reader = BufReader::with_capacity(READ_BUFFER_SIZE, reader);
    while let Some((id, reply)) = read_reply(&mut reader).await {
        let sender = {
            let mut pending = shared.pending.lock();
            pending.silence.on_frame(shared.started.elapsed());
            pending.replies.remove(&id)
        };
        if let Some(sender) = sender {
            // The request may have been cancelled.
            let _ = sender.send(reply);
        }
    }
}

pub(crate) async fn read_reply(reader: &mut (impl AsyncRead + Unpin)) -> Option<(u64, Reply)> {
    let mut header = [0; HEADER_SIZE];
    reader.read_exact(&mut header).await.ok()?;
    let header = Header::decode(&header).ok()?;
    let mut body = vec![0; header.body_size];
    reader.read_exact(&mut body).await.ok()?;
    Some((header.id, Reply::decode(&header, &body.into()).ok()?))
}

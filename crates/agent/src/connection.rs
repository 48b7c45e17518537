//! One connection to the node: many requests at once, each with one reply, within a time.
//!
//! All claims of the agent are held by this one connection, and die with it. A task renews them. While an
//! answer is awaited and the node is silent, it is greeted over another connection: one that waits for somebody
//! else's fetch answers that, one that hangs does not, and all who wait for it are told.

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_client::{Handle, OpenError, hello};
use forebay_core::{
    Endpoint,
    claims::Claim,
    doubt::{Doubt, GREETING},
    node::Claimed,
    patience::{Failure, NODE_PATIENCE, answer_by},
    presence::Known,
    room::Room,
};
use forebay_identity::Credentials;
use forebay_server::{Gathered, Incoming, Outgoing, dial, session::READ_BEHIND};
use forebay_wire::{
    BlobProgress, BlobRange, ClaimAnswer, Frame, GetAnswer, HEADER_SIZE, Header, PAYLOAD_SIZE_MAX,
    PRESENCE_MAX, PutAnswer, Refusal, RenewAnswer, Reply, Request,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};

/// Requests that wait to be written.
const FRAMES_MAX: usize = 64;
/// How often those who wait look how long the node has been silent.
const SLICE: Duration = Duration::from_millis(100);

/// Why the node gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("there is no node")]
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
    #[error("the node does not speak this protocol")]
    Nonsense,
    #[error("`{expected}` should be there, but it is {found}; correct its endpoint, or its name")]
    Wrong { expected: String, found: String },
}

impl LinkError {
    /// How a node has failed that this was said of.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Silent => Failure::Hung,
            Self::Broken(error) if error.kind() == io::ErrorKind::TimedOut => Failure::Hung,
            _ => Failure::Gone,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, LinkError>;

/// A connection with the dataset open.
pub(crate) struct Connection {
    handle: u32,
    lease: Duration,
    frames: mpsc::Sender<Frame>,
    shared: Arc<Shared>,
    claims: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    /// Changes whenever one of them ends.
    ended: watch::Sender<()>,
    carrier: AbortHandle,
    /// Whom to greet, and as whom, once it has answered the first greeting.
    doubted: Option<(Endpoint, Credentials)>,
}

/// What the task that carries the frames shares with those who ask.
struct Shared {
    started: Instant,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    replies: HashMap<u64, oneshot::Sender<Reply>>,
    heard_at: Duration,
    /// Since then somebody waits, and nothing was heard.
    silent_since: Duration,
    doubt: Doubt,
    /// For how long it has said nothing, if that was the end of it.
    hung_for: Option<Duration>,
    closed: bool,
}

impl Shared {
    fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        // Those who wait are told by this.
        waiting.replies.clear();
    }
}

impl Connection {
    /// Nothing has been said yet; only [`Connection::exchange`] makes sense.
    pub fn new((reader, writer): (Incoming, Outgoing)) -> Self {
        let (frames, outgoing) = mpsc::channel(FRAMES_MAX);
        let shared = Arc::new(Shared { started: Instant::now(), waiting: Mutex::default() });
        let carrier = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                tokio::select! {
                    () = read(reader, &shared) => {}
                    () = write(writer, outgoing) => {}
                }
                shared.close();
            }
        });
        Self {
            handle: 0,
            lease: NODE_PATIENCE,
            frames,
            shared,
            claims: Mutex::default(),
            ended: watch::Sender::new(()),
            carrier: carrier.abort_handle(),
            doubted: None,
        }
    }

    /// It was greeted and has answered: from now on it is greeted again when it is silent.
    pub fn greeted(&mut self, endpoint: &Endpoint, credentials: &Credentials) {
        self.doubted = Some((endpoint.clone(), credentials.clone()));
    }

    /// The dataset is open.
    pub fn opened(&mut self, Handle(handle): Handle, lease: Duration) {
        (self.handle, self.lease) = (handle, lease);
    }

    pub fn is_closed(&self) -> bool {
        self.shared.waiting.lock().closed
    }

    /// For how long it has said nothing, if that was the end of it.
    pub fn hung_for(&self) -> Option<Duration> {
        self.shared.waiting.lock().hung_for
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Sends a request and takes its reply, whatever it is.
    pub async fn exchange(&self, request: &Request) -> Result<Reply> {
        self.exchange_waiting(request, Duration::ZERO).await
    }

    /// The same, for a request that asks the node to take so much time.
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
            let heard_at = self.shared.waiting.lock().heard_at;
            let by = answer_by(NODE_PATIENCE, asked_at, wait, heard_at);
            let now = self.shared.started.elapsed();
            if now >= by {
                // What follows would only be silence as well.
                self.give_up(asked_at);
                return Err(LinkError::Silent);
            }
            if let Some((doubted, silent_since)) = self.doubts(now) {
                tokio::select! {
                    outcome = &mut exchange => return outcome,
                    lives = lives(doubted) => if !lives {
                        self.give_up(silent_since);
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

    /// Whom to greet now, and since when it is silent. Of all who wait, one greets.
    fn doubts(&self, now: Duration) -> Option<(&(Endpoint, Credentials), Duration)> {
        let doubted = self.doubted.as_ref()?;
        let mut waiting = self.shared.waiting.lock();
        let since = waiting.silent_since;
        waiting.doubt.arises(now.saturating_sub(since)).then_some((doubted, since))
    }

    /// It has said nothing since then.
    fn give_up(&self, since: Duration) {
        let hung_for = self.shared.started.elapsed().saturating_sub(since);
        self.shared.waiting.lock().hung_for = Some(hung_for);
        self.shared.close();
        self.carrier.abort();
    }

    async fn ask(&self, request: &Request) -> Result<Reply> {
        match self.exchange(request).await? {
            Reply::Error(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    /// Asks to be the one who fetches a blob.
    pub async fn claim(self: &Arc<Self>, blob: u64) -> Result<(Claimed, Option<HeldClaim>)> {
        let request = Request::Claim { handle: self.handle, blobs: vec![blob] };
        let claimed = match self.ask(&request).await? {
            Reply::Claim { answers } => match answers[..] {
                [ClaimAnswer::Granted] => {
                    let held = HeldClaim::new(Arc::clone(self), blob);
                    return Ok((Claimed::Decided(Claim::Granted), Some(held)));
                }
                [ClaimAnswer::Held] => Claimed::Decided(Claim::Held),
                [ClaimAnswer::TooMany] => Claimed::Decided(Claim::TooMany),
                [ClaimAnswer::Present] => Claimed::Present,
                [ClaimAnswer::Outside] => Claimed::Outside,
                _ => return Err(LinkError::Nonsense),
            },
            _ => return Err(LinkError::Nonsense),
        };
        Ok((claimed, None))
    }

    /// Says when one of the claims on this connection has ended, from now on.
    pub fn watch_claims(&self) -> watch::Receiver<()> {
        self.ended.subscribe()
    }

    /// A whole blob, if it is resident or becomes so within `wait`.
    pub async fn get(&self, blob: u64, length: u64, wait: Duration) -> Result<(GetAnswer, Bytes)> {
        let mut content = Gathered::new(usize::try_from(length).unwrap_or(0));
        loop {
            let offset = content.length() as u64;
            let piece = (length - offset).min(PAYLOAD_SIZE_MAX as u64);
            let piece = u32::try_from(piece).expect("a payload is small");
            let ranges = vec![BlobRange { blob, offset, length: piece }];
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            let request = Request::Get { handle: self.handle, wait_ms, ranges };
            match self.exchange_waiting(&request, wait).await? {
                Reply::Get { answer: GetAnswer::Hit, payload, .. }
                    if payload.len() == piece as usize =>
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
                _ => return Err(LinkError::Nonsense),
            }
        }
    }

    /// Which blobs are resident: one bit for each, lowest first.
    pub async fn presence(&self, blobs: u64) -> Result<Known> {
        // No node opens a dataset with more.
        let count = u32::try_from(blobs).unwrap_or(PRESENCE_MAX).min(PRESENCE_MAX);
        let mut known = Known::new(count);
        let request = Request::Presence { handle: self.handle, first: 0, count, since: 0 };
        match self.ask(&request).await? {
            Reply::Presence { version, told } => {
                known.hear(version, &told).map_err(|_| LinkError::Nonsense)?;
                Ok(known)
            }
            _ => Err(LinkError::Nonsense),
        }
    }

    /// What the node could still take.
    pub async fn room(&self) -> Result<Room> {
        match self.ask(&Request::Stats).await? {
            Reply::Stats { counters } => Ok(Room::of(&counters)),
            _ => Err(LinkError::Nonsense),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

/// A request whose reply is expected; forgotten when dropped.
struct Pending<'a> {
    shared: &'a Shared,
    id: u64,
}

impl<'a> Pending<'a> {
    /// Nothing, if no reply can come any more.
    fn new(shared: &'a Shared, reply: oneshot::Sender<Reply>) -> Option<Self> {
        let mut waiting = shared.waiting.lock();
        if waiting.closed {
            return None;
        }
        if waiting.replies.is_empty() {
            waiting.silent_since = shared.started.elapsed();
        }
        waiting.next_id += 1;
        let id = waiting.next_id;
        waiting.replies.insert(id, reply);
        Some(Self { shared, id })
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.waiting.lock().replies.remove(&self.id);
    }
}

/// A claim that is being fulfilled: renewed until it is put or given back. Dropped, it is given back, too.
pub(crate) struct HeldClaim {
    connection: Arc<Connection>,
    blob: u64,
    fetched: Arc<AtomicU64>,
}

impl HeldClaim {
    fn new(connection: Arc<Connection>, blob: u64) -> Self {
        let fetched = Arc::new(AtomicU64::new(0));
        connection.claims.lock().insert(blob, Arc::clone(&fetched));
        Self { connection, blob, fetched }
    }

    /// So many bytes more have come.
    pub fn progress(&self, more: u64) {
        self.fetched.fetch_add(more, Relaxed);
    }

    /// Hands over the whole blob, which ends the claim.
    pub async fn put(&self, content: &Bytes) -> Result<()> {
        let (blob, mut offset) = (self.blob, 0);
        loop {
            let end = content.len().min(offset + PAYLOAD_SIZE_MAX);
            let payload = content.slice(offset..end);
            let handle = self.connection.handle;
            let put = Request::Put { handle, blob, offset: offset as u64, payload };
            match self.connection.ask(&put).await? {
                Reply::Put(PutAnswer::Stored) if end == content.len() => {
                    self.settle();
                    return Ok(());
                }
                Reply::Put(PutAnswer::More) if end < content.len() => {
                    self.progress((end - offset) as u64);
                    offset = end;
                }
                _ => return Err(LinkError::Nonsense),
            }
        }
    }

    /// Gives it back. If that fails, the connection has, and the claim with it.
    pub async fn release(self) {
        if let Some(request) = self.settle() {
            let _ = self.connection.ask(&request).await;
        }
    }

    /// The claim is renewed no more. What gives it back, if it is still this one: after it was lost, another
    /// may have been granted on the same connection.
    fn settle(&self) -> Option<Request> {
        let mut claims = self.connection.claims.lock();
        let ours = claims.get(&self.blob).is_some_and(|held| Arc::ptr_eq(held, &self.fetched));
        if ours {
            claims.remove(&self.blob);
            self.connection.ended.send_replace(());
        }
        let (handle, blobs) = (self.connection.handle, vec![self.blob]);
        ours.then_some(Request::Release { handle, blobs })
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        if let Some(request) = self.settle() {
            // Nobody waits for the answer; id 0 is nobody's.
            let _ = self.connection.frames.try_send(request.encode(0));
        }
    }
}

/// Renews what is held, until the connection is gone.
pub(crate) async fn renew(connection: Weak<Connection>) {
    loop {
        let Some(lease) = connection.upgrade().map(|connection| connection.lease()) else { return };
        tokio::time::sleep(lease / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_closed())
        else {
            return;
        };
        let held: Vec<(u64, Arc<AtomicU64>)> = {
            let claims = connection.claims.lock();
            claims.iter().map(|(blob, fetched)| (*blob, Arc::clone(fetched))).collect()
        };
        if held.is_empty() {
            continue;
        }
        let progress = |(blob, fetched): &(u64, Arc<AtomicU64>)| BlobProgress {
            blob: *blob,
            bytes: fetched.load(Relaxed),
        };
        let blobs = held.iter().map(progress).collect();
        let request = Request::Renew { handle: connection.handle, blobs };
        if let Ok(Reply::Renew { answers }) = connection.ask(&request).await {
            let mut claims = connection.claims.lock();
            for ((blob, fetched), answer) in held.iter().zip(answers) {
                let ours = claims.get(blob).is_some_and(|now| Arc::ptr_eq(now, fetched));
                if answer == RenewAnswer::Lost && ours {
                    claims.remove(blob);
                    connection.ended.send_replace(());
                }
            }
        }
    }
}

/// Whether somebody answers a greeting there; a refusal is an answer.
async fn lives((endpoint, credentials): &(Endpoint, Credentials)) -> bool {
    let greeting = async {
        let (mut reader, mut writer) = dial(endpoint, credentials, GREETING).await.ok()?;
        writer.write_all(&hello("", credentials).encode(1).to_bytes()).await.ok()?;
        writer.flush().await.ok()?;
        read_reply(&mut reader).await
    };
    timeout(GREETING, greeting).await.is_ok_and(|reply| reply.is_some())
}

async fn write(mut writer: Outgoing, mut outgoing: mpsc::Receiver<Frame>) {
    while let Some(frame) = outgoing.recv().await {
        let mut both = bytes::Buf::chain(&frame.head[..], &frame.payload[..]);
        if writer.write_all_buf(&mut both).await.is_err() {
            return;
        }
        // TLS may hold something back until the next frame.
        if outgoing.is_empty() && writer.flush().await.is_err() {
            return;
        }
    }
}

async fn read(reader: Incoming, shared: &Shared) {
    let mut reader = BufReader::with_capacity(READ_BEHIND, reader);
    while let Some((id, reply)) = read_reply(&mut reader).await {
        let waiting = {
            let mut waiting = shared.waiting.lock();
            waiting.heard_at = shared.started.elapsed();
            waiting.silent_since = waiting.heard_at;
            waiting.replies.remove(&id)
        };
        if let Some(waiting) = waiting {
            // Whoever asked may have gone.
            let _ = waiting.send(reply);
        }
    }
}

async fn read_reply(reader: &mut (impl AsyncRead + Unpin)) -> Option<(u64, Reply)> {
    let mut header = [0; HEADER_SIZE];
    reader.read_exact(&mut header).await.ok()?;
    let header = Header::decode(&header).ok()?;
    let mut body = vec![0; header.body_size];
    reader.read_exact(&mut body).await.ok()?;
    Some((header.id, Reply::decode(&header, &body.into()).ok()?))
}

//! The agent's connection to the node: many requests at once, opened again when it breaks.
//!
//! All claims of the agent are held by this one connection, and die with it. A task renews them.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use forebay_core::{
    digest::{Digest, DigestError},
    table::{self, Row},
};
use forebay_wire::{
    BlobLength, BlobProgress, BlobRange, ClaimAnswer, Frame, GetAnswer, HEADER_SIZE, Header,
    PAYLOAD_SIZE_MAX, PutAnswer, Refusal, RenewAnswer, Reply, Request, ShowAnswer, VERSIONS,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixStream, unix::OwnedReadHalf},
    sync::mpsc,
    time::{Instant, timeout},
};

/// A node that does not answer within this is as good as gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// A node that could not be reached is not tried again sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const PAGE_ROWS: usize = 1 << 15;

/// Why the node gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("there is no node")]
    None,
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    #[error("the connection to the node broke: {0}")]
    Broken(#[from] io::Error),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error("the node does not answer")]
    Silent,
    #[error("the node does not speak this protocol")]
    Nonsense,
}

type Result<T> = std::result::Result<T, LinkError>;

/// The way to the node.
pub(crate) struct Link {
    path: Option<PathBuf>,
    job: String,
    digest: Digest,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Connection>>,
    failed_at: Option<Instant>,
}

/// A connection with the dataset open.
pub(crate) struct Connection {
    handle: AtomicU64,
    lease: Mutex<Duration>,
    frames: mpsc::Sender<Frame>,
    waiting: Mutex<Waiting>,
    claims: Mutex<HashMap<u64, Arc<AtomicU64>>>,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    replies: HashMap<u64, mpsc::Sender<Reply>>,
    closed: bool,
}

impl Link {
    pub fn new(path: Option<PathBuf>, job: String, digest: Digest) -> Self {
        Self { path, job, digest, state: tokio::sync::Mutex::default() }
    }

    /// The connection, opened if need be.
    pub async fn connection(&self) -> Result<Arc<Connection>> {
        let path = self.path.as_ref().ok_or(LinkError::None)?;
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        state.open = None;
        if state.failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return Err(LinkError::None);
        }
        let opening = async {
            let connection = Connection::new(UnixStream::connect(path).await?);
            connection.hello(&self.job).await?;
            connection.open(&self.digest).await?;
            Ok(connection)
        };
        match opening.await {
            Ok(connection) => {
                tokio::spawn(renew(Arc::downgrade(&connection)));
                state.open = Some(Arc::clone(&connection));
                state.failed_at = None;
                Ok(connection)
            }
            Err(error) => {
                if state.failed_at.is_none() {
                    tracing::warn!(%error, "no node: reading the origin directly");
                }
                state.failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }
}

impl Connection {
    fn new(socket: UnixStream) -> Arc<Self> {
        let (reader, mut writer) = socket.into_split();
        let (frames, mut outgoing) = mpsc::channel::<Frame>(64);
        let connection = Arc::new(Self {
            handle: AtomicU64::new(0),
            lease: Mutex::new(PATIENCE),
            frames,
            waiting: Mutex::default(),
            claims: Mutex::default(),
        });
        tokio::spawn(async move {
            while let Some(frame) = outgoing.recv().await {
                let mut both = bytes::Buf::chain(&frame.head[..], &frame.payload[..]);
                if writer.write_all_buf(&mut both).await.is_err() {
                    return;
                }
            }
        });
        let reading = Arc::downgrade(&connection);
        tokio::spawn(async move {
            let mut reader = reader;
            while let Some((id, reply)) = read_reply(&mut reader).await {
                let Some(connection) = reading.upgrade() else { return };
                let waiting = connection.waiting.lock().replies.get(&id).cloned();
                if let Some(waiting) = waiting {
                    let _ = waiting.send(reply).await;
                }
            }
            if let Some(connection) = reading.upgrade() {
                let mut waiting = connection.waiting.lock();
                waiting.closed = true;
                waiting.replies.clear();
            }
        });
        connection
    }

    fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    fn handle(&self) -> u32 {
        u32::try_from(self.handle.load(Relaxed)).expect("handles are small")
    }

    pub fn lease(&self) -> Duration {
        *self.lease.lock()
    }

    async fn hello(&self, job: &str) -> Result<()> {
        let (version_min, version_max) = VERSIONS;
        match self.ask(&Request::Hello { version_min, version_max, job: job.to_owned() }).await? {
            Reply::Hello { lease_ms, .. } => {
                *self.lease.lock() = Duration::from_millis(lease_ms.into());
                Ok(())
            }
            _ => Err(LinkError::Nonsense),
        }
    }

    async fn open(&self, digest: &Digest) -> Result<()> {
        let summary = digest.summary();
        let dataset = summary.dataset;
        let namespace = digest.namespace().ok_or(LinkError::Nonsense)?;
        let opened = match self.ask(&Request::Show { namespace, dataset }).await? {
            Reply::Show(ShowAnswer::Prove { nonce }) => {
                let proof = table::proof_of(digest, &nonce)?;
                self.ask(&Request::Prove { dataset, proof }).await?
            }
            Reply::Show(ShowAnswer::Upload) => {
                let mut rows = table::rows_of(digest);
                let (chunking, mut first) = (digest.chunking(), 0);
                loop {
                    let page: Vec<BlobLength> = (&mut rows)
                        .take(PAGE_ROWS)
                        .map(|row| {
                            row.map(|Row { address, length }| BlobLength { address, length })
                        })
                        .collect::<std::result::Result<_, _>>()?;
                    let upload = Request::Upload {
                        namespace,
                        dataset,
                        chunks: chunking.chunks(),
                        partitions: chunking.partitions(),
                        blobs: summary.blobs,
                        first,
                        page,
                    };
                    match self.ask(&upload).await? {
                        Reply::Uploaded { next } if next > first => first = next,
                        reply => break reply,
                    }
                }
            }
            _ => return Err(LinkError::Nonsense),
        };
        let Reply::Open { handle } = opened else { return Err(LinkError::Nonsense) };
        self.handle.store(handle.into(), Relaxed);
        Ok(())
    }

    /// Sends a request; its replies come through the channel.
    async fn send(
        &self,
        request: &Request,
        replies_max: usize,
    ) -> Result<(u64, mpsc::Receiver<Reply>)> {
        let (sender, receiver) = mpsc::channel(replies_max);
        let id = {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(LinkError::Broken(io::ErrorKind::NotConnected.into()));
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.replies.insert(id, sender);
            id
        };
        let sent = self.frames.send(request.encode(id)).await;
        sent.map_err(|_| LinkError::Broken(io::ErrorKind::BrokenPipe.into()))?;
        Ok((id, receiver))
    }

    async fn ask(&self, request: &Request) -> Result<Reply> {
        let (id, mut replies) = self.send(request, 1).await?;
        let reply = next(&mut replies, PATIENCE).await;
        self.waiting.lock().replies.remove(&id);
        reply
    }

    /// Asks to be the one who fetches a blob.
    pub async fn claim(&self, blob: u64) -> Result<ClaimAnswer> {
        let request = Request::Claim { handle: self.handle(), blobs: vec![blob] };
        match self.ask(&request).await? {
            Reply::Claim { answers } if answers.len() == 1 => Ok(answers[0]),
            _ => Err(LinkError::Nonsense),
        }
    }

    /// Says that a claim is being fulfilled: it is renewed until the result is dropped.
    pub fn hold(self: &Arc<Self>, blob: u64) -> HeldClaim {
        let fetched = Arc::new(AtomicU64::new(0));
        self.claims.lock().insert(blob, Arc::clone(&fetched));
        HeldClaim { connection: Arc::clone(self), blob, fetched }
    }

    /// A whole blob, if it is resident or becomes so within `wait`.
    pub async fn get(&self, blob: u64, length: u64, wait: Duration) -> Result<(GetAnswer, Bytes)> {
        let mut content = BytesMut::new();
        loop {
            let offset = content.len() as u64;
            let piece = (length - offset).min(PAYLOAD_SIZE_MAX as u64);
            let piece = u32::try_from(piece).expect("a payload is small");
            let ranges = vec![BlobRange { blob, offset, length: piece }];
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            let request = Request::Get { handle: self.handle(), wait_ms, ranges };
            let (id, mut replies) = self.send(&request, 1).await?;
            let reply = next(&mut replies, PATIENCE + wait).await;
            self.waiting.lock().replies.remove(&id);
            match reply? {
                Reply::Get { answer: GetAnswer::Hit, payload, .. }
                    if payload.len() == piece as usize =>
                {
                    if offset + u64::from(piece) == length && content.is_empty() {
                        return Ok((GetAnswer::Hit, payload));
                    }
                    content.extend_from_slice(&payload);
                    if content.len() as u64 == length {
                        return Ok((GetAnswer::Hit, content.freeze()));
                    }
                }
                Reply::Get { answer, .. } if answer != GetAnswer::Hit => {
                    return Ok((answer, Bytes::new()));
                }
                _ => return Err(LinkError::Nonsense),
            }
        }
    }

    /// Hands over a whole claimed blob.
    pub async fn put(&self, claim: &HeldClaim, content: &Bytes) -> Result<()> {
        let (blob, mut offset) = (claim.blob, 0);
        loop {
            let end = content.len().min(offset + PAYLOAD_SIZE_MAX);
            let payload = content.slice(offset..end);
            let handle = self.handle();
            match self.ask(&Request::Put { handle, blob, offset: offset as u64, payload }).await? {
                Reply::Put(PutAnswer::Stored) if end == content.len() => return Ok(()),
                Reply::Put(PutAnswer::More) if end < content.len() => {
                    claim.progress((end - offset) as u64);
                    offset = end;
                }
                _ => return Err(LinkError::Nonsense),
            }
        }
    }

    /// Bytes that the node could still take without throwing anything out.
    pub async fn room(&self) -> Result<u64> {
        match self.ask(&Request::Stats).await? {
            Reply::Stats { counters } => {
                let value =
                    |name: &str| counters.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
                Ok(value("capacity_bytes").saturating_sub(value("resident_bytes")))
            }
            _ => Err(LinkError::Nonsense),
        }
    }
}

/// A claim that is being fulfilled. Dropped, it is given back; that of a blob that has arrived costs
/// nothing.
pub(crate) struct HeldClaim {
    connection: Arc<Connection>,
    blob: u64,
    fetched: Arc<AtomicU64>,
}

impl HeldClaim {
    /// So many bytes more have come.
    pub fn progress(&self, more: u64) {
        self.fetched.fetch_add(more, Relaxed);
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        self.connection.claims.lock().remove(&self.blob);
        let request = Request::Release { handle: self.connection.handle(), blobs: vec![self.blob] };
        // Nobody waits for the answer; id 0 is nobody's.
        let _ = self.connection.frames.try_send(request.encode(0));
    }
}

/// Renews what is held, until the connection is gone.
async fn renew(connection: std::sync::Weak<Connection>) {
    loop {
        let Some(lease) = connection.upgrade().map(|connection| connection.lease()) else { return };
        tokio::time::sleep(lease / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_closed())
        else {
            return;
        };
        let blobs: Vec<BlobProgress> = connection
            .claims
            .lock()
            .iter()
            .map(|(blob, fetched)| BlobProgress { blob: *blob, bytes: fetched.load(Relaxed) })
            .collect();
        if blobs.is_empty() {
            continue;
        }
        let names: Vec<u64> = blobs.iter().map(|progress| progress.blob).collect();
        if let Ok(Reply::Renew { answers }) =
            connection.ask(&Request::Renew { handle: connection.handle(), blobs }).await
        {
            let lost = names.iter().zip(answers).filter(|(_, answer)| *answer == RenewAnswer::Lost);
            for (blob, _) in lost {
                connection.claims.lock().remove(blob);
            }
        }
    }
}

async fn next(replies: &mut mpsc::Receiver<Reply>, patience: Duration) -> Result<Reply> {
    match timeout(patience, replies.recv()).await {
        Ok(Some(Reply::Error(refusal))) => Err(refusal.into()),
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(LinkError::Broken(io::ErrorKind::ConnectionReset.into())),
        Err(_) => Err(LinkError::Silent),
    }
}

async fn read_reply(reader: &mut OwnedReadHalf) -> Option<(u64, Reply)> {
    let mut header = [0; HEADER_SIZE];
    reader.read_exact(&mut header).await.ok()?;
    let header = Header::decode(&header).ok()?;
    let mut body = vec![0; header.body_size];
    reader.read_exact(&mut body).await.ok()?;
    Some((header.id, Reply::decode(&header, &body.into()).ok()?))
}

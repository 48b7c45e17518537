//! A connection to a node or an agent, for a training job: blocking, no threads, safe after fork.
//!
//! One [`Client`] belongs to one process and is used by one thread at a time. After a fork the child
//! opens its own: two processes on one socket would read each other's answers.

mod opening;
mod reader;
mod stream;
mod waiting;

use std::{io, path::Path, time::Duration};

use forebay_core::{
    digest::{Digest, DigestError},
    manager::{Answer, Report},
};
use forebay_wire::{
    BATCH_MAX, BlobProgress, BlobRange, ClaimAnswer, GetAnswer, Malformed, PAYLOAD_SIZE_MAX,
    PRESENCE_MAX, PutAnswer, Refusal, RenewAnswer, Reply, Request,
};

pub use opening::{Handle, Next, OpenError, Opening, greeted, hello};
pub use reader::{Counts, Reader, is_resident};
use stream::Stream;
pub use waiting::Interrupt;
use waiting::Waiting;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers there.
    #[error("nobody answers at `{path}`: {source}")]
    Connect {
        /// The socket.
        path: String,
        /// How it failed.
        source: io::Error,
    },
    /// Somebody else's process listens there.
    #[error("the socket `{path}` belongs to user {owner}, not to you; name another one")]
    Stranger {
        /// The socket.
        path: String,
        /// Whose process it is.
        owner: u32,
    },
    /// The connection broke; open another.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The user does not want to wait any longer.
    #[error("interrupted")]
    Interrupted,
    /// What came back is not this protocol.
    #[error("the other side does not speak forebay's protocol: {0}")]
    Nonsense(#[from] Malformed),
    /// What came back does not answer what was asked.
    #[error("the other side gave an answer to something else")]
    Unexpected,
    /// The node refused.
    #[error("the node refused: {0}")]
    Refused(#[from] Refusal),
    /// The digest says whose it is in words that mean nothing.
    #[error("the digest's namespace is neither `public` nor an id; build it again")]
    Namespace,
    /// The digest's own row cannot be read.
    #[error(transparent)]
    Digest(#[from] DigestError),
}

impl From<OpenError> for ClientError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unexpected => Self::Unexpected,
            OpenError::Refused(refusal) => Self::Refused(refusal),
            OpenError::Namespace => Self::Namespace,
            OpenError::Digest(error) => Self::Digest(error),
        }
    }
}

impl ClientError {
    /// Whether the connection can still be used.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Namespace | Self::Digest(_))
    }
}

type Result<T> = std::result::Result<T, ClientError>;

/// Some bytes of a blob, and where they are wanted.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Which blob.
    pub blob: u64,
    /// The first byte.
    pub offset: u64,
    /// As many bytes as there is room; at most 16 MiB.
    pub into: &'a mut [u8],
}

impl Wanted<'_> {
    fn range(&self) -> BlobRange {
        let length = u32::try_from(self.into.len()).expect("at most PAYLOAD_SIZE_MAX");
        BlobRange { blob: self.blob, offset: self.offset, length }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    next_id: u64,
    lease: Duration,
}

impl Client {
    /// Connects and says hello. `patience` bounds the wait for any single answer.
    pub fn connect(path: &Path, job: &str, patience: Duration) -> Result<Self> {
        Self::connect_waiting(path, job, patience, Waiting::default())
    }

    fn connect_waiting(
        path: &Path,
        job: &str,
        patience: Duration,
        waiting: Waiting,
    ) -> Result<Self> {
        let stream = Stream::connect(path, patience, waiting)?;
        let mut client = Self { stream, next_id: 0, lease: Duration::ZERO };
        client.lease = greeted(client.exchange(&hello(job))?)?;
        Ok(client)
    }

    /// How long a claim lives without being renewed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Opens a dataset: proves possession of its table, or uploads it.
    pub fn open(&mut self, digest: &Digest) -> Result<Handle> {
        let (mut opening, mut request) = Opening::begin(digest)?;
        loop {
            match opening.reply(self.exchange(&request)?)? {
                Next::Ask(next) => request = next,
                Next::Open(handle) => return Ok(handle),
            }
        }
    }

    /// Which blobs are resident: one bit for each, lowest first.
    pub fn presence(&mut self, Handle(handle): Handle, blobs: u64) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut first = 0;
        while first < blobs {
            let count = u32::try_from(blobs - first).unwrap_or(u32::MAX).min(PRESENCE_MAX);
            match self.ask(&Request::Presence { handle, first, count })? {
                Reply::Presence { bits } if bits.len() == count.div_ceil(8) as usize => {
                    all.extend_from_slice(&bits);
                }
                _ => return Err(ClientError::Unexpected),
            }
            first += u64::from(count);
        }
        Ok(all)
    }

    /// Asks for bytes, and waits up to `wait` for blobs that somebody is fetching. Hits are read straight
    /// to where they are wanted. The answers come back in the order of the ranges.
    pub fn get(
        &mut self,
        Handle(handle): Handle,
        wait: Duration,
        wanted: &mut [Wanted<'_>],
    ) -> Result<Vec<GetAnswer>> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let mut all = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks_mut(BATCH_MAX) {
            let ranges = batch.iter().map(Wanted::range).collect();
            let id = self.send(&Request::Get { handle, wait_ms, ranges })?;
            let mut answers = vec![None; batch.len()];
            for _ in 0..batch.len() {
                let (index, answer, length) = self.stream.get_header(id, wait)?;
                let slot = answers.get_mut(index as usize);
                let slot =
                    slot.filter(|slot| slot.is_none()).ok_or_else(|| self.stream.spoilt())?;
                *slot = Some(answer);
                let into = &mut *batch[index as usize].into;
                let expected = if answer == GetAnswer::Hit { into.len() } else { 0 };
                if length != expected {
                    return Err(self.stream.spoilt());
                }
                if length > 0 {
                    self.stream.read(into)?;
                }
            }
            all.extend(
                answers.into_iter().map(|answer| answer.expect("each slot was filled once")),
            );
        }
        Ok(all)
    }

    /// Asks to be the one who fetches these blobs.
    pub fn claim(&mut self, Handle(handle): Handle, blobs: &[u64]) -> Result<Vec<ClaimAnswer>> {
        match self.ask(&Request::Claim { handle, blobs: blobs.to_vec() })? {
            Reply::Claim { answers } if answers.len() == blobs.len() => Ok(answers),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Keeps claims alive.
    pub fn renew(
        &mut self,
        Handle(handle): Handle,
        blobs: &[BlobProgress],
    ) -> Result<Vec<RenewAnswer>> {
        match self.ask(&Request::Renew { handle, blobs: blobs.to_vec() })? {
            Reply::Renew { answers } if answers.len() == blobs.len() => Ok(answers),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Gives claims back.
    pub fn release(&mut self, Handle(handle): Handle, blobs: &[u64]) -> Result<()> {
        match self.ask(&Request::Release { handle, blobs: blobs.to_vec() })? {
            Reply::Released => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Hands over a whole claimed blob.
    pub fn put(&mut self, Handle(handle): Handle, blob: u64, content: &bytes::Bytes) -> Result<()> {
        let mut offset = 0;
        loop {
            let end = content.len().min(offset + PAYLOAD_SIZE_MAX);
            let payload = content.slice(offset..end);
            match self.ask(&Request::Put { handle, blob, offset: offset as u64, payload })? {
                Reply::Put(PutAnswer::Stored) if end == content.len() => return Ok(()),
                Reply::Put(PutAnswer::More) if end < content.len() => offset = end,
                _ => return Err(ClientError::Unexpected),
            }
        }
    }

    /// Says which blobs will be asked for soon.
    pub fn want(&mut self, Handle(handle): Handle, blobs: &[u64]) -> Result<()> {
        for batch in blobs.chunks(BATCH_MAX) {
            match self.ask(&Request::Want { handle, blobs: batch.to_vec() })? {
                Reply::Wanted => {}
                _ => return Err(ClientError::Unexpected),
            }
        }
        Ok(())
    }

    /// Says whether an agent is to answer what follows from the origin, whatever is resident.
    pub fn mode(&mut self, Handle(handle): Handle, is_forced: bool) -> Result<()> {
        match self.ask(&Request::Mode { handle, is_forced })? {
            Reply::ModeSet => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Says how the job gets on with a dataset; the answer is what to draw from.
    pub fn report(&mut self, Handle(handle): Handle, report: Report) -> Result<Answer> {
        match self.ask(&Request::Report { handle, report })? {
            Reply::Report(answer) => Ok(answer),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Says that the job reads a dataset no more.
    pub fn leave(&mut self, Handle(handle): Handle) -> Result<()> {
        match self.ask(&Request::Leave { handle })? {
            Reply::Left => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// How a dataset stands, and why: a `forebay_core::manager::Description` as JSON, or null if no job
    /// reports of it.
    pub fn explain(&mut self, Handle(handle): Handle) -> Result<bytes::Bytes> {
        match self.ask(&Request::Explain { handle })? {
            Reply::Explain { json } => Ok(json),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Has nothing of a dataset kept. Returns how many bytes of it were.
    pub fn evict(&mut self, Handle(handle): Handle) -> Result<u64> {
        match self.ask(&Request::Evict { handle })? {
            Reply::Evicted { bytes } => Ok(bytes),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The node's counters.
    pub fn stats(&mut self) -> Result<Vec<(String, u64)>> {
        match self.ask(&Request::Stats)? {
            Reply::Stats { counters } => Ok(counters),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn send(&mut self, request: &Request) -> Result<u64> {
        self.next_id += 1;
        self.stream.write(&request.encode(self.next_id))?;
        Ok(self.next_id)
    }

    fn exchange(&mut self, request: &Request) -> Result<Reply> {
        let id = self.send(request)?;
        self.stream.reply(id)
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        match self.exchange(request)? {
            Reply::Error(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }
}

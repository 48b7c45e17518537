//! A connection to a node or an agent, for a training job: blocking, no threads, safe after fork.
//!
//! One [`Client`] belongs to one process and is used by one thread at a time. After a fork the child
//! opens its own: two processes on one socket would read each other's answers.

mod epoch;
mod experience;
mod getting;
mod layout;
mod member;
mod nodes;
mod opening;
mod picks;
mod reader;
mod recent;
mod socket;
mod stream;
mod view;
mod waiting;

use std::{io, time::Duration};

use bytes::Bytes;
use forebay_core::{
    Endpoint, NamespaceId,
    digest::{Digest, DigestError},
    manager::{Answer, Report},
    patience::Failure,
    presence::Known,
    ring::Membership,
};
use forebay_identity::Credentials;
use forebay_wire::{
    BATCH_MAX, BlobLength, BlobProgress, ClaimAnswer, Malformed, PAYLOAD_SIZE_MAX, PRESENCE_MAX,
    PRESENCE_OVERHEAD, PutAnswer, Refusal, RenewAnswer, Reply, Request,
};

pub use epoch::{Drawn, Epoch};
pub use experience::Experience;
use getting::Segment;
pub use getting::Wanted;
pub use layout::{Layout, LayoutError};
pub use member::{Ask, Member, Reported};
pub use opening::{Handle, Next, OpenError, Opening, greeted, hello};
pub use picks::{Pick, Picks, Right, Settled};
pub use reader::{Asked, Counts, Reader};
pub use recent::{Asking, RecentPresence};
use stream::Stream;
pub use view::View;
pub use waiting::Interrupt;
use waiting::Waiting;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection.
    #[error("{} `{endpoint}`: {cause}", not_connected(cause))]
    Connect {
        /// Where.
        endpoint: String,
        /// How it failed; it is told already, and so no source.
        cause: io::Error,
    },
    /// Somebody else's process listens there.
    #[error(
        "the socket `{path}` belongs to user {owner}, not to you; if you trust that user's node, set FOREBAY_NODE_UID={owner}"
    )]
    Stranger {
        /// The socket.
        path: String,
        /// Whose process it is.
        owner: u32,
    },
    /// It would be read, and answered, by anyone on the way.
    #[error("`{endpoint}` is another machine, and tcp:// is in the clear; use tls://")]
    InTheClear {
        /// Where.
        endpoint: String,
    },
    /// It would be told to anyone who happens to listen there.
    #[error(
        "anyone on this machine may listen at `{endpoint}`, so no token is sent there; use the node's Unix socket, \
         or tls://, or unset FOREBAY_TOKEN_FILE"
    )]
    TokenInTheClear {
        /// Where.
        endpoint: String,
    },
    /// Nobody says which nodes are genuine.
    #[error(
        "for tls:// set FOREBAY_TLS_CA to the certificate of the authority that signs nodes' certificates"
    )]
    NoAuthority,
    /// TLS failed, or there should have been some.
    #[error("{0}")]
    Tls(String),
    /// The connection broke; open another.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The user does not want to wait any longer.
    #[error("interrupted")]
    Interrupted,
    /// The environment says something that means nothing.
    #[error("`{name}` is `{value}`; set it to {fix}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        fix: &'static str,
    },
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

/// What it means that there is no connection.
fn not_connected(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "nobody answers at",
        io::ErrorKind::PermissionDenied => "you may not connect to",
        _ => "cannot connect to",
    }
}

impl ClientError {
    /// Whether there is nobody who could have answered.
    pub fn is_nobody(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Connect { cause, .. } if matches!(cause.kind(), NotFound | ConnectionRefused))
    }

    /// How a node has failed that this was said of.
    pub(crate) fn failure(&self) -> Failure {
        use io::ErrorKind::{TimedOut, WouldBlock};
        match self {
            Self::Connect { cause, .. } | Self::Broken(cause)
                if matches!(cause.kind(), TimedOut | WouldBlock) =>
            {
                Failure::Hung
            }
            _ => Failure::Gone,
        }
    }

    /// Whether the connection can still be used.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Namespace | Self::Digest(_))
    }
}

type Result<T> = std::result::Result<T, ClientError>;

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    next_id: u64,
    lease: Duration,
    segment: Segment,
}

impl Client {
    /// Connects as this user and says hello. `patience` bounds the wait for any single answer.
    pub fn connect(endpoint: impl Into<Endpoint>, job: &str, patience: Duration) -> Result<Self> {
        Self::connect_as(&Credentials::default(), endpoint, job, patience)
    }

    /// The same, as whom the credentials say.
    pub fn connect_as(
        credentials: &Credentials,
        endpoint: impl Into<Endpoint>,
        job: &str,
        patience: Duration,
    ) -> Result<Self> {
        let waiting = Waiting::default();
        Self::connect_waiting(credentials, &endpoint.into(), job, patience, waiting)
    }

    fn connect_waiting(
        credentials: &Credentials,
        endpoint: &Endpoint,
        job: &str,
        patience: Duration,
        waiting: Waiting,
    ) -> Result<Self> {
        let stream = Stream::connect(endpoint, credentials, patience, waiting)?;
        let segment = Segment::wanted(stream.is_local())?;
        let mut client = Self { stream, next_id: 0, lease: Duration::ZERO, segment };
        client.lease = greeted(client.exchange(&hello(job, credentials))?)?;
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

    /// Names blobs by their addresses, instead of those that were picked before; their places in this list are their
    /// ordinals.
    pub fn pick(&mut self, namespace: NamespaceId, blobs: &[BlobLength]) -> Result<Handle> {
        match self.ask(&Request::Pick { namespace, blobs: blobs.to_vec() })? {
            Reply::Open { handle } => Ok(Handle(handle)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Who the node is, and which others there are; nothing, if it is alone.
    pub fn ring(&mut self) -> Result<Option<Membership>> {
        match self.ask(&Request::Ring)? {
            Reply::Ring(membership) => Ok(membership),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Which blobs are resident: one bit for each, lowest first.
    pub fn presence(&mut self, handle: Handle, blobs: u64) -> Result<Vec<u8>> {
        // No node opens a dataset with more.
        let mut known = Known::new(u32::try_from(blobs).unwrap_or(PRESENCE_MAX).min(PRESENCE_MAX));
        self.presence_since(handle, &mut known)?;
        Ok(known.bits().to_vec())
    }

    /// The same, for somebody who knows how it was. Returns how many bytes were sent and received.
    pub fn presence_since(&mut self, handle: Handle, known: &mut Known) -> Result<u64> {
        let id = self.ask_presence(handle, known)?;
        self.take_presence(id, known, None)
    }

    /// The first half of asking for presence.
    fn ask_presence(&mut self, Handle(handle): Handle, known: &Known) -> Result<u64> {
        let (count, since) = (known.blobs(), known.version());
        self.send(&Request::Presence { handle, first: 0, count, since })
    }

    /// The other half; the answer may be due sooner than usual.
    fn take_presence(
        &mut self,
        id: u64,
        known: &mut Known,
        within: Option<Duration>,
    ) -> Result<u64> {
        let (version, told) = match self.stream.sooner(within, |stream| stream.reply(id))? {
            Reply::Presence { version, told } => (version, told),
            Reply::Error(refusal) => return Err(refusal.into()),
            _ => return Err(ClientError::Unexpected),
        };
        known.hear(version, &told).map_err(|_| self.stream.spoilt())?;
        Ok((PRESENCE_OVERHEAD + told.len()) as u64)
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
    pub fn put(&mut self, Handle(handle): Handle, blob: u64, content: &Bytes) -> Result<()> {
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
    pub fn explain(&mut self, Handle(handle): Handle) -> Result<Bytes> {
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

//! A connection to a node or an agent: one method per request, each of which blocks until its
//! reply.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_core::{
    BlobOrdinal, Endpoint, NamespaceId,
    cluster::ring::RingMembership,
    node::presence::KnownPresence,
    train::manager::{Report, ReportAnswer},
};
use forebay_digest::Digest;
use forebay_wire::{
    BATCH_MAX, BlobLength, BlobProgress, ClaimAnswer, PAYLOAD_SIZE_MAX, PRESENCE_MAX,
    PRESENCE_OVERHEAD, PutAnswer, RecheckAnswer, RenewAnswer, Reply, Request, WRONG_BYTES_MAX,
};

use crate::{
    ClientEnvironment, ClientError, Handle, Next, Opening, ThisMachine,
    error::Result,
    frame_io::FrameIo,
    get::ShmState,
    handshake::{Welcome, greeted, hello},
    wait::WaitPolicy,
};

/// A connection to a node or an agent.
#[derive(Debug)]
pub struct Client {
    pub(crate) io: FrameIo,
    next_id: u64,
    welcome: Welcome,
    pub(crate) shm: ShmState,
}

impl Client {
    /// Connects as this user and sends hello. `timeout` bounds the wait for each reply.
    pub fn connect(endpoint: impl Into<Endpoint>, job: &str, timeout: Duration) -> Result<Self> {
        Self::connect_as(&Credentials::default(), endpoint, job, timeout)
    }

    /// The same with credentials.
    pub fn connect_as(
        credentials: &Credentials,
        endpoint: impl Into<Endpoint>,
        job: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let (environment, policy) = (ThisMachine::shared(), WaitPolicy::default());
        Self::connect_with(&environment, credentials, &endpoint.into(), job, timeout, policy)
    }

    pub(crate) fn connect_with(
        environment: &Arc<dyn ClientEnvironment>,
        credentials: &Credentials,
        endpoint: &Endpoint,
        job: &str,
        timeout: Duration,
        policy: WaitPolicy,
    ) -> Result<Self> {
        let io = FrameIo::connect(environment, endpoint, credentials, timeout, policy)?;
        let shm = ShmState::from_environment(io.is_local())?;
        let mut client = Self { io, next_id: 0, welcome: Welcome::default(), shm };
        client.welcome = greeted(client.exchange(&hello(job, credentials))?)?;
        Ok(client)
    }

    /// A connection on which hello and other requests up to `last_id` were answered.
    pub(crate) fn greeted(io: FrameIo, last_id: u64, welcome: Welcome) -> Result<Self> {
        let shm = ShmState::from_environment(io.is_local())?;
        Ok(Self { io, next_id: last_id, welcome, shm })
    }

    /// Time after which a claim ends unless it is renewed.
    pub fn lease(&self) -> Duration {
        self.welcome.lease
    }

    /// The version of the protocol that both sides support.
    pub(crate) fn version(&self) -> u16 {
        self.welcome.version
    }

    /// Opens a dataset: proves possession of its blob table, or uploads it.
    pub fn open(&mut self, digest: &Digest) -> Result<Handle> {
        let (mut opening, mut request) = Opening::begin(digest)?;
        loop {
            match opening.reply(self.exchange(&request)?)? {
                Next::Ask(next) => request = next,
                Next::Open(handle) => return Ok(handle),
            }
        }
    }

    /// Selects blobs by their addresses and replaces the previous selection. The ordinal of a blob
    /// is its index in `blobs`.
    pub fn select_by_address(
        &mut self,
        namespace: NamespaceId,
        blobs: &[BlobLength],
    ) -> Result<Handle> {
        match self.ask(&Request::SelectByAddress { namespace, blobs: blobs.to_vec() })? {
            Reply::Open { handle } => Ok(Handle(handle)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The node's name and list; `None` if it is not part of a cluster.
    pub fn ring(&mut self) -> Result<Option<RingMembership>> {
        match self.ask(&Request::Ring)? {
            Reply::Ring(membership) => Ok(membership),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Which blobs are resident: one bit per blob, lowest first.
    pub fn presence(&mut self, handle: Handle, blobs: u64) -> Result<Vec<u8>> {
        // No node opens a dataset with more.
        let mut known =
            KnownPresence::new(u32::try_from(blobs).unwrap_or(PRESENCE_MAX).min(PRESENCE_MAX));
        self.presence_since(handle, &mut known)?;
        Ok(known.bits().to_vec())
    }

    /// Updates a known presence. Returns the number of bytes sent and received.
    pub fn presence_since(&mut self, handle: Handle, known: &mut KnownPresence) -> Result<u64> {
        let id = self.ask_presence(handle, known)?;
        self.take_presence(id, known, None)
    }

    /// Sends a request for presence.
    pub(crate) fn ask_presence(
        &mut self,
        Handle(handle): Handle,
        known: &KnownPresence,
    ) -> Result<u64> {
        let (count, since) = (known.blobs(), known.version());
        self.send(&Request::Presence { handle, first: 0, count, since })
    }

    /// Receives its reply, with a shorter timeout if one is given.
    pub(crate) fn take_presence(
        &mut self,
        id: u64,
        known: &mut KnownPresence,
        timeout: Option<Duration>,
    ) -> Result<u64> {
        let (version, update) = match self.io.with_timeout(timeout, |io| io.reply(id))? {
            Reply::Presence { version, update } => (version, update),
            Reply::Error(refusal) => return Err(refusal.into()),
            _ => return Err(ClientError::Unexpected),
        };
        known.apply(version, &update).map_err(|_| self.io.mark_broken())?;
        Ok((PRESENCE_OVERHEAD + update.len()) as u64)
    }

    /// Claims blobs.
    pub fn claim(
        &mut self,
        Handle(handle): Handle,
        blobs: &[BlobOrdinal],
    ) -> Result<Vec<ClaimAnswer>> {
        match self.ask(&Request::Claim { handle, blobs: blobs.to_vec() })? {
            Reply::Claim { answers } if answers.len() == blobs.len() => Ok(answers),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Renews claims.
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

    /// Releases claims.
    pub fn release(&mut self, Handle(handle): Handle, blobs: &[BlobOrdinal]) -> Result<()> {
        match self.ask(&Request::Release { handle, blobs: blobs.to_vec() })? {
            Reply::Released => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Puts a whole claimed blob.
    pub fn put(
        &mut self,
        Handle(handle): Handle,
        blob: BlobOrdinal,
        content: &Bytes,
    ) -> Result<()> {
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

    /// Sends blobs that will be read soon, in order. Agents only.
    pub fn prefetch_hint(&mut self, Handle(handle): Handle, blobs: &[BlobOrdinal]) -> Result<()> {
        for batch in blobs.chunks(BATCH_MAX) {
            match self.ask(&Request::PrefetchHint { handle, blobs: batch.to_vec() })? {
                Reply::PrefetchNoted => {}
                _ => return Err(ClientError::Unexpected),
            }
        }
        Ok(())
    }

    /// Switches later gets of this connection to the origin, or back. Agents only.
    pub fn probe_mode(&mut self, Handle(handle): Handle, is_forced: bool) -> Result<()> {
        match self.ask(&Request::ProbeMode { handle, is_forced })? {
            Reply::ProbeModeSet => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Sends a report of the job's progress. The answer says what to draw from.
    pub fn report(&mut self, Handle(handle): Handle, report: Report) -> Result<ReportAnswer> {
        match self.ask(&Request::Report { handle, report })? {
            Reply::Report(answer) => Ok(answer),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Ends the job's participation in a dataset.
    pub fn leave(&mut self, Handle(handle): Handle) -> Result<()> {
        match self.ask(&Request::Leave { handle })? {
            Reply::Left => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The state of a dataset with the reasons: a `forebay_core::train::manager::Description` as
    /// JSON, or null if no job reports on it.
    pub fn explain(&mut self, Handle(handle): Handle) -> Result<Bytes> {
        match self.ask(&Request::Explain { handle })? {
            Reply::Explain { json } => Ok(json),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Reports blobs of which wrong bytes were received, so that the other side checks its copies.
    /// Does nothing if that is older than such reports. The answers are in the order of the blobs.
    pub fn report_wrong_bytes(
        &mut self,
        Handle(handle): Handle,
        blobs: &[BlobOrdinal],
    ) -> Result<Vec<RecheckAnswer>> {
        let mut all = Vec::with_capacity(blobs.len());
        for batch in blobs.chunks(WRONG_BYTES_MAX) {
            if !self.welcome.accepts_wrong_bytes() {
                return Ok(vec![RecheckAnswer::Unchecked; blobs.len()]);
            }
            match self.ask(&Request::WrongBytes { handle, blobs: batch.to_vec() })? {
                Reply::WrongBytes { answers } if answers.len() == batch.len() => {
                    all.extend(answers);
                }
                _ => return Err(ClientError::Unexpected),
            }
        }
        Ok(all)
    }

    /// Evicts a dataset. Returns the number of bytes freed.
    pub fn evict(&mut self, Handle(handle): Handle) -> Result<u64> {
        match self.ask(&Request::Evict { handle })? {
            Reply::Evicted { bytes } => Ok(bytes),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// The counters of the node or agent.
    pub fn stats(&mut self) -> Result<Vec<(String, u64)>> {
        let id = self.ask_stats()?;
        self.take_stats(id, None)
    }

    /// Sends a request for the counters.
    pub(crate) fn ask_stats(&mut self) -> Result<u64> {
        self.send(&Request::Stats)
    }

    /// Receives its reply, with a shorter timeout if one is given.
    pub(crate) fn take_stats(
        &mut self,
        id: u64,
        timeout: Option<Duration>,
    ) -> Result<Vec<(String, u64)>> {
        match self.io.with_timeout(timeout, |io| io.reply(id))? {
            Reply::Stats { counters } => Ok(counters),
            Reply::Error(refusal) => Err(refusal.into()),
            _ => Err(ClientError::Unexpected),
        }
    }

    pub(crate) fn send(&mut self, request: &Request) -> Result<u64> {
        self.next_id += 1;
        self.io.write(&request.encode(self.next_id))?;
        Ok(self.next_id)
    }

    pub(crate) fn exchange(&mut self, request: &Request) -> Result<Reply> {
        let id = self.send(request)?;
        self.io.reply(id)
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply> {
        match self.exchange(request)? {
            Reply::Error(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }
}

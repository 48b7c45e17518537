//! Blobs by address, for `forebay.wrap`: the origin is an object of the job's own process. No agent
//! can read it, so the job reads missing blobs itself, under a claim.
//!
//! Without a digest, blobs are selected by their addresses, across datasets. With a digest they are
//! read by their ordinals, so that the keep set of the dataset's manager applies. Every answer is
//! hashed before it is returned, because the job may unpickle the bytes.
//!
//! **Invariant:** the failure of a node is never an error here. Its blobs are missing.

use std::{process, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_core::{
    Address, BlobOrdinal, Namespace,
    agent::fetch::{FetchEvent, FetchReason, FetchState, NodeState, Purpose, Step},
    cluster::ring::Seeds,
    node::{claims::Claim, fetch_table::Claimed},
};
use forebay_digest::Digest;
use forebay_wire::{BlobLength, ClaimAnswer, GetAnswer, PAYLOAD_SIZE_MAX, SELECTION_MAX};

use crate::{
    Client, ClientEnvironment, Handle, Interrupt, NodeHealth, ReadInto, Result, ThisMachine,
    cluster::nodes::{Nodes, RequestContext},
    environment::Clock,
    greeting::Subject,
};

/// A blob to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRef {
    /// Its address.
    pub address: Address,
    /// Its length in bytes.
    pub length: u64,
    /// Its ordinal in the digest. Ignored without a digest.
    pub ordinal: BlobOrdinal,
}

/// Whether and why the caller reads a missing blob from the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadReason {
    /// The caller holds the claim. It reads the blob, then puts it or releases the claim.
    Claim,
    /// Another job reads the blob, or has put it. [`BlobsByAddress::resolve`] waits for it.
    OtherJob,
    /// The caller reads the blob for itself: the node would not keep it.
    Uncached,
    /// The caller reads the blob for itself: there is no node, or it failed.
    NoNode,
}

/// The result of waiting for a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// The caller has to read it, for a reason other than [`ReadReason::OtherJob`].
    Read(ReadReason),
}

/// A node's answer for one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Bytes(Vec<u8>),
    /// The node does not have it, or returned bytes with another address.
    Absent,
    /// The node failed.
    NoAnswer,
}

/// Reads blobs by address, for one thread. In a forked child it opens connections of its own.
#[derive(Debug)]
pub struct BlobsByAddress {
    environment: Arc<dyn ClientEnvironment>,
    nodes: Nodes,
    namespace: Namespace,
    digest: Option<Digest>,
    credentials: Credentials,
    job: String,
    interrupt: Interrupt,
    process: u32,
    clock: Clock,
    hash_mismatches: u64,
}

impl BlobsByAddress {
    /// Opens no connection yet. With a digest, blobs that are not in it are missing.
    pub fn new(
        nodes: Option<Seeds>,
        namespace: Namespace,
        digest: Option<Digest>,
        job: &str,
    ) -> Self {
        Self::in_environment(ThisMachine::shared(), nodes, namespace, digest, job)
    }

    /// The same in another environment.
    pub fn in_environment(
        environment: Arc<dyn ClientEnvironment>,
        nodes: Option<Seeds>,
        namespace: Namespace,
        digest: Option<Digest>,
        job: &str,
    ) -> Self {
        Self {
            nodes: Nodes::new(&environment, nodes.unwrap_or_default()),
            namespace,
            digest,
            credentials: Credentials::default(),
            job: job.to_owned(),
            interrupt: Interrupt::default(),
            process: process::id(),
            clock: Clock::start(&environment),
            environment,
            hash_mismatches: 0,
        }
    }

    /// Checks for an interrupt of the job while it waits.
    #[must_use]
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// The credentials for the nodes.
    #[must_use]
    pub fn with_credentials(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// The health of the nodes, to be merged with that of other readers of the process.
    pub fn health(&mut self) -> &mut NodeHealth {
        self.nodes.health()
    }

    /// The address of these bytes.
    pub fn address(&self, content: &[u8]) -> Address {
        self.namespace.address(content)
    }

    /// Whether a single node has died since the last call and should be restarted.
    pub fn take_restart_hint(&mut self) -> bool {
        self.nodes.take_restart_hint()
    }

    /// Answers whose hash was not the requested address. They count as misses.
    pub fn hash_mismatches(&self) -> u64 {
        self.hash_mismatches
    }

    /// The sums of the nodes' counters; `None` without a node.
    pub fn node_stats(&mut self) -> Option<Vec<(String, u64)>> {
        self.with_nodes(Nodes::stats)
    }

    /// The bytes of the blobs that are resident.
    pub fn get(&mut self, blobs: &[BlobRef]) -> Vec<Option<Vec<u8>>> {
        let found = self.get_within(Duration::ZERO, blobs).into_iter();
        let bytes = |found| match found {
            Found::Bytes(bytes) => Some(bytes),
            Found::Absent | Found::NoAnswer => None,
        };
        found.map(bytes).collect()
    }

    /// Claims blobs.
    pub fn claim(&mut self, blobs: &[BlobRef]) -> Vec<ReadReason> {
        let answers = self.send_claims(blobs);
        let reason = |answer| match answer {
            Some(ClaimAnswer::Granted) => ReadReason::Claim,
            Some(ClaimAnswer::Held | ClaimAnswer::Present) => ReadReason::OtherJob,
            Some(ClaimAnswer::Uncached) => ReadReason::Uncached,
            Some(ClaimAnswer::TooMany) | None => ReadReason::NoNode,
        };
        answers.into_iter().map(reason).collect()
    }

    /// Waits for a blob that another job reads, until it is resident or the caller has to read it.
    /// The steps are those of [`FetchState`].
    pub fn resolve(&mut self, blob: &BlobRef) -> Resolution {
        let Some(lease) = self.lease(blob) else { return Resolution::Read(ReadReason::NoNode) };
        let node = NodeState::Connected { lease };
        let mut fetch = FetchState::new(self.clock.elapsed(), Purpose::Demand, node);
        loop {
            let event = match fetch.step() {
                Step::Claim => match self.send_claims(&[*blob])[0] {
                    Some(ClaimAnswer::Granted) => {
                        FetchEvent::Claim(Claimed::Decided(Claim::Granted))
                    }
                    Some(ClaimAnswer::Held) => FetchEvent::Claim(Claimed::Decided(Claim::Held)),
                    Some(ClaimAnswer::Present) => FetchEvent::Claim(Claimed::Present),
                    Some(ClaimAnswer::Uncached) => FetchEvent::Claim(Claimed::Uncached),
                    // All claims belong to this thread, so none ends while it waits.
                    Some(ClaimAnswer::TooMany) | None => FetchEvent::NodeFailed,
                },
                Step::Get(wait) => match self.get_within(wait, &[*blob]).remove(0) {
                    Found::Bytes(bytes) => return Resolution::Bytes(bytes),
                    Found::Absent => FetchEvent::Absent,
                    Found::NoAnswer => FetchEvent::NodeFailed,
                },
                Step::Pause(pause) => {
                    self.environment.sleep(pause);
                    FetchEvent::Done
                }
                Step::ReadOrigin(reason) => {
                    return Resolution::Read(match reason {
                        FetchReason::Claim => ReadReason::Claim,
                        FetchReason::Uncached => ReadReason::Uncached,
                        FetchReason::Fallback | FetchReason::NoNode => ReadReason::NoNode,
                    });
                }
                step => unreachable!("{step:?} follows a read or too many claims"),
            };
            fetch.on_event(self.clock.elapsed(), event);
        }
    }

    /// Puts a claimed blob. Returns whether the node stored it; if not, the claim is released.
    pub fn put(&mut self, blob: &BlobRef, content: &Bytes) -> bool {
        let mut is_stored = false;
        self.with_owners(&[*blob], |client, handle, ordinals, _| {
            let put = client.put(handle, ordinals[0], content);
            if put.as_ref().is_err_and(crate::ClientError::is_refusal) {
                return client.release(handle, ordinals);
            }
            is_stored = put.is_ok();
            put
        });
        is_stored
    }

    /// Releases claims.
    pub fn release(&mut self, blobs: &[BlobRef]) {
        self.with_owners(blobs, |client, handle, ordinals, _| client.release(handle, ordinals));
    }

    /// The claim lease of the node that owns a blob.
    fn lease(&mut self, blob: &BlobRef) -> Option<Duration> {
        let mut lease = None;
        self.with_nodes(|nodes, context| {
            nodes.with_owners(context, &[blob.address], |client, _, _| {
                lease = Some(client.lease());
                Ok(())
            });
        });
        lease
    }

    fn send_claims(&mut self, blobs: &[BlobRef]) -> Vec<Option<ClaimAnswer>> {
        let mut answers = vec![None; blobs.len()];
        self.with_owners(blobs, |client, handle, ordinals, indices| {
            for (at, answer) in indices.iter().zip(client.claim(handle, ordinals)?) {
                answers[*at] = Some(answer);
            }
            Ok(())
        });
        answers
    }

    /// The blobs, if they are resident or become so within `wait`.
    fn get_within(&mut self, wait: Duration, blobs: &[BlobRef]) -> Vec<Found> {
        let mut all = vec![Found::NoAnswer; blobs.len()];
        self.with_owners(blobs, |client, handle, ordinals, indices| {
            let length = |at: usize| usize::try_from(blobs[at].length).unwrap_or(0);
            let mut contents: Vec<Vec<u8>> =
                indices.iter().map(|at| vec![0; length(*at)]).collect();
            let mut reads = Vec::with_capacity(contents.len());
            let mut content_of = Vec::with_capacity(contents.len());
            for (at, content) in contents.iter_mut().enumerate() {
                let mut offset = 0;
                for into in content.chunks_mut(PAYLOAD_SIZE_MAX) {
                    let next = offset + into.len() as u64;
                    reads.push(ReadInto { blob: ordinals[at], offset, into });
                    content_of.push(at);
                    offset = next;
                }
            }
            let answers = client.get(handle, wait, &mut reads)?;
            let mut is_whole = vec![true; contents.len()];
            for (at, answer) in content_of.into_iter().zip(answers) {
                is_whole[at] &= answer == GetAnswer::Hit;
            }
            for ((at, content), is_whole) in indices.iter().zip(contents).zip(is_whole) {
                all[*at] = if is_whole { Found::Bytes(content) } else { Found::Absent };
            }
            Ok(())
        });
        let mut wrong = Vec::new();
        for (blob, found) in blobs.iter().zip(&mut all) {
            if matches!(found, Found::Bytes(bytes) if self.namespace.address(bytes) != blob.address)
            {
                *found = Found::Absent;
                self.hash_mismatches += 1;
                wrong.push(*blob);
            }
        }
        // A node that drops its wrong copy grants the claim that follows.
        if !wrong.is_empty() {
            self.with_owners(&wrong, |client, handle, ordinals, _| {
                client.report_wrong_bytes(handle, ordinals).map(drop)
            });
        }
        all
    }

    /// Calls `act` for each owner of these blobs, with the ordinals of its blobs there and their
    /// indices in `blobs`.
    fn with_owners(
        &mut self,
        blobs: &[BlobRef],
        mut act: impl FnMut(&mut Client, Handle, &[BlobOrdinal], &[usize]) -> Result<()>,
    ) {
        let namespace = self.namespace.id();
        let is_in = |digest: &Digest, blob: &BlobRef| {
            let row = digest.blob(blob.ordinal);
            row.is_ok_and(|row| (row.address, row.length) == (blob.address, blob.length))
        };
        let digest = self.digest.clone();
        let is_known = |at: &usize| digest.as_ref().is_none_or(|digest| is_in(digest, &blobs[*at]));
        let known: Vec<usize> = (0..blobs.len()).filter(is_known).collect();
        let addresses: Vec<Address> = known.iter().map(|at| blobs[*at].address).collect();
        self.with_nodes(|nodes, context| {
            nodes.with_owners(context, &addresses, |client, handle, owned| {
                for owned in owned.chunks(SELECTION_MAX) {
                    let indices: Vec<usize> = owned.iter().map(|at| known[*at]).collect();
                    let selected = indices.iter().map(|at| &blobs[*at]);
                    let ordinals: Vec<BlobOrdinal> = if digest.is_some() {
                        selected.map(|blob| blob.ordinal).collect()
                    } else {
                        let row = |blob: &BlobRef| {
                            let BlobRef { address, length, .. } = *blob;
                            BlobLength { address, length }
                        };
                        client
                            .select_by_address(namespace, &selected.map(row).collect::<Vec<_>>())?;
                        (0..indices.len() as u64).map(BlobOrdinal::new).collect()
                    };
                    act(client, handle, &ordinals, &indices)?;
                }
                Ok(())
            });
        });
    }

    fn with_nodes<T>(&mut self, act: impl FnOnce(&mut Nodes, &RequestContext<'_>) -> T) -> T {
        // A forked child must not use the sockets of its parent.
        if self.process != process::id() {
            self.process = process::id();
            self.nodes.forget();
        }
        let Self { environment, nodes, namespace, digest, job, credentials, interrupt, .. } = self;
        let subject = match digest {
            Some(digest) => Subject::Dataset(digest),
            None => Subject::BlobsByAddress(namespace.id()),
        };
        act(nodes, &RequestContext { environment, subject, job, credentials, interrupt })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::{UnixListener, UnixStream},
        sync::atomic::{AtomicU64, Ordering::SeqCst},
        thread,
    };

    use forebay_wire::{HEADER_SIZE, Header, Reply, Request, SELECTED_HANDLE};

    use super::*;

    fn next_request(socket: &mut UnixStream) -> Option<(u64, Request)> {
        let mut header = [0; HEADER_SIZE];
        socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_size];
        socket.read_exact(&mut body).unwrap();
        Some((header.id, Request::decode(&header, &body.into()).unwrap()))
    }

    /// A client of a node that claims to have every blob and returns `bytes` for each.
    fn client_of(bytes: &'static [u8], gets: Arc<AtomicU64>) -> BlobsByAddress {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let _directory = directory;
            let mut socket = listener.accept().unwrap().0;
            while let Some((id, request)) = next_request(&mut socket) {
                let reply = match request {
                    Request::Hello { .. } => Reply::Hello { version: 1, lease_ms: 1000 },
                    Request::Ring => Reply::Ring(None),
                    Request::SelectByAddress { .. } => Reply::Open { handle: SELECTED_HANDLE },
                    Request::ShmMap { .. } => Reply::ShmMap { size: 0 },
                    Request::Claim { .. } => Reply::Claim { answers: vec![ClaimAnswer::Present] },
                    Request::Get { .. } => {
                        gets.fetch_add(1, SeqCst);
                        let payload = Bytes::from_static(bytes);
                        Reply::Get { index: 0, answer: GetAnswer::Hit, payload }
                    }
                    other => panic!("{other:?}"),
                };
                socket.write_all(&reply.encode(id).to_bytes()).unwrap();
            }
        });
        BlobsByAddress::new(Some(Seeds::from(path)), Namespace::public(), None, "job")
    }

    /// Promise 1, against the node itself: a job that unpickles foreign bytes runs their code.
    #[test]
    fn bytes_with_another_address_are_never_returned() {
        let address = Namespace::public().address(b"right");
        let blob = BlobRef { address, length: 5, ordinal: BlobOrdinal::new(0) };
        let mut blobs = client_of(b"right", Arc::default());
        assert_eq!(blobs.get(&[blob]), [Some(b"right".to_vec())]);
        let gets = Arc::<AtomicU64>::default();
        let mut blobs = client_of(b"wrong", Arc::clone(&gets));
        assert_eq!((blobs.get(&[blob]), blobs.hash_mismatches()), (vec![None], 1));
        // A node that reports the blob as present again and again does not hold up the job.
        assert_eq!(blobs.resolve(&blob), Resolution::Read(ReadReason::NoNode));
        assert_eq!((blobs.hash_mismatches(), gets.load(SeqCst)), (3, 3));
    }
}

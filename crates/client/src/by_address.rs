//! Blobs by their addresses, for a job whose origin is an object of its own: no agent could read it, so what a node does
//! not have is read by the job itself, under a claim.
//!
//! Blobs are picked whatever dataset they are of, or, where a dataset has a manager whose word counts, by their ordinals
//! in its digest. What a node gives is hashed before anyone sees it: a job may do more with these bytes than look at
//! them.
//!
//! **Invariant:** a node's failure is never an error here: what it would have had is missing.

use std::{
    process, thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_core::{
    Address, BlobOrdinal, Namespace,
    attempt::{self, Attempt, Fact, NodeState, Purpose, Step},
    claims::Claim,
    digest::Digest,
    node::Claimed,
    ring::Contacts,
};
use forebay_identity::Credentials;
use forebay_wire::{BlobLength, ClaimAnswer, GetAnswer, PAYLOAD_SIZE_MAX, PICKS_MAX};

use crate::{
    Client, Experience, Handle, Interrupt, Result, Wanted,
    nodes::{Caller, Nodes, Subject},
};

/// A blob that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Its name.
    pub address: Address,
    /// How long it is.
    pub length: u64,
    /// Its place in the digest, if there is one.
    pub ordinal: u64,
}

/// Who may read the origin for a blob that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// We do: the claim is ours, and the blob is to be put, or the claim to be released.
    Claim,
    /// Somebody else does, or has: [`Picks::settle`] waits for it.
    Others,
    /// Everyone for itself: the node would not keep it.
    Outside,
    /// Everyone for itself: there is no node, or it is of no help.
    Alone,
}

/// What came of waiting for a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// Here it is.
    Bytes(Vec<u8>),
    /// It has to be read; [`Right::Others`] it is not.
    Read(Right),
}

/// What a node said of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Bytes(Vec<u8>),
    /// It does not have it, or not what hashes to its address.
    Absent,
    /// It said nothing.
    NoAnswer,
}

/// A way to blobs, for one thread. Notices a fork, and makes connections of its own there.
#[derive(Debug)]
pub struct Picks {
    nodes: Nodes,
    namespace: Namespace,
    digest: Option<Digest>,
    credentials: Credentials,
    job: String,
    interrupt: Interrupt,
    process: u32,
    began: Instant,
    wrong: u64,
}

impl Picks {
    /// No connection is made yet. With a digest all blobs are its own, and those that are not are missing.
    pub fn new(
        nodes: Option<Contacts>,
        namespace: Namespace,
        digest: Option<Digest>,
        job: &str,
    ) -> Self {
        Self {
            nodes: Nodes::new(nodes.unwrap_or_default()),
            namespace,
            digest,
            credentials: Credentials::default(),
            job: job.to_owned(),
            interrupt: Interrupt::default(),
            process: process::id(),
            began: Instant::now(),
            wrong: 0,
        }
    }

    /// While it waits it asks whether the user has interrupted the job.
    #[must_use]
    pub fn interrupted_by(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// Who it is to the node.
    #[must_use]
    pub fn known_by(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// What it knows of nodes: others of its process may know more.
    pub fn experience(&mut self) -> &mut Experience {
        self.nodes.experience()
    }

    /// What bytes are called.
    pub fn address(&self, content: &[u8]) -> Address {
        self.namespace.address(content)
    }

    /// Whether the node, if it is alone, has failed since this was last asked, and is worth starting anew.
    pub fn node_fell(&mut self) -> bool {
        self.nodes.fell()
    }

    /// Answers that did not hash to their address, and were taken for misses.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    /// What the nodes have counted, together; nothing without a node.
    pub fn node_stats(&mut self) -> Option<Vec<(String, u64)>> {
        self.with_nodes(Nodes::stats)
    }

    /// The blobs that are resident.
    pub fn get(&mut self, picks: &[Pick]) -> Vec<Option<Vec<u8>>> {
        let found = self.get_within(Duration::ZERO, picks).into_iter();
        let bytes = |found| match found {
            Found::Bytes(bytes) => Some(bytes),
            Found::Absent | Found::NoAnswer => None,
        };
        found.map(bytes).collect()
    }

    /// Asks to be the one who reads these.
    pub fn claim(&mut self, picks: &[Pick]) -> Vec<Right> {
        let answers = self.ask_claims(picks);
        let right = |answer| match answer {
            Some(ClaimAnswer::Granted) => Right::Claim,
            Some(ClaimAnswer::Held | ClaimAnswer::Present) => Right::Others,
            Some(ClaimAnswer::Outside) => Right::Outside,
            Some(ClaimAnswer::TooMany) | None => Right::Alone,
        };
        answers.into_iter().map(right).collect()
    }

    /// Waits for a blob that somebody else reads, as `core::attempt` says: until it is there, or until it is our turn.
    pub fn settle(&mut self, pick: &Pick) -> Settled {
        let Some(lease) = self.lease(pick) else { return Settled::Read(Right::Alone) };
        let node = NodeState::Leases(lease);
        let mut attempt = Attempt::new(self.began.elapsed(), Purpose::Wanted, node);
        loop {
            let fact = match attempt.step() {
                Step::Claim => match self.ask_claims(&[*pick])[0] {
                    Some(ClaimAnswer::Granted) => Fact::Claim(Claimed::Decided(Claim::Granted)),
                    Some(ClaimAnswer::Held) => Fact::Claim(Claimed::Decided(Claim::Held)),
                    Some(ClaimAnswer::Present) => Fact::Claim(Claimed::Present),
                    Some(ClaimAnswer::Outside) => Fact::Claim(Claimed::Outside),
                    // The claims are this thread's own: none ends while it waits.
                    Some(ClaimAnswer::TooMany) | None => Fact::NodeFailed,
                },
                Step::Get(wait) => match self.get_within(wait, &[*pick]).remove(0) {
                    Found::Bytes(bytes) => return Settled::Bytes(bytes),
                    Found::Absent => Fact::Absent,
                    Found::NoAnswer => Fact::NodeFailed,
                },
                Step::Pause(pause) => {
                    thread::sleep(pause);
                    Fact::Done
                }
                Step::Fetch(right) => {
                    return Settled::Read(match right {
                        attempt::Right::Claim => Right::Claim,
                        attempt::Right::Outside => Right::Outside,
                        attempt::Right::Fallback | attempt::Right::NoNode => Right::Alone,
                    });
                }
                step => unreachable!("{step:?} comes after reading, or after too many claims"),
            };
            attempt.next(self.began.elapsed(), fact);
        }
    }

    /// Hands over a blob that was claimed. Whether the node has taken it; if not, the claim is given back.
    pub fn put(&mut self, pick: &Pick, content: &Bytes) -> bool {
        let mut is_taken = false;
        self.with_owners(&[*pick], |client, handle, blobs, _| {
            let put = client.put(handle, blobs[0], content);
            if put.as_ref().is_err_and(crate::ClientError::is_refusal) {
                return client.release(handle, blobs);
            }
            is_taken = put.is_ok();
            put
        });
        is_taken
    }

    /// Gives claims back.
    pub fn release(&mut self, picks: &[Pick]) {
        self.with_owners(picks, |client, handle, blobs, _| client.release(handle, blobs));
    }

    /// Claims of the owner of a blob live so long.
    fn lease(&mut self, pick: &Pick) -> Option<Duration> {
        let mut lease = None;
        self.with_nodes(|nodes, caller| {
            nodes.with_owners(caller, &[pick.address], |client, _, _| {
                lease = Some(client.lease());
                Ok(())
            });
        });
        lease
    }

    fn ask_claims(&mut self, picks: &[Pick]) -> Vec<Option<ClaimAnswer>> {
        let mut answers = vec![None; picks.len()];
        self.with_owners(picks, |client, handle, blobs, places| {
            for (place, answer) in places.iter().zip(client.claim(handle, blobs)?) {
                answers[*place] = Some(answer);
            }
            Ok(())
        });
        answers
    }

    /// The blobs, if they are resident or become so within `wait`.
    fn get_within(&mut self, wait: Duration, picks: &[Pick]) -> Vec<Found> {
        let mut all = vec![Found::NoAnswer; picks.len()];
        self.with_owners(picks, |client, handle, blobs, places| {
            let length = |place: usize| usize::try_from(picks[place].length).unwrap_or(0);
            let mut contents: Vec<Vec<u8>> =
                places.iter().map(|place| vec![0; length(*place)]).collect();
            let mut wanted = Vec::with_capacity(contents.len());
            let mut whose = Vec::with_capacity(contents.len());
            for (at, content) in contents.iter_mut().enumerate() {
                let mut offset = 0;
                for into in content.chunks_mut(PAYLOAD_SIZE_MAX) {
                    let next = offset + into.len() as u64;
                    wanted.push(Wanted { blob: blobs[at], offset, into });
                    whose.push(at);
                    offset = next;
                }
            }
            let answers = client.get(handle, wait, &mut wanted)?;
            let mut is_whole = vec![true; contents.len()];
            for (at, answer) in whose.into_iter().zip(answers) {
                is_whole[at] &= answer == GetAnswer::Hit;
            }
            for ((place, content), is_whole) in places.iter().zip(contents).zip(is_whole) {
                all[*place] = if is_whole { Found::Bytes(content) } else { Found::Absent };
            }
            Ok(())
        });
        for (pick, found) in picks.iter().zip(&mut all) {
            if matches!(found, Found::Bytes(bytes) if self.namespace.address(bytes) != pick.address)
            {
                *found = Found::Absent;
                self.wrong += 1;
            }
        }
        all
    }

    /// Does something with the owners of blobs: it is told their ordinals there, and their places here.
    fn with_owners(
        &mut self,
        picks: &[Pick],
        mut act: impl FnMut(&mut Client, Handle, &[u64], &[usize]) -> Result<()>,
    ) {
        let namespace = self.namespace.id();
        let in_digest = |digest: &Digest, pick: &Pick| {
            let row = digest.blob(BlobOrdinal::new(pick.ordinal));
            row.is_ok_and(|row| (row.address, row.length) == (pick.address, pick.length))
        };
        let digest = self.digest.clone();
        let known =
            |at: &usize| digest.as_ref().is_none_or(|digest| in_digest(digest, &picks[*at]));
        let places: Vec<usize> = (0..picks.len()).filter(known).collect();
        let addresses: Vec<Address> = places.iter().map(|at| picks[*at].address).collect();
        self.with_nodes(|nodes, caller| {
            nodes.with_owners(caller, &addresses, |client, handle, share| {
                for share in share.chunks(PICKS_MAX) {
                    let places: Vec<usize> = share.iter().map(|at| places[*at]).collect();
                    let picked = places.iter().map(|at| &picks[*at]);
                    let blobs: Vec<u64> = if digest.is_some() {
                        picked.map(|pick| pick.ordinal).collect()
                    } else {
                        let named =
                            |pick: &Pick| BlobLength { address: pick.address, length: pick.length };
                        client.pick(namespace, &picked.map(named).collect::<Vec<_>>())?;
                        (0..places.len() as u64).collect()
                    };
                    act(client, handle, &blobs, &places)?;
                }
                Ok(())
            });
        });
    }

    fn with_nodes<T>(&mut self, act: impl FnOnce(&mut Nodes, &Caller<'_>) -> T) -> T {
        // A child shares its parent's sockets, and must not use them.
        if self.process != process::id() {
            self.process = process::id();
            self.nodes.forget();
        }
        let Self { nodes, namespace, digest, job, credentials, interrupt, .. } = self;
        let subject = match digest {
            Some(digest) => Subject::Dataset(digest),
            None => Subject::Picks(namespace.id()),
        };
        let began = nodes.experience().now();
        act(nodes, &Caller { subject, job, credentials, interrupt, began })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::{UnixListener, UnixStream},
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::SeqCst},
        },
    };

    use forebay_wire::{HEADER_SIZE, Header, PICKED, Reply, Request};

    use super::*;

    fn next_request(socket: &mut UnixStream) -> Option<(u64, Request)> {
        let mut header = [0; HEADER_SIZE];
        socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_size];
        socket.read_exact(&mut body).unwrap();
        Some((header.id, Request::decode(&header, &body.into()).unwrap()))
    }

    /// A node that gives these bytes for whatever is asked, and says that it has everything.
    fn lying(bytes: &'static [u8], asked: Arc<AtomicU64>) -> Picks {
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
                    Request::Pick { .. } => Reply::Open { handle: PICKED },
                    Request::Segment { .. } => Reply::Segment { size: 0 },
                    Request::Claim { .. } => Reply::Claim { answers: vec![ClaimAnswer::Present] },
                    Request::Get { .. } => {
                        asked.fetch_add(1, SeqCst);
                        let payload = Bytes::from_static(bytes);
                        Reply::Get { index: 0, answer: GetAnswer::Hit, payload }
                    }
                    other => panic!("{other:?}"),
                };
                socket.write_all(&reply.encode(id).to_bytes()).unwrap();
            }
        });
        Picks::new(Some(Contacts::from(path)), Namespace::public(), None, "job")
    }

    /// Promise 1, against the node itself: whoever unpickles what it is given does what it says.
    #[test]
    fn what_does_not_hash_to_its_address_is_never_seen() {
        let address = Namespace::public().address(b"right");
        let pick = Pick { address, length: 5, ordinal: 0 };
        let mut picks = lying(b"right", Arc::default());
        assert_eq!(picks.get(&[pick]), [Some(b"right".to_vec())]);
        let asked = Arc::<AtomicU64>::default();
        let mut picks = lying(b"wrong", Arc::clone(&asked));
        assert_eq!((picks.get(&[pick]), picks.wrong()), (vec![None], 1));
        // Nor does a node that promises it again and again hold anybody up.
        assert_eq!(picks.settle(&pick), Settled::Read(Right::Alone));
        assert_eq!((picks.wrong(), asked.load(SeqCst)), (3, 3));
    }
}

//! Rogue members: machines in the list of nodes that are hung, or answer wrongly.
//!
//! A cluster of 64 nodes whose switch fails looks like this to a client: connections open, and
//! nothing comes back. Hung members must cost what one costs (promise 5), and no wrong answer may
//! reach a job (promise 1).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::cluster::ring::RingMembership;
use forebay_wire::{
    BlobRange, ClaimAnswer, ErrorCode, GetAnswer, HEADER_SIZE, Header, OpenAnswer, Refusal, Reply,
    Request,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
    time::sleep,
};

use crate::{
    dataset::Dataset,
    network::{Arrived, HostId},
    node_host::name_of,
    world::World,
};

/// The host of the first rogue member.
const FIRST_HOST: u8 = 10;
/// Pause between two bytes of a member that trickles.
const TRICKLE: Duration = Duration::from_millis(90);
/// Handles of the two datasets.
const PRIVATE: u32 = 0;
const PUBLIC: u32 = 1;

/// How a member misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misconduct {
    /// It accepts connections and sends nothing: a stopped process.
    Silent,
    /// It answers a hello, and nothing else.
    HelloOnly,
    /// It sends its answers byte by byte.
    Trickle,
    /// It has every blob, with a wrong byte in each.
    Lies,
    /// Before each answer it sends the answer to a request that was never sent, with other bytes.
    OtherIds,
}

impl Misconduct {
    /// Whether a process that believes nodes would receive wrong bytes.
    pub fn is_lie(self) -> bool {
        matches!(self, Self::Lies | Self::OtherIds)
    }
}

/// The host of a rogue member.
pub fn host_of(number: usize) -> HostId {
    HostId(FIRST_HOST + u8::try_from(number).expect("at most 64 members"))
}

/// Whether a host is that of a rogue member.
pub fn is_rogue(host: HostId) -> bool {
    (FIRST_HOST..FIRST_HOST + 64).contains(&host.0)
}

/// Serves as a rogue member until the world ends.
pub async fn run(world: Arc<World>, number: usize) {
    let (host, misconduct) = (host_of(number), world.plan.rogues[number]);
    let mut arriving = world.network.listen(host);
    let (mut sessions, mut silent) = (JoinSet::new(), Vec::new());
    while let Some(arrived) = arriving.recv().await {
        if misconduct == Misconduct::Silent {
            silent.push(arrived);
            continue;
        }
        let member = RingMembership::new(name_of(host), world.list.clone()).expect("in the list");
        let session = Session { world: Arc::clone(&world), misconduct, member };
        sessions.spawn(async move {
            // A client that detects the misconduct closes the connection.
            let _ = session.serve(arrived).await;
        });
        while sessions.try_join_next().is_some() {}
    }
}

/// One connection.
struct Session {
    world: Arc<World>,
    misconduct: Misconduct,
    member: RingMembership,
}

impl Session {
    async fn serve(self, arrived: Arrived) -> std::io::Result<()> {
        let mut stream = arrived.accepted.into_stream();
        loop {
            let mut header = [0; HEADER_SIZE];
            stream.read_exact(&mut header).await?;
            let Ok(header) = Header::decode(&header) else { return Ok(()) };
            let mut body = vec![0; header.body_size];
            stream.read_exact(&mut body).await?;
            let Ok(request) = Request::decode(&header, &body.into()) else { return Ok(()) };
            let is_hello = matches!(request, Request::Hello { .. });
            if self.misconduct == Misconduct::HelloOnly && !is_hello {
                continue;
            }
            if self.misconduct == Misconduct::OtherIds {
                for reply in self.replies(&request, true) {
                    let is_get = matches!(reply, Reply::Get { .. });
                    if is_get {
                        let other = header.id + 1000;
                        stream.write_all(&reply.encode(other).to_bytes()).await?;
                    }
                }
            }
            for reply in self.replies(&request, self.misconduct == Misconduct::Lies) {
                let bytes = reply.encode(header.id).to_bytes();
                if self.misconduct != Misconduct::Trickle {
                    stream.write_all(&bytes).await?;
                    continue;
                }
                for byte in bytes {
                    stream.write_all(&[byte]).await?;
                    sleep(TRICKLE).await;
                }
            }
        }
    }

    fn replies(&self, request: &Request, is_wrong: bool) -> Vec<Reply> {
        let refusal = Refusal { code: ErrorCode::Unknown, text: "no".to_owned() };
        vec![match request {
            Request::Hello { version_max, .. } => {
                Reply::Hello { version: *version_max, lease_ms: 1000 }
            }
            Request::Ring => Reply::Ring(Some(self.member.clone())),
            Request::Open { .. } => Reply::OpenAnswer(OpenAnswer::Prove { nonce: [1; 32] }),
            Request::Prove { dataset, .. } => {
                let is_private = *dataset == self.world.private.digest.summary().dataset;
                Reply::Open { handle: if is_private { PRIVATE } else { PUBLIC } }
            }
            Request::Claim { blobs, .. } => {
                Reply::Claim { answers: vec![ClaimAnswer::Present; blobs.len()] }
            }
            Request::Stats => Reply::Stats { counters: Vec::new() },
            Request::Get { handle, ranges, .. } => {
                let known = [&self.world.private, &self.world.public];
                let dataset = known[usize::from(*handle == PUBLIC)];
                let answer = |(index, range): (usize, &BlobRange)| Reply::Get {
                    index: u32::try_from(index).expect("few ranges"),
                    answer: GetAnswer::Hit,
                    payload: payload(dataset, range, is_wrong),
                };
                return ranges.iter().enumerate().map(answer).collect();
            }
            _ => Reply::Error(refusal),
        }]
    }
}

/// The bytes of a range, with another first byte if they are to be wrong.
fn payload(dataset: &Dataset, range: &BlobRange, is_wrong: bool) -> Bytes {
    let mut bytes = dataset.content(range).to_vec();
    if is_wrong && let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    bytes.into()
}

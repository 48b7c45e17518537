//! Replies: the messages of a node or an agent, and their codec.

use bytes::Bytes;
use forebay_core::agent::free_space::FreeSpace;
use forebay_core::{
    ByteSize,
    cluster::{replication, ring::RingMembership},
    node::presence::PresenceUpdate,
    train::manager::{DrawSet, ReportAnswer},
};

use crate::{
    BATCH_MAX, HALF_CHUNKS_MAX, PAYLOAD_SIZE_MAX, PRESENCE_MAX, WRONG_BYTES_MAX,
    cluster::{read_reply, write_reply},
    codec::{Malformed, Reader, Writer},
    frame::{Frame, Header},
    request::kind,
    ring,
    stream::StreamReply,
};

/// A reply. Its frame has the id of the request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The connection is accepted.
    Hello {
        /// The newest version that both sides support. The connection uses it.
        version: u16,
        /// Time after which a claim expires unless it is renewed, in milliseconds.
        lease_ms: u32,
    },
    /// The next step of opening a dataset.
    OpenAnswer(OpenAnswer),
    /// The dataset is open. Later requests name its blobs by this handle and their ordinals.
    Open {
        /// Valid on this connection.
        handle: u32,
    },
    /// The node has stored a page of a blob table and expects the next.
    Uploaded {
        /// Ordinal of the first blob of the next page.
        next: u64,
    },
    /// Which blobs are resident, or which have changed.
    Presence {
        /// Version to name in the next presence request.
        version: u64,
        /// The resident blobs, or the changes since the version of the request.
        update: PresenceUpdate,
    },
    /// The answer to one range of a get.
    Get {
        /// Index of the range in the request, from 0.
        index: u32,
        /// Result.
        answer: GetAnswer,
        /// Bytes of the range if it is a hit, else empty.
        payload: Bytes,
    },
    /// Results of a claim request.
    Claim {
        /// In the order of the request.
        answers: Vec<ClaimAnswer>,
    },
    /// Results of a renewal.
    Renew {
        /// In the order of the request.
        answers: Vec<RenewAnswer>,
    },
    /// The claims are released.
    Released,
    /// Result of a put.
    Put(PutAnswer),
    /// Counters and gauges of the node.
    Stats {
        /// Names and values.
        counters: Vec<(String, u64)>,
    },
    /// Space that the node can still fill.
    FreeSpace(FreeSpace),
    /// The prefetch hint was received.
    PrefetchNoted,
    /// The draw set of the job, or what the job must do instead.
    Report(ReportAnswer),
    /// The job has left.
    Left,
    /// The probe mode is set.
    ProbeModeSet,
    /// State of a dataset, as JSON.
    Explain {
        /// A `forebay_core::train::manager::Explanation`, or null if the dataset has no manager.
        json: Bytes,
    },
    /// The dataset is evicted.
    Evicted {
        /// Bytes of evicted blobs.
        bytes: u64,
    },
    /// Results of a report of wrong bytes.
    WrongBytes {
        /// In the order of the request.
        answers: Vec<RecheckAnswer>,
    },
    /// The shm region of this connection. The message carries its file descriptor.
    ShmMap {
        /// Size in bytes; 0 if the node grants no region.
        size: u64,
    },
    /// Ranges of a get that the node has placed in the shm region.
    GetShm {
        /// The ranges and their slots.
        ranges: Vec<ShmRange>,
    },
    /// The node's name and the members of its cluster, or `None` for a single node.
    Ring(Option<RingMembership>),
    /// A cluster message in answer to another node's.
    Cluster {
        /// Bytes that the answering node can keep.
        capacity: ByteSize,
        /// The message.
        reply: replication::Reply,
    },
    /// A reply about streams.
    Stream(StreamReply),
    /// The request is refused.
    Error(Refusal),
}

/// A range of a get in the shm region. The client holds its slot until it releases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmRange {
    /// Index of the range in the request, from 0.
    pub index: u32,
    /// Start in the region. Identifies the slot.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// What a client must do to open a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenAnswer {
    /// Prove possession of the blob table, keyed with this nonce.
    Prove {
        /// Random, new for every challenge.
        nonce: [u8; 32],
    },
    /// Upload the blob table: the node does not have it.
    Upload,
}

/// Result of one range of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetAnswer {
    /// The bytes follow. A node has them; an agent has them, or has just read them from the origin.
    Hit,
    /// The blob is neither resident nor claimed.
    Miss,
    /// The blob is claimed and the wait has timed out.
    Claimed,
}

/// Result of a claim request for one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The client holds the claim: it fetches the blob, renews the claim meanwhile, and puts the
    /// blob.
    Granted,
    /// Another connection holds the claim.
    Held,
    /// The blob is resident.
    Present,
    /// The client holds the maximum number of claims; it must fulfil or release some first.
    TooMany,
    /// The node would not keep the blob: the client reads it from the origin without a claim.
    Uncached,
}

/// Result of a renewal of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The lease is extended.
    Renewed,
    /// The client does not hold the claim, or not any more.
    Lost,
}

/// Result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAnswer {
    /// The bytes were received; the node expects the next ones.
    More,
    /// The blob is complete, hashes to its address, and is resident.
    Stored,
}

/// Result of a report of wrong bytes for one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecheckAnswer {
    /// The node had a wrong copy, and has dropped it.
    Dropped,
    /// All copies of the node hash to the address.
    Sound,
    /// The node has no copy.
    Absent,
    /// The node has not checked its copies: too much was reported, or it cannot.
    Unchecked,
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Cause, for programs.
    pub code: ErrorCode,
    /// Cause and remedy in one line, for people.
    pub text: String,
}

/// Causes of a refusal. The codes are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The request is invalid, or invalid in this state of the connection.
    Malformed,
    /// The two sides have no version in common.
    Version,
    /// The object does not exist, or the client may not use it. Both cases look alike.
    Unknown,
    /// The bytes of a put do not hash to the address.
    WrongBytes,
    /// The client does not hold the claim.
    NotClaimed,
    /// The node has no space for the blob, or does not keep it.
    NoSpace,
    /// A limit on concurrent requests, connections or open datasets is reached.
    TooMuch,
    /// The node is stopping.
    Stopping,
    /// The node failed; its log has the cause.
    Failed,
    /// A newer incarnation of the job has reported.
    Fenced,
    /// The client's identity does not allow this.
    Identity,
    /// The origin has another version of the object. Another try would fail as well.
    Changed,
    /// Blocks of the stream are lost.
    Lost,
}

const REPLY: u8 = 0x80;
const OPEN: u8 = REPLY | kind::PROVE;
const UPLOADED: u8 = REPLY | kind::UPLOAD;
const ERROR: u8 = 0xff;
/// Most counters in one message: several times the number that a node has.
const COUNTERS_MAX: usize = 1024;

/// Maps the variants of an enum without fields to bytes on the wire.
macro_rules! coded {
    ($name:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl $name {
            fn code(self) -> u8 {
                match self { $(Self::$variant => $code),+ }
            }

            fn from_code(code: u8) -> Result<Self, Malformed> {
                match code {
                    $($code => Ok(Self::$variant),)+
                    _ => Err(Malformed::Value),
                }
            }
        }
    };
}

coded!(GetAnswer { Hit = 0, Miss = 1, Claimed = 2 });
coded!(ClaimAnswer { Granted = 0, Held = 1, Present = 2, TooMany = 3, Uncached = 4 });
coded!(RenewAnswer { Renewed = 0, Lost = 1 });
coded!(PutAnswer { More = 0, Stored = 1 });
coded!(RecheckAnswer { Dropped = 0, Sound = 1, Absent = 2, Unchecked = 3 });
coded!(ErrorCode {
    Malformed = 0,
    Version = 1,
    Unknown = 2,
    WrongBytes = 3,
    NotClaimed = 4,
    NoSpace = 5,
    TooMuch = 6,
    Stopping = 7,
    Failed = 8,
    Fenced = 9,
    Identity = 10,
    Changed = 11,
    Lost = 12,
});

impl Reply {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => REPLY | kind::HELLO,
            Self::OpenAnswer(_) => REPLY | kind::OPEN,
            Self::Open { .. } => OPEN,
            Self::Uploaded { .. } => UPLOADED,
            Self::Presence { .. } => REPLY | kind::PRESENCE,
            Self::Get { .. } => REPLY | kind::GET,
            Self::Claim { .. } => REPLY | kind::CLAIM,
            Self::Renew { .. } => REPLY | kind::RENEW,
            Self::Released => REPLY | kind::RELEASE,
            Self::Put(_) => REPLY | kind::PUT,
            Self::Stats { .. } => REPLY | kind::STATS,
            Self::FreeSpace(_) => REPLY | kind::FREE_SPACE,
            Self::PrefetchNoted => REPLY | kind::PREFETCH_HINT,
            Self::Report(_) => REPLY | kind::REPORT,
            Self::Left => REPLY | kind::LEAVE,
            Self::Explain { .. } => REPLY | kind::EXPLAIN,
            Self::Evicted { .. } => REPLY | kind::EVICT,
            Self::WrongBytes { .. } => REPLY | kind::WRONG_BYTES,
            Self::ShmMap { .. } => REPLY | kind::SHM_MAP,
            Self::GetShm { .. } => REPLY | kind::GET_SHM,
            Self::Ring(_) => REPLY | kind::RING,
            Self::Cluster { .. } => REPLY | kind::CLUSTER,
            Self::ProbeModeSet => REPLY | kind::PROBE_MODE,
            Self::Stream(_) => REPLY | kind::STREAM,
            Self::Error(_) => ERROR,
        }
    }

    /// The reply as a frame.
    ///
    /// # Panics
    /// If a list or the payload exceeds the limits of the protocol.
    pub fn encode(&self, id: u64) -> Frame {
        let payload = match self {
            Self::Get { payload, .. } => payload.clone(),
            Self::Explain { json } => json.clone(),
            Self::Stream(reply) => reply.payload(),
            _ => Bytes::new(),
        };
        assert!(
            payload.len() <= PAYLOAD_SIZE_MAX,
            "payload of {} bytes is too long",
            payload.len()
        );
        Frame::new(self.kind(), id, payload, |body| self.write(&mut Writer(body)))
    }

    fn write(&self, to: &mut Writer<'_>) {
        match self {
            Self::Hello { version, lease_ms } => {
                to.u16(*version);
                to.u32(*lease_ms);
            }
            Self::OpenAnswer(OpenAnswer::Prove { nonce }) => {
                to.u8(0);
                to.bytes(nonce);
            }
            Self::OpenAnswer(OpenAnswer::Upload) => to.u8(1),
            Self::Open { handle } => to.u32(*handle),
            Self::Uploaded { next } => to.u64(*next),
            Self::Explain { .. }
            | Self::Released
            | Self::PrefetchNoted
            | Self::Left
            | Self::ProbeModeSet => {}
            Self::Presence { version, update } => {
                let (code, encoded) = match update {
                    PresenceUpdate::Bits(bits) => (0, bits),
                    PresenceUpdate::Only(packed) => (1, packed),
                    PresenceUpdate::Changed(packed) => (2, packed),
                };
                to.u64(*version);
                to.u8(code);
                to.bytes(encoded);
            }
            Self::Evicted { bytes } => to.u64(*bytes),
            Self::ShmMap { size } => to.u64(*size),
            Self::GetShm { ranges } => to.list(BATCH_MAX, ranges, |to, range| {
                to.u32(range.index);
                to.u32(range.offset);
                to.u32(range.length);
            }),
            Self::Ring(membership) => ring::write(membership.as_ref(), to),
            Self::Report(answer) => write_answer(answer, to),
            Self::Get { index, answer, .. } => {
                to.u32(*index);
                to.u8(answer.code());
            }
            Self::Claim { answers } => {
                to.list(BATCH_MAX, answers, |to, answer| to.u8(answer.code()));
            }
            Self::Renew { answers } => {
                to.list(BATCH_MAX, answers, |to, answer| to.u8(answer.code()));
            }
            Self::WrongBytes { answers } => {
                to.list(WRONG_BYTES_MAX, answers, |to, answer| to.u8(answer.code()));
            }
            Self::Put(answer) => to.u8(answer.code()),
            Self::Stats { counters } => to.list(COUNTERS_MAX, counters, |to, (name, value)| {
                to.text(name);
                to.u64(*value);
            }),
            Self::FreeSpace(space) => write_free_space(space, to),
            Self::Cluster { capacity, reply } => {
                to.u64(capacity.0);
                write_reply(reply, to);
            }
            Self::Stream(reply) => reply.write(to),
            Self::Error(Refusal { code, text }) => {
                to.u8(code.code());
                to.text(text);
            }
        }
    }

    /// Whether the frame is the answer to one range of a get. A client can read its payload
    /// directly into the destination.
    pub fn is_get(header: &Header) -> bool {
        header.kind == REPLY | kind::GET
    }

    /// Whether the frame may be a block of a stream. A client can read its payload directly into
    /// the destination.
    pub fn is_stream(header: &Header) -> bool {
        header.kind == REPLY | kind::STREAM
    }

    /// Parses a reply from its header and body. Fields after the last known one are ignored: they
    /// are those of a newer version.
    pub fn decode(header: &Header, body: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let reply = match header.kind {
            ERROR => {
                // A code of a newer version: the text says more.
                let code = ErrorCode::from_code(from.u8()?).unwrap_or(ErrorCode::Failed);
                Self::Error(Refusal { code, text: from.text()? })
            }
            OPEN => Self::Open { handle: from.u32()? },
            UPLOADED => Self::Uploaded { next: from.u64()? },
            reply if reply & REPLY != 0 => match reply & !REPLY {
                kind::HELLO => Self::Hello { version: from.u16()?, lease_ms: from.u32()? },
                kind::OPEN => Self::OpenAnswer(match from.u8()? {
                    0 => OpenAnswer::Prove { nonce: from.array()? },
                    1 => OpenAnswer::Upload,
                    _ => return Err(Malformed::Value),
                }),
                kind::PRESENCE => {
                    let (version, code) = (from.u64()?, from.u8()?);
                    if from.0.len() > PRESENCE_MAX as usize / 8 {
                        return Err(Malformed::OverLimit);
                    }
                    let encoded = from.bytes(from.0.len())?.to_vec();
                    let update = match code {
                        0 => PresenceUpdate::Bits(encoded),
                        1 => PresenceUpdate::Only(encoded),
                        2 => PresenceUpdate::Changed(encoded),
                        _ => return Err(Malformed::Value),
                    };
                    Self::Presence { version, update }
                }
                kind::GET => {
                    let (index, answer) = (from.u32()?, GetAnswer::from_code(from.u8()?)?);
                    if from.0.len() > PAYLOAD_SIZE_MAX {
                        return Err(Malformed::OverLimit);
                    }
                    let payload = body.slice_ref(from.bytes(from.0.len())?);
                    Self::Get { index, answer, payload }
                }
                kind::CLAIM => Self::Claim {
                    answers: from.list(BATCH_MAX, 1, |from| ClaimAnswer::from_code(from.u8()?))?,
                },
                kind::RENEW => Self::Renew {
                    answers: from.list(BATCH_MAX, 1, |from| RenewAnswer::from_code(from.u8()?))?,
                },
                kind::RELEASE => Self::Released,
                kind::PUT => Self::Put(PutAnswer::from_code(from.u8()?)?),
                kind::STATS => Self::Stats {
                    counters: from
                        .list(COUNTERS_MAX, 10, |from| Ok((from.text()?, from.u64()?)))?,
                },
                kind::FREE_SPACE => Self::FreeSpace(read_free_space(&mut from)?),
                kind::PREFETCH_HINT => Self::PrefetchNoted,
                kind::REPORT => Self::Report(read_answer(&mut from)?),
                kind::LEAVE => Self::Left,
                kind::PROBE_MODE => Self::ProbeModeSet,
                kind::EXPLAIN => {
                    if from.0.len() > PAYLOAD_SIZE_MAX {
                        return Err(Malformed::OverLimit);
                    }
                    Self::Explain { json: body.slice_ref(from.bytes(from.0.len())?) }
                }
                kind::EVICT => Self::Evicted { bytes: from.u64()? },
                kind::WRONG_BYTES => Self::WrongBytes {
                    answers: from
                        .list(WRONG_BYTES_MAX, 1, |from| RecheckAnswer::from_code(from.u8()?))?,
                },
                kind::SHM_MAP => Self::ShmMap { size: from.u64()? },
                kind::GET_SHM => Self::GetShm {
                    ranges: from.list(BATCH_MAX, 12, |from| {
                        let [index, offset, length] = [from.u32()?, from.u32()?, from.u32()?];
                        Ok(ShmRange { index, offset, length })
                    })?,
                },
                kind::CLUSTER => {
                    Self::Cluster { capacity: ByteSize(from.u64()?), reply: read_reply(&mut from)? }
                }
                kind::RING => Self::Ring(ring::read(&mut from)?),
                kind::STREAM => Self::Stream(StreamReply::read(&mut from, body)?),
                _ => return Err(Malformed::Kind(reply)),
            },
            unknown => return Err(Malformed::Kind(unknown)),
        };
        Ok(reply)
    }
}

fn write_answer(answer: &ReportAnswer, to: &mut Writer<'_>) {
    let (draw_set, loading, probe_batches) = match answer {
        ReportAnswer::Draw { draw_set, loading, probe_batches } => {
            (draw_set, loading, probe_batches)
        }
        ReportAnswer::FullReportNeeded => return to.u8(1),
        ReportAnswer::Redirect(manager) => {
            to.u8(2);
            return to.text(manager.as_str());
        }
    };
    to.u8(0);
    for half_chunks in [&draw_set.pinned, &draw_set.first] {
        to.list(HALF_CHUNKS_MAX, half_chunks, |to, half_chunk| to.u32(half_chunk.0));
    }
    to.list(HALF_CHUNKS_MAX, &draw_set.then, |to, half_chunks| {
        to.list(HALF_CHUNKS_MAX, half_chunks, |to, half_chunk| to.u32(half_chunk.0));
    });
    to.list(HALF_CHUNKS_MAX, loading, |to, half_chunk| to.u32(half_chunk.0));
    to.u32(*probe_batches);
}

fn read_answer(from: &mut Reader<'_>) -> Result<ReportAnswer, Malformed> {
    let half_chunks = |from: &mut Reader<'_>| from.list(HALF_CHUNKS_MAX, 4, Reader::half_chunk);
    match from.u8()? {
        0 => Ok(ReportAnswer::Draw {
            draw_set: DrawSet {
                pinned: half_chunks(from)?,
                first: half_chunks(from)?,
                then: from.list(HALF_CHUNKS_MAX, 4, half_chunks)?,
            },
            loading: half_chunks(from)?,
            probe_batches: from.u32()?,
        }),
        1 => Ok(ReportAnswer::FullReportNeeded),
        2 => Ok(ReportAnswer::Redirect(from.text()?.parse().map_err(|_| Malformed::Value)?)),
        _ => Err(Malformed::Value),
    }
}

fn write_free_space(space: &FreeSpace, to: &mut Writer<'_>) {
    let FreeSpace { bytes, regions, regions_evicted, part_bytes, claims } = *space;
    for field in [bytes, regions, regions_evicted, part_bytes, claims] {
        to.u64(field);
    }
}

fn read_free_space(from: &mut Reader<'_>) -> Result<FreeSpace, Malformed> {
    Ok(FreeSpace {
        bytes: from.u64()?,
        regions: from.u64()?,
        regions_evicted: from.u64()?,
        part_bytes: from.u64()?,
        claims: from.u64()?,
    })
}

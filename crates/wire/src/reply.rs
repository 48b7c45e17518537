//! What a node answers.

use bytes::Bytes;
use forebay_core::{
    ByteSize,
    chunking::ChunkOrdinal,
    council,
    manager::{Answer, Open},
    presence::Told,
    ring::Membership,
};

use crate::{
    BATCH_MAX, PAYLOAD_SIZE_MAX, PIECES_MAX, PRESENCE_MAX,
    codec::{Malformed, Reader, Writer},
    council::{read_reply, write_reply},
    frame::{Frame, Header},
    request::kind,
    ring,
};

/// A reply; its frame has the id of the request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The version that both sides speak from now on.
    Hello {
        /// The newest that both know.
        version: u16,
        /// How long a claim lives without being renewed, in milliseconds.
        lease_ms: u32,
    },
    /// What has to be done before a dataset can be used.
    Show(ShowAnswer),
    /// The dataset is open: blobs are now named by this handle and their ordinals.
    Open {
        /// Valid on this connection.
        handle: u32,
    },
    /// A page of a table was taken; the next one, please.
    Uploaded {
        /// The ordinal that is expected next.
        next: u64,
    },
    /// Which blobs are resident, or what has changed.
    Presence {
        /// What to say when asking again.
        version: u64,
        /// Which.
        told: Told,
    },
    /// One range of a get.
    Get {
        /// Which range of the request, counted from nought.
        index: u32,
        /// What became of it.
        answer: GetAnswer,
        /// Its bytes, if there are any.
        payload: Bytes,
    },
    /// What became of each claim.
    Claim {
        /// In the order of the request.
        answers: Vec<ClaimAnswer>,
    },
    /// What became of each renewal.
    Renew {
        /// In the order of the request.
        answers: Vec<RenewAnswer>,
    },
    /// The claims are free again.
    Released,
    /// What became of a piece.
    Put(PutAnswer),
    /// The node's counters.
    Stats {
        /// By name.
        counters: Vec<(String, u64)>,
    },
    /// Noted.
    Wanted,
    /// What to draw from.
    Report(Answer),
    /// The job has left.
    Left,
    /// So be it.
    ModeSet,
    /// How a dataset stands: JSON, for people and scripts.
    Explain {
        /// A `forebay_core::manager::Description`, or null for a dataset that nobody manages.
        json: Bytes,
    },
    /// Nothing of the dataset is kept.
    Evicted {
        /// Bytes of blobs that were.
        bytes: u64,
    },
    /// The segment of this connection; its descriptor comes beside the frame.
    Segment {
        /// How large it is; nought, if there is none to be had.
        size: u64,
    },
    /// Some ranges of a get lie in the segment.
    Placed {
        /// Which, and where.
        places: Vec<Placed>,
    },
    /// Who the node is, and which others there are; nothing, if it is alone.
    Ring(Option<Membership>),
    /// What one node answers another.
    Council {
        /// How much it can keep.
        capacity: ByteSize,
        /// Its answer.
        reply: council::Reply,
    },
    /// The request was refused.
    Error(Refusal),
}

/// Where in the segment a range lies. The slot is the caller's until it lets go of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Which range of the request, counted from nought.
    pub index: u32,
    /// Where it begins in the segment: the name of its slot.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

/// What has to be done before a dataset can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShowAnswer {
    /// Prove that you hold its table, keyed with this nonce.
    Prove {
        /// Fresh for every challenge.
        nonce: [u8; 32],
    },
    /// Upload its table.
    Upload,
}

/// What became of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetAnswer {
    /// Here it is.
    Hit,
    /// Not resident, and nobody is fetching it.
    Miss,
    /// Somebody is still fetching it; the wait is over.
    Claimed,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// Yours: fetch it, put it, renew meanwhile.
    Granted,
    /// Somebody else's.
    Held,
    /// Already resident.
    Present,
    /// You have too many claims; fulfil some first.
    TooMany,
    /// It would not be kept: fetch it for yourself.
    Outside,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewAnswer {
    /// Still yours.
    Renewed,
    /// No longer yours.
    Lost,
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAnswer {
    /// Taken; the next one, please.
    More,
    /// The blob is complete, hashes to its address, and is resident.
    Stored,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub text: String,
}

/// Kinds of refusals; stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The request made no sense, or came at the wrong time.
    Malformed,
    /// No version in common.
    Version,
    /// Not there, or not for you: both look alike.
    Unknown,
    /// Bytes that do not hash to their address.
    WrongBytes,
    /// You do not hold the claim.
    NotClaimed,
    /// There is no room for it.
    NoSpace,
    /// You ask for too much at once.
    TooMuch,
    /// The node is stopping.
    Stopping,
    /// The node failed; its log says why.
    Failed,
    /// The job was started again, and another process speaks for it.
    Fenced,
    /// Who you are does not allow this.
    Identity,
    /// The origin has another version of it: asking again is of no use.
    Changed,
}

const REPLY: u8 = 0x80;
const OPEN: u8 = REPLY | kind::PROVE;
const UPLOADED: u8 = REPLY | kind::UPLOAD;
const ERROR: u8 = 0xff;
/// Counters of a node, with room for growth.
const COUNTERS_MAX: usize = 1024;

/// Gives an enum without fields its bytes on the wire.
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
coded!(ClaimAnswer { Granted = 0, Held = 1, Present = 2, TooMany = 3, Outside = 4 });
coded!(RenewAnswer { Renewed = 0, Lost = 1 });
coded!(PutAnswer { More = 0, Stored = 1 });
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
});

impl Reply {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => REPLY | kind::HELLO,
            Self::Show(_) => REPLY | kind::SHOW,
            Self::Open { .. } => OPEN,
            Self::Uploaded { .. } => UPLOADED,
            Self::Presence { .. } => REPLY | kind::PRESENCE,
            Self::Get { .. } => REPLY | kind::GET,
            Self::Claim { .. } => REPLY | kind::CLAIM,
            Self::Renew { .. } => REPLY | kind::RENEW,
            Self::Released => REPLY | kind::RELEASE,
            Self::Put(_) => REPLY | kind::PUT,
            Self::Stats { .. } => REPLY | kind::STATS,
            Self::Wanted => REPLY | kind::WANT,
            Self::Report(_) => REPLY | kind::REPORT,
            Self::Left => REPLY | kind::LEAVE,
            Self::Explain { .. } => REPLY | kind::EXPLAIN,
            Self::Evicted { .. } => REPLY | kind::EVICT,
            Self::Segment { .. } => REPLY | kind::SEGMENT,
            Self::Placed { .. } => REPLY | kind::PLACE,
            Self::Ring(_) => REPLY | kind::RING,
            Self::Council { .. } => REPLY | kind::COUNCIL,
            Self::ModeSet => REPLY | kind::MODE,
            Self::Error(_) => ERROR,
        }
    }

    /// As a frame. Batches over the limits are our own mistake, and asserted.
    pub fn encode(&self, id: u64) -> Frame {
        let payload = match self {
            Self::Get { payload, .. } => payload.clone(),
            Self::Explain { json } => json.clone(),
            _ => Bytes::new(),
        };
        assert!(
            payload.len() <= PAYLOAD_SIZE_MAX,
            "a payload of {} is over the limit",
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
            Self::Show(ShowAnswer::Prove { nonce }) => {
                to.u8(0);
                to.bytes(nonce);
            }
            Self::Show(ShowAnswer::Upload) => to.u8(1),
            Self::Open { handle } => to.u32(*handle),
            Self::Uploaded { next } => to.u64(*next),
            Self::Explain { .. } | Self::Released | Self::Wanted | Self::Left | Self::ModeSet => {}
            Self::Presence { version, told } => {
                let (code, said) = match told {
                    Told::Bits(bits) => (0, bits),
                    Told::Only(packed) => (1, packed),
                    Told::Changed(packed) => (2, packed),
                };
                to.u64(*version);
                to.u8(code);
                to.bytes(said);
            }
            Self::Evicted { bytes } => to.u64(*bytes),
            Self::Segment { size } => to.u64(*size),
            Self::Placed { places } => to.list(BATCH_MAX, places, |to, place| {
                to.u32(place.index);
                to.u32(place.offset);
                to.u32(place.length);
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
            Self::Put(answer) => to.u8(answer.code()),
            Self::Stats { counters } => to.list(COUNTERS_MAX, counters, |to, (name, value)| {
                to.text(name);
                to.u64(*value);
            }),
            Self::Council { capacity, reply } => {
                to.u64(capacity.0);
                write_reply(reply, to);
            }
            Self::Error(Refusal { code, text }) => {
                to.u8(code.code());
                to.text(text);
            }
        }
    }

    /// Whether a header announces one range of a get, whose payload a reader may want to put elsewhere.
    pub fn is_get(header: &Header) -> bool {
        header.kind == REPLY | kind::GET
    }

    /// Reads a reply; `body` is what follows its header.
    pub fn decode(header: &Header, body: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let reply = match header.kind {
            ERROR => {
                Self::Error(Refusal { code: ErrorCode::from_code(from.u8()?)?, text: from.text()? })
            }
            OPEN => Self::Open { handle: from.u32()? },
            UPLOADED => Self::Uploaded { next: from.u64()? },
            reply if reply & REPLY != 0 => match reply & !REPLY {
                kind::HELLO => Self::Hello { version: from.u16()?, lease_ms: from.u32()? },
                kind::SHOW => Self::Show(match from.u8()? {
                    0 => ShowAnswer::Prove { nonce: from.array()? },
                    1 => ShowAnswer::Upload,
                    _ => return Err(Malformed::Value),
                }),
                kind::PRESENCE => {
                    let (version, code) = (from.u64()?, from.u8()?);
                    if from.0.len() > PRESENCE_MAX as usize / 8 {
                        return Err(Malformed::OverLimit);
                    }
                    let said = from.bytes(from.0.len())?.to_vec();
                    let told = match code {
                        0 => Told::Bits(said),
                        1 => Told::Only(said),
                        2 => Told::Changed(said),
                        _ => return Err(Malformed::Value),
                    };
                    Self::Presence { version, told }
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
                kind::WANT => Self::Wanted,
                kind::REPORT => Self::Report(read_answer(&mut from)?),
                kind::LEAVE => Self::Left,
                kind::MODE => Self::ModeSet,
                kind::EXPLAIN => {
                    if from.0.len() > PAYLOAD_SIZE_MAX {
                        return Err(Malformed::OverLimit);
                    }
                    Self::Explain { json: body.slice_ref(from.bytes(from.0.len())?) }
                }
                kind::EVICT => Self::Evicted { bytes: from.u64()? },
                kind::SEGMENT => Self::Segment { size: from.u64()? },
                kind::PLACE => Self::Placed {
                    places: from.list(BATCH_MAX, 12, |from| {
                        Ok(Placed { index: from.u32()?, offset: from.u32()?, length: from.u32()? })
                    })?,
                },
                kind::COUNCIL => {
                    Self::Council { capacity: ByteSize(from.u64()?), reply: read_reply(&mut from)? }
                }
                kind::RING => Self::Ring(ring::read(&mut from)?),
                _ => return Err(Malformed::Kind(reply)),
            },
            unknown => return Err(Malformed::Kind(unknown)),
        };
        from.finish().map(|()| reply)
    }
}

fn write_answer(answer: &Answer, to: &mut Writer<'_>) {
    let (open, loading, forced) = match answer {
        Answer::Draw { open, loading, forced } => (open, loading, forced),
        Answer::TellAll => return to.u8(1),
        Answer::Elsewhere(manager) => {
            to.u8(2);
            return to.text(manager.as_str());
        }
    };
    to.u8(0);
    for pieces in [&open.held, &open.first] {
        to.list(PIECES_MAX, pieces, |to, piece| to.u32(piece.0));
    }
    to.list(PIECES_MAX, &open.then, |to, pieces| {
        to.list(PIECES_MAX, pieces, |to, piece| to.u32(piece.0));
    });
    to.list(PIECES_MAX, loading, |to, piece| to.u32(*piece));
    to.u32(*forced);
}

fn read_answer(from: &mut Reader<'_>) -> Result<Answer, Malformed> {
    let pieces =
        |from: &mut Reader<'_>| from.list(PIECES_MAX, 4, |from| from.u32().map(ChunkOrdinal));
    match from.u8()? {
        0 => Ok(Answer::Draw {
            open: Open {
                held: pieces(from)?,
                first: pieces(from)?,
                then: from.list(PIECES_MAX, 4, pieces)?,
            },
            loading: from.list(PIECES_MAX, 4, Reader::u32)?,
            forced: from.u32()?,
        }),
        1 => Ok(Answer::TellAll),
        2 => Ok(Answer::Elsewhere(from.text()?.parse().map_err(|_| Malformed::Value)?)),
        _ => Err(Malformed::Value),
    }
}

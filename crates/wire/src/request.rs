//! What a job or its agent asks of a node.

use std::{fmt, time::Duration};

use bytes::Bytes;
use forebay_core::{
    Address, ByteSize, DatasetId, NamespaceId, benefit::Mode, council, manager::Report,
    names::TOKEN_LENGTH_MAX, units::ByteRate,
};

use crate::{
    BATCH_MAX, PAYLOAD_SIZE_MAX, PICKS_MAX, PIECES_MAX, PRESENCE_MAX,
    codec::{Malformed, Reader, Writer},
    council::{read_request, write_request},
    frame::{Frame, Header},
};

/// A request. After a dataset has been opened, blobs are spoken of by their ordinals in it.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The first request of a connection: who speaks, and which versions of the protocol.
    Hello {
        /// The oldest version that the caller speaks.
        version_min: u16,
        /// The newest.
        version_max: u16,
        /// What the job calls itself.
        job: String,
        /// The secret by which the caller is known; empty if it is known otherwise.
        token: SentToken,
    },
    /// Asks for a dataset by name.
    Show {
        /// Whose key made its addresses.
        namespace: NamespaceId,
        /// Which.
        dataset: DatasetId,
    },
    /// Answers the challenge: proves that the caller holds the table of the dataset.
    Prove {
        /// Which.
        dataset: DatasetId,
        /// BLAKE3, keyed with the challenge's nonce, over all addresses and lengths.
        proof: [u8; 32],
    },
    /// Uploads the table of a dataset that the node does not know, page by page, in order.
    Upload {
        /// Whose key made its addresses.
        namespace: NamespaceId,
        /// Which.
        dataset: DatasetId,
        /// How it is cut.
        chunks: u32,
        /// How it is cut.
        partitions: u32,
        /// How many blobs it has in all.
        blobs: u64,
        /// The ordinal of the first blob of this page.
        first: u64,
        /// This page.
        page: Vec<BlobLength>,
    },
    /// Names blobs by their addresses, whatever dataset they are of, instead of those that this connection has
    /// picked before. They are spoken of by their ordinals in this list, under the handle [`PICKED`](crate::PICKED).
    Pick {
        /// Whose key made their addresses.
        namespace: NamespaceId,
        /// Which.
        blobs: Vec<BlobLength>,
    },
    /// Asks which blobs are resident, for a range of ordinals, or what has changed.
    Presence {
        /// An opened dataset.
        handle: u32,
        /// The first ordinal.
        first: u64,
        /// How many.
        count: u32,
        /// The version that the caller was told last of this very range; nought if none.
        since: u64,
    },
    /// Asks for bytes. Each range is answered by a frame of its own, in the order in which they become
    /// ready.
    Get {
        /// An opened dataset.
        handle: u32,
        /// How long to wait for a blob that somebody has claimed, in milliseconds.
        wait_ms: u32,
        /// Which bytes.
        ranges: Vec<BlobRange>,
    },
    /// Asks to be the one who fetches these blobs.
    Claim {
        /// An opened dataset.
        handle: u32,
        /// Which.
        blobs: Vec<u64>,
    },
    /// Keeps claims alive, and says how far the fetches are.
    Renew {
        /// An opened dataset.
        handle: u32,
        /// Which, and how many bytes of each have been fetched.
        blobs: Vec<BlobProgress>,
    },
    /// Gives claims back, unfulfilled.
    Release {
        /// An opened dataset.
        handle: u32,
        /// Which.
        blobs: Vec<u64>,
    },
    /// Hands over bytes of a claimed blob. The pieces of a blob come in order; with the last one the
    /// node hashes the whole before it believes it.
    Put {
        /// An opened dataset.
        handle: u32,
        /// Which blob.
        blob: u64,
        /// Where the piece begins.
        offset: u64,
        /// The piece.
        payload: Bytes,
    },
    /// Asks for the node's counters.
    Stats,
    /// Says which blobs will be asked for soon, in this order. An agent fetches them ahead; a node takes
    /// note of nothing.
    Want {
        /// An opened dataset.
        handle: u32,
        /// Which.
        blobs: Vec<u64>,
    },
    /// Says how an agent is to answer what follows on this connection: as ever, or from the origin, whatever
    /// is resident. That is a probe.
    Mode {
        /// An opened dataset.
        handle: u32,
        /// Whether all is to miss.
        is_forced: bool,
    },
    /// Says how a job gets on; the manager of the dataset answers what to draw from.
    Report {
        /// An opened dataset.
        handle: u32,
        /// How.
        report: Report,
    },
    /// Says that the job reads the dataset no more.
    Leave {
        /// An opened dataset.
        handle: u32,
    },
    /// Asks how a dataset stands, and why.
    Explain {
        /// An opened dataset.
        handle: u32,
    },
    /// Asks that nothing of a dataset be kept. What was put is gone for good when this is answered.
    Evict {
        /// An opened dataset.
        handle: u32,
    },
    /// Asks for a segment: memory of this connection's own, over a Unix socket.
    Segment {
        /// How large it should be.
        size: u64,
    },
    /// Asks for bytes like a get, in the segment as far as there is room.
    Place {
        /// An opened dataset.
        handle: u32,
        /// How long to wait for a blob that somebody has claimed, in milliseconds.
        wait_ms: u32,
        /// Slots that the caller lets go of, by their offsets.
        released: Vec<u32>,
        /// Which bytes.
        ranges: Vec<BlobRange>,
    },
    /// Asks who the node is, and which others there are.
    Ring,
    /// What another node of the ring has to say: only those who have shown the cluster's token may.
    Council(council::Request),
}

/// What somebody sent as its token, whatever it is. Shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SentToken(pub Vec<u8>);

impl fmt::Debug for SentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "no token" } else { "a token" })
    }
}

/// A row of a dataset's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLength {
    /// The blob's name.
    pub address: Address,
    /// How long it is.
    pub length: u64,
}

/// Some bytes of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRange {
    /// Which blob.
    pub blob: u64,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub length: u32,
}

/// How far a fetch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobProgress {
    /// Which blob.
    pub blob: u64,
    /// Bytes fetched so far.
    pub bytes: u64,
}

/// Kinds of requests; a reply has the same with the top bit set.
pub(crate) mod kind {
    pub const HELLO: u8 = 1;
    pub const SHOW: u8 = 2;
    pub const PROVE: u8 = 3;
    pub const UPLOAD: u8 = 4;
    pub const PRESENCE: u8 = 5;
    pub const GET: u8 = 6;
    pub const CLAIM: u8 = 7;
    pub const RENEW: u8 = 8;
    pub const RELEASE: u8 = 9;
    pub const PUT: u8 = 10;
    pub const STATS: u8 = 11;
    pub const WANT: u8 = 12;
    pub const REPORT: u8 = 13;
    pub const LEAVE: u8 = 14;
    pub const EXPLAIN: u8 = 15;
    pub const EVICT: u8 = 16;
    /// Of a job and its agent.
    pub const MODE: u8 = 17;
    pub const PICK: u8 = 18;
    pub const SEGMENT: u8 = 32;
    pub const PLACE: u8 = 33;
    pub const RING: u8 = 20;
    /// What nodes say to each other; to anybody else there is no such kind.
    pub const COUNCIL: u8 = 24;
}

const ROW_SIZE: usize = Address::LEN + 8;
const RANGE_SIZE: usize = 20;
const PROGRESS_SIZE: usize = 16;

impl Request {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => kind::HELLO,
            Self::Show { .. } => kind::SHOW,
            Self::Prove { .. } => kind::PROVE,
            Self::Upload { .. } => kind::UPLOAD,
            Self::Pick { .. } => kind::PICK,
            Self::Presence { .. } => kind::PRESENCE,
            Self::Get { .. } => kind::GET,
            Self::Claim { .. } => kind::CLAIM,
            Self::Renew { .. } => kind::RENEW,
            Self::Release { .. } => kind::RELEASE,
            Self::Put { .. } => kind::PUT,
            Self::Stats => kind::STATS,
            Self::Want { .. } => kind::WANT,
            Self::Report { .. } => kind::REPORT,
            Self::Leave { .. } => kind::LEAVE,
            Self::Explain { .. } => kind::EXPLAIN,
            Self::Evict { .. } => kind::EVICT,
            Self::Segment { .. } => kind::SEGMENT,
            Self::Place { .. } => kind::PLACE,
            Self::Ring => kind::RING,
            Self::Council(_) => kind::COUNCIL,
            Self::Mode { .. } => kind::MODE,
        }
    }

    /// As a frame. Batches over the limits are our own mistake, and asserted.
    pub fn encode(&self, id: u64) -> Frame {
        let payload = match self {
            Self::Put { payload, .. } => payload.clone(),
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
            Self::Hello { version_min, version_max, job, token } => {
                to.u16(*version_min);
                to.u16(*version_max);
                to.text(job);
                to.short_bytes(TOKEN_LENGTH_MAX, &token.0);
            }
            Self::Show { namespace, dataset } => {
                to.bytes(namespace.as_bytes());
                to.bytes(dataset.as_bytes());
            }
            Self::Prove { dataset, proof } => {
                to.bytes(dataset.as_bytes());
                to.bytes(proof);
            }
            Self::Upload { namespace, dataset, chunks, partitions, blobs, first, page } => {
                to.bytes(namespace.as_bytes());
                to.bytes(dataset.as_bytes());
                to.u32(*chunks);
                to.u32(*partitions);
                to.u64(*blobs);
                to.u64(*first);
                to.list(BATCH_MAX, page, write_row);
            }
            Self::Pick { namespace, blobs } => {
                to.bytes(namespace.as_bytes());
                to.list(PICKS_MAX, blobs, write_row);
            }
            Self::Presence { handle, first, count, since } => {
                to.u32(*handle);
                to.u64(*first);
                to.u32(*count);
                to.u64(*since);
            }
            Self::Get { handle, wait_ms, ranges } => {
                to.u32(*handle);
                to.u32(*wait_ms);
                write_ranges(ranges, to);
            }
            Self::Segment { size } => to.u64(*size),
            Self::Place { handle, wait_ms, released, ranges } => {
                to.u32(*handle);
                to.u32(*wait_ms);
                to.list(BATCH_MAX, released, |to, offset| to.u32(*offset));
                write_ranges(ranges, to);
            }
            Self::Claim { handle, blobs }
            | Self::Release { handle, blobs }
            | Self::Want { handle, blobs } => {
                to.u32(*handle);
                to.list(BATCH_MAX, blobs, |to, blob| to.u64(*blob));
            }
            Self::Renew { handle, blobs } => {
                to.u32(*handle);
                to.list(BATCH_MAX, blobs, |to, progress| {
                    to.u64(progress.blob);
                    to.u64(progress.bytes);
                });
            }
            Self::Put { handle, blob, offset, .. } => {
                to.u32(*handle);
                to.u64(*blob);
                to.u64(*offset);
            }
            Self::Stats | Self::Ring => {}
            Self::Council(request) => write_request(request, to),
            Self::Report { handle, report } => {
                to.u32(*handle);
                write_report(report, to);
            }
            Self::Leave { handle } | Self::Explain { handle } | Self::Evict { handle } => {
                to.u32(*handle);
            }
            Self::Mode { handle, is_forced } => {
                to.u32(*handle);
                to.u8((*is_forced).into());
            }
        }
    }

    /// Reads a request; `body` is what follows its header.
    pub fn decode(header: &Header, body: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let request = match header.kind {
            kind::HELLO => Self::Hello {
                version_min: from.u16()?,
                version_max: from.u16()?,
                job: from.text()?,
                token: SentToken(from.short_bytes(TOKEN_LENGTH_MAX)?),
            },
            kind::SHOW => Self::Show { namespace: from.namespace()?, dataset: from.dataset()? },
            kind::PROVE => Self::Prove { dataset: from.dataset()?, proof: from.array()? },
            kind::UPLOAD => Self::Upload {
                namespace: from.namespace()?,
                dataset: from.dataset()?,
                chunks: from.u32()?,
                partitions: from.u32()?,
                blobs: from.u64()?,
                first: from.u64()?,
                page: from.list(BATCH_MAX, ROW_SIZE, read_row)?,
            },
            kind::PICK => Self::Pick {
                namespace: from.namespace()?,
                blobs: from.list(PICKS_MAX, ROW_SIZE, read_row)?,
            },
            kind::PRESENCE => {
                let (handle, first, count) = (from.u32()?, from.u64()?, from.u32()?);
                if count > PRESENCE_MAX {
                    return Err(Malformed::OverLimit);
                }
                Self::Presence { handle, first, count, since: from.u64()? }
            }
            kind::GET => Self::Get {
                handle: from.u32()?,
                wait_ms: from.u32()?,
                ranges: read_ranges(&mut from)?,
            },
            kind::SEGMENT => Self::Segment { size: from.u64()? },
            kind::PLACE => Self::Place {
                handle: from.u32()?,
                wait_ms: from.u32()?,
                released: from.list(BATCH_MAX, 4, Reader::u32)?,
                ranges: read_ranges(&mut from)?,
            },
            kind::CLAIM => {
                Self::Claim { handle: from.u32()?, blobs: from.list(BATCH_MAX, 8, Reader::u64)? }
            }
            kind::RENEW => Self::Renew {
                handle: from.u32()?,
                blobs: from.list(BATCH_MAX, PROGRESS_SIZE, |from| {
                    Ok(BlobProgress { blob: from.u64()?, bytes: from.u64()? })
                })?,
            },
            kind::RELEASE => {
                Self::Release { handle: from.u32()?, blobs: from.list(BATCH_MAX, 8, Reader::u64)? }
            }
            kind::PUT => {
                let (handle, blob, offset) = (from.u32()?, from.u64()?, from.u64()?);
                if from.0.len() > PAYLOAD_SIZE_MAX {
                    return Err(Malformed::OverLimit);
                }
                let payload = body.slice_ref(from.bytes(from.0.len())?);
                Self::Put { handle, blob, offset, payload }
            }
            kind::STATS => Self::Stats,
            kind::WANT => {
                Self::Want { handle: from.u32()?, blobs: from.list(BATCH_MAX, 8, Reader::u64)? }
            }
            kind::REPORT => Self::Report { handle: from.u32()?, report: read_report(&mut from)? },
            kind::LEAVE => Self::Leave { handle: from.u32()? },
            kind::EXPLAIN => Self::Explain { handle: from.u32()? },
            kind::EVICT => Self::Evict { handle: from.u32()? },
            kind::RING => Self::Ring,
            kind::COUNCIL => Self::Council(read_request(&mut from)?),
            kind::MODE => Self::Mode { handle: from.u32()?, is_forced: from.flag()? },
            unknown => return Err(Malformed::Kind(unknown)),
        };
        from.finish().map(|()| request)
    }
}

fn write_row(to: &mut Writer<'_>, row: &BlobLength) {
    to.bytes(row.address.as_bytes());
    to.u64(row.length);
}

fn read_row(from: &mut Reader<'_>) -> Result<BlobLength, Malformed> {
    Ok(BlobLength { address: from.address()?, length: from.u64()? })
}

fn write_ranges(ranges: &[BlobRange], to: &mut Writer<'_>) {
    to.list(BATCH_MAX, ranges, |to, range| {
        to.u64(range.blob);
        to.u64(range.offset);
        to.u32(range.length);
    });
}

fn read_ranges(from: &mut Reader<'_>) -> Result<Vec<BlobRange>, Malformed> {
    from.list(BATCH_MAX, RANGE_SIZE, |from| {
        let range = BlobRange { blob: from.u64()?, offset: from.u64()?, length: from.u32()? };
        if range.length as usize > PAYLOAD_SIZE_MAX {
            return Err(Malformed::OverLimit);
        }
        Ok(range)
    })
}

fn write_report(report: &Report, to: &mut Writer<'_>) {
    to.u64(report.life);
    to.u32(report.gpus);
    to.u64(report.epoch_batches);
    to.u64(report.epoch);
    to.u64(report.pace.0.0);
    to.u8(report.is_all.into());
    to.list(PIECES_MAX, &report.unread, |to, (piece, unread)| {
        to.u32(*piece);
        to.u64(unread.0);
    });
    for pieces in [&report.released, &report.filled] {
        to.list(PIECES_MAX, pieces, |to, piece| to.u32(*piece));
    }
    to.list(BATCH_MAX, &report.batches, |to, (mode, took, stalled)| {
        to.u8(match mode {
            Mode::Hit => 0,
            Mode::Rotating => 1,
            Mode::Miss => 2,
        });
        for time in [took, stalled] {
            to.u32(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
        }
    });
}

fn read_report(from: &mut Reader<'_>) -> Result<Report, Malformed> {
    Ok(Report {
        life: from.u64()?,
        gpus: from.u32()?,
        epoch_batches: from.u64()?,
        epoch: from.u64()?,
        pace: ByteRate(ByteSize(from.u64()?)),
        is_all: from.flag()?,
        unread: from.list(PIECES_MAX, 12, |from| Ok((from.u32()?, ByteSize(from.u64()?))))?,
        released: from.list(PIECES_MAX, 4, Reader::u32)?,
        filled: from.list(PIECES_MAX, 4, Reader::u32)?,
        batches: from.list(BATCH_MAX, 9, |from| {
            let mode = match from.u8()? {
                0 => Mode::Hit,
                1 => Mode::Rotating,
                2 => Mode::Miss,
                _ => return Err(Malformed::Value),
            };
            let mut time = || from.u32().map(|us| Duration::from_micros(us.into()));
            Ok((mode, time()?, time()?))
        })?,
    })
}

//! Requests: the messages of a client, and their codec.

use std::{fmt, time::Duration};

use bytes::Bytes;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, DatasetId, NamespaceId,
    cluster::replication,
    ids::TOKEN_LENGTH_MAX,
    train::{
        benefit::{BatchTime, Mode},
        manager::{MeasuredBatch, Report},
    },
    units::ByteRate,
};
use zeroize::Zeroize as _;

use crate::{
    BATCH_MAX, HALF_CHUNKS_MAX, PAYLOAD_SIZE_MAX, PRESENCE_MAX, SELECTION_MAX, WRONG_BYTES_MAX,
    cluster::{read_request, write_request},
    codec::{Malformed, Reader, Writer},
    frame::{Frame, Header},
    stream::StreamRequest,
};

/// A request. Blobs of an open dataset are named by their ordinals.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// Oldest version of the protocol that the client supports.
        version_min: u16,
        /// Newest version that the client supports.
        version_max: u16,
        /// Name of the job, or of the node that connects.
        job: String,
        /// Token of the tenant or the cluster; empty if the client authenticates in another way.
        token: SentToken,
    },
    /// Opens a dataset. The answer is a challenge or a request to upload its blob table.
    Open {
        /// Namespace of its addresses.
        namespace: NamespaceId,
        /// The dataset.
        dataset: DatasetId,
    },
    /// Answers a challenge: proves possession of the blob table.
    Prove {
        /// The dataset.
        dataset: DatasetId,
        /// BLAKE3, keyed with the challenge's nonce, over all addresses and lengths.
        proof: [u8; 32],
    },
    /// Uploads one page of a blob table that the node does not have. Pages come in order.
    Upload {
        /// Namespace of its addresses.
        namespace: NamespaceId,
        /// The dataset.
        dataset: DatasetId,
        /// Chunks of the dataset.
        chunks: u32,
        /// Partitions of the dataset.
        partitions: u32,
        /// Blobs of the dataset.
        blobs: u64,
        /// Ordinal of the first blob of this page.
        first: u64,
        /// The page.
        page: Vec<BlobLength>,
    },
    /// Selects blobs by address instead of by dataset. Replaces the connection's previous
    /// selection. Later requests name the blobs by their positions in this list, under the handle
    /// [`SELECTED_HANDLE`](crate::SELECTED_HANDLE).
    SelectByAddress {
        /// Namespace of the addresses.
        namespace: NamespaceId,
        /// The blobs.
        blobs: Vec<BlobLength>,
    },
    /// Which blobs of a range of ordinals are resident, or which have changed since a version.
    Presence {
        /// An open dataset.
        handle: u32,
        /// The first ordinal.
        first: u64,
        /// Number of ordinals.
        count: u32,
        /// Version of the last reply for the same range; 0 for none.
        since: u64,
    },
    /// Reads ranges of blobs. Each range is answered by a frame of its own, in any order.
    Get {
        /// An open dataset.
        handle: u32,
        /// Longest wait for a claimed blob, in milliseconds.
        wait_ms: u32,
        /// The ranges.
        ranges: Vec<BlobRange>,
    },
    /// Claims blobs, to fetch them.
    Claim {
        /// An open dataset.
        handle: u32,
        /// The blobs.
        blobs: Vec<BlobOrdinal>,
    },
    /// Renews claims and reports the progress of their fetches.
    Renew {
        /// An open dataset.
        handle: u32,
        /// The blobs, with the bytes fetched so far.
        blobs: Vec<BlobProgress>,
    },
    /// Releases claims without a put.
    Release {
        /// An open dataset.
        handle: u32,
        /// The blobs.
        blobs: Vec<BlobOrdinal>,
    },
    /// Writes the next bytes of a claimed blob. They come in order. With the last ones the node
    /// hashes the blob, and stores it only if it hashes to its address.
    Put {
        /// An open dataset.
        handle: u32,
        /// The blob.
        blob: BlobOrdinal,
        /// Position of the bytes in the blob.
        offset: u64,
        /// The bytes.
        payload: Bytes,
    },
    /// Counters and gauges of the node.
    Stats,
    /// Space that the node can still fill. An agent limits prefetching by it.
    FreeSpace,
    /// Blobs that will be read soon, in this order. An agent prefetches them; a node ignores the
    /// hint.
    PrefetchHint {
        /// An open dataset.
        handle: u32,
        /// The blobs.
        blobs: Vec<BlobOrdinal>,
    },
    /// Switches the later gets of this connection to the origin, for a probe, or back. Agents only.
    ProbeMode {
        /// An open dataset.
        handle: u32,
        /// Whether all gets read the origin.
        is_forced: bool,
    },
    /// Reports the progress of a job. The dataset's manager answers with a draw set.
    Report {
        /// An open dataset.
        handle: u32,
        /// The report.
        report: Report,
    },
    /// The job does not read the dataset any more.
    Leave {
        /// An open dataset.
        handle: u32,
    },
    /// The state of a dataset and the reasons for it.
    Explain {
        /// An open dataset.
        handle: u32,
    },
    /// Evicts a dataset. When the reply arrives, the bytes put for it are gone, also after a
    /// restart.
    Evict {
        /// An open dataset.
        handle: u32,
    },
    /// Blobs of which the client has received bytes that do not hash to their addresses. The node
    /// hashes its own copies, and drops those that are wrong. Since version 2.
    WrongBytes {
        /// An open dataset.
        handle: u32,
        /// The blobs.
        blobs: Vec<BlobOrdinal>,
    },
    /// A shm region for this connection. Unix sockets only.
    ShmMap {
        /// Size in bytes.
        size: u64,
    },
    /// A get whose bytes are placed in the shm region. Ranges that do not fit come as payloads.
    GetShm {
        /// An open dataset.
        handle: u32,
        /// Longest wait for a claimed blob, in milliseconds.
        wait_ms: u32,
        /// Offsets of the slots that the client releases.
        released: Vec<u32>,
        /// The ranges.
        ranges: Vec<BlobRange>,
    },
    /// The node's name and the members of its cluster.
    Ring,
    /// A request about streams. Since version 3.
    Stream(StreamRequest),
    /// A message from another node. Requires the cluster token.
    Cluster(replication::Request),
}

/// A token as the client sent it. `Debug` does not print it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SentToken(pub Vec<u8>);

/// Zeroes the token.
impl Drop for SentToken {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "no token" } else { "a token" })
    }
}

/// One row of a blob table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLength {
    /// The blob's address.
    pub address: Address,
    /// Its length in bytes.
    pub length: u64,
}

/// A byte range of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRange {
    /// The blob.
    pub blob: BlobOrdinal,
    /// Position of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Progress of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobProgress {
    /// The blob.
    pub blob: BlobOrdinal,
    /// Bytes fetched so far.
    pub bytes: u64,
}

/// Kinds of requests. A reply has the kind of its request with the top bit set.
pub(crate) mod kind {
    pub const HELLO: u8 = 1;
    pub const OPEN: u8 = 2;
    pub const PROVE: u8 = 3;
    pub const UPLOAD: u8 = 4;
    pub const PRESENCE: u8 = 5;
    pub const GET: u8 = 6;
    pub const CLAIM: u8 = 7;
    pub const RENEW: u8 = 8;
    pub const RELEASE: u8 = 9;
    pub const PUT: u8 = 10;
    pub const STATS: u8 = 11;
    pub const PREFETCH_HINT: u8 = 12;
    pub const REPORT: u8 = 13;
    pub const LEAVE: u8 = 14;
    pub const EXPLAIN: u8 = 15;
    pub const EVICT: u8 = 16;
    /// Between a job and its agent.
    pub const PROBE_MODE: u8 = 17;
    pub const SELECT_BY_ADDRESS: u8 = 18;
    pub const SHM_MAP: u8 = 32;
    pub const GET_SHM: u8 = 33;
    pub const RING: u8 = 20;
    pub const FREE_SPACE: u8 = 21;
    pub const WRONG_BYTES: u8 = 25;
    pub const STREAM: u8 = 26;
    /// Between nodes. To other clients the kind is unknown.
    pub const CLUSTER: u8 = 24;
}

const ROW_SIZE: usize = Address::LEN + 8;
const RANGE_SIZE: usize = 20;
const PROGRESS_SIZE: usize = 16;

impl Request {
    /// Name of the operation, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Open { .. } => "open",
            Self::Prove { .. } => "prove",
            Self::Upload { .. } => "upload",
            Self::SelectByAddress { .. } => "select_by_address",
            Self::Presence { .. } => "presence",
            Self::Get { .. } => "get",
            Self::Claim { .. } => "claim",
            Self::Renew { .. } => "renew",
            Self::Release { .. } => "release",
            Self::Put { .. } => "put",
            Self::Stats => "stats",
            Self::FreeSpace => "free_space",
            Self::PrefetchHint { .. } => "prefetch_hint",
            Self::Report { .. } => "report",
            Self::Leave { .. } => "leave",
            Self::Explain { .. } => "explain",
            Self::Evict { .. } => "evict",
            Self::WrongBytes { .. } => "wrong_bytes",
            Self::ShmMap { .. } => "shm_map",
            Self::GetShm { .. } => "get_shm",
            Self::Ring => "ring",
            Self::Stream(request) => request.name(),
            Self::Cluster(_) => "cluster",
            Self::ProbeMode { .. } => "probe_mode",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => kind::HELLO,
            Self::Open { .. } => kind::OPEN,
            Self::Prove { .. } => kind::PROVE,
            Self::Upload { .. } => kind::UPLOAD,
            Self::SelectByAddress { .. } => kind::SELECT_BY_ADDRESS,
            Self::Presence { .. } => kind::PRESENCE,
            Self::Get { .. } => kind::GET,
            Self::Claim { .. } => kind::CLAIM,
            Self::Renew { .. } => kind::RENEW,
            Self::Release { .. } => kind::RELEASE,
            Self::Put { .. } => kind::PUT,
            Self::Stats => kind::STATS,
            Self::FreeSpace => kind::FREE_SPACE,
            Self::PrefetchHint { .. } => kind::PREFETCH_HINT,
            Self::Report { .. } => kind::REPORT,
            Self::Leave { .. } => kind::LEAVE,
            Self::Explain { .. } => kind::EXPLAIN,
            Self::Evict { .. } => kind::EVICT,
            Self::WrongBytes { .. } => kind::WRONG_BYTES,
            Self::ShmMap { .. } => kind::SHM_MAP,
            Self::GetShm { .. } => kind::GET_SHM,
            Self::Ring => kind::RING,
            Self::Stream(_) => kind::STREAM,
            Self::Cluster(_) => kind::CLUSTER,
            Self::ProbeMode { .. } => kind::PROBE_MODE,
        }
    }

    /// The request as a frame.
    ///
    /// # Panics
    /// If a list or the payload exceeds the limits of the protocol.
    pub fn encode(&self, id: u64) -> Frame {
        let payload = match self {
            Self::Put { payload, .. } => payload.clone(),
            Self::Stream(request) => request.payload(),
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
            Self::Hello { version_min, version_max, job, token } => {
                to.u16(*version_min);
                to.u16(*version_max);
                to.text(job);
                to.short_bytes(TOKEN_LENGTH_MAX, &token.0);
            }
            Self::Open { namespace, dataset } => {
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
            Self::SelectByAddress { namespace, blobs } => {
                to.bytes(namespace.as_bytes());
                to.list(SELECTION_MAX, blobs, write_row);
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
            Self::ShmMap { size } => to.u64(*size),
            Self::GetShm { handle, wait_ms, released, ranges } => {
                to.u32(*handle);
                to.u32(*wait_ms);
                to.list(BATCH_MAX, released, |to, offset| to.u32(*offset));
                write_ranges(ranges, to);
            }
            Self::Claim { handle, blobs }
            | Self::Release { handle, blobs }
            | Self::PrefetchHint { handle, blobs } => {
                to.u32(*handle);
                to.list(BATCH_MAX, blobs, |to, blob| to.u64(blob.0));
            }
            Self::WrongBytes { handle, blobs } => {
                to.u32(*handle);
                to.list(WRONG_BYTES_MAX, blobs, |to, blob| to.u64(blob.0));
            }
            Self::Renew { handle, blobs } => {
                to.u32(*handle);
                to.list(BATCH_MAX, blobs, |to, progress| {
                    to.u64(progress.blob.0);
                    to.u64(progress.bytes);
                });
            }
            Self::Put { handle, blob, offset, .. } => {
                to.u32(*handle);
                to.u64(blob.0);
                to.u64(*offset);
            }
            Self::Stats | Self::FreeSpace | Self::Ring => {}
            Self::Stream(request) => request.write(to),
            Self::Cluster(request) => write_request(request, to),
            Self::Report { handle, report } => {
                to.u32(*handle);
                write_report(report, to);
            }
            Self::Leave { handle } | Self::Explain { handle } | Self::Evict { handle } => {
                to.u32(*handle);
            }
            Self::ProbeMode { handle, is_forced } => {
                to.u32(*handle);
                to.u8((*is_forced).into());
            }
        }
    }

    /// Whether a request of this kind is mostly a payload, which takes no more memory when it is
    /// decoded. Others may be lists, which do.
    pub fn has_payload(header: &Header) -> bool {
        matches!(header.kind, kind::PUT | kind::STREAM)
    }

    /// Parses a request from its header and body.
    pub fn decode(header: &Header, body: &Bytes) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let request = match header.kind {
            kind::HELLO => Self::Hello {
                version_min: from.u16()?,
                version_max: from.u16()?,
                job: from.text()?,
                token: SentToken(from.short_bytes(TOKEN_LENGTH_MAX)?),
            },
            kind::OPEN => Self::Open { namespace: from.namespace()?, dataset: from.dataset()? },
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
            kind::SELECT_BY_ADDRESS => Self::SelectByAddress {
                namespace: from.namespace()?,
                blobs: from.list(SELECTION_MAX, ROW_SIZE, read_row)?,
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
            kind::SHM_MAP => Self::ShmMap { size: from.u64()? },
            kind::GET_SHM => Self::GetShm {
                handle: from.u32()?,
                wait_ms: from.u32()?,
                released: from.list(BATCH_MAX, 4, Reader::u32)?,
                ranges: read_ranges(&mut from)?,
            },
            kind::CLAIM => {
                Self::Claim { handle: from.u32()?, blobs: from.list(BATCH_MAX, 8, Reader::blob)? }
            }
            kind::RENEW => Self::Renew {
                handle: from.u32()?,
                blobs: from.list(BATCH_MAX, PROGRESS_SIZE, |from| {
                    Ok(BlobProgress { blob: from.blob()?, bytes: from.u64()? })
                })?,
            },
            kind::RELEASE => {
                Self::Release { handle: from.u32()?, blobs: from.list(BATCH_MAX, 8, Reader::blob)? }
            }
            kind::PUT => {
                let (handle, blob, offset) = (from.u32()?, from.blob()?, from.u64()?);
                if from.0.len() > PAYLOAD_SIZE_MAX {
                    return Err(Malformed::OverLimit);
                }
                let payload = body.slice_ref(from.bytes(from.0.len())?);
                Self::Put { handle, blob, offset, payload }
            }
            kind::STATS => Self::Stats,
            kind::FREE_SPACE => Self::FreeSpace,
            kind::PREFETCH_HINT => Self::PrefetchHint {
                handle: from.u32()?,
                blobs: from.list(BATCH_MAX, 8, Reader::blob)?,
            },
            kind::REPORT => Self::Report { handle: from.u32()?, report: read_report(&mut from)? },
            kind::LEAVE => Self::Leave { handle: from.u32()? },
            kind::EXPLAIN => Self::Explain { handle: from.u32()? },
            kind::EVICT => Self::Evict { handle: from.u32()? },
            kind::WRONG_BYTES => Self::WrongBytes {
                handle: from.u32()?,
                blobs: from.list(WRONG_BYTES_MAX, 8, Reader::blob)?,
            },
            kind::RING => Self::Ring,
            kind::STREAM => Self::Stream(StreamRequest::read(&mut from, body)?),
            kind::CLUSTER => Self::Cluster(read_request(&mut from)?),
            kind::PROBE_MODE => Self::ProbeMode { handle: from.u32()?, is_forced: from.flag()? },
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
        to.u64(range.blob.0);
        to.u64(range.offset);
        to.u32(range.length);
    });
}

fn read_ranges(from: &mut Reader<'_>) -> Result<Vec<BlobRange>, Malformed> {
    from.list(BATCH_MAX, RANGE_SIZE, |from| {
        let range = BlobRange { blob: from.blob()?, offset: from.u64()?, length: from.u32()? };
        if range.length as usize > PAYLOAD_SIZE_MAX {
            return Err(Malformed::OverLimit);
        }
        Ok(range)
    })
}

fn write_report(report: &Report, to: &mut Writer<'_>) {
    to.u64(report.incarnation);
    to.u32(report.gpus);
    to.u64(report.epoch_batches);
    to.u64(report.epoch);
    to.u64(report.pace.0.0);
    to.u8(report.is_full.into());
    to.list(HALF_CHUNKS_MAX, &report.unread, |to, unread| {
        to.u32(unread.half_chunk.0);
        to.u64(unread.bytes.0);
    });
    for half_chunks in [&report.released, &report.filled] {
        to.list(HALF_CHUNKS_MAX, half_chunks, |to, half_chunk| to.u32(half_chunk.0));
    }
    to.list(BATCH_MAX, &report.batches, |to, MeasuredBatch { mode, time }| {
        to.u8(match mode {
            Mode::Hit => 0,
            Mode::Rotating => 1,
            Mode::Miss => 2,
        });
        for time in [time.took, time.stalled] {
            to.u32(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
        }
    });
}

fn read_report(from: &mut Reader<'_>) -> Result<Report, Malformed> {
    Ok(Report {
        incarnation: from.u64()?,
        gpus: from.u32()?,
        epoch_batches: from.u64()?,
        epoch: from.u64()?,
        pace: ByteRate(ByteSize(from.u64()?)),
        is_full: from.flag()?,
        unread: from.list(HALF_CHUNKS_MAX, 12, Reader::half_chunk_bytes)?,
        released: from.list(HALF_CHUNKS_MAX, 4, Reader::half_chunk)?,
        filled: from.list(HALF_CHUNKS_MAX, 4, Reader::half_chunk)?,
        batches: from.list(BATCH_MAX, 9, |from| {
            let mode = match from.u8()? {
                0 => Mode::Hit,
                1 => Mode::Rotating,
                2 => Mode::Miss,
                _ => return Err(Malformed::Value),
            };
            let mut time = || from.u32().map(|us| Duration::from_micros(us.into()));
            let time = BatchTime { took: time()?, stalled: time()? };
            Ok(MeasuredBatch { mode, time })
        })?,
    })
}

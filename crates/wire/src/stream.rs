//! Streams through a node: requests and replies, and their codec.
//!
//! All of them have one kind, and begin with the number of their operation. Names are those within
//! the client's account; the node adds the account. Since version 3.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use forebay_core::{
    ByteSize,
    node::stream_quotas::AccountFacts,
    streams::{
        BlockNumber, Lifetime, StreamName,
        catalogue::{StreamInfo, StreamState},
    },
};

use crate::{
    PAYLOAD_SIZE_MAX,
    codec::{Malformed, Reader, Writer},
};

/// Most streams in one page of a list.
pub const STREAM_PAGE_MAX: usize = 256;
/// Most ranges of lost blocks of one listed stream. Further ones are left out.
pub const LOST_RANGES_MAX: usize = 64;
/// Smallest size of a listed stream.
const INFO_SIZE_MIN: usize = 2 + 9 + 1 + 8 + 8 + 4 + 4;

/// A request about streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamRequest {
    /// Creates a stream, which this connection writes.
    Create {
        /// Its name.
        name: String,
        /// How long it lives. `Process` is until the node stops.
        lifetime: Lifetime,
    },
    /// Appends a block.
    Append {
        /// A stream that this connection writes.
        handle: u32,
        /// Number of the block. Blocks come in order.
        block: BlockNumber,
        /// The block.
        payload: Bytes,
    },
    /// Seals a stream that this connection writes.
    Seal {
        /// The stream.
        handle: u32,
        /// Number of its blocks.
        blocks: u64,
        /// Bytes of its blocks.
        bytes: u64,
    },
    /// Opens a sealed stream for reading.
    Open {
        /// Its name.
        name: String,
        /// Whether to destroy it while it is read.
        consume: bool,
    },
    /// Reads the next block, or finds the end.
    Next {
        /// A stream that this connection reads.
        handle: u32,
        /// Number of the block. Blocks are read in order.
        block: BlockNumber,
    },
    /// Ends writing or reading. An unsealed stream is dropped.
    Close {
        /// The stream.
        handle: u32,
    },
    /// Destroys a stream.
    Destroy {
        /// Its name.
        name: String,
    },
    /// Lists streams by name.
    List {
        /// Names after this one; empty for all.
        after: String,
    },
    /// The client's streams, budget and readers.
    Facts,
}

/// A reply about streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamReply {
    /// The stream is created.
    Created {
        /// Valid on this connection.
        handle: u32,
        /// Longest block.
        block_length: u32,
    },
    /// The block is appended, the handle is closed or the stream is destroyed.
    Done,
    /// The stream is sealed.
    Sealed(StreamInfo),
    /// The stream is open.
    Opened {
        /// Valid on this connection.
        handle: u32,
        /// The stream.
        info: StreamInfo,
    },
    /// The block that was asked for.
    Block {
        /// Its bytes.
        payload: Bytes,
    },
    /// The last block has been read. A consumed stream is gone.
    End,
    /// A page of streams.
    List {
        /// The streams.
        streams: Vec<StreamInfo>,
        /// Whether there are no more.
        is_last: bool,
    },
    /// What the client has.
    Facts {
        /// Streams, budget and readers.
        account: AccountFacts,
        /// Longest block.
        block_length: u32,
    },
}

mod operation {
    pub const CREATE: u8 = 0;
    pub const APPEND: u8 = 1;
    pub const SEAL: u8 = 2;
    pub const OPEN: u8 = 3;
    pub const NEXT: u8 = 4;
    pub const CLOSE: u8 = 5;
    pub const DESTROY: u8 = 6;
    pub const LIST: u8 = 7;
    pub const FACTS: u8 = 8;
}

mod answer {
    pub const CREATED: u8 = 0;
    pub const DONE: u8 = 1;
    pub const SEALED: u8 = 2;
    pub const OPENED: u8 = 3;
    pub const BLOCK: u8 = 4;
    pub const END: u8 = 5;
    pub const LIST: u8 = 6;
    pub const FACTS: u8 = 7;
}

impl StreamRequest {
    /// Name of the operation, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "stream_create",
            Self::Append { .. } => "stream_append",
            Self::Seal { .. } => "stream_seal",
            Self::Open { .. } => "stream_open",
            Self::Next { .. } => "stream_next",
            Self::Close { .. } => "stream_close",
            Self::Destroy { .. } => "stream_destroy",
            Self::List { .. } => "stream_list",
            Self::Facts => "stream_facts",
        }
    }

    pub(crate) fn payload(&self) -> Bytes {
        match self {
            Self::Append { payload, .. } => payload.clone(),
            _ => Bytes::new(),
        }
    }

    pub(crate) fn write(&self, to: &mut Writer<'_>) {
        match self {
            Self::Create { name, lifetime } => {
                to.u8(operation::CREATE);
                to.text(name);
                write_lifetime(*lifetime, to);
            }
            Self::Append { handle, block, .. } => {
                to.u8(operation::APPEND);
                to.u32(*handle);
                to.u64(block.0);
            }
            Self::Seal { handle, blocks, bytes } => {
                to.u8(operation::SEAL);
                to.u32(*handle);
                to.u64(*blocks);
                to.u64(*bytes);
            }
            Self::Open { name, consume } => {
                to.u8(operation::OPEN);
                to.text(name);
                to.u8((*consume).into());
            }
            Self::Next { handle, block } => {
                to.u8(operation::NEXT);
                to.u32(*handle);
                to.u64(block.0);
            }
            Self::Close { handle } => {
                to.u8(operation::CLOSE);
                to.u32(*handle);
            }
            Self::Destroy { name } => {
                to.u8(operation::DESTROY);
                to.text(name);
            }
            Self::List { after } => {
                to.u8(operation::LIST);
                to.text(after);
            }
            Self::Facts => to.u8(operation::FACTS),
        }
    }

    pub(crate) fn read(from: &mut Reader<'_>, body: &Bytes) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            operation::CREATE => {
                Self::Create { name: from.text()?, lifetime: read_lifetime(from)? }
            }
            operation::APPEND => Self::Append {
                handle: from.u32()?,
                block: BlockNumber(from.u64()?),
                payload: read_payload(from, body)?,
            },
            operation::SEAL => {
                Self::Seal { handle: from.u32()?, blocks: from.u64()?, bytes: from.u64()? }
            }
            operation::OPEN => Self::Open { name: from.text()?, consume: from.flag()? },
            operation::NEXT => Self::Next { handle: from.u32()?, block: BlockNumber(from.u64()?) },
            operation::CLOSE => Self::Close { handle: from.u32()? },
            operation::DESTROY => Self::Destroy { name: from.text()? },
            operation::LIST => Self::List { after: from.text()? },
            operation::FACTS => Self::Facts,
            _ => return Err(Malformed::Value),
        })
    }
}

impl StreamReply {
    /// Bytes of a frame's body before the payload of a block.
    pub const BLOCK_FIELDS: usize = 1;

    /// Whether a body that begins with these bytes is a block. Its payload is the rest.
    pub fn is_block(fields: &[u8]) -> bool {
        fields.first() == Some(&answer::BLOCK)
    }

    pub(crate) fn payload(&self) -> Bytes {
        match self {
            Self::Block { payload } => payload.clone(),
            _ => Bytes::new(),
        }
    }

    pub(crate) fn write(&self, to: &mut Writer<'_>) {
        match self {
            Self::Created { handle, block_length } => {
                to.u8(answer::CREATED);
                to.u32(*handle);
                to.u32(*block_length);
            }
            Self::Done => to.u8(answer::DONE),
            Self::Sealed(info) => {
                to.u8(answer::SEALED);
                write_info(to, info);
            }
            Self::Opened { handle, info } => {
                to.u8(answer::OPENED);
                to.u32(*handle);
                write_info(to, info);
            }
            Self::Block { .. } => to.u8(answer::BLOCK),
            Self::End => to.u8(answer::END),
            Self::List { streams, is_last } => {
                to.u8(answer::LIST);
                to.u8((*is_last).into());
                to.list(STREAM_PAGE_MAX, streams, write_info);
            }
            Self::Facts { account, block_length } => {
                to.u8(answer::FACTS);
                let AccountFacts { streams, readers, used, budget } = *account;
                for field in [streams, readers, used.0, budget.0] {
                    to.u64(field);
                }
                to.u32(*block_length);
            }
        }
    }

    pub(crate) fn read(from: &mut Reader<'_>, body: &Bytes) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            answer::CREATED => Self::Created { handle: from.u32()?, block_length: from.u32()? },
            answer::DONE => Self::Done,
            answer::SEALED => Self::Sealed(read_info(from)?),
            answer::OPENED => Self::Opened { handle: from.u32()?, info: read_info(from)? },
            answer::BLOCK => Self::Block { payload: read_payload(from, body)? },
            answer::END => Self::End,
            answer::LIST => {
                let is_last = from.flag()?;
                let streams = from.list(STREAM_PAGE_MAX, INFO_SIZE_MIN, read_info)?;
                Self::List { streams, is_last }
            }
            answer::FACTS => {
                let account = AccountFacts {
                    streams: from.u64()?,
                    readers: from.u64()?,
                    used: ByteSize(from.u64()?),
                    budget: ByteSize(from.u64()?),
                };
                Self::Facts { account, block_length: from.u32()? }
            }
            _ => return Err(Malformed::Value),
        })
    }
}

/// The rest of the body.
fn read_payload(from: &mut Reader<'_>, body: &Bytes) -> Result<Bytes, Malformed> {
    if from.0.len() > PAYLOAD_SIZE_MAX {
        return Err(Malformed::OverLimit);
    }
    Ok(body.slice_ref(from.bytes(from.0.len())?))
}

fn write_lifetime(lifetime: Lifetime, to: &mut Writer<'_>) {
    let (code, time) = match lifetime {
        Lifetime::Process => (0, Duration::ZERO),
        Lifetime::Lease(time) => (1, time),
        Lifetime::Kept => (2, Duration::ZERO),
    };
    to.u8(code);
    to.u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
}

fn read_lifetime(from: &mut Reader<'_>) -> Result<Lifetime, Malformed> {
    match (from.u8()?, from.u64()?) {
        (0, 0) => Ok(Lifetime::Process),
        (1, ms) => Ok(Lifetime::Lease(Duration::from_millis(ms))),
        (2, 0) => Ok(Lifetime::Kept),
        _ => Err(Malformed::Value),
    }
}

fn write_info(to: &mut Writer<'_>, info: &StreamInfo) {
    to.text(info.name.as_str());
    write_lifetime(info.lifetime, to);
    to.u8(match info.state {
        StreamState::Writing => 0,
        StreamState::Sealed => 1,
        StreamState::Consumed => 2,
        StreamState::Destroyed => 3,
    });
    to.u64(info.blocks);
    to.u64(info.bytes);
    to.u32(info.readers);
    let lost = &info.lost[..info.lost.len().min(LOST_RANGES_MAX)];
    to.list(LOST_RANGES_MAX, lost, |to, range| {
        to.u64(range.start);
        to.u64(range.end);
    });
}

fn read_info(from: &mut Reader<'_>) -> Result<StreamInfo, Malformed> {
    let name = StreamName::new(&from.text()?).map_err(|_| Malformed::Value)?;
    let lifetime = read_lifetime(from)?;
    let state = match from.u8()? {
        0 => StreamState::Writing,
        1 => StreamState::Sealed,
        2 => StreamState::Consumed,
        3 => StreamState::Destroyed,
        _ => return Err(Malformed::Value),
    };
    let (blocks, bytes, readers) = (from.u64()?, from.u64()?, from.u32()?);
    let lost = from.list(LOST_RANGES_MAX, 16, |from| -> Result<Range<u64>, Malformed> {
        Ok(from.u64()?..from.u64()?)
    })?;
    let family = name.clone();
    Ok(StreamInfo { name, family, lifetime, state, blocks, bytes, readers, lost })
}

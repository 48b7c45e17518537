//! Loans: the messages between the owner of a store and its borrowers.
//!
//! Messages travel over a socket that keeps their boundaries, one reply per request. A borrower
//! gets places, never bytes of a stream: it reads the device and verifies by itself. Numbers are
//! little-endian.

use std::time::Duration;

use super::{
    BlockNumber, Lifetime, StreamName, StreamNumber,
    catalogue::{StreamInfo, StreamState},
    lending::LeaseId,
};

/// Version of the messages. Owner and borrower have to have the same.
pub const LOAN_VERSION: u32 = 1;
/// Longest message.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Most extents in a reply.
pub const EXTENTS_MAX: usize = 1024;
/// Most streams in a reply.
pub const LISTED_MAX: usize = 128;

const EXTENT_SIZE: usize = 48;
/// Longest text of a refusal.
const TEXT_MAX: usize = 4096;

/// A request of a borrower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoanRequest {
    /// The first message.
    Hello {
        /// [`LOAN_VERSION`] of the borrower.
        version: u32,
    },
    /// Lists streams.
    List {
        /// The last name of the list before; `None` for the first list.
        after: Option<StreamName>,
    },
    /// Leases a sealed stream.
    Open(StreamName),
    /// Asks where blocks of a leased stream lie.
    Extents {
        /// The lease.
        lease: LeaseId,
        /// The first block.
        first: BlockNumber,
    },
    /// Returns a lease.
    Return(LeaseId),
}

/// A reply of the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoanReply {
    /// To `Hello`. The descriptor of the device comes with it.
    Welcome(LoanTerms),
    /// To `List`: at most [`LISTED_MAX`]. Lost blocks are not listed; opening a stream names them.
    Streams(Vec<StreamInfo>),
    /// To `Open`.
    Lent(LentStream),
    /// To `Extents`: at most [`EXTENTS_MAX`].
    Extents(Vec<LentExtent>),
    /// To `Return`.
    Done,
    /// To any request, with the reason and the remedy.
    Refused(String),
}

/// The device of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoanTerms {
    /// Id of the device.
    pub device: u64,
    /// Bytes per region.
    pub region_size: u64,
    /// Number of regions.
    pub regions: u32,
    /// Longest block of a stream.
    pub block_length: u64,
    /// Bytes of the free regions.
    pub free: u64,
}

/// A leased stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentStream {
    /// The lease.
    pub lease: LeaseId,
    /// Number of the stream in its family: the tag of its blocks.
    pub number: StreamNumber,
    /// Number of its blocks.
    pub blocks: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
}

/// Where a block lies, in the numbers of the flash engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentExtent {
    /// Key of the entry.
    pub key: [u8; 32],
    /// Region, offset and size.
    pub location: u64,
    /// Generation of the region.
    pub generation: u64,
}

impl LoanRequest {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Hello { version } => {
                out.push(1);
                out.extend(version.to_le_bytes());
            }
            Self::List { after } => {
                out.push(2);
                out.extend(after.iter().flat_map(|name| name.as_str().bytes()));
            }
            Self::Open(name) => {
                out.push(3);
                out.extend(name.as_str().bytes());
            }
            Self::Extents { lease, first } => {
                out.push(4);
                out.extend(lease.0.to_le_bytes());
                out.extend(first.0.to_le_bytes());
            }
            Self::Return(lease) => {
                out.push(5);
                out.extend(lease.0.to_le_bytes());
            }
        }
        out
    }

    /// Decodes a request. `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut fields = Fields(rest);
        let request = match kind {
            1 => Self::Hello { version: fields.word()? },
            2 if rest.is_empty() => Self::List { after: None },
            2 => Self::List { after: Some(fields.name(rest.len())?) },
            3 => Self::Open(fields.name(rest.len())?),
            4 => {
                Self::Extents { lease: LeaseId(fields.word()?), first: BlockNumber(fields.long()?) }
            }
            5 => Self::Return(LeaseId(fields.word()?)),
            _ => return None,
        };
        fields.0.is_empty().then_some(request)
    }
}

impl LoanReply {
    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Welcome(terms) => {
                out.push(1);
                for number in [terms.device, terms.region_size, terms.block_length, terms.free] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(terms.regions.to_le_bytes());
            }
            Self::Streams(streams) => {
                out.push(2);
                for stream in streams {
                    put_info(&mut out, stream);
                }
            }
            Self::Lent(stream) => {
                out.push(3);
                out.extend(stream.lease.0.to_le_bytes());
                out.extend(stream.number.0.to_le_bytes());
                out.extend(stream.blocks.to_le_bytes());
                out.extend(stream.bytes.to_le_bytes());
            }
            Self::Extents(extents) => {
                out.push(4);
                for extent in extents {
                    out.extend(extent.key);
                    out.extend(extent.location.to_le_bytes());
                    out.extend(extent.generation.to_le_bytes());
                }
            }
            Self::Done => out.push(5),
            Self::Refused(text) => {
                out.push(6);
                let end = text.floor_char_boundary(TEXT_MAX);
                out.extend(text[..end].bytes());
            }
        }
        out
    }

    /// Decodes a reply. `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut fields = Fields(rest);
        let reply = match kind {
            1 => Self::Welcome(LoanTerms {
                device: fields.long()?,
                region_size: fields.long()?,
                block_length: fields.long()?,
                free: fields.long()?,
                regions: fields.word()?,
            }),
            2 => Self::Streams(fields.streams()?),
            3 => Self::Lent(LentStream {
                lease: LeaseId(fields.word()?),
                number: StreamNumber(fields.word()?),
                blocks: fields.long()?,
                bytes: fields.long()?,
            }),
            4 if rest.len() > EXTENTS_MAX * EXTENT_SIZE => return None,
            4 => Self::Extents(fields.extents()?),
            5 => Self::Done,
            6 if rest.len() > TEXT_MAX => return None,
            6 => {
                fields.0 = &[];
                Self::Refused(std::str::from_utf8(rest).ok()?.to_owned())
            }
            _ => return None,
        };
        fields.0.is_empty().then_some(reply)
    }
}

fn put_info(out: &mut Vec<u8>, info: &StreamInfo) {
    let (name, family) = (info.name.as_str().as_bytes(), info.family.as_str().as_bytes());
    let state = match info.state {
        StreamState::Writing => 0,
        StreamState::Sealed => 1,
        StreamState::Consumed | StreamState::Destroyed => 2,
    };
    let (lifetime, lease_ms) = match info.lifetime {
        Lifetime::Process => (0, 0),
        Lifetime::Kept => (1, 0),
        Lifetime::Lease(time) => (2, u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    };
    let length = |text: &[u8]| u8::try_from(text.len()).expect("at most 128");
    out.extend([length(name), length(family), state, lifetime]);
    for number in [lease_ms, info.blocks, info.bytes] {
        out.extend(number.to_le_bytes());
    }
    out.extend(info.readers.to_le_bytes());
    out.extend(name);
    out.extend(family);
}

/// The rest of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self, length: usize) -> Option<StreamName> {
        let (name, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        StreamName::from_bytes(name).ok()
    }

    fn streams(&mut self) -> Option<Vec<StreamInfo>> {
        let mut streams = Vec::new();
        while !self.0.is_empty() {
            if streams.len() == LISTED_MAX {
                return None;
            }
            streams.push(self.info()?);
        }
        Some(streams)
    }

    fn info(&mut self) -> Option<StreamInfo> {
        let [name, family, state, lifetime] = self.array()?;
        let (lease_ms, blocks, bytes, readers) =
            (self.long()?, self.long()?, self.long()?, self.word()?);
        let name = self.name(usize::from(name))?;
        let family = self.name(usize::from(family))?;
        let state = match state {
            0 => StreamState::Writing,
            1 => StreamState::Sealed,
            2 => StreamState::Consumed,
            _ => return None,
        };
        let lifetime = match (lifetime, lease_ms) {
            (0, 0) => Lifetime::Process,
            (1, 0) => Lifetime::Kept,
            (2, time) => Lifetime::Lease(Duration::from_millis(time)),
            _ => return None,
        };
        Some(StreamInfo { name, family, lifetime, state, blocks, bytes, readers, lost: Vec::new() })
    }

    fn extents(&mut self) -> Option<Vec<LentExtent>> {
        let mut extents = Vec::with_capacity(self.0.len() / EXTENT_SIZE);
        while !self.0.is_empty() {
            let (key, location, generation) = (self.array()?, self.long()?, self.long()?);
            extents.push(LentExtent { key, location, generation });
        }
        Some(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> StreamName {
        StreamName::new(text).unwrap()
    }

    fn requests() -> Vec<LoanRequest> {
        vec![
            LoanRequest::Hello { version: LOAN_VERSION },
            LoanRequest::List { after: None },
            LoanRequest::List { after: Some(name("a")) },
            LoanRequest::Open(name(&"x".repeat(128))),
            LoanRequest::Extents { lease: LeaseId(7), first: BlockNumber(u64::MAX) },
            LoanRequest::Return(LeaseId(u32::MAX)),
        ]
    }

    fn replies() -> Vec<LoanReply> {
        let info = StreamInfo {
            name: name(&"é".repeat(64)),
            family: name(&"f".repeat(128)),
            lifetime: Lifetime::Lease(Duration::from_secs(3)),
            state: StreamState::Sealed,
            blocks: 3,
            bytes: u64::MAX,
            readers: 2,
            lost: Vec::new(),
        };
        let extent = LentExtent { key: [7; 32], location: 1 << 63, generation: 9 };
        let terms =
            LoanTerms { device: 1, region_size: 2, regions: 3, block_length: 4, free: u64::MAX };
        let lent = LentStream { lease: LeaseId(1), number: StreamNumber(2), blocks: 3, bytes: 4 };
        vec![
            LoanReply::Welcome(terms),
            LoanReply::Streams(vec![info; LISTED_MAX]),
            LoanReply::Streams(Vec::new()),
            LoanReply::Lent(lent),
            LoanReply::Extents(vec![extent; EXTENTS_MAX]),
            LoanReply::Done,
            LoanReply::Refused("no stream".into()),
        ]
    }

    #[test]
    fn messages_round_trip_and_are_bounded() {
        for request in requests() {
            assert_eq!(LoanRequest::decode(&request.encode()), Some(request));
        }
        for reply in replies() {
            let bytes = reply.encode();
            assert!(bytes.len() <= MESSAGE_MAX, "{} bytes", bytes.len());
            assert_eq!(LoanReply::decode(&bytes), Some(reply));
        }
        let long = LoanReply::Refused("é".repeat(TEXT_MAX)).encode();
        assert!(matches!(LoanReply::decode(&long), Some(LoanReply::Refused(_))));
    }

    /// A message with other bytes is another message or none, never a panic.
    #[test]
    fn changed_messages_are_rejected_or_read_as_they_are() {
        let messages: Vec<Vec<u8>> = requests()
            .iter()
            .map(LoanRequest::encode)
            .chain(replies().iter().map(LoanReply::encode))
            .collect();
        for seed in 0..5000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = random.choice(&messages).unwrap().clone();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            bytes.truncate(random.usize(1..=bytes.len()));
            if let Some(request) = LoanRequest::decode(&bytes) {
                assert_eq!(LoanRequest::decode(&request.encode()), Some(request));
            }
            if let Some(reply) = LoanReply::decode(&bytes) {
                assert_eq!(LoanReply::decode(&reply.encode()), Some(reply));
            }
        }
    }
}

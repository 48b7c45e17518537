//! The header that every frame begins with.

use bytes::Bytes;

use crate::{BODY_SIZE_MAX, codec::Malformed};

/// How long a header is.
pub const HEADER_SIZE: usize = 16;

/// What comes before a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the body is.
    pub kind: u8,
    /// Matches a reply to its request.
    pub id: u64,
    /// How long the body is.
    pub body_size: usize,
}

impl Header {
    /// As it stands on the wire.
    pub fn encode(self) -> [u8; HEADER_SIZE] {
        assert!(self.body_size <= BODY_SIZE_MAX, "a body of {} is over the limit", self.body_size);
        let mut bytes = [0; HEADER_SIZE];
        bytes[..4]
            .copy_from_slice(&u32::try_from(self.body_size).expect("limits fit").to_le_bytes());
        bytes[4] = self.kind;
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Refuses a body that would be over the limit, before anything is allocated for it.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, Malformed> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let body_size = word(0) as usize;
        if body_size > BODY_SIZE_MAX {
            return Err(Malformed::OverLimit);
        }
        if bytes[5..8] != [0; 3] {
            return Err(Malformed::Value);
        }
        let id = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes"));
        Ok(Self { kind: bytes[4], id, body_size })
    }
}

/// A frame that is ready to leave: header and fields in one buffer, the payload untouched beside it, so
/// that both can go in one vectored write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The header and all fields.
    pub head: Vec<u8>,
    /// What follows them.
    pub payload: Bytes,
}

impl Frame {
    pub(crate) fn new(
        kind: u8,
        id: u64,
        payload: Bytes,
        fields: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        let mut head = vec![0; HEADER_SIZE];
        fields(&mut head);
        let body_size = head.len() - HEADER_SIZE + payload.len();
        head[..HEADER_SIZE].copy_from_slice(&Header { kind, id, body_size }.encode());
        Self { head, payload }
    }

    /// Everything in one piece, for those who do not mind a copy.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.head[..], &self.payload[..]].concat()
    }
}

//! Frames: a header of fixed size, the fields of a message, and a payload.

use bytes::Bytes;

use crate::{BODY_SIZE_MAX, codec::Malformed};

/// Size of a header in bytes.
pub const HEADER_SIZE: usize = 16;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the operation.
    pub kind: u8,
    /// Chosen by the client; a reply carries the id of its request.
    pub id: u64,
    /// Size of the body in bytes.
    pub body_size: usize,
}

impl Header {
    /// The bytes of the header.
    ///
    /// # Panics
    /// If the body is longer than [`BODY_SIZE_MAX`].
    pub fn encode(self) -> [u8; HEADER_SIZE] {
        assert!(self.body_size <= BODY_SIZE_MAX, "body of {} bytes is too long", self.body_size);
        let mut bytes = [0; HEADER_SIZE];
        bytes[..4]
            .copy_from_slice(&u32::try_from(self.body_size).expect("limits fit").to_le_bytes());
        bytes[4] = self.kind;
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Parses a header. A body over [`BODY_SIZE_MAX`] is an error, before memory is allocated for
    /// it.
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

/// An encoded frame. Header and fields are in one buffer and the payload is a shared one, so that
/// both are sent with one vectored write and the payload is not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Header and fields.
    pub head: Vec<u8>,
    /// Payload, after the fields.
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

    /// The whole frame in one buffer. Copies the payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.head[..], &self.payload[..]].concat()
    }
}

//! The wire protocol: frames between jobs, agents and nodes, and their codec.
//!
//! A frame is a fixed little-endian header and a body. Replies are matched to requests by id, so a
//! connection can carry several requests at once. `docs/reference/wire.md` describes every byte.
//!
//! **Invariant:** every count and length from a peer is checked against a limit before memory is
//! allocated for it. A decoder returns an error for malformed input; it never panics.
//!
//! Not here: sockets and sessions (`transport`), the handling of requests (`node`, `agent`).

mod cluster;
mod codec;
mod frame;
mod reply;
mod request;
mod ring;
mod stream;

pub use codec::Malformed;
pub use frame::{Frame, HEADER_SIZE, Header};
pub use reply::{
    ClaimAnswer, ErrorCode, GetAnswer, OpenAnswer, PutAnswer, RecheckAnswer, Refusal, RenewAnswer,
    Reply, ShmRange,
};
pub use request::kind::CLUSTER as CLUSTER_KIND;
pub use request::{BlobLength, BlobProgress, BlobRange, Request, SentToken};
pub use stream::{LOST_RANGES_MAX, STREAM_PAGE_MAX, StreamReply, StreamRequest};

/// Supported versions of the protocol: the oldest and the newest.
pub const VERSIONS: (u16, u16) = (1, 3);
/// The first version in which a node accepts reports of wrong bytes. An older one closes the
/// connection.
pub const VERSION_WRONG_BYTES: u16 = 2;
/// The first version in which a node has streams. An older one closes the connection.
pub const VERSION_STREAMS: u16 = 3;

/// Longest payload. Larger blobs are read and written in ranges.
pub const PAYLOAD_SIZE_MAX: usize = 16 << 20;
/// Longest body of a frame: the longest payload and the fields before it.
pub const BODY_SIZE_MAX: usize = PAYLOAD_SIZE_MAX + (64 << 10);
/// Longest body of a hello: its fields take 1,286 bytes at most, and later versions may add some.
pub const HELLO_SIZE_MAX: usize = 2 << 10;
/// Most blobs or ranges in one request.
pub const BATCH_MAX: usize = 1 << 16;
/// Most blobs in one `select_by_address`.
pub const SELECTION_MAX: usize = 1 << 12;
/// Most blobs in one report of wrong bytes.
pub const WRONG_BYTES_MAX: usize = 1 << 8;
/// Handle of the blobs that a connection has selected by address.
pub const SELECTED_HANDLE: u32 = u32::MAX;
/// Most half-chunks in one message: the most that a dataset has.
pub const HALF_CHUNKS_MAX: usize = 1 << 17;
/// Longest text, in bytes.
pub const TEXT_SIZE_MAX: usize = 1 << 10;
/// Bytes of a presence request and its reply without the update: both headers and all fixed fields.
pub const PRESENCE_OVERHEAD: usize = 2 * HEADER_SIZE + 24 + 9;
/// Most blobs in one presence request.
pub const PRESENCE_MAX: u32 = 1 << 26;

#[cfg(test)]
mod tests;

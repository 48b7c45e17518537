//! Frames between jobs, agents and nodes: layout and codec, nothing else.
//!
//! A frame is a fixed little-endian header and a body. Requests and replies are matched by id, so that
//! several may be under way on one connection. `docs/wire.md` describes every byte.
//!
//! **Invariant:** whatever comes from outside is bounded before anything is allocated for it, and a
//! decoder that meets nonsense returns an error; it never panics.

mod codec;
mod council;
mod frame;
mod reply;
mod request;
mod ring;

pub use codec::Malformed;
pub use frame::{Frame, HEADER_SIZE, Header};
pub use reply::{
    ClaimAnswer, ErrorCode, GetAnswer, Placed, PutAnswer, Refusal, RenewAnswer, Reply, ShowAnswer,
};
pub use request::kind::COUNCIL as COUNCIL_KIND;
pub use request::{BlobLength, BlobProgress, BlobRange, Request, SentToken};

/// The versions of this protocol that are spoken here, oldest and newest.
pub const VERSIONS: (u16, u16) = (1, 1);

/// No payload is longer: larger blobs are read and written in ranges.
pub const PAYLOAD_SIZE_MAX: usize = 16 << 20;
/// No frame's body is longer: a payload, and what comes before it.
pub const BODY_SIZE_MAX: usize = PAYLOAD_SIZE_MAX + (64 << 10);
/// No request names more blobs.
pub const BATCH_MAX: usize = 1 << 16;
/// No more blobs are picked at once.
pub const PICKS_MAX: usize = 1 << 12;
/// The handle of the blobs that a connection has picked.
pub const PICKED: u32 = u32::MAX;
/// No report names more pieces: no dataset has more.
pub const PIECES_MAX: usize = 1 << 17;
/// No text is longer, in bytes.
pub const TEXT_SIZE_MAX: usize = 1 << 10;
/// What presence costs beside what is said: both headers, and the fields before it.
pub const PRESENCE_OVERHEAD: usize = 2 * HEADER_SIZE + 24 + 9;
/// No presence is asked for more blobs at once.
pub const PRESENCE_MAX: u32 = 1 << 26;

#[cfg(test)]
mod tests;

//! Shared memory: verified bytes that a node places where one client of its machine reads them
//! without a copy.
//!
//! The node allocates a [`ShmRegion`] and sends its descriptor over the Unix socket
//! ([`send_with_fd`]). The client receives it ([`receive_with_fd`]) and maps it as a
//! [`ShmMapping`]. The node fills a slot of the region ([`SlotWriter`]), grants it, and the client
//! reads it as a [`SlotView`] until it releases it.
//!
//! - All pages are allocated before the descriptor is sent.
//! - The memory is sealed. No process can change its size, and only the node, which mapped it
//!   before the seal, can write to it. So neither side can crash or corrupt the other.
//! - The node never reads the region. It trusts only its own state of slots
//!   (`forebay_core::node::shm_slots`).

mod fd_passing;
mod mapping;

pub use fd_passing::{receive_with_fd, send_with_fd};
pub use mapping::{
    DetachedRegion, NewRegion, ShmMapping, ShmRegion, SlotRange, SlotView, SlotWriter,
};

/// Largest region, in bytes.
pub const SIZE_MAX: usize = 256 << 20;
/// Smallest region, in bytes. Bounds the number of descriptors.
pub const SIZE_MIN: usize = 1 << 20;

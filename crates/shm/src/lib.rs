//! Memory that a node shares with one client of its machine: verified bytes are placed there, and the client
//! reads them where they lie.
//!
//! The node makes a [`Segment`] and passes it over the Unix socket ([`pass`]); the client maps it as a
//! [`Window`] ([`receive`]). It is sealed: nobody can make it shorter or longer, so that neither side can be
//! hurt by reading or writing it, and nobody but the node, which mapped it before, can ever write to it. All of
//! it is in memory before it is passed on. The node reads nothing that it has written there, and believes
//! nothing but `core::slots`.

mod memory;
mod passing;

pub use memory::{Place, Remains, Segment, SlotView, Window};
pub use passing::{pass, receive};

/// No segment is larger.
pub const SIZE_MAX: usize = 256 << 20;
/// None is smaller, so that the descriptors of all of them are few.
pub const SIZE_MIN: usize = 1 << 20;

//! Streams (SSDStreamer): ordered sequences of blocks that jobs spill and read back.
//!
//! - [`catalogue`] is the streams of a store, their families and their states.
//! - [`runs`] maps the blocks of a stream to the ordinals of its family.
//! - [`read_ahead`] decides which block a reader requests next, and which it hands out.
//! - [`record`] is what makes a sealed or destroyed stream known after a restart.
//! - [`seal_list`] is the names of sealed streams, in case their records are overwritten.
//! - [`lending`] is the leases of other processes, [`loan`] the messages between both.
//! - [`collection`] decides after a restart what is kept, what is lost and what is freed.
//!
//! Not here: regions, memory and I/O, which are `crates/flash`, and the objects that drive these
//! decisions, which are `crates/streams`.

pub mod catalogue;
pub mod collection;
pub mod lending;
pub mod loan;
pub mod read_ahead;
pub mod record;
pub mod runs;
pub mod seal_list;
mod types;

pub use types::{
    BlockNumber, FamilyId, Lifetime, NAME_MAX, StreamId, StreamName, StreamNameError, StreamNumber,
};

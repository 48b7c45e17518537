//! forebay's streams: ordered sequences of blocks that jobs spill and read back at device speed,
//! with a fixed amount of memory.
//!
//! - [`Store`] is a directory with one device file; [`StoreConfig`] opens it.
//! - [`Writer`] appends blocks, from the caller's bytes or filled in place, and seals.
//! - [`Reader`] hands blocks out in order, read ahead into its own slots. A [`Block`] is a view of
//!   a slot.
//! - [`arrow`] writes and reads record batches; reading them copies nothing.
//! - [`Family`] is streams of one lifetime, which share regions and end in one step.
//!
//! Every call that waits has two forms: `append` blocks the thread and needs no runtime,
//! `append_async` is a future for any runtime. The decisions are `forebay_core::streams`; the bytes
//! are `forebay_flash`.

pub mod arrow;
mod block;
mod block_on;
mod error;
mod family;
mod reader;
mod recovery;
mod removal;
mod shared;
mod store;
mod write_memory;
mod writer;

pub use block::Block;
pub use block_on::block_on;
pub use error::{StoreError, StreamError};
pub use family::Family;
pub use reader::{OpenOptions, Reader, WhenHeld};
pub use store::{Store, StoreConfig, StoreFacts};
pub use writer::{CreateOptions, FullPolicy, Writer};

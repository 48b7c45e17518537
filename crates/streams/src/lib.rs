//! forebay's streams: ordered sequences of blocks that jobs spill and read back at device speed,
//! with a fixed amount of memory.
//!
//! - [`Store`] is a directory with one device file; [`StoreConfig`] opens it.
//! - [`Writer`] appends blocks, from the caller's bytes or filled in place, and seals.
//! - [`Reader`] hands blocks out in order, read ahead into its own slots. A [`Block`] is a view of
//!   a slot.
//! - [`arrow`] writes and reads record batches; reading them copies nothing.
//! - [`BorrowedStore`] reads the sealed streams of a store that another process owns.
//! - [`BlockSource`] and [`BlockSink`] are streams elsewhere, such as on a node, behind the same
//!   [`Reader`] and [`Writer`].
//! - [`Family`] is streams of one lifetime, which share regions and end in one step.
//!
//! Every call that waits has two forms: `append` blocks the thread and needs no runtime,
//! `append_async` is a future for any runtime. The decisions are `forebay_core::streams`; the bytes
//! are `forebay_flash`.

pub mod arrow;
mod block;
mod block_on;
mod borrowed_reader;
mod borrowed_store;
mod error;
mod family;
mod interrupt;
mod lender;
mod loan_socket;
mod of_process;
mod owned_reader;
mod owned_writer;
mod read_memory;
mod reader;
mod recovery;
mod removal;
mod seal_file;
mod shared;
mod slots;
mod store;
mod write_memory;
mod writer;

pub use block::Block;
pub use block_on::{block_on, block_on_unless};
pub use borrowed_store::BorrowedStore;
pub use error::{StoreError, StreamError};
pub use family::Family;
pub use interrupt::Interrupt;
pub use reader::{BlockSource, OpenOptions, Reader, WhenHeld};
pub use store::{OpenedStore, Store, StoreConfig, StoreFacts};
pub use writer::{BlockSink, CreateOptions, FullPolicy, Writer};

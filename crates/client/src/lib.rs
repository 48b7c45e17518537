//! The client: a job's connections to nodes and to its agent. Blocking, without threads, safe after
//! fork.
//!
//! One [`Client`] belongs to one process and is used by one thread at a time. A forked child opens
//! connections of its own: two processes on one socket would read each other's replies.

mod by_address;
pub(crate) mod cluster;
mod connection;
mod environment;
mod error;
mod frame_io;
mod get;
mod greeting;
mod handshake;
mod node_health;
mod poll;
mod reader;
mod socket;
mod streams;
pub(crate) mod train;
mod verifier;
mod view;
mod wait;

pub use by_address::{BlobRef, BlobsByAddress, ReadReason, Resolution};
pub use cluster::presence_cache::{Asking, PresenceCache};
pub use connection::Client;
pub use environment::{ClientEnvironment, ClientStream, StreamNumber, ThisMachine};
pub use error::ClientError;
pub(crate) use error::Result;
pub use get::ReadInto;
pub use handshake::{Handle, Next, OpenError, Opening, Welcome, greeted, hello};
pub use node_health::NodeHealth;
pub use poll::{SocketWait, WaitedSocket};
pub use reader::{Asked, Counts, Reader};
pub use socket::Connecting;
pub use streams::{NodeStreams, node_of_store};
pub use train::item_map::{ItemMap, ItemMapError};
pub use train::job::{CachedShares, Job, JobRun, NextBatch};
pub use train::reporter::{ManagerLink, ReportOutcome};
pub use view::View;
pub use wait::Interrupt;

//! Everything in forebay that decides, and the words it decides with.
//!
//! Each policy here is a state machine: facts and the time go in, decisions come out. The daemon, the
//! simulator and the tests drive the very same code, so what the simulator claims is what the product does.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket or the environment, or starts a thread
//! (`clippy.toml` beside this crate's manifest enforces it).

pub mod attempt;
pub mod benefit;
pub mod chunking;
pub mod claims;
pub mod council;
pub mod digest;
pub mod doorkeeper;
pub mod doubt;
pub mod embedding;
pub mod endpoint;
pub mod kept;
pub mod look_ahead;
pub mod manager;
pub mod names;
pub mod node;
pub mod patience;
pub mod placement;
pub mod presence;
pub mod puts;
pub mod rate;
pub mod recency;
pub mod ring;
pub mod room;
pub mod rotation;
pub mod sampler;
pub mod slots;
pub mod strangers;
pub mod table;
pub mod tenants;
pub mod tier;
pub mod units;

mod kinds;
mod list;
mod stable;

pub use endpoint::Endpoint;
pub use names::{
    Address, BlobOrdinal, DatasetId, ItemOrdinal, JobId, Namespace, NamespaceId, NodeName, Ordinal,
    Token, Zone,
};
pub use units::ByteSize;

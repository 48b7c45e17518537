//! Every decision of forebay, as pure state machines, with the id and unit types.
//!
//! Events and the time go in; decisions come out. The node, the agent, the client, the simulator
//! and the tests drive the same code, so what the simulator claims is what the product does.
//!
//! **Invariant:** nothing here reads a clock, a file, a socket or the environment, or starts a
//! thread. `clippy.toml` beside this crate's manifest enforces it.

pub mod agent;
pub mod cluster;
pub mod dataset;
pub mod embeddings;
pub mod gateway;
pub mod ids;
pub mod node;
pub mod streams;
pub mod tier;
pub mod train;
pub mod units;
pub mod util;

pub use ids::endpoint::Endpoint;
pub use ids::{
    Address, BlobOrdinal, DatasetId, ItemOrdinal, JobName, Namespace, NamespaceId, NodeName,
    Ordinal, Token, Zone,
};
pub use ids::{HalfChunk, HalfChunkRange};
pub use units::ByteSize;

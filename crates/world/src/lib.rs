//! Simulated worlds: real nodes, agents and clients, with jobs, hostile clients, rogue members, an
//! origin, disks and a network, from one seed.
//!
//! [`run`] runs the world of a seed. The code of `forebay-node`, `forebay-agent`,
//! `forebay-client`, `forebay-transport` and `forebay-flash` runs unchanged, one thread at a time,
//! with a clock that moves when every task waits. What is simulated is the outside: the network,
//! the disks, the origin, and some of the processes of jobs. The worlds check promises 1 to 7 and
//! stop at the first violation, whose seed repeats it: the same seed gives the same events, and so
//! the same hash.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | what a seed decides in advance |
//! | `world` | the world and its run |
//! | `network`, `pipe` | hosts, streams, partitions, pauses, resets |
//! | `node_host`, `disks` | nodes, their devices, kills and restarts |
//! | `origin`, `dataset` | an object store with faults, and what is in it |
//! | `job`, `agent_host` | jobs: epochs, what is checked, their agents |
//! | `process`, `wire_client` | simulated processes |
//! | `client_process`, `item_reader`, `blob_reader` | processes with the real client |
//! | `client_environment`, `lockstep` | the outside of a client, and its thread |
//! | `hostile`, `rogue` | clients that attack, members that hang or lie |
//! | `chaos` | faults at random times |
//! | `audit` | probes, limits, and the checks at the end |
//! | `trace` | events, their hash, violations |
//!
//! Not here: the Python package, TLS and shared memory.

mod agent_host;
mod audit;
mod blob_reader;
mod chaos;
mod client_environment;
mod client_process;
mod dataset;
mod disks;
mod hostile;
mod item_reader;
mod job;
mod lockstep;
mod network;
mod node_host;
mod origin;
mod pipe;
mod plan;
mod process;
mod rogue;
mod secrets;
mod trace;
mod wire_client;
mod world;

pub use plan::Scale;
pub use trace::Outcome;
pub use world::run;

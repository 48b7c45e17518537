//! Simulated worlds: real nodes and real agents, with jobs, hostile clients, an origin, disks and a
//! network, from one seed.
//!
//! [`run`] runs the world of a seed. The code of `forebay-node`, `forebay-agent`,
//! `forebay-transport` and `forebay-flash` runs unchanged, on one thread, with a clock that moves
//! when every task waits. What is simulated is the outside: the network, the disks, the origin, and
//! the processes of jobs. The worlds check promises 1 to 7 and stop at the first violation, whose
//! seed repeats it: the same seed gives the same events, and so the same hash.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | what a seed decides in advance |
//! | `world` | the world and its run |
//! | `network`, `pipe` | hosts, streams, partitions, pauses, resets |
//! | `node_host`, `disks` | nodes, their devices, kills and restarts |
//! | `origin`, `dataset` | an object store with faults, and what is in it |
//! | `job`, `wire_client` | agents and processes that read and check |
//! | `hostile` | clients that attack |
//! | `chaos` | faults at random times |
//! | `audit` | probes, limits, and the checks at the end |
//! | `trace` | events, their hash, violations |
//!
//! Not here: the blocking client of training processes, the Python package, TLS and shared memory.

mod audit;
mod chaos;
mod dataset;
mod disks;
mod hostile;
mod job;
mod network;
mod node_host;
mod origin;
mod pipe;
mod plan;
mod secrets;
mod trace;
mod wire_client;
mod world;

pub use plan::Scale;
pub use trace::Outcome;
pub use world::run;

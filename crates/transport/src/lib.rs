//! Transport: listeners, sessions and outgoing connections of the node and the agent.
//!
//! Both use the wire protocol of `forebay-wire`. A listener accepts a connection ([`Listener`],
//! [`tcp`]). A [`session`] decodes its frames and passes the requests to a [`session::Service`].
//! A [`Connector`] opens connections to other processes.
//!
//! Not here: the handling of requests (`node`, `agent`), the blocking client of a job (`client`).

mod byte_chain;
mod connect;
pub mod counters;
mod entropy;
mod latch;
mod listener;
mod memory;
mod peer;
pub mod session;
pub mod tcp;
mod writer;

pub use byte_chain::ByteChain;
pub use connect::{Connector, Incoming, Outgoing, Sockets};
pub use counters::Counter;
pub use entropy::Entropy;
pub use latch::{Latch, SetOnDrop};
pub use listener::{Listener, SocketAccess};
pub use memory::ConnectionMemory;
pub use peer::{Accepted, Peer, ReadHalf, WriteHalf};

//! The node: the cache daemon, which serves blobs to the jobs of one or more tenants, alone or as a
//! member of a cluster.
//!
//! [`Server::bind`] opens the sockets and the devices; [`Server::run`] serves until it is stopped.
//! The decisions are made in `core::node`, `core::cluster` and `core::train`. This crate has the
//! sockets, the devices and the clock.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the configuration: keys, checks, reload |
//! | `server` | start and stop |
//! | `connections` | acceptance of connections, and their limits |
//! | `environment` | random bytes, outgoing connections, workers |
//! | `requests` | the handlers of requests |
//! | `store` | blobs on flash and in memory, shared memory |
//! | `train` | drives the managers of datasets |
//! | `cluster` | connections to the other nodes |
//! | `ops` | metrics, health, HTTP, memory limits |

pub(crate) mod cluster;
mod config;
mod connections;
mod environment;
pub(crate) mod ops;
pub(crate) mod requests;
mod server;
pub(crate) mod store;
pub(crate) mod train;

pub use config::nodes::read_node_list;
pub use config::reload::Reloads;
pub use config::tenants::TenantConfig;
pub use config::{Config, GatewayTable, default_socket};
pub use connections::acceptor::Acceptor;
pub use connections::slots::ConnectionSlot;
pub use environment::Environment;
pub use ops::memory_budget::memory_max;
pub use ops::memory_limit::{MemoryLimit, memory_limit};
pub use ops::metrics::{Counters, ExtraRows, Gauges, page as metrics_page};
pub use ops::work_queue::{WorkQueue, WorkSlice, Worker};
pub use requests::service::{ExtraMetrics, NodeService};
pub use server::Server;

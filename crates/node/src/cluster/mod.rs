//! Connections to the other nodes of the cluster.

pub(crate) mod peers;

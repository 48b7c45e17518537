//! The decisions of several nodes: ownership, replication of the keep-set, liveness, backoff.

pub mod backoff;
pub mod liveness;
pub mod replication;
pub mod ring;

//! Operations: metrics, health, HTTP endpoints, memory limits.

pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod memory_budget;
pub(crate) mod memory_limit;
pub(crate) mod metrics;

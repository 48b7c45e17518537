//! Operations: metrics, health, HTTP endpoints, memory limits, the work queue.

pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod memory_budget;
pub(crate) mod memory_limit;
pub(crate) mod metrics;
pub(crate) mod slow_requests;
pub(crate) mod work_queue;

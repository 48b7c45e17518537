//! The decisions of an agent: how a blob is fetched, what is prefetched, what is kept in memory.

pub mod agent_cache;
pub mod attempt_timeout;
pub mod fetch;
pub mod free_space;
pub mod prefetch_window;

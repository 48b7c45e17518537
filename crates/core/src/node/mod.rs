//! The decisions of one node: claims, presence, admission to memory, limits per tenant.

pub mod byte_budget;
pub mod claims;
pub mod connection_slots;
pub mod dataset_lru;
pub mod doorkeeper;
pub mod fair_queue;
pub mod fetch_pace;
pub mod fetch_table;
pub mod memory_plan;
pub mod pre_auth;
pub mod presence;
pub mod put_limits;
pub mod recheck_budget;
pub mod shm_slots;
pub mod stream_quotas;
pub mod tenants;

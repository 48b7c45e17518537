//! The decisions of one node: claims, presence, admission to memory, limits per tenant.

pub mod claims;
pub mod dataset_lru;
pub mod doorkeeper;
pub mod fetch_table;
pub mod pre_auth;
pub mod presence;
pub mod put_limits;
pub mod shm_slots;
pub mod tenants;

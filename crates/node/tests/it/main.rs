//! Integration tests: a node with a real socket and a real directory, used through the real client.

mod backpressure;
mod certificates;
mod claims;
mod connection_limits;
mod dataset_manager;
mod fairness;
mod harness;
mod hostile;
mod information_leaks;
mod open_dataset;
mod pre_auth_limits;
mod presence;
mod process;
mod select_by_address;
mod shared_memory;
mod storage;
mod stream_connections;
mod streams;
mod tenant_isolation;
mod test_ca;
mod two_tenants;
mod wrong_bytes;

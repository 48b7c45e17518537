//! Integration tests: the real binary on real files, sockets and signals.

mod bad_digests;
mod bad_origins;
mod bad_outputs;
mod build_failures;
mod build_resume;
mod claims;
mod cluster;
mod columns;
mod config_errors;
mod demo;
mod digest_build;
mod digest_diff;
mod digest_show;
mod digest_verify;
mod embed;
mod harness;
mod multi_item_layouts;
mod namespaces;
mod node_and_agent;
mod node_operation;
mod replication;
mod sim;
mod sim_tier;
mod stream;
mod tenants;
mod warm_and_doctor;

//! The real binary on real files, sockets and signals, by behaviour.

mod bad_digests;
mod bad_origins;
mod bad_outputs;
mod building;
mod claiming;
mod columns;
mod comparing;
mod council;
mod demo;
mod embed;
mod harness;
mod holding_many;
mod interrupting;
mod misconfigured;
mod moving_data;
mod namespaces;
mod operating;
mod serving;
mod several;
mod showing;
mod sim;
mod sim_tier;
mod tenants;
mod verifying;
mod warming;

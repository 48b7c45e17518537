//! Jobs: which job reads which bucket, inferred from request tags and enriched by specifications.
//!
//! One job and one bucket are a **reading**: which of the bucket's segments the job has read (one
//! bit per trail position), how far along the trail it is, and its stage in the specification. A
//! job without a specification gets a reading for each bucket that it begins, and is expected to
//! continue it.
//!
//! A specification is used until reads refute it. A job that reads much that it did not announce
//! loses its specification. A job without requests for its lease is dropped. Both are counted.
//!
//! - `registry.rs`: the jobs and readings, and their leases.
//! - `positions.rs`: which trail positions a job has read, within a budget.
//! - `spec.rs`: checks and applies specifications.
//! - `progress.rs`: what each job has read, and its rate.
//! - `eta.rs`: what each job has yet to read.
//!
//! Not here: when a segment is read next (`next_use::estimate`).

mod eta;
mod positions;
mod progress;
mod registry;
mod saved;
mod spec;

#[cfg(test)]
pub(super) mod tests;

pub(super) use progress::Reading;
pub use registry::JobCounters;
pub(super) use registry::Jobs;

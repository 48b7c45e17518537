//! `SSDStreamer`'s evaluation in Rust: iterative jobs over data larger than memory.
//!
//! - [`workload`] is the jobs: logistic regression, k-means, a support vector machine.
//! - [`data`] is their rows, in two forms: serialised row by row, and as flat numbers.
//! - [`mode`] is how the rows come from the device, and how the time of a pass is split.

#![expect(missing_docs, reason = "a program with tests, not a library for others")]

pub mod data;
pub mod mode;
pub mod workload;

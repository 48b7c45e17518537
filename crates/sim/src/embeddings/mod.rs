//! Embedding simulator: policies on traces of grouped lookups, and their perfect hits.
//!
//! ```no_run
//! use forebay_core::embeddings::PolicyKind;
//! use forebay_sim::embeddings::{self, CacheShare, Simulation};
//!
//! let trace = embeddings::load("flights.csv".as_ref())?;
//! let mut simulation = Simulation::new(vec![PolicyKind::Lru, "ev-lfu".parse()?]);
//! simulation.shares = vec!["5%".parse::<CacheShare>()?];
//! let report = simulation.run(&trace);
//! assert!(report.text().contains("ev-lfu"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares of counts and drawn ranks are rounded down on purpose"
)]

mod trace;

mod columns;
mod criteo_like;
mod datasets;
mod file;
mod single;
mod synthetic;

mod bounds;
mod compare;
mod plan;
mod plot;
mod report;
pub mod reproduce;
mod run;

#[cfg(test)]
mod tests;

pub use bounds::Bounds;
pub use compare::{Cell, Comparison, Line};
pub use criteo_like::Criteo;
pub use datasets::{Format, load, load_as, parse_as};
pub use file::TraceError;
pub(crate) use file::{read, unpacked};
pub use plan::{MemoryPlanner, PlannedMemory};
pub use report::{Bundle, Prefetched, Report};
pub use run::{CacheShare, CacheShareError, Cost, Simulation, Tally};
pub use synthetic::Made;
pub use trace::{Table, Trace, TraceBuilder};

//! Train simulator: training jobs on a simulated cluster, with their speed and origin bytes.
//!
//! The origin, nodes with flash and jobs with GPUs are simulated. All decisions are made by
//! `forebay_core::train`. Start at `world.rs`, the event loop.
//!
//! ```
//! use forebay_sim::train::{Policy, Scenario, simulate};
//!
//! let text = r#"
//!     about = "a job that waits for its origin"
//!     origin = { bandwidth = "100MB/s" }
//!     cache = { capacity = "10%", read_bandwidth = "1GB/s" }
//!     [[dataset]]
//!     name = "photos"
//!     size = "100MB"
//!     items = 1000
//!     [[job]]
//!     name = "trainer"
//!     dataset = "photos"
//!     batch = 100
//!     compute = "10ms"
//!     epochs = 3
//! "#;
//! let scenario = Scenario::parse(text, "photos.toml", "photos")?;
//! let outcome = simulate(&scenario, &scenario.setups[0], Policy::None, 0, &mut |_| {});
//! // 10 MB per mini-batch: 100 ms at the origin's rate, however short the computation.
//! assert!((outcome.jobs[0].batch_seconds.unwrap() - 0.1).abs() < 0.001);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod policy;
mod scenario;

mod bits;
mod events;
mod job;
mod links;
mod lru;
mod manager;
mod pipeline;
mod record;
mod store;
mod time;
mod world;

pub mod bounds;
mod compare;
pub mod fuzz;
mod outcome;
pub mod plot;
pub mod reproduce;

#[cfg(test)]
mod tests;

pub use compare::{Bound, Comparison};
pub use outcome::{
    DatasetOutcome, Decision, Incident, JobOutcome, Outcome, Progress, Reads, Residency, StageTimes,
};
pub use policy::{Policy, PolicyError};
pub use scenario::{
    BUILT_IN, BuiltIn, Cache, Dataset, End, Fault, FaultKind, Job, Origin, Scenario, Setup,
};
pub use world::simulate;

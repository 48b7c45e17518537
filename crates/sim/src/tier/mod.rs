//! Tier simulator: jobs that read tables through a flash tier, and what each policy absorbs.
//!
//! Segments, buckets, nodes and readers are simulated. All decisions are made by the policies of
//! `forebay_core::tier`. The optimum is Belady's. Start at `workload.rs` (what is read), then
//! `run.rs`.
//!
//! ```
//! use forebay_core::tier::PolicyKind;
//! use forebay_sim::tier::{Scenario, optimum, simulate};
//!
//! let text = r#"
//!     kind = "tier"
//!     about = "two jobs read the same day, one a little later"
//!     segment = "1MiB"
//!     skew = "20%"
//!     tier = { flash = "300MiB" }
//!     [[partition]]
//!     name = "day"
//!     size = "1GiB"
//!     [[job]]
//!     name = "trainer"
//!     count = 2
//!     reads = ["day"]
//!     rate = "10MB/s"
//! "#;
//! let scenario = Scenario::parse(text, "two.toml", "two")?;
//! let setup = &scenario.setups[0];
//! let outcome = simulate(&scenario, setup, PolicyKind::NextUse, optimum(setup), &mut |_| {});
//! // The second job hits all segments that the first one read.
//! assert_eq!(outcome.absorbed(), 1 << 30);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod scenario;
mod workload;

mod generator;
mod outcome;
mod run;

pub mod plot;
mod power;
pub mod reproduce;
mod targets;
mod trace;

#[cfg(test)]
mod tests;

pub use outcome::Outcome;
pub use power::{Demand, Power, power};
pub use run::{Optimum, optimum, simulate};
pub use scenario::{BUILT_IN, BuiltIn, Scenario, Setup};
pub use trace::{Requests, TraceFormat, TraceRow};
pub use workload::{Announced, Event, Events, Order, Part, Reader, Workload};

//! forebay's simulator: the very policies of `forebay-core`, driven by traces and by simulated clusters
//! instead of jobs.

pub mod grouped;
pub mod svg;
pub mod tier;
pub mod train;

mod belady;
mod section;
mod written;

pub use section::Section;
pub use written::{Kind, ScenarioError, kind};

//! forebay's simulator: the policies of `forebay-core`, driven by traces and by simulated clusters
//! instead of jobs.

pub mod embeddings;
pub mod svg;
pub mod tier;
pub mod train;

mod belady;
mod report_section;
mod scenario_file;

pub use report_section::Section;
pub use scenario_file::{Kind, ScenarioError, kind};

//! forebay's simulator: the very policies of `forebay-core`, driven by traces and by simulated clusters
//! instead of jobs.

pub mod grouped;
pub mod train;

mod section;
mod svg;

pub use section::Section;

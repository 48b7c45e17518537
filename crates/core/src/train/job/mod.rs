//! The job's side of rotation: reports to the manager, and pacing.

mod pacing;
mod reporter;

pub use reporter::{HalfChunkSize, JobReporter, ReportTime, ReporterSettings};

//! forebay's simulator: the very policies of `forebay-core`, driven by traces instead of jobs.

pub mod grouped;

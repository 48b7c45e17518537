//! `forebay-bench` (`bench/micro`): builds it with the product and runs one of its benchmarks.

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

use forebay_bench_stats::Row;

use super::parsed;
use crate::{
    Outcome,
    paths::binary,
    steps::{Steps, cargo},
};

/// Builds the product and its benchmarks with the profile `dist`, as releases are built.
pub fn build(steps: &mut Steps) -> Outcome {
    let build = ["build", "--profile", "dist", "--package", "forebay-cli"];
    let mut build = cargo(&build);
    steps.run("binaries", build.args(["--package", "forebay-bench"]))
}

/// Runs a benchmark and returns its rows. [`build`] comes first.
pub fn run(benchmark: &str, quick: bool, options: &[&OsStr]) -> Result<Vec<Row>, String> {
    let mut command = Command::new(binary("dist").with_file_name("forebay-bench"));
    command.args([benchmark, "--format", "json"]).args(quick.then_some("--quick")).args(options);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    // 1 means that a target is missed, which the table shows.
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(format!("the benchmark `{benchmark}` failed"));
    }
    parsed(&output.stdout)
}

//! The wheel, and comparisons that run in a virtual environment.

use std::{path::PathBuf, process::Command};

use crate::{
    Outcome,
    environments::{Environment, LIBCACHESIM, TOOLS, TRAIN},
    paths::{binary, interop, target},
    steps::{Steps, cargo},
};

/// Installs the wheel, as users get it, into an environment. The binary has to be built with the
/// same profile already.
pub fn install_wheel(environment: Environment, profile: &str) -> Command {
    let mut wheel = Command::new(environment.python());
    wheel.args(["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", "."]);
    built_with(profile, wheel)
}

/// Makes the build backend take the binary of this profile and compile the native module with it.
/// By default, the backend builds both with `release`.
fn built_with(profile: &str, mut pip: Command) -> Command {
    pip.env("FOREBAY_PREBUILT", binary(profile));
    if profile != "release" {
        pip.env("MATURIN_PEP517_ARGS", format!("--profile {profile}"));
    }
    pip
}

/// The Python of the environment with PyTorch and our wheel, built with `dist`.
pub fn with_dist_wheel(steps: &mut Steps) -> Result<PathBuf, String> {
    let python = TRAIN.ensure()?;
    steps.run("wheel", &mut install_wheel(TRAIN, "dist"))?;
    Ok(python)
}

/// `cargo xtask wheel`: builds the wheel for a release.
pub fn wheel() -> Outcome {
    let mut steps = Steps::default();
    build_dist(&mut steps)?;
    let wheels = target().join("wheels");
    let mut pip = Command::new(TOOLS.ensure()?);
    pip.args(["-m", "pip", "wheel", "--no-deps", "--wheel-dir"]).arg(&wheels).arg(".");
    steps.run("wheel", &mut built_with("dist", pip))?;
    steps.finish();
    eprintln!("the wheel is in {}", wheels.display());
    Ok(())
}

/// Builds the binary with the profile of releases and benchmarks.
pub fn build_dist(steps: &mut Steps) -> Outcome {
    steps.run("binary", &mut cargo(&["build", "--profile", "dist"]))
}

/// `cargo xtask libcachesim`: our classic policies against libcachesim's, on these traces or on one
/// that it generates.
pub fn libcachesim(traces: &[&str]) -> Outcome {
    let mut steps = Steps::default();
    steps.run("binary", &mut cargo(&["build", "--release"]))?;
    let mut check = Command::new(LIBCACHESIM.ensure()?);
    check.arg(interop().join("check_libcachesim.py")).arg(binary("release")).args(traces);
    steps.run("comparison", &mut check)?;
    steps.finish();
    Ok(())
}

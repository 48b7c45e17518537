//! `forebay bench flash`: how much of the device is left for whoever uses the engine?
//!
//! The yardstick is a bare loop of direct I/O in this very process ([`raw`]): a ring, or threads, that read
//! and write items of the same size, as many at a time, on a file of the same size, and look at nothing.
//! The engine ([`engine`]) reads one block more for each item, proves every byte, and finds it by name.
//! Both files are written before the clock starts. Then the promises that are counts: bytes written for
//! bytes inserted, memory of the index, and the time until a device is open again ([`limits`]).

pub mod engine;
mod limits;
mod raw;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use forebay_core::ByteSize;
use forebay_flash::io::Backend;
use forebay_measure::{Row, Target, evaluate, load};

use self::{engine::Engine, raw::Raw};
use crate::output::{self, Format};

/// Sizes of items, and how many are under way.
const ITEMS: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 32];
/// Rotation is one user's work.
const ROTATION_DEPTH: usize = 8;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: super::Args,
    /// A directory on the device to be measured; the files made there are removed again.
    #[arg(long, value_name = "DIRECTORY")]
    device: Option<PathBuf>,
    /// Measure only rows whose names begin like this, such as "read 128 KiB".
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

impl Args {
    /// How to report.
    pub fn format(&self) -> Format {
        self.common.format
    }

    fn wants(&self, name: &str) -> bool {
        name.starts_with(&self.only)
    }
}

/// What is done with items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Anywhere.
    Read,
    /// One after the other, durable in the end.
    Write,
    /// Three reads for each write.
    Mixed,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }

    /// Whether the next operation is a write.
    pub fn is_write(self, random: &mut fastrand::Rng) -> bool {
        match self {
            Self::Read => false,
            Self::Write => true,
            Self::Mixed => random.u8(..4) == 0,
        }
    }
}

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// What is done.
    pub load: Load,
    /// Bytes of an item.
    pub item: usize,
    /// Operations at a time.
    pub depth: usize,
    /// How long.
    pub limit: Duration,
}

pub async fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = match &args.device {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("make room for the benchmark")?;
    let quick = args.common.quick;
    let size = ByteSize::mib(if quick { 512 } else { 2048 });
    let sealed = ByteSize::mib(if quick { 1 << 10 } else { 10 << 10 });
    let needed = (2 * size.0).max(sealed.0 + sealed.0 / 8) + (256 << 20);
    let system = rustix::fs::statvfs(directory.path())?;
    let free = ByteSize(system.f_bavail * system.f_frsize);
    ensure!(
        free.0 >= needed,
        "{free} are free in {}, and {} are needed: make room, or name another directory with --device",
        directory.path().display(),
        ByteSize(needed)
    );
    let mut rows = Vec::new();
    let mut raw = Raw::make(&directory.path().join("raw"), size)?;
    for (backend, name) in [(Backend::Uring, ""), (Backend::Threads, ", threads")] {
        for item in ITEMS {
            // Threads are for where there is no ring: one size shows what they cost.
            if backend == Backend::Threads && item != 128 << 10 {
                continue;
            }
            let title = format!("{}{name}", ByteSize(item as u64));
            let cases = cases(&title, item, quick).filter(|(title, _)| args.wants(title));
            let cases: Vec<(String, Case)> = cases.collect();
            let rotation_title = format!("rotation {title}");
            let rotates = backend == Backend::Uring && args.wants(&rotation_title);
            if cases.is_empty() && !rotates {
                continue;
            }
            output::note(&format!("items of {title}: filling a device of {size}"));
            let mut engine = Engine::fill(directory.path(), size, backend, item).await?;
            for (title, case) in cases {
                rows.extend(compare(args, &title, case, &mut engine, &mut raw).await?);
            }
            if rotates {
                rows.extend(rotation(args, &rotation_title, item, &mut raw, engine, size).await?);
            }
        }
    }
    drop(raw);
    std::fs::remove_file(directory.path().join("raw"))?;
    if args.wants("index") {
        rows.extend(limits::index());
    }
    for item in [128 << 10, 4 << 10] {
        let title = format!("restart, {sealed} in items of {}", ByteSize(item as u64));
        if args.wants(&title) {
            let pairs = args.common.pairs();
            rows.push(limits::restart(directory.path(), &title, sealed, item, pairs).await?);
        }
    }
    ensure!(
        !rows.is_empty(),
        "no row begins with {:?}: see a --quick run for their names",
        args.only
    );
    Ok(rows)
}

/// What is done with items of one size.
fn cases(title: &str, item: usize, quick: bool) -> impl Iterator<Item = (String, Case)> {
    [Load::Read, Load::Write, Load::Mixed].into_iter().flat_map(move |load| {
        DEPTHS.into_iter().map(move |depth| {
            let case = Case { load, item, depth, limit: limit(load, quick) };
            (format!("{} {title}, depth {depth}", load.name()), case)
        })
    })
}

/// Long enough that waiting for the last sync does not count for much.
fn limit(load: Load, quick: bool) -> Duration {
    let milliseconds = match load {
        Load::Read => 250,
        Load::Write | Load::Mixed => 500,
    };
    Duration::from_millis(if quick { milliseconds / 2 } else { milliseconds })
}

/// Adjacent pairs of runs, taking turns at who goes first.
async fn compare(
    args: &Args,
    title: &str,
    case: Case,
    engine: &mut Engine,
    raw: &mut Raw,
) -> anyhow::Result<Vec<Row>> {
    let threads = engine.backend() == Backend::Threads;
    let mut pairs = Vec::new();
    for pair in 0..args.common.pairs() {
        pairs.push(if pair % 2 == 0 {
            let ours = engine.run(case).await?;
            (ours, raw.run(case, threads)?)
        } else {
            let theirs = raw.run(case, threads)?;
            (engine.run(case).await?, theirs)
        });
    }
    let target = match case.load {
        Load::Read if case.item >= 128 << 10 && !threads => Target::AtLeast(0.95),
        _ => Target::Open,
    };
    let against = if threads { "bare threads" } else { "bare ring" };
    Ok(load::rows(title, against, target, Target::Open, &pairs))
}

/// Two groups are there; the older one goes and a new one is filled.
async fn rotation(
    args: &Args,
    title: &str,
    item: usize,
    raw: &mut Raw,
    engine: Engine,
    size: ByteSize,
) -> anyhow::Result<Vec<Row>> {
    // Three fit, so that filling need not wait for freeing.
    let count = usize::try_from(size.0)? / 4 / item;
    let mut rotation = engine.into_rotation(count).await?;
    let (mut pairs, mut written) = (Vec::new(), Vec::new());
    for pair in 0..args.common.pairs() {
        let theirs_first =
            if pair % 2 == 1 { Some(raw.write_all(item, ROTATION_DEPTH, count)?) } else { None };
        let (ours, device_bytes) = rotation.turn(ROTATION_DEPTH).await?;
        let theirs = match theirs_first {
            Some(theirs) => theirs,
            None => raw.write_all(item, ROTATION_DEPTH, count)?,
        };
        written.push((device_bytes as f64, ours.bytes as f64));
        pairs.push((ours, theirs));
    }
    let mut rows = load::rows(title, "bare ring", Target::Open, Target::Open, &pairs);
    let target = match item {
        0x2_0000 => Target::AtMost(1.04),
        0x10_0000 => Target::AtMost(1.02),
        _ => Target::Open,
    };
    rows.push(evaluate(title, "bytes", "inserted", target, &written));
    Ok(rows)
}

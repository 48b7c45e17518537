//! `forebay-bench flash`: the share of a device's speed that the engine passes on to its users.
//!
//! The yardstick is a bare loop of direct I/O in this process ([`raw`]): a uring, or threads, that
//! reads and writes items of the same size at the same depth on a file of the same size, and
//! ignores their content. The engine ([`engine`]) reads one more block per item, verifies every
//! byte and finds items by key. Both files are fully written before the clock starts.
//!
//! Further rows are limits: bytes written per byte inserted, memory of the index, and the time
//! until a device is open after a restart ([`limits`]).

pub mod engine;
mod limits;
mod raw;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use forebay_bench_stats::{Row, Target, evaluate, load};
use forebay_core::ByteSize;
use forebay_flash::io::Backend;

use self::{engine::Engine, raw::Raw};
use crate::{Common, note};

/// Sizes of items.
const ITEMS: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];
/// Operations in flight.
const DEPTHS: [usize; 3] = [1, 8, 32];
/// Operations in flight during rotation, which has one writer.
const ROTATION_DEPTH: usize = 8;

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Measure the device of this directory [default: the one for temporary files].
    ///
    /// The benchmark removes the files that it makes there.
    #[arg(long, value_name = "DIRECTORY")]
    device: Option<PathBuf>,
    /// Measure only rows whose names begin with this text, such as "read 128 KiB".
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

impl Args {
    fn is_wanted(&self, name: &str) -> bool {
        name.starts_with(&self.only)
    }
}

/// Kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Reads of random items.
    Read,
    /// Sequential writes, durable at the end.
    Write,
    /// Three reads per write.
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

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub load: Load,
    /// Bytes of an item.
    pub item: usize,
    /// Operations in flight.
    pub depth: usize,
    /// Duration of the run.
    pub limit: Duration,
}

pub async fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = match &args.device {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("make a temporary directory")?;
    let quick = args.common.quick;
    let size = ByteSize::mib(if quick { 512 } else { 2048 });
    let sealed = ByteSize::mib(if quick { 1 << 10 } else { 10 << 10 });
    let needed = (2 * size.0).max(sealed.0 + sealed.0 / 8) + (256 << 20);
    let system = rustix::fs::statvfs(directory.path())?;
    let free = ByteSize(system.f_bavail * system.f_frsize);
    ensure!(
        free.0 >= needed,
        "{free} are free in `{}`, {} are needed; free some space, or name another directory with \
         --device",
        directory.path().display(),
        ByteSize(needed)
    );
    let mut rows = Vec::new();
    let mut raw = Raw::make(&directory.path().join("raw"), size)?;
    for (backend, name) in [(Backend::Uring, ""), (Backend::Threads, ", threads")] {
        for item in ITEMS {
            // Threads are the fallback where io_uring is not allowed. One size shows their cost.
            if backend == Backend::Threads && item != 128 << 10 {
                continue;
            }
            let title = format!("{}{name}", ByteSize(item as u64));
            let cases = cases(&title, item, quick).filter(|(title, _)| args.is_wanted(title));
            let cases: Vec<(String, Case)> = cases.collect();
            let rotation_title = format!("rotation {title}");
            let rotates = backend == Backend::Uring && args.is_wanted(&rotation_title);
            if cases.is_empty() && !rotates {
                continue;
            }
            note(&format!("items of {title}: filling a device of {size}"));
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
    if args.is_wanted("index") {
        rows.extend(limits::index());
    }
    for item in [128 << 10, 4 << 10] {
        let title = format!("restart, {sealed} in items of {}", ByteSize(item as u64));
        if args.is_wanted(&title) {
            let pairs = args.common.pairs();
            rows.push(limits::restart(directory.path(), &title, sealed, item, pairs).await?);
        }
    }
    ensure!(!rows.is_empty(), "no row begins with {:?}; a --quick run prints all names", args.only);
    Ok(rows)
}

/// All runs with items of one size.
fn cases(title: &str, item: usize, quick: bool) -> impl Iterator<Item = (String, Case)> {
    [Load::Read, Load::Write, Load::Mixed].into_iter().flat_map(move |load| {
        DEPTHS.into_iter().map(move |depth| {
            let case = Case { load, item, depth, limit: limit(load, quick) };
            (format!("{} {title}, depth {depth}", load.name()), case)
        })
    })
}

/// Duration of a run: long enough to make the last sync a small part of it.
fn limit(load: Load, quick: bool) -> Duration {
    let milliseconds = match load {
        Load::Read => 250,
        Load::Write | Load::Mixed => 500,
    };
    Duration::from_millis(if quick { milliseconds / 2 } else { milliseconds })
}

/// Runs adjacent pairs; the sides alternate in going first.
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

/// Rotation: of two groups the older one is freed while a new one is filled.
async fn rotation(
    args: &Args,
    title: &str,
    item: usize,
    raw: &mut Raw,
    engine: Engine,
    size: ByteSize,
) -> anyhow::Result<Vec<Row>> {
    // Three groups fit, so that filling does not wait for freeing.
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

//! `forebay-bench embed`: embedding lookups, where tables fit into memory and where they do not.
//!
//! - Tables fit: the yardstick is a loop that copies rows out of one large array.
//! - Tables are 20 times the memory: the yardstick is the same file mapped. Each side is a process
//!   of its own under the same memory limit. The limit includes the page cache, so it is the same
//!   limit for a mapped file.
//!
//! `cargo xtask bench embed` adds PyTorch and RocksDB.

mod model;
pub mod side;

use std::{
    hint::black_box,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use forebay_bench_stats::{Row, Target, compare, evaluate};
use forebay_core::ByteSize;
use forebay_embeddings::{Options, Pooling, Tables};

use self::model::{DIMENSION, Model, ROW_BYTES, bags};
use crate::{Common, limited_side::LimitedSide, memory_limit::MemoryLimit, note};

/// Samples per lookup.
const BATCHES: [usize; 3] = [1, 32, 2048];
/// Size of tables that do not fit, as a multiple of the memory.
const TIMES_MEMORY: u64 = 20;
/// Memory of a process besides rows: its code, its buffers, one round of reads.
const PROCESS_MEMORY: ByteSize = ByteSize::mib(48);

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Put the tables (2 GB) into this directory, on the disk to measure.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    device: PathBuf,
    /// Compare with RocksDB: the program compiled from `bench/embed/rocksdb.cc`.
    #[arg(long, value_name = "PROGRAM")]
    rocksdb: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir_in(&args.device).context("make a temporary directory")?;
    let mut rows = in_memory(&args.common, directory.path())?;
    rows.extend(limited(args, directory.path())?);
    Ok(rows)
}

/// Tables that fit into memory, against a copy loop.
fn in_memory(args: &Common, directory: &Path) -> anyhow::Result<Vec<Row>> {
    let model = Model::new(if args.quick { 300_000 } else { 1_500_000 });
    let file = directory.join("small.safetensors");
    model.write(&file)?;
    // Rows, a bit for each, and the buffers.
    let options = Options::new(ByteSize(model.bytes() * 17 / 16 + (16 << 20)));
    let tables = Tables::open(&model.sources(&file), &options)?;
    let bare = CopyLoop::read(&model, &tables)?;
    let mut rows = Vec::new();
    for batch in BATCHES {
        let mut random = fastrand::Rng::with_seed(3);
        let requests: Vec<Vec<Vec<i64>>> =
            (0..64).map(|_| model.draw(batch, &mut random)).collect();
        let mut ours_out = vec![0.0; batch * tables.columns()];
        let mut their_out = ours_out.clone();
        tables.lookup(&bags(&requests[0]), Pooling::Sum, &mut ours_out)?;
        bare.look_up(&requests[0], &mut their_out);
        ensure!(ours_out == their_out, "both sides must return the same rows");
        let row = compare(
            &format!("in memory, batch {batch}"),
            "lookups/s",
            "bare copy",
            Target::Open,
            args.pairs(),
            || {
                rate(&requests, |keys| {
                    Ok(tables.lookup(&bags(keys), Pooling::Sum, black_box(&mut ours_out))?)
                })
            },
            || {
                rate(&requests, |keys| {
                    bare.look_up(keys, black_box(&mut their_out));
                    Ok(())
                })
            },
        );
        rows.push(row?);
    }
    Ok(rows)
}

/// Lookups per second.
fn rate(
    requests: &[Vec<Vec<i64>>],
    mut look_up: impl FnMut(&[Vec<i64>]) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(200) {
        for keys in requests {
            look_up(keys)?;
        }
        count += requests.len();
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// The copy loop: every row in one array.
struct CopyLoop {
    first: Vec<usize>,
    numbers: Vec<f32>,
}

impl CopyLoop {
    /// Reads every row through `tables`, which are warm afterwards.
    fn read(model: &Model, tables: &Tables) -> anyhow::Result<Self> {
        let most = *model.rows.iter().max().expect("the model has tables");
        let (mut first, mut numbers) = (Vec::new(), Vec::new());
        let count = |rows: u64| usize::try_from(rows).expect("the rows fit into memory");
        for rows in &model.rows {
            first.push(numbers.len());
            numbers.resize(numbers.len() + count(*rows) * DIMENSION, 0.0);
        }
        let mut out = vec![0.0; 4096 * tables.columns()];
        for start in (0..most).step_by(4096) {
            let keys: Vec<Vec<i64>> = model
                .rows
                .iter()
                .map(|rows| (start..start + 4096).map(|row| (row % rows).cast_signed()).collect())
                .collect();
            tables.lookup(&bags(&keys), Pooling::Sum, &mut out)?;
            for (sample, row) in (start..start + 4096).enumerate() {
                for (table, _) in model.rows.iter().enumerate().filter(|(_, rows)| row < **rows) {
                    let from = &out[(table * 4096 + sample) * DIMENSION..][..DIMENSION];
                    let to = first[table] + count(row) * DIMENSION;
                    numbers[to..to + DIMENSION].copy_from_slice(from);
                }
            }
        }
        Ok(Self { first, numbers })
    }

    fn look_up(&self, keys: &[Vec<i64>], out: &mut [f32]) {
        let mut out = out.chunks_exact_mut(DIMENSION);
        for (first, keys) in self.first.iter().zip(keys) {
            for (key, out) in keys.iter().zip(&mut out) {
                let key = usize::try_from(*key).expect("a row number");
                out.copy_from_slice(&self.numbers[first + key * DIMENSION..][..DIMENSION]);
            }
        }
    }
}

/// Tables of 20 times the memory, against a mapped file and RocksDB.
fn limited(args: &Args, directory: &Path) -> anyhow::Result<Vec<Row>> {
    let memory = ByteSize::mib(if args.common.quick { 16 } else { 64 });
    let large = Large::write(directory, memory)?;
    if let Err(error) = MemoryLimit::new(memory) {
        note(&format!("tables larger than memory are not compared: {error:#}"));
        return Ok(Vec::new());
    }
    let mut rows = against(args, &large, "mmap", large.side("mmap")?)?;
    if let Some(program) = &args.rocksdb {
        rows.extend(against(args, &large, "RocksDB", large.rocksdb(program)?)?);
    }
    Ok(rows)
}

/// forebay and another side, at every batch size.
fn against(args: &Args, large: &Large, name: &str, other: Command) -> anyhow::Result<Vec<Row>> {
    let mut ours = LimitedSide::start(large.side("ours")?, large.memory + PROCESS_MEMORY)?;
    let mut other = LimitedSide::start(other, large.memory + PROCESS_MEMORY)?;
    let mut rows = Vec::new();
    for (batch, lookups) in BATCHES.into_iter().zip([2000, 200, 8]) {
        let (mut means, mut tails) = (Vec::new(), Vec::new());
        let request = format!("{batch} {lookups}");
        for pair in 0..args.common.pairs() {
            // Mean and p99 of a lookup, in microseconds.
            let (mine, theirs): ([f64; 2], [f64; 2]) = if pair % 2 == 0 {
                let mine = ours.ask(&request)?;
                (mine, other.ask(&request)?)
            } else {
                let theirs = other.ask(&request)?;
                (ours.ask(&request)?, theirs)
            };
            means.push((mine[0], theirs[0]));
            tails.push((mine[1], theirs[1]));
        }
        let title = format!("tables {TIMES_MEMORY} x memory, batch {batch}");
        let target = Target::AtMost(0.5);
        rows.push(evaluate(&format!("{title}, mean"), "us", name, target, &means));
        rows.push(evaluate(&format!("{title}, p99"), "us", name, target, &tails));
    }
    Ok(rows)
}

/// Tables that do not fit into memory.
struct Large {
    directory: PathBuf,
    file: PathBuf,
    rows: u64,
    memory: ByteSize,
}

impl Large {
    fn write(directory: &Path, memory: ByteSize) -> anyhow::Result<Self> {
        let rows = TIMES_MEMORY * memory.0 / ROW_BYTES as u64;
        let model = Model::new(rows);
        note(&format!("writing tables of {}", ByteSize(model.bytes())));
        let file = directory.join("large.safetensors");
        model.write(&file)?;
        Ok(Self { directory: directory.to_owned(), file, rows, memory })
    }

    fn side(&self, kind: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["embed-side", kind]).arg(&self.file);
        command.args([self.rows.to_string(), format!("{}B", self.memory.0)]);
        Ok(command)
    }

    /// Copies the rows into a database, and returns the command that serves it.
    fn rocksdb(&self, program: &Path) -> anyhow::Result<Command> {
        let database = self.directory.join("rocksdb");
        note("copying the tables into RocksDB");
        let mut build = Command::new(program);
        build.arg("build").arg(&self.file).arg(self.rows.to_string()).arg(&database);
        ensure!(build.status().context("start the RocksDB program")?.success(), "RocksDB failed");
        let mut serve = Command::new(program);
        serve.arg("serve").arg(&database).args([self.rows, self.memory.0].map(|n| n.to_string()));
        Ok(serve)
    }
}

//! `forebay bench embed`: are rows as quick as memory where they fit, and far quicker than a mapped file where
//! they do not?
//!
//! Where all tables fit, the yardstick is a bare loop that copies rows out of one large array. Where tables are
//! twenty times the memory, it is the same file mapped; both sides are processes of their own under the same
//! limit, which counts the page cache, too, so that it flatters nobody. PyTorch and RocksDB are compared by
//! `cargo xtask bench embed`.

mod limit;
mod model;
pub mod side;

use std::{
    hint::black_box,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::ByteSize;
use forebay_embed::{Options, Pooling, Tables};
use forebay_measure::{Row, Target, compare, evaluate};

use self::{
    limit::Limit,
    model::{DIMENSION, Model, ROW_BYTES, bags},
};
use crate::output::{self, Format};

const BATCHES: [usize; 3] = [1, 32, 2048];
/// Tables that do not fit are so many times as large as the memory.
const TIMES_MEMORY: u64 = 20;
/// What a process needs besides: its code, its buffers, a round of reads.
const PROCESS: ByteSize = ByteSize::mib(48);

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: super::Args,
    /// Where to put the tables (2 GB, on the disk that is to be measured).
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    device: PathBuf,
    /// `bench/embed/rocksdb.cc`, compiled: one more side.
    #[arg(long, value_name = "PROGRAM")]
    rocksdb: Option<PathBuf>,
}

impl Args {
    pub fn format(&self) -> Format {
        self.common.format
    }
}

pub fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir_in(&args.device).context("make room for the benchmark")?;
    let mut rows = in_memory(&args.common, directory.path())?;
    rows.extend(limited(args, directory.path())?);
    Ok(rows)
}

/// All tables fit.
fn in_memory(args: &super::Args, directory: &Path) -> anyhow::Result<Vec<Row>> {
    let model = Model::new(if args.quick { 300_000 } else { 1_500_000 });
    let file = directory.join("small.safetensors");
    model.write(&file)?;
    let options = Options::new(ByteSize(model.bytes()));
    let tables = Tables::open(&model.sources(&file), &options)?;
    let bare = Bare::read(&model, &tables)?;
    let mut rows = Vec::new();
    for batch in BATCHES {
        let mut random = fastrand::Rng::with_seed(3);
        let asked: Vec<Vec<Vec<i64>>> = (0..64).map(|_| model.draw(batch, &mut random)).collect();
        let mut ours_out = vec![0.0; batch * tables.columns()];
        let mut their_out = ours_out.clone();
        tables.lookup(&bags(&asked[0]), Pooling::Sum, &mut ours_out)?;
        bare.look_up(&asked[0], &mut their_out);
        ensure!(ours_out == their_out, "both sides must give the same rows");
        let row = compare(
            &format!("in memory, batch {batch}"),
            "lookups/s",
            "bare copy",
            Target::Open,
            args.pairs(),
            || {
                rate(&asked, |keys| {
                    Ok(tables.lookup(&bags(keys), Pooling::Sum, black_box(&mut ours_out))?)
                })
            },
            || {
                rate(&asked, |keys| {
                    bare.look_up(keys, black_box(&mut their_out));
                    Ok(())
                })
            },
        );
        rows.push(row?);
    }
    Ok(rows)
}

/// How many lookups a second.
fn rate(
    asked: &[Vec<Vec<i64>>],
    mut look_up: impl FnMut(&[Vec<i64>]) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(200) {
        for keys in asked {
            look_up(keys)?;
        }
        count += asked.len();
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Every row in one array.
struct Bare {
    first: Vec<usize>,
    numbers: Vec<f32>,
}

impl Bare {
    /// Reads every row by way of `tables`, which are warm afterwards.
    fn read(model: &Model, tables: &Tables) -> anyhow::Result<Self> {
        let most = *model.rows.iter().max().expect("there are tables");
        let (mut first, mut numbers) = (Vec::new(), Vec::new());
        let count = |rows: u64| usize::try_from(rows).expect("they fit into memory");
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
                let key = usize::try_from(*key).expect("a row");
                out.copy_from_slice(&self.numbers[first + key * DIMENSION..][..DIMENSION]);
            }
        }
    }
}

/// Tables of twenty times the memory.
fn limited(args: &Args, directory: &Path) -> anyhow::Result<Vec<Row>> {
    let memory = ByteSize::mib(if args.common.quick { 16 } else { 64 });
    let large = Large::write(directory, memory)?;
    if let Err(error) = Limit::new(memory) {
        let reason = output::one_line(&error);
        output::note(&format!("tables larger than memory are not compared: {reason}"));
        return Ok(Vec::new());
    }
    let mut rows = against(args, &large, "mmap", large.side("mmap")?)?;
    if let Some(program) = &args.rocksdb {
        rows.extend(against(args, &large, "RocksDB", large.rocksdb(program)?)?);
    }
    Ok(rows)
}

/// Ours and another side, at every batch.
fn against(args: &Args, large: &Large, name: &str, other: Command) -> anyhow::Result<Vec<Row>> {
    let mut ours = Started::new(large.side("ours")?, large.memory)?;
    let mut other = Started::new(other, large.memory)?;
    let mut rows = Vec::new();
    for (batch, lookups) in BATCHES.into_iter().zip([2000, 200, 8]) {
        let (mut means, mut tails) = (Vec::new(), Vec::new());
        for pair in 0..args.common.pairs() {
            let (mine, theirs) = if pair % 2 == 0 {
                let mine = ours.run(batch, lookups)?;
                (mine, other.run(batch, lookups)?)
            } else {
                let theirs = other.run(batch, lookups)?;
                (ours.run(batch, lookups)?, theirs)
            };
            means.push((mine.0, theirs.0));
            tails.push((mine.1, theirs.1));
        }
        let title = format!("tables {TIMES_MEMORY} x memory, batch {batch}");
        let target = Target::AtMost(0.5);
        rows.push(evaluate(&format!("{title}, mean"), "us", name, target, &means));
        rows.push(evaluate(&format!("{title}, p99"), "us", name, target, &tails));
    }
    Ok(rows)
}

/// Tables that do not fit.
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
        output::note(&format!("writing tables of {}", ByteSize(model.bytes())));
        let file = directory.join("large.safetensors");
        model.write(&file)?;
        Ok(Self { directory: directory.to_owned(), file, rows, memory })
    }

    fn side(&self, kind: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("find our own binary")?);
        command.args(["bench", "embed-side", kind]).arg(&self.file);
        command.args([self.rows.to_string(), format!("{}B", self.memory.0)]);
        Ok(command)
    }

    /// The same rows in a database, and the command that serves it.
    fn rocksdb(&self, program: &Path) -> anyhow::Result<Command> {
        let database = self.directory.join("rocksdb");
        output::note("copying the tables into RocksDB");
        let mut build = Command::new(program);
        build.arg("build").arg(&self.file).arg(self.rows.to_string()).arg(&database);
        ensure!(build.status().context("start RocksDB's side")?.success(), "RocksDB failed");
        let mut serve = Command::new(program);
        serve.arg("serve").arg(&database).args([self.rows, self.memory.0].map(|n| n.to_string()));
        Ok(serve)
    }
}

/// A side that has been started.
struct Started {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Goes after the process.
    _limit: Limit,
}

impl Started {
    fn new(mut command: Command, memory: ByteSize) -> anyhow::Result<Self> {
        let limit = Limit::new(memory + PROCESS)?;
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start a side")?;
        limit.hold(&process)?;
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut started = Self { process, stdin, stdout, _limit: limit };
        ensure!(started.answer()? == "ready", "a side did not start");
        Ok(started)
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("a side ended: is the memory limit too small for it?");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Mean and p99 of a lookup, in microseconds.
    fn run(&mut self, batch: usize, lookups: usize) -> anyhow::Result<(f64, f64)> {
        let stdin = self.stdin.as_mut().expect("open until the end");
        writeln!(stdin, "{batch} {lookups}")?;
        let answer = self.answer()?;
        let (mean, tail) = answer.split_once(' ').context("two numbers")?;
        Ok((mean.parse()?, tail.parse()?))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // At the end of its input it ends.
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

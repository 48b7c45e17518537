//! `forebay-bench stream`: streams against bare loops on files of the same size, with the same
//! blocks and depth ([`bare`]).
//!
//! A stream is verified while it is read; the yardsticks ignore their bytes. Both sides are fully
//! written before the clock starts. Sides that use the page cache are processes under a memory
//! limit ([`limited`]), and so is the stream that is compared with them.

mod bare;
mod limited;
pub mod side;
mod slow_syncs;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, cast::AsArray as _, types::Float64Type};
use forebay_bench_stats::{Row, Target, compare, evaluate};
use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::{
    BorrowedStore, CreateOptions, FullPolicy, Interrupt, OpenOptions, Reader, Store, StoreConfig,
    arrow::{BatchReader, BatchWriter},
};
use rustix::time::{ClockId, clock_gettime};

use self::bare::Bare;
use crate::{Common, note};

/// Blocks in flight on both sides.
const IN_FLIGHT: u32 = 4;
/// The stream of numbers, and the one of tables.
const STREAM: &str = "read";
const TABLE: &str = "table";
/// Time of a sync on the drive with slow syncs.
const SLOW_SYNC: Duration = Duration::from_millis(5);
/// A block of a stream with its header, in whole device blocks.
const BLOCK: usize = (4 << 20) - (8 << 10);
/// Short streams of one family.
const SHORT_STREAMS: u64 = 10_000;
const SHORT_LENGTH: usize = 64 << 10;

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
    /// Use streams of this size [default: 2GiB, 512MiB with --quick].
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Compare with pyarrow: a Python that has it, and forebay.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = match &args.device {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("make a temporary directory")?;
    let default = ByteSize::mib(if args.common.quick { 512 } else { 2048 });
    let blocks = args.size.unwrap_or(default).0.div_ceil(BLOCK as u64);
    note("preparing files");
    let [file, written, table, place] =
        ["bare", "bare-written", "table.arrow", "store"].map(|name| directory.path().join(name));
    // Streams that are read, and room for those that are written.
    let spare = 3 * blocks + 64;
    let mut bare = (Bare::open(&file, blocks)?, Bare::open(&written, spare)?);
    bare.0.write_next(blocks)?;
    bare.1.write_next(spare)?;
    let short = SHORT_STREAMS * (SHORT_LENGTH as u64 + 8192);
    let capacity = ByteSize((2 * blocks + spare) * BLOCK as u64 + short);
    let store = StoreConfig::new(&place, capacity).open()?;
    let bench = Bench { pairs: args.common.pairs(), blocks, payload: payload(&store)? };
    bench.write(&store, STREAM, KEPT)?;
    bench.touch(&store, capacity.0 / BLOCK as u64 - blocks - 32)?;
    let batch = bench.batch()?;
    bench.write_table(&store, &batch)?;
    let borrowed = BorrowedStore::connect(&place, ByteSize::mib(48), Interrupt::default())?
        .context("borrow")?;

    let mut rows = bench.against_bare(&store, &mut bare)?;
    rows.push(bench.overlap(&store)?);
    rows.push(bench.batches(&store)?);
    rows.push(bench.borrower(&store, &borrowed)?);
    rows.push(short_streams(&store)?);
    drop((bare, borrowed, store));
    rows.push(bench.slow_syncs(directory.path())?);
    if args.python.is_some() {
        limited::write_table(&table, &batch, blocks)?;
    }
    rows.extend(limited::rows(&limited::Data {
        store: &place,
        file: &file,
        table: &table,
        bytes: blocks * BLOCK as u64,
        pairs: bench.pairs,
        python: args.python.as_deref(),
    })?);
    Ok(rows)
}

/// Numbers that can be summed.
fn payload(store: &Store) -> anyhow::Result<Vec<u8>> {
    let numbers = usize::try_from(store.block_length())? / 8;
    let mut random = fastrand::Rng::with_seed(1);
    Ok((0..numbers).flat_map(|_| random.f64().to_le_bytes()).collect())
}

/// The sum of the numbers in a block.
fn sum(block: &[u8]) -> f64 {
    let numbers = block.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number));
    numbers.sum()
}

#[derive(Clone)]
struct Bench {
    pairs: usize,
    blocks: u64,
    payload: Vec<u8>,
}

/// The stream outlives the process, so that other processes can open it alone.
const KEPT: CreateOptions = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };

fn options() -> OpenOptions {
    // The consumer holds a block while others are read.
    OpenOptions { depth: IN_FLIGHT + 1, in_flight: IN_FLIGHT, ..OpenOptions::default() }
}

/// Gigabytes per second.
fn speed(work: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    let since = Instant::now();
    let bytes = work()?;
    Ok(bytes as f64 / since.elapsed().as_secs_f64() / 1e9)
}

/// Seconds of processor time of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn read(reader: Reader, mut each: impl FnMut(&[u8])) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for block in reader.blocks() {
        let block = block?;
        each(&block);
        bytes += block.len() as u64;
    }
    Ok(bytes)
}

fn read_stream(store: &Store) -> anyhow::Result<u64> {
    read(store.open(STREAM, options())?, |_| {})
}

impl Bench {
    fn write(&self, store: &Store, name: &str, options: CreateOptions) -> anyhow::Result<u64> {
        let mut writer = store.create(name, options)?;
        for _ in 0..self.blocks {
            writer.append(&self.payload)?;
        }
        Ok(writer.seal()?.bytes)
    }

    /// Writes this number of blocks: the first write to reserved space is slower.
    fn touch(&self, store: &Store, blocks: u64) -> anyhow::Result<()> {
        Self { blocks, ..self.clone() }.write(store, "touch", CreateOptions::default())?;
        Ok(store.destroy("touch", Duration::ZERO)?)
    }

    /// A batch whose block is nearly as long as those of the other streams.
    fn batch(&self) -> anyhow::Result<RecordBatch> {
        let rows = self.payload.len() / 8 - 512;
        let numbers = self.payload.as_chunks().0.iter().take(rows);
        let numbers: Float64Array = numbers.map(|one| Some(f64::from_le_bytes(*one))).collect();
        let column: ArrayRef = Arc::new(numbers);
        Ok(RecordBatch::try_from_iter([("x", column)])?)
    }

    fn write_table(&self, store: &Store, batch: &RecordBatch) -> anyhow::Result<()> {
        let mut writer = BatchWriter::new(store.create(TABLE, KEPT)?, batch.schema())?;
        for _ in 0..self.blocks {
            writer.append(batch)?;
        }
        writer.seal()?;
        Ok(())
    }

    fn against_bare(&self, store: &Store, bare: &mut (Bare, Bare)) -> anyhow::Result<Vec<Row>> {
        note("read and write against a bare loop");
        let target = Target::AtLeast(0.95);
        let mut rows = vec![compare(
            "read in order, verified",
            "GB/s",
            "bare loop",
            target,
            self.pairs,
            || speed(|| read_stream(store)),
            || speed(|| bare.0.read()),
        )?];
        let before = store.facts();
        let mut pairs = Vec::new();
        for _ in 0..self.pairs {
            let ours = speed(|| self.write(store, "write", CreateOptions::default()))?;
            store.destroy("write", Duration::ZERO)?;
            pairs.push((ours, speed(|| bare.1.write_next(self.blocks))?));
        }
        rows.push(evaluate("write in order", "GB/s", "bare loop", target, &pairs));
        let after = store.facts();
        let device = (after.device_written.0 - before.device_written.0) as f64;
        let payload = (after.written.0 - before.written.0) as f64;
        let target = Target::AtMost(1.01);
        rows.push(evaluate("device bytes", "B", "payload", target, &[(device, payload)]));
        let mut first = Vec::new();
        for _ in 0..self.pairs {
            let since = Instant::now();
            drop(store.open(STREAM, options())?.next().context("a block")??);
            let ours = since.elapsed().as_secs_f64();
            let since = Instant::now();
            bare.0.read_one()?;
            first.push((1e3 * ours, 1e3 * since.elapsed().as_secs_f64()));
        }
        let target = Target::AtMost(1.5);
        rows.push(evaluate("first block after open", "ms", "bare read", target, &first));
        let readers = (0..4).map(|_| store.open(STREAM, OpenOptions { depth: 2, ..options() }));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let facts = store.facts();
        let memory = (facts.read_memory.0 + facts.write_memory.0 + (5 << 20)) as f64;
        let target = Target::AtMost(1.0);
        let pair = [(memory, ByteSize::mib(64).0 as f64)];
        rows.push(evaluate("memory, four streams open", "B", "64 MiB", target, &pair));
        drop(readers);
        // Reads that are in flight keep their slots.
        while store.facts().read_memory_free < facts.read_memory {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(rows)
    }

    /// A durable stream, on a drive with slow syncs and on one without.
    fn slow_syncs(&self, directory: &Path) -> anyhow::Result<Row> {
        note("write on a drive with slow syncs");
        let blocks = self.blocks.min(256);
        let capacity = ByteSize((blocks + 64) * BLOCK as u64);
        let open = |name: &str, delay| slow_syncs::store(&directory.join(name), capacity, delay);
        let stores = (open("slow", SLOW_SYNC)?, open("plain", Duration::ZERO)?);
        let short = Self { blocks, ..self.clone() };
        short.touch(&stores.0, blocks + 32)?;
        short.touch(&stores.1, blocks + 32)?;
        let write = |store: &Store| {
            let speed = speed(|| short.write(store, "write", KEPT))?;
            store.destroy("write", Duration::ZERO)?;
            Ok::<f64, anyhow::Error>(speed)
        };
        compare(
            "durable write, syncs of 5 ms, regions of 64 MiB",
            "GB/s",
            "without",
            Target::AtLeast(0.95),
            self.pairs,
            || write(&stores.0),
            || write(&stores.1),
        )
    }

    /// Compute that takes as long as reading, overlapped with it.
    fn overlap(&self, store: &Store) -> anyhow::Result<Row> {
        note("compute and I/O together");
        let mut pairs = Vec::new();
        for _ in 0..self.pairs {
            let since = Instant::now();
            read_stream(store)?;
            let reading = since.elapsed().as_secs_f64();
            let since = Instant::now();
            let total: f64 = (0..self.blocks).map(|_| sum(&self.payload)).sum();
            std::hint::black_box(total);
            let computing = since.elapsed().as_secs_f64();
            let since = Instant::now();
            let mut total = 0.0;
            read(store.open(STREAM, options())?, |block| total += sum(block))?;
            std::hint::black_box(total);
            pairs.push((since.elapsed().as_secs_f64(), reading.max(computing)));
        }
        let target = Target::AtMost(1.05);
        Ok(evaluate("compute and I/O together", "s", "the longer alone", target, &pairs))
    }

    fn batches(&self, store: &Store) -> anyhow::Result<Row> {
        note("record batches");
        let memory = store.read_memory();
        compare(
            "record batches, 0 bytes copied",
            "GB/s",
            "raw stream",
            Target::AtLeast(0.9),
            self.pairs,
            || {
                speed(|| {
                    let mut bytes = 0;
                    for batch in BatchReader::new(store.open(TABLE, options())?)? {
                        let batch = batch?;
                        let values = batch.column(0).as_primitive::<Float64Type>().values();
                        let is_view = memory.contains(&(values.as_ptr() as usize));
                        anyhow::ensure!(is_view, "a batch was copied");
                        bytes += size_of_val(&**values) as u64;
                    }
                    Ok(bytes)
                })
            },
            || speed(|| read_stream(store)),
        )
    }

    fn borrower(&self, store: &Store, borrowed: &BorrowedStore) -> anyhow::Result<Row> {
        note("borrower");
        compare(
            "borrower",
            "GB/s",
            "owner",
            Target::AtLeast(0.95),
            self.pairs,
            || speed(|| read(borrowed.open(STREAM, options())?, |_| {})),
            || speed(|| read_stream(store)),
        )
    }
}

/// Short streams of one family: the device bytes that they take.
fn short_streams(store: &Store) -> anyhow::Result<Row> {
    note("short streams");
    let before = store.facts();
    let family = store.family("short", Lifetime::Process)?;
    let payload = vec![7; SHORT_LENGTH];
    for number in 0..SHORT_STREAMS {
        let mut writer = family.create(&format!("short {number}"), FullPolicy::Error)?;
        writer.append(&payload)?;
        writer.seal()?;
    }
    let used = (before.free.0 - store.facts().free.0) as f64;
    family.destroy()?;
    let bytes = (SHORT_STREAMS * SHORT_LENGTH as u64) as f64;
    let target = Target::AtMost(1.10);
    Ok(evaluate("space of 10,000 streams of 64 KiB", "B", "payload", target, &[(used, bytes)]))
}

//! `forebay-bench digest`: the speed, memory and opening time of `forebay digest build`.
//!
//! Building should be bound by reading or by BLAKE3. The yardstick is the slower of two raw limits
//! on the same files with the same number of threads: reading each file into a buffer, and BLAKE3
//! over memory.
//!
//! - *Warm*: files are in the page cache. Reading and hashing compete for the same cores, so no
//!   program can do both at the speed of the slower one alone. A second yardstick is therefore a
//!   loop that reads each file and hashes it.
//! - *Cold*: files are on the disk. One thread can wait for the disk while another hashes.
//!
//! Two more rows are limits: the memory of a build, and the time to open a large digest whose
//! check is remembered.

use std::{
    fs::{self, File},
    hint::black_box,
    io::Read as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, available_parallelism},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use forebay_bench_stats::{Row, Target, compare, evaluate};
use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{ByteSize, Namespace, dataset::chunking::Chunking};
use forebay_digest::{Blob, Header, ItemSpan, Layout, Part, PendingDigest, Summary};

use crate::{Common, note, product::ProductArg};

/// Read buffer of the plain loop: one large read for each file.
const READ_SIZE: usize = 1 << 20;
/// Memory that a build may use, and on top of it for each item.
const MEMORY_BASE: u64 = 64 << 20;
const MEMORY_PER_ITEM: u64 = 64;
/// Time in which a digest whose check is remembered has to be open.
const OPEN_MILLISECONDS: f64 = 50.0;

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    product: ProductArg,
}

pub fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let Args { common, product } = args;
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let scale = if common.quick { 4 } else { 1 };
    let mut rows = Vec::new();
    for (name, count, length, pack) in [
        ("files of 1 MiB", 1024 / scale, 1 << 20, false),
        ("files of 128 KiB", 4096 / scale, 128 << 10, false),
        ("files of 8 KiB, packed", 20_000 / scale, 8 << 10, true),
        ("files of 1 KiB, packed", 40_000 / scale, 1 << 10, true),
    ] {
        note(&format!("building a digest of {count} {name}, {} pairs", common.pairs()));
        let data = directory.path().join("data");
        let files = make_files(&data, count, length)?;
        let case = Case { name, product, data: &data, files: &files, length, pack };
        rows.extend(case.compare(common.pairs())?);
        fs::remove_dir_all(&data)?;
    }
    rows.push(memory(product, directory.path(), if common.quick { 20_000 } else { 200_000 })?);
    let items = if common.quick { 1_000_000 } else { 10_000_000 };
    rows.push(open_time(directory.path(), items, common.pairs())?);
    Ok(rows)
}

fn make_files(data: &Path, count: usize, length: usize) -> anyhow::Result<Vec<PathBuf>> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut content = vec![0; length];
    (0..count)
        .map(|index| {
            // 1,000 files per directory, as is common in datasets.
            let folder = data.join(format!("{:04}", index / 1000));
            if index % 1000 == 0 {
                fs::create_dir_all(&folder)?;
            }
            let path = folder.join(format!("{index:07}.bin"));
            random.fill(&mut content[..length.min(64)]);
            fs::write(&path, &content)?;
            Ok(path)
        })
        .collect()
}

/// Files to build a digest of.
struct Case<'a> {
    name: &'static str,
    product: &'a ProductArg,
    data: &'a Path,
    files: &'a [PathBuf],
    length: usize,
    pack: bool,
}

impl Case<'_> {
    fn compare(&self, pairs: usize) -> anyhow::Result<[Row; 3]> {
        let content = self.files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
        let read = || read_all(self.files, self.length, |_| ());
        let hash = || hash_all(&content);
        let both = || {
            let namespace = Namespace::public();
            read_all(self.files, self.length, |bytes| _ = black_box(namespace.address(bytes)))
        };
        let from_disk = || {
            let hashed = hash();
            drop_page_cache(self.files)?;
            Ok(read()?.min(hashed))
        };
        // A first build, which does not count, brings all files into the page cache.
        self.build()?;
        let warm_build = || self.build();
        let cold_build = || {
            drop_page_cache(self.files)?;
            self.build()
        };
        let slower = "slower of read, BLAKE3";
        let target = Target::AtLeast(0.8);
        let name = |state: &str| format!("{}, {state}", self.name);
        let row = |state, against, target, ours: &dyn Fn() -> _, theirs: &dyn Fn() -> _| {
            compare(&name(state), "GB/s", against, target, pairs, ours, theirs)
        };
        Ok([
            row("warm", slower, target, &warm_build, &|| Ok(read()?.min(hash())))?,
            row("warm", "a loop that does both", Target::Open, &warm_build, &both)?,
            row("cold", slower, target, &cold_build, &from_disk)?,
        ])
    }

    /// Builds a digest; GB/s by the time that the build reports, without the start of the process.
    fn build(&self) -> anyhow::Result<f64> {
        let layout = if self.pack { "pack" } else { "files" };
        let digest = self.data.with_extension("digest");
        let report = build_digest(self.product, self.data, &digest, layout)?;
        Ok((self.files.len() * self.length) as f64 / report.seconds / 1e9)
    }
}

/// The part of a build's report that is measured.
#[derive(serde::Deserialize)]
struct BuildReport {
    seconds: f64,
    peak_memory: u64,
}

fn build_digest(
    product: &ProductArg,
    data: &Path,
    digest: &Path,
    layout: &str,
) -> anyhow::Result<BuildReport> {
    let mut command = product.command()?;
    command.args(["digest", "build", "--format", "json", "--layout", layout, "-o"]);
    let output = command.arg(digest).arg(data).output().context("run `forebay digest build`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("read the report of `forebay digest build`")
}

/// Removes these files from the page cache.
fn drop_page_cache(files: &[PathBuf]) -> anyhow::Result<()> {
    for path in files {
        let file = File::open(path)?;
        // The kernel drops clean pages only.
        rustix::fs::fdatasync(&file)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads every file into a buffer, on all threads, and calls `act` with its content; GB/s.
fn read_all(files: &[PathBuf], length: usize, act: impl Fn(&[u8]) + Sync) -> anyhow::Result<f64> {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started = Instant::now();
    on_all_threads(|| {
        let mut buffer = vec![0; READ_SIZE];
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let read = File::open(path).and_then(|mut file| file.read(&mut buffer));
            act(black_box(&buffer[..length]));
            failed.fetch_add(usize::from(!matches!(read, Ok(n) if n == length)), Ordering::Relaxed);
        }
    });
    ensure!(failed.into_inner() == 0, "the benchmark's own files could not be read back");
    Ok((files.len() * length) as f64 / started.elapsed().as_secs_f64() / 1e9)
}

/// Hashes the same bytes from memory, on all threads; GB/s.
fn hash_all(content: &[Vec<u8>]) -> f64 {
    let (next, namespace) = (AtomicUsize::new(0), Namespace::public());
    let started = Instant::now();
    on_all_threads(|| {
        while let Some(bytes) = content.get(next.fetch_add(1, Ordering::Relaxed)) {
            black_box(namespace.address(bytes));
        }
    });
    let bytes: usize = content.iter().map(Vec::len).sum();
    bytes as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn on_all_threads(work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(&work);
        }
    });
}

/// Peak memory of a build of many 16-byte files.
fn memory(product: &ProductArg, directory: &Path, items: usize) -> anyhow::Result<Row> {
    note(&format!("building a digest of {items} files of 16 bytes"));
    let data = directory.join("tiny");
    make_files(&data, items, 16)?;
    let report = build_digest(product, &data, &directory.join("tiny.digest"), "files")?;
    let allowed = MEMORY_BASE + MEMORY_PER_ITEM * items as u64;
    let name = format!("memory, {items} items");
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let pair = (mib(report.peak_memory), mib(allowed));
    Ok(evaluate(&name, "MiB", "64 MiB + 64 B an item", Target::AtMost(1.0), &[pair]))
}

/// Time to open a digest of `items` synthetic items whose check is remembered.
fn open_time(directory: &Path, items: u64, pairs: usize) -> anyhow::Result<Row> {
    note(&format!("writing a digest of {items} items"));
    let path = directory.join("large.digest");
    let row = |index: u64| Blob {
        address: Namespace::public().address(&index.to_le_bytes()),
        parts: vec![Part {
            object: format!("class {:05}/item {index:09}.jpg", index / 1000),
            version: format!("\"{index:032x}\""),
            offset: 0,
            length: 100_000,
        }],
        items: vec![ItemSpan { offset: 0, length: 100_000 }],
        tree: None,
    };
    let chunking = Chunking::for_dataset(ByteSize(items * 100_000), items);
    let mut id = DatasetIdHasher::new();
    for index in 0..items {
        id.push(&row(index).address, 100_000);
    }
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: "public".to_owned(),
        origin: "s3://bucket/large".to_owned(),
        layout: Layout::Files.to_string(),
        chunking,
        items,
        blobs: items,
        bytes: items * 100_000,
    };
    let mut pending =
        PendingDigest::create(&path, Header { summary, columns: Vec::new(), has_trees: false })?;
    for index in 0..items {
        pending.push(&row(index), &[])?;
    }
    pending.publish()?;
    let measured = (0..pairs)
        .map(|_| {
            let started = Instant::now();
            let file = forebay_digest::open(&path)?;
            let elapsed = started.elapsed().as_secs_f64() * 1e3;
            ensure!(file.was_checked(), "the check of the digest is not remembered");
            Ok((elapsed, OPEN_MILLISECONDS))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let name = format!("open a checked digest, {items} items");
    Ok(evaluate(&name, "ms", "50 ms", Target::AtMost(1.0), &measured))
}

//! `forebay bench digest`: is building bound by reading or by BLAKE3, as it should be?
//!
//! The yardstick is the slower of two raw limits on the same files and as many threads: reading each
//! file into a buffer, and BLAKE3 over memory. Files come from the page cache ("warm"), where both are
//! work for the same cores and no program can do both as fast as the slower one alone, or from the disk
//! ("cold"), where one can wait for the disk while the other works. So there is a third figure: how far
//! we are from a loop that reads a file and hashes it. Then the two promises that are counts: memory
//! while building, and the time to open a large digest that has been checked.

use std::{
    fs::{self, File},
    hint::black_box,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, available_parallelism},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use forebay_core::{
    ByteSize, Namespace,
    chunking::Chunking,
    digest::{Blob, DatasetIdHasher, Header, ItemSpan, Part, Summary, plan::Layout},
};
use forebay_digest::PendingDigest;
use forebay_measure::{Row, Target, evaluate};
use forebay_origin::Options;
use indicatif::ProgressBar;

use super::Args;
use crate::{
    digest::build::{self, Spec},
    output,
};

/// Read buffer of the plain loop: one large read for each file.
const READ_SIZE: usize = 1 << 20;
/// Memory that a build may use, and on top of it for each item.
const MEMORY_BASE: u64 = 64 << 20;
const MEMORY_PER_ITEM: u64 = 64;

pub async fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir().context("make room for the benchmark")?;
    let scale = if args.quick { 4 } else { 1 };
    let mut rows = Vec::new();
    for (name, count, length, layout) in [
        ("files of 1 MiB", 1024 / scale, 1 << 20, Layout::Files),
        ("files of 128 KiB", 4096 / scale, 128 << 10, Layout::Files),
        ("files of 8 KiB, packed", 20_000 / scale, 8 << 10, Layout::Pack(ByteSize::mib(1))),
        ("files of 1 KiB, packed", 40_000 / scale, 1 << 10, Layout::Pack(ByteSize::mib(1))),
    ] {
        output::note(&format!("building a digest of {count} {name}, {} pairs", args.pairs()));
        let data = directory.path().join("data");
        let files = make_files(&data, count, length)?;
        let building = Building { name, data: &data, files: &files, length, layout };
        rows.extend(building.compare(args.pairs()).await?);
        fs::remove_dir_all(&data)?;
    }
    rows.push(memory(directory.path(), if args.quick { 20_000 } else { 200_000 })?);
    let items = if args.quick { 1_000_000 } else { 10_000_000 };
    rows.push(opening(directory.path(), items, args.pairs())?);
    Ok(rows)
}

fn make_files(data: &Path, count: usize, length: usize) -> anyhow::Result<Vec<PathBuf>> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut content = vec![0; length];
    (0..count)
        .map(|index| {
            // A thousand files a directory, as datasets have them.
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

/// Files, and a digest to be built of them.
struct Building<'a> {
    name: &'static str,
    data: &'a Path,
    files: &'a [PathBuf],
    length: usize,
    layout: Layout,
}

impl Building<'_> {
    async fn compare(&self, pairs: usize) -> anyhow::Result<[Row; 3]> {
        let content = self.files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
        let read = || read_all(self.files, self.length, |_| ());
        let hash = || hash_all(&content);
        let both = || {
            let namespace = Namespace::public();
            read_all(self.files, self.length, |bytes| _ = black_box(namespace.address(bytes)))
        };
        // One round that does not count warms the page cache for all.
        self.build().await?;
        let warm = self.pairs(pairs, || Ok(()), || Ok(read()?.min(hash()))).await?;
        let limit = self.pairs(pairs, || Ok(()), both).await?;
        let cold = || evict(self.files);
        let from_disk = || {
            let hashed = hash();
            evict(self.files)?;
            Ok(read()?.min(hashed))
        };
        let cold = self.pairs(pairs, cold, from_disk).await?;
        let row = |state: &str, against: &str, target: Target, pairs: &[(f64, f64)]| {
            evaluate(&format!("{}, {state}", self.name), "GB/s", against, target, pairs)
        };
        let target = Target::AtLeast(0.8);
        Ok([
            row("warm", "slower of read, BLAKE3", target, &warm),
            row("warm", "a loop that does both", Target::Open, &limit),
            row("cold", "slower of read, BLAKE3", target, &cold),
        ])
    }

    /// Builds and the other side, in adjacent pairs, in GB/s; `prepare` comes before each build and is
    /// not timed.
    async fn pairs(
        &self,
        count: usize,
        prepare: impl Fn() -> anyhow::Result<()>,
        theirs: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Vec<(f64, f64)>> {
        let mut measured = Vec::with_capacity(count);
        for pair in 0..count {
            let theirs_first = if pair % 2 == 1 { Some(theirs()?) } else { None };
            prepare()?;
            let ours = self.build().await?;
            let theirs = theirs_first.map_or_else(&theirs, Ok)?;
            measured.push((ours / 1e9, theirs / 1e9));
        }
        Ok(measured)
    }

    /// Bytes per second.
    async fn build(&self) -> anyhow::Result<f64> {
        let spec = Spec {
            url: self.data.display().to_string(),
            options: Options::default(),
            output: self.data.with_extension("digest"),
            layout: self.layout,
            namespace: Namespace::public(),
            columns: None,
            chunks: None,
            exclude: Vec::new(),
            restart: false,
        };
        let started = Instant::now();
        build::build(&spec, &ProgressBar::hidden()).await?;
        Ok((self.files.len() * self.length) as f64 / started.elapsed().as_secs_f64())
    }
}

/// Makes the page cache forget these files.
fn evict(files: &[PathBuf]) -> anyhow::Result<()> {
    for path in files {
        let file = File::open(path)?;
        // Only what is on the disk can be forgotten.
        rustix::fs::fdatasync(&file)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads every file into a buffer, on all threads, and does something with it; bytes per second.
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
    Ok((files.len() * length) as f64 / started.elapsed().as_secs_f64())
}

/// Hashes the same bytes from memory, on all threads; bytes per second.
fn hash_all(content: &[Vec<u8>]) -> f64 {
    let (next, namespace) = (AtomicUsize::new(0), Namespace::public());
    let started = Instant::now();
    on_all_threads(|| {
        while let Some(bytes) = content.get(next.fetch_add(1, Ordering::Relaxed)) {
            black_box(namespace.address(bytes));
        }
    });
    content.iter().map(Vec::len).sum::<usize>() as f64 / started.elapsed().as_secs_f64()
}

fn on_all_threads(work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(&work);
        }
    });
}

/// A child process builds a digest of many tiny files and reports its peak.
fn memory(directory: &Path, items: usize) -> anyhow::Result<Row> {
    output::note(&format!("building a digest of {items} tiny files in a process of its own"));
    let data = directory.join("tiny");
    make_files(&data, items, 16)?;
    let child = Command::new(std::env::current_exe()?)
        .args(["digest", "build", "--format", "json", "-o"])
        .arg(directory.join("tiny.digest"))
        .arg(&data)
        .output()
        .context("run this program again")?;
    ensure!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let report: serde_json::Value = serde_json::from_slice(&child.stdout)?;
    let peak = report["peak_memory"].as_u64().context("no peak was reported")? as f64;
    let allowed = (MEMORY_BASE + MEMORY_PER_ITEM * items as u64) as f64;
    let name = format!("memory, {items} items");
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let pair = (mib(peak), mib(allowed));
    Ok(evaluate(&name, "MiB", "64 MiB + 64 B an item", Target::AtMost(1.0), &[pair]))
}

/// Writes a digest of so many made-up items, and opens it again and again.
fn opening(directory: &Path, items: u64, pairs: usize) -> anyhow::Result<Row> {
    output::note(&format!("writing a digest of {items} items"));
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
    let mut pending = PendingDigest::create(&path, Header { summary, columns: Vec::new() })?;
    for index in 0..items {
        pending.push(&row(index), &[])?;
    }
    pending.publish()?;
    let measured = (0..pairs)
        .map(|_| {
            let started = Instant::now();
            let file = forebay_digest::open(&path)?;
            let elapsed = started.elapsed().as_secs_f64() * 1e3;
            ensure!(file.was_checked(), "the digest's check was forgotten");
            Ok((elapsed, 50.0))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let name = format!("open a checked digest, {items} items");
    Ok(evaluate(&name, "ms", "50 ms", Target::AtMost(1.0), &measured))
}

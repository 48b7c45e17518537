//! `forebay bench digest`: is building bound by reading or by BLAKE3, as it should be?
//!
//! The yardstick is the slower of two raw limits on the same files and as many threads: reading each
//! file into a buffer, and BLAKE3 over memory. Then the two promises that are counts: memory while
//! building, and the time to open a large digest that has been checked.

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

/// Read buffer of the plain loop: large reads.
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
        rows.push(throughput(name, &data, &files, length, layout, args.pairs()).await?);
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

async fn throughput(
    name: &str,
    data: &Path,
    files: &[PathBuf],
    length: usize,
    layout: Layout,
    pairs: usize,
) -> anyhow::Result<Row> {
    let bytes = (files.len() * length) as f64;
    let spec = Spec {
        url: data.display().to_string(),
        options: Options::default(),
        output: data.with_extension("digest"),
        layout,
        namespace: Namespace::public(),
        columns: None,
        chunks: None,
        exclude: Vec::new(),
        restart: false,
    };
    let ours = async || {
        let started = Instant::now();
        build::build(&spec, &ProgressBar::hidden()).await?;
        anyhow::Ok(bytes / started.elapsed().as_secs_f64() / 1e9)
    };
    let content = files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
    let theirs = || anyhow::Ok(read_all(files, length)?.min(hash_all(&content)) / 1e9);
    // One round that does not count warms the page cache for all.
    ours().await?;
    theirs()?;
    let mut measured = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        measured.push(if pair % 2 == 0 {
            let ours = ours().await?;
            (ours, theirs()?)
        } else {
            let theirs = theirs()?;
            (ours().await?, theirs)
        });
    }
    Ok(evaluate(name, "GB/s", "slower of read, BLAKE3", Target::AtLeast(0.8), &measured))
}

/// Reads every file into a buffer, on all threads; bytes per second.
fn read_all(files: &[PathBuf], length: usize) -> anyhow::Result<f64> {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started = Instant::now();
    on_all_threads(|| {
        let mut buffer = vec![0; READ_SIZE];
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let read = File::open(path).and_then(|mut file| {
                let mut total = 0;
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(total),
                        count => total += count,
                    }
                }
            });
            black_box(&buffer);
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

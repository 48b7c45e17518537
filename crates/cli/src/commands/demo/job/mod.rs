//! A job of the demo: a process that reads every item once per epoch, in its own random order.
//!
//! It verifies each item, and sleeps per mini-batch in place of a computation. Items come directly
//! from the origin, as with a loader without a cache, or through forebay. The job prints its
//! progress as lines of JSON.

mod cached;
mod direct;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use forebay_core::{ItemOrdinal, Namespace, cluster::ring::Seeds, train::benefit::BatchTime};
use forebay_digest::Digest;
use serde::{Deserialize, Serialize};

pub use self::direct::REQUESTS;
use self::{cached::CachedLoader, direct::DirectLoader};
use crate::{
    output::{self, Verdict},
    signals,
};

/// Mini-batches that are read ahead of the computation.
const READ_AHEAD: usize = 4;

/// Arguments of a job, which `forebay demo` starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    digest: PathBuf,
    #[arg(long)]
    name: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    epochs: u64,
    /// Items per mini-batch.
    #[arg(long)]
    batch: u32,
    /// Computation time per mini-batch.
    #[arg(long)]
    compute_us: u64,
    /// Exit when this process ends.
    #[arg(long)]
    parent: i32,
    /// Read through this node, with the agent at the socket `agent`.
    #[arg(long, requires = "agent")]
    node: Option<Seeds>,
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Progress of a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Items read so far.
    pub items: u64,
    /// Bytes read so far.
    pub bytes: u64,
    /// Items that were hits.
    pub hits: u64,
    /// Bytes that the job or its agent has read from the origin, set at the end.
    pub origin_bytes: u64,
    /// Time of waiting for data.
    pub stall_seconds: f64,
    /// Time of computation.
    pub compute_seconds: f64,
    /// Counters of its loader and its agent, set at the end.
    pub counters: BTreeMap<String, u64>,
}

/// The source of mini-batches.
trait Loader {
    type Content: AsRef<[u8]>;

    /// Begins an epoch.
    fn begin(&mut self, epoch: u64) -> anyhow::Result<()>;

    /// The next mini-batch; `None` at the end of the epoch.
    fn next(&mut self) -> anyhow::Result<Option<Batch<Self::Content>>>;

    /// The job has computed on the last mini-batch.
    fn on_computed(&mut self, time: BatchTime);

    /// Ends the job. Returns the bytes read from the origin, and other counters.
    fn finish(&mut self) -> anyhow::Result<(u64, BTreeMap<String, u64>)>;
}

/// A mini-batch.
struct Batch<C> {
    items: Vec<ItemOrdinal>,
    contents: Vec<C>,
    /// Items that were hits.
    hits: u64,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let parent = signals::open_process(args.parent)?;
    tokio::spawn(async move {
        signals::process_ended(parent).await;
        std::process::exit(2);
    });
    let file = forebay_digest::open(&args.digest)?;
    let digest = &file.digest;
    tokio::task::block_in_place(|| match (&args.node, &args.agent) {
        (Some(node), Some(agent)) => {
            train(args, digest, CachedLoader::new(args, digest, node, agent)?)
        }
        _ => train(args, digest, DirectLoader::new(args, digest)?),
    })?;
    Ok(Verdict::Yes)
}

fn train<L: Loader>(args: &Args, digest: &Digest, mut loader: L) -> anyhow::Result<()> {
    let mut progress = Progress::default();
    let mut check = Check::new(digest)?;
    let compute = Duration::from_micros(args.compute_us);
    for epoch in 0..args.epochs {
        loader.begin(epoch)?;
        loop {
            let requested = Instant::now();
            let Some(batch) = loader.next()? else { break };
            let stalled = requested.elapsed();
            progress.bytes += check.verify(&batch)?;
            // Verification is part of the computation time, as decoding on the CPU would be.
            thread::sleep((stalled + compute).saturating_sub(requested.elapsed()));
            let took = requested.elapsed();
            loader.on_computed(BatchTime { took, stalled });
            progress.items += batch.items.len() as u64;
            progress.hits += batch.hits;
            progress.stall_seconds += stalled.as_secs_f64();
            progress.compute_seconds += took.saturating_sub(stalled).as_secs_f64();
            print_progress(&progress)?;
        }
    }
    (progress.origin_bytes, progress.counters) = loader.finish()?;
    check.finish(args.epochs)?;
    print_progress(&progress)
}

fn print_progress(progress: &Progress) -> anyhow::Result<()> {
    output::data(&(serde_json::to_string(progress)? + "\n"))
}

/// Checks that every byte is right, and that every item is read once per epoch.
struct Check<'a> {
    digest: &'a Digest,
    /// How often each item was read.
    read: Vec<u64>,
}

impl<'a> Check<'a> {
    fn new(digest: &'a Digest) -> anyhow::Result<Self> {
        let items = usize::try_from(digest.summary().items).context("a dataset that fits")?;
        Ok(Self { digest, read: vec![0; items] })
    }

    /// Says how many bytes these are.
    fn verify<C: AsRef<[u8]>>(&mut self, batch: &Batch<C>) -> anyhow::Result<u64> {
        let mut bytes = 0;
        ensure!(batch.items.len() == batch.contents.len(), "a mini-batch has too few items");
        for (item, content) in batch.items.iter().zip(&batch.contents) {
            let (blob, content) =
                (self.digest.blob(self.digest.item(*item)?.blob)?, content.as_ref());
            ensure!(
                Namespace::public().address(content) == blob.address,
                "item {item} has wrong bytes"
            );
            self.read[usize::try_from(item.0)?] += 1;
            bytes += content.len() as u64;
        }
        Ok(bytes)
    }

    fn finish(&self, epochs: u64) -> anyhow::Result<()> {
        ensure!(
            self.read.iter().all(|times| *times == epochs),
            "some items were not read exactly once per epoch"
        );
        Ok(())
    }
}

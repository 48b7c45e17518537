//! A job of the demonstration: a process of its own that reads every item once per epoch, in a random order of
//! its own, proves what it got, and computes on every mini-batch for a while, or rather sleeps. Either every
//! item comes straight from the origin, as with a loader without a cache, or through forebay.
//!
//! It tells its parent how far it is, one line of JSON at a time.

mod straight;
mod through;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use forebay_core::{ItemOrdinal, Namespace, digest::Digest, ring::Contacts};
use serde::{Deserialize, Serialize};

pub use self::straight::REQUESTS;
use self::{straight::Straight, through::Through};
use crate::{
    output::{self, Verdict},
    stop,
};

/// Mini-batches that are read or drawn before they are computed on, either way.
const AHEAD: usize = 4;

/// One job; started by `forebay demo`.
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
    /// Items of a mini-batch.
    #[arg(long)]
    batch: u32,
    /// How long it computes on one.
    #[arg(long)]
    compute_us: u64,
    /// Leave when this process does.
    #[arg(long)]
    parent: i32,
    /// Read through this node, or several, with the agent at this socket.
    #[arg(long, requires = "agent")]
    node: Option<Contacts>,
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// What a job tells.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Told {
    /// Items read so far.
    pub items: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Items that the node had.
    pub hits: u64,
    /// Bytes that the job or its agent has read from the origin.
    pub origin_bytes: u64,
    /// Time that it waited for data, and that it computed.
    pub stall_seconds: f64,
    pub compute_seconds: f64,
    /// What its loader and its agent have counted, told at the end.
    pub counted: BTreeMap<String, u64>,
}

/// Where a job's mini-batches come from.
trait Loader {
    type Content: AsRef<[u8]>;

    /// An epoch begins.
    fn begin(&mut self, epoch: u64) -> anyhow::Result<()>;

    /// The next mini-batch; nothing at the end of the epoch.
    fn next(&mut self) -> anyhow::Result<Option<Batch<Self::Content>>>;

    /// The last one took so long, of which the job waited `stalled` for it.
    fn computed(&mut self, took: Duration, stalled: Duration);

    /// The end. Says how many bytes were read from the origin, and what else was counted.
    fn end(&mut self) -> anyhow::Result<(u64, BTreeMap<String, u64>)>;
}

/// A mini-batch.
struct Batch<C> {
    items: Vec<ItemOrdinal>,
    contents: Vec<C>,
    /// How many of them the node had.
    hits: u64,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let parent = stop::process(args.parent)?;
    tokio::spawn(async move {
        stop::ended(parent).await;
        std::process::exit(2);
    });
    let file = forebay_digest::open(&args.digest)?;
    let digest = &file.digest;
    tokio::task::block_in_place(|| match (&args.node, &args.agent) {
        (Some(node), Some(agent)) => train(args, digest, Through::new(args, digest, node, agent)?),
        _ => train(args, digest, Straight::new(args, digest)?),
    })?;
    Ok(Verdict::Yes)
}

fn train<L: Loader>(args: &Args, digest: &Digest, mut loader: L) -> anyhow::Result<()> {
    let mut told = Told::default();
    let mut proof = Proof::new(digest)?;
    let compute = Duration::from_micros(args.compute_us);
    for epoch in 0..args.epochs {
        loader.begin(epoch)?;
        loop {
            let asked = Instant::now();
            let Some(batch) = loader.next()? else { break };
            let stalled = asked.elapsed();
            told.bytes += proof.prove(&batch)?;
            // Others decode on the CPU while the GPU computes; here, that is when bytes are proved.
            thread::sleep((stalled + compute).saturating_sub(asked.elapsed()));
            let took = asked.elapsed();
            loader.computed(took, stalled);
            told.items += batch.items.len() as u64;
            told.hits += batch.hits;
            told.stall_seconds += stalled.as_secs_f64();
            told.compute_seconds += took.saturating_sub(stalled).as_secs_f64();
            tell(&told)?;
        }
    }
    (told.origin_bytes, told.counted) = loader.end()?;
    proof.finish(args.epochs)?;
    tell(&told)
}

fn tell(told: &Told) -> anyhow::Result<()> {
    output::data(&(serde_json::to_string(told)? + "\n"))
}

/// Every byte is what it should be, and every item came once per epoch.
struct Proof<'a> {
    digest: &'a Digest,
    /// How often each item was read.
    read: Vec<u64>,
}

impl<'a> Proof<'a> {
    fn new(digest: &'a Digest) -> anyhow::Result<Self> {
        let items = usize::try_from(digest.summary().items).context("a dataset that fits")?;
        Ok(Self { digest, read: vec![0; items] })
    }

    /// Says how many bytes these are.
    fn prove<C: AsRef<[u8]>>(&mut self, batch: &Batch<C>) -> anyhow::Result<u64> {
        let mut bytes = 0;
        ensure!(batch.items.len() == batch.contents.len(), "a mini-batch lacks items");
        for (item, content) in batch.items.iter().zip(&batch.contents) {
            let (blob, content) =
                (self.digest.blob(self.digest.item(*item)?.blob)?, content.as_ref());
            ensure!(Namespace::public().address(content) == blob.address, "item {item} is wrong");
            self.read[usize::try_from(item.0)?] += 1;
            bytes += content.len() as u64;
        }
        Ok(bytes)
    }

    fn finish(&self, epochs: u64) -> anyhow::Result<()> {
        ensure!(self.read.iter().all(|times| *times == epochs), "not every item once per epoch");
        Ok(())
    }
}

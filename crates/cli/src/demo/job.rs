//! A job of the demonstration: a process of its own that reads every item once per epoch, in a random
//! order of its own, and proves what it got. Either every item straight from the origin, as a loader
//! without a cache does, or through forebay, with an agent beside it.
//!
//! It tells its parent how far it is, one line of JSON at a time.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use forebay_client::{Reader, is_resident};
use forebay_core::{
    ItemOrdinal, Namespace,
    digest::Digest,
    presence::Known,
    ring::Contacts,
    sampler::{Layout, Plan, Sampler},
};
use forebay_origin::{Options, Origin};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};

use crate::output::{self, Verdict};

/// Items of a mini-batch.
const BATCH: u32 = 32;
/// Requests that a job without a cache keeps under way: as many as an agent does.
const REQUESTS: usize = 16;

/// One job; started by `forebay demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    digest: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    epochs: u64,
    /// Read through this node, or several, with an agent whose socket lies beside the second path.
    #[arg(long, requires = "agent")]
    node: Option<Contacts>,
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// What a job tells.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Items read so far.
    pub items: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Items that the node had.
    pub hits: u64,
    /// Seconds since the first batch was asked for.
    pub seconds: f64,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let file = forebay_digest::open(&args.digest)?;
    let digest = &file.digest;
    match (&args.node, &args.agent) {
        (Some(node), Some(socket)) => {
            let mut agent = start_agent(&args.digest, node, socket)?;
            let read = tokio::task::block_in_place(|| through_forebay(&args, digest, node, socket));
            let _ = agent.kill();
            let _ = agent.wait();
            read?;
        }
        _ => straight(&args, digest).await?,
    }
    Ok(Verdict::Yes)
}

fn through_forebay(
    args: &Args,
    digest: &Digest,
    nodes: &Contacts,
    agent: &Path,
) -> anyhow::Result<()> {
    let mut reader = Reader::new(digest.clone(), Some(nodes.clone()), agent, "demo");
    let mut progress = Progress::new(digest);
    let mut known = Known::new(u32::try_from(digest.summary().blobs)?);
    for epoch in 0..args.epochs {
        let mut sampler = sampler(args, digest, epoch)?;
        loop {
            reader.presence(&mut known);
            let batch = sampler.draw(|item| is_resident(digest, known.bits(), item));
            let Some(batch) = batch else { break };
            let contents = reader.get(batch.items())?;
            sampler.yielded(batch.number())?;
            progress.batch(batch.items(), &contents, reader.counts().hits)?;
        }
    }
    progress.finish(args.epochs)
}

fn sampler(args: &Args, digest: &Digest, epoch: u64) -> anyhow::Result<Sampler> {
    let summary = digest.summary();
    // Nothing rotates yet, so chunks make no difference.
    let layout = Layout::in_one_chunk(summary.dataset, summary.items)?;
    Ok(Sampler::new(&layout, Plan::new(args.seed, epoch, BATCH))?)
}

async fn straight(args: &Args, digest: &Digest) -> anyhow::Result<()> {
    // Credentials and endpoint come from the environment, as they would for any job.
    let origin = Origin::new(&digest.summary().origin, &Options::default())?;
    let mut progress = Progress::new(digest);
    for epoch in 0..args.epochs {
        let mut sampler = sampler(args, digest, epoch)?;
        let mut order = Vec::new();
        while let Some(batch) = sampler.draw(|_| true) {
            order.extend_from_slice(batch.items());
        }
        let reads = stream::iter(&order).map(|item| read_item(&origin, digest, *item));
        let mut batches = reads.buffered(REQUESTS).try_chunks(BATCH as usize);
        let mut at = 0;
        while let Some(contents) = batches.try_next().await.map_err(|error| error.1)? {
            progress.batch(&order[at..at + contents.len()], &contents, 0)?;
            at += contents.len();
        }
    }
    progress.finish(args.epochs)
}

async fn read_item(origin: &Origin, digest: &Digest, item: ItemOrdinal) -> anyhow::Result<Vec<u8>> {
    let blob = digest.blob(digest.item(item)?.blob)?;
    let part = blob.parts().next().context("every blob of the demonstration has a part")??;
    let range = part.offset..part.offset + part.length;
    Ok(origin.read(part.object, part.version, range).await?.to_vec())
}

fn start_agent(digest: &Path, nodes: &Contacts, socket: &Path) -> anyhow::Result<Child> {
    let mut agent = Command::new(std::env::current_exe().context("find this program")?)
        .arg("agent")
        .arg(digest)
        .args(["--job", "demo", "--job-pid", &std::process::id().to_string()])
        .arg("--node")
        .arg(nodes.to_string())
        .arg("--socket")
        .arg(socket)
        .stdout(Stdio::piped())
        .spawn()
        .context("start the agent")?;
    let ready = agent.stdout.take().context("listen to the agent")?;
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(ready), &mut line)?;
    ensure!(!line.is_empty(), "the agent did not start");
    Ok(agent)
}

/// Counts, proves and tells.
struct Progress<'a> {
    digest: &'a Digest,
    /// How often each item was read.
    read: Vec<u64>,
    told: Told,
    started: Instant,
}

impl<'a> Progress<'a> {
    fn new(digest: &'a Digest) -> Self {
        let read = vec![0; usize::try_from(digest.summary().items).expect("a small dataset")];
        Self { digest, read, told: Told::default(), started: Instant::now() }
    }

    fn batch(
        &mut self,
        items: &[ItemOrdinal],
        contents: &[Vec<u8>],
        hits: u64,
    ) -> anyhow::Result<()> {
        for (item, content) in items.iter().zip(contents) {
            let blob = self.digest.blob(self.digest.item(*item)?.blob)?;
            ensure!(Namespace::public().address(content) == blob.address, "item {item} is wrong");
            self.read[usize::try_from(item.0)?] += 1;
            self.told.bytes += content.len() as u64;
        }
        self.told.items += items.len() as u64;
        self.told.hits = hits;
        self.tell()
    }

    fn finish(&mut self, epochs: u64) -> anyhow::Result<()> {
        ensure!(self.read.iter().all(|times| *times == epochs), "not every item once per epoch");
        self.tell()
    }

    fn tell(&mut self) -> anyhow::Result<()> {
        self.told.seconds = self.started.elapsed().as_secs_f64();
        output::data(&(serde_json::to_string(&self.told)? + "\n"))
    }
}

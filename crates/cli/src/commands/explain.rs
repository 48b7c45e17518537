//! `forebay explain` and `forebay evict`: the state of a dataset on a node, and its removal.

use anyhow::{Context as _, ensure};
use forebay_client::{Client, Handle};
use forebay_core::{
    ByteSize, Endpoint,
    cluster::ring::RingMembership,
    dataset::chunking::HALF_CHUNKS_PER_CHUNK,
    train::manager::{Explanation, HalfChunkState, JobExplanation},
    util::printable::printable,
};
use forebay_digest::DigestFile;

use crate::{
    args::{
        digest::DigestArg,
        node::{self, NodeArg},
    },
    output::{self, Format, Verdict},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay explain train.digest
  forebay explain s3://bucket/train
  forebay explain train.digest --format json | jq .why";

/// A dataset and a node.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest of the dataset, or the URL of a dataset that was read before.
    #[arg(value_name = "DIGEST")]
    digest: DigestArg,
    #[command(flatten)]
    node: NodeArg,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, serde::Serialize)]
struct Evicted {
    dataset: String,
    bytes: u64,
}

/// The state of a dataset: what one node holds of it, and what its manager has decided.
#[derive(Debug, serde::Serialize)]
struct Explained {
    dataset: String,
    /// The node that answered; absent if it has no cluster.
    node: Option<String>,
    /// Nodes of the cluster.
    nodes: usize,
    blobs: u64,
    /// Blobs on the node that answered.
    blobs_here: u64,
    /// Absent if no job reports on the dataset.
    #[serde(flatten)]
    description: Option<Explanation>,
}

/// `forebay explain`.
pub fn explain(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, &args.node)?;
    let ring = client.ring()?;
    let summary = file.digest.summary();
    let presence = client.presence(handle, summary.blobs)?;
    let mut description = describe(&mut client, handle)?;
    if let (Some(local), Some(own)) = (&description, &ring)
        && let Some(complete) = query_manager(local, own, &file)
    {
        description = Some(complete);
    }
    let explained = Explained {
        dataset: summary.dataset.to_string(),
        node: ring.as_ref().map(|own| own.name().to_string()),
        nodes: ring.as_ref().map_or(1, |own| own.ring().members().len()),
        blobs: summary.blobs,
        blobs_here: presence.iter().map(|bits| u64::from(bits.count_ones())).sum(),
        description,
    };
    match args.format {
        Format::Json => output::json(&explained)?,
        Format::Text => output::data(&explained.to_text())?,
    }
    Ok(Verdict::Yes)
}

/// Queries the description of a dataset; `None` if no job reports on it.
pub fn describe(client: &mut Client, handle: Handle) -> anyhow::Result<Option<Explanation>> {
    let json = client.explain(handle).context("cannot query the node")?;
    serde_json::from_slice(&json).context(
        "cannot read the answer of the node; install the same version of forebay on both sides",
    )
}

/// Queries the description from the manager. Other nodes have the keep set, but not its reasons.
fn query_manager(
    local: &Explanation,
    own: &RingMembership,
    file: &DigestFile,
) -> Option<Explanation> {
    let manager = own.list().member(&local.manager.parse().ok()?)?;
    if manager.name == *own.name() {
        return None;
    }
    let mut client = node::connect(&manager.endpoint).ok()?.ok()?;
    let handle = client.open(&file.digest).ok()?;
    describe(&mut client, handle).ok()?
}

impl Explained {
    fn to_text(&self) -> String {
        let here = format!("{} of {}", self.blobs_here, output::count(self.blobs, "blob"));
        let at = match &self.node {
            Some(name) => format!("on the node `{name}`, one of {}", self.nodes),
            None => "on the node".to_owned(),
        };
        match &self.description {
            Some(description) if self.node.is_some() => {
                format!("{here} are {at}\n\n{}", explanation_to_text(description))
            }
            Some(description) => explanation_to_text(description),
            None => format!(
                "no job reports on the dataset, so it has no manager; {here} are {at}; when space \
                 is needed, regions of the least recently used dataset are evicted\n"
            ),
        }
    }
}

/// `forebay evict`: frees the dataset on every node of the cluster.
pub fn evict(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, &args.node)?;
    let bytes = match client.ring()? {
        None => client.evict(handle)?,
        Some(own) => evict_everywhere(&own, &file)?,
    };
    let dataset = file.digest.summary().dataset.to_string();
    match args.format {
        Format::Json => output::json(&Evicted { dataset, bytes })?,
        Format::Text => output::data(&format!("{} evicted\n", ByteSize(bytes).rounded()))?,
    }
    Ok(Verdict::Yes)
}

/// Evicts from every node. One that cannot be reached does not stop the others.
fn evict_everywhere(own: &RingMembership, file: &DigestFile) -> anyhow::Result<u64> {
    let (mut bytes, mut failed) = (0, Vec::new());
    for member in own.list().members() {
        match evict_from(&member.endpoint, file) {
            Ok(more) => bytes += more,
            Err(error) => failed.push(format!("{} ({})", member.name, output::one_line(&error))),
        }
    }
    ensure!(
        failed.is_empty(),
        "{} evicted, but some may be left on {}; evict the dataset again when they are reachable",
        ByteSize(bytes).rounded(),
        failed.join(", ")
    );
    Ok(bytes)
}

fn evict_from(endpoint: &Endpoint, file: &DigestFile) -> anyhow::Result<u64> {
    let mut client = node::connect(endpoint)?.map_err(|error| node::with_remedy(&error))?;
    let handle = client.open(&file.digest)?;
    Ok(client.evict(handle)?)
}

fn open(digest: &DigestArg, node: &NodeArg) -> anyhow::Result<(DigestFile, Client, Handle)> {
    let file = digest.open()?;
    let mut client = node.connect()?;
    let handle = client.open(&file.digest).context("cannot open the dataset on the node")?;
    Ok((file, client, handle))
}

pub fn explanation_to_text(explanation: &Explanation) -> String {
    let Explanation { manager, term, why, half_chunks, .. } = explanation;
    // It names jobs, whose names are those of other users.
    let (why, manager, chunks) = (printable(why), printable(manager), chunks(half_chunks));
    let mut text = format!("{why}\n\nmanager   {manager}, term {term}\nchunks    {chunks}\n");
    text.push_str(
        "          P pinned  R rotating  L being filled  - not kept; lower case: half of a chunk\n",
    );
    if !explanation.jobs.is_empty() {
        let rows: Vec<Vec<String>> = explanation.jobs.iter().map(row).collect();
        let header =
            ["JOB", "GPUS", "CACHED", "TO READ", "RATE", "PINNED ms", "ROTATING ms", "ORIGIN ms"];
        text.push('\n');
        text.push_str(&output::table(&header, &rows));
    }
    text
}

/// One letter per chunk.
fn chunks(half_chunks: &[HalfChunkState]) -> String {
    let letter = |half: &HalfChunkState| match half {
        HalfChunkState::Pinned => 'P',
        HalfChunkState::Rotating => 'R',
        HalfChunkState::Loading => 'L',
        HalfChunkState::Absent => '-',
    };
    let chunk = |halves: &[HalfChunkState]| {
        let first = letter(&halves[0]);
        if halves.iter().all(|half| letter(half) == first) {
            return first;
        }
        let kept = halves.iter().map(letter).find(|letter| *letter != '-');
        kept.unwrap_or('-').to_ascii_lowercase()
    };
    half_chunks.chunks(HALF_CHUNKS_PER_CHUNK as usize).map(chunk).collect()
}

fn row(job: &JobExplanation) -> Vec<String> {
    let time = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{:.1}", time * 1e3));
    vec![
        job.name.clone(),
        job.gpus.to_string(),
        if job.is_cached { "yes" } else { "no, no benefit" }.to_owned(),
        ByteSize(job.unread_bytes).rounded(),
        format!("{}/s", ByteSize(job.bytes_per_second).rounded()),
        time(job.hit_s),
        time(job.rotating_s),
        time(job.miss_s),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_one_letter() {
        use HalfChunkState::{Absent, Loading, Pinned, Rotating};
        let half_chunks = [
            Pinned, Pinned, Rotating, Rotating, Loading, Loading, Absent, Absent, Absent, Rotating,
        ];
        assert_eq!(chunks(&half_chunks), "PRL-r");
    }
}

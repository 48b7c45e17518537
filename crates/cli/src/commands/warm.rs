//! `forebay warm`: loads a dataset into the nodes before jobs read it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use forebay_agent::{
    Config, IncompleteReason, IncompleteShare, Warm, WarmError, WarmProgress, WarmResult,
};
use forebay_auth::Credentials;
use forebay_client::Reader;
use forebay_core::{
    BlobOrdinal, ByteSize,
    agent::agent_cache::AGENT_CACHE_SIZE_MAX,
    cluster::ring::{RingMembership, Seeds},
    node::presence::KnownPresence,
};
use forebay_digest::Digest;
use forebay_origin::Origin;
use serde::Serialize;

use crate::{
    args::{
        digest::DigestArg,
        node::NodeArg,
        origin::{self, OriginAccess},
    },
    output::{self, Format, Verdict},
    signals::{self, Interrupted},
};

/// Load a dataset into the node before jobs read it.
///
/// Blobs are fetched from the origin with your own credentials, as by the agent of a job. Each blob
/// is fetched once, even if jobs fetch at the same time. Resident blobs are skipped, so the command
/// continues where it was interrupted. Nothing is evicted to make space. In a cluster, a node that
/// is down, hung or full misses its own share only.
///
/// Exit codes: 0 if the dataset is resident, 1 if a part is missing, 2 if no node can be used.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The digest of the dataset, or the URL of a dataset that was read before.
    #[arg(value_name = "DIGEST")]
    digest: DigestArg,
    #[command(flatten)]
    node: NodeArg,
    /// Load only the first N chunks [default: all]. Each chunk is a random share of the dataset.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Fetch this number of blobs in parallel.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: u16,
    /// Read the data from this URL instead of the origin in the digest.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Use this namespace key, if the digest has a private namespace.
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    access: OriginAccess,
}

const EXAMPLES: &str = "\
Examples:
  forebay warm train.digest
  forebay warm s3://bucket/train                      a URL that a job has read before
  forebay warm train.digest --chunks 3                a part of a dataset that does not fit
  forebay warm train.digest --parallel 128 --format json";

/// The result of the command.
#[derive(Debug, Serialize)]
struct WarmReport {
    dataset: String,
    /// Requested blobs, and their bytes.
    blobs: u64,
    bytes: u64,
    /// Requested blobs that are resident at the end.
    resident_blobs: u64,
    resident_bytes: u64,
    /// Blobs that this command has fetched.
    fetched_blobs: u64,
    fetched_bytes: u64,
    /// Blobs that are not in the keep set of their dataset.
    uncached_blobs: u64,
    /// Blobs whose puts a node has rejected.
    rejected_blobs: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// Whether all requested blobs are resident.
    is_complete: bool,
    /// Nodes that miss a part of their share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete_nodes: Vec<IncompleteNode>,
}

/// A node that misses a part of its share.
#[derive(Debug, Serialize)]
struct IncompleteNode {
    /// Absent without a cluster.
    node: Option<String>,
    /// `full`, `unreachable` or `rejects puts`.
    state: &'static str,
    /// The reason, and the remedy.
    why: String,
    /// Blobs of its share that were not fetched.
    blobs: u64,
    bytes: u64,
}

impl From<&IncompleteShare> for IncompleteNode {
    fn from(behind: &IncompleteShare) -> Self {
        let IncompleteShare { node, reason, blobs, bytes } = behind;
        let (state, remedy) = match reason {
            IncompleteReason::Full => ("full", "raise its `capacity`, or load less (--chunks)"),
            IncompleteReason::Unreachable(_) => {
                ("unreachable", "run the command again when it is back")
            }
            IncompleteReason::RejectsPuts => {
                ("rejects puts", "run the command again when that is fixed")
            }
        };
        let name = match node {
            Some(name) => format!("the node `{name}`"),
            None => "the node".to_owned(),
        };
        let why = format!("{name} {reason}: {remedy}");
        Self { node: node.clone(), state, why, blobs: *blobs, bytes: *bytes }
    }
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let stop = signals::stop_requested()?;
    let path = args.digest.path()?;
    let file = forebay_digest::open(&path)?;
    let digest = file.digest.clone();
    let namespace = origin::namespace_of(&path, &digest, args.namespace_key.as_ref())?;
    let chunks = digest.chunking().chunks();
    if let Some(wanted) = args.chunks.filter(|wanted| *wanted > chunks) {
        bail!("--chunks {wanted}: the dataset has {}", output::count(chunks.into(), "chunk"));
    }
    let credentials = Credentials::from_environment()?;
    let all = requested_blobs(&digest, args.chunks.unwrap_or(chunks))?;
    let nodes = Nodes::connect(&args.node, &digest)?;
    let before = nodes.state().context("no node answers; `forebay doctor` checks them")?;
    let missing: Vec<(BlobOrdinal, u64)> =
        all.iter().copied().filter(|(blob, _)| !before.has(*blob)).collect();
    let sum = |blobs: &[(BlobOrdinal, u64)]| blobs.iter().map(|(_, length)| length).sum::<u64>();
    let (bytes, needed) = (sum(&all), sum(&missing));
    if needed > before.free_bytes {
        output::note(&format!(
            "{} are missing, and the node has {} free at most; what does not fit is not fetched; \
             raise its `capacity`, or load less (--chunks)",
            ByteSize(needed).rounded(),
            ByteSize(before.free_bytes).rounded()
        ));
    }
    let url = args.origin.as_ref().unwrap_or(&digest.summary().origin);
    let origin = Origin::new(url, &args.access.options())?;
    let config = Config {
        socket: PathBuf::new(),
        nodes: args.node.contacts(),
        credentials,
        job: "warm".to_owned(),
        origin,
        mirror: *url != digest.summary().origin,
        digest: digest.clone(),
        namespace,
        memory: AGENT_CACHE_SIZE_MAX,
    };
    let bar = output::progress("warming");
    // Resident blobs do not count for the speed.
    output::progress_total(&bar, needed);
    let began = Instant::now();
    let result = Warm::new(config, missing, args.parallel.into())
        .run(stop, |warmed| {
            bar.set_position(warmed.fetched_bytes + warmed.skipped_bytes);
            bar.set_message(format!("{} blobs", warmed.fetched));
        })
        .await;
    let WarmResult { progress: warmed, incomplete: behind, error: ended } = result;
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let progress = || {
        format!(
            "{} of {} were fetched",
            ByteSize(warmed.fetched_bytes).rounded(),
            ByteSize(needed).rounded()
        )
    };
    match ended {
        Some(WarmError::Interrupted) => {
            let note = "interrupted; fetched blobs stay, and the same command continues from there";
            return Err(Interrupted(note).into());
        }
        Some(ended @ WarmError::Origin(_)) => {
            bail!("{}, then the origin failed: {ended}", progress())
        }
        None => {}
    }
    let incomplete_nodes: Vec<IncompleteNode> = behind.iter().map(Into::into).collect();
    let Some(after) = nodes.final_state(&all, &warmed, incomplete_nodes.is_empty()) else {
        let why: Vec<&str> = incomplete_nodes.iter().map(|node| node.why.as_str()).collect();
        bail!("{}, then no node answered: {}", progress(), why.join("; "));
    };
    let resident: Vec<(BlobOrdinal, u64)> =
        all.iter().copied().filter(|(blob, _)| after.has(*blob)).collect();
    let report = WarmReport {
        dataset: digest.summary().dataset.to_string(),
        blobs: all.len() as u64,
        bytes,
        resident_blobs: resident.len() as u64,
        resident_bytes: sum(&resident),
        fetched_blobs: warmed.fetched,
        fetched_bytes: warmed.fetched_bytes,
        uncached_blobs: warmed.uncached,
        rejected_blobs: warmed.rejected,
        seconds,
        bytes_per_second: warmed.fetched_bytes as f64 / seconds.max(1e-3),
        is_complete: resident.len() == all.len(),
        incomplete_nodes,
    };
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&to_text(&report))?,
    }
    Ok(if report.is_complete { Verdict::Yes } else { Verdict::No })
}

/// The blobs of the first chunks, each with its length.
fn requested_blobs(digest: &Digest, chunks: u32) -> anyhow::Result<Vec<(BlobOrdinal, u64)>> {
    let mut blobs = Vec::new();
    for (blob, row) in (0..).map(BlobOrdinal::new).zip(digest.blobs()) {
        let row = row?;
        if row.chunk().0 < chunks {
            blobs.push((blob, row.length));
        }
    }
    Ok(blobs)
}

/// What the nodes hold of the dataset.
struct NodesState {
    /// A bit per blob.
    presence: Vec<u8>,
    /// Free bytes of all nodes. They reserve some of them.
    free_bytes: u64,
}

impl NodesState {
    fn has(&self, blob: BlobOrdinal) -> bool {
        let byte = usize::try_from(blob.0 / 8).ok().and_then(|at| self.presence.get(at));
        byte.is_some_and(|byte| byte >> (blob.0 % 8) & 1 == 1)
    }
}

/// The nodes of the cluster, queried before and after.
struct Nodes {
    contacts: Seeds,
    credentials: Credentials,
    digest: Digest,
    claim_lease: Duration,
}

impl Nodes {
    fn connect(node: &NodeArg, digest: &Digest) -> anyhow::Result<Self> {
        tokio::task::block_in_place(|| {
            let mut client = node.connect()?;
            client.open(digest).context("cannot open the dataset on the node")?;
            // The full list: the node that answered may be down at the end.
            let ring = client.ring()?;
            let zone = |own: &RingMembership| own.list().member(own.name())?.zone.clone();
            let listed = ring.and_then(|own| Seeds::of_list(own.list().clone(), zone(&own)));
            Ok(Self {
                contacts: listed.unwrap_or_else(|| node.contacts()),
                credentials: Credentials::from_environment()?,
                digest: digest.clone(),
                claim_lease: client.lease(),
            })
        })
    }

    /// Queries all nodes; `None` if none of them answers.
    fn state(&self) -> Option<NodesState> {
        tokio::task::block_in_place(|| {
            let (digest, contacts) = (self.digest.clone(), self.contacts.clone());
            let mut known = KnownPresence::new(u32::try_from(digest.summary().blobs).ok()?);
            // A new reader gets the complete presence. It needs no agent for that.
            let reader = Reader::new(digest, Some(contacts), Path::new(""), "warm");
            let mut reader = reader.with_credentials(self.credentials.clone());
            reader.presence(&mut known);
            let counters: BTreeMap<String, u64> = reader.node_stats()?.into_iter().collect();
            let value = |name: &str| counters.get(name).copied().unwrap_or(0);
            let free_bytes = value("capacity_bytes").saturating_sub(value("resident_bytes"));
            Some(NodesState { presence: known.bits().to_vec(), free_bytes })
        })
    }

    /// The state at the end. Waits for blobs that other jobs fetch, at most for `claim_lease`.
    fn final_state(
        &self,
        all: &[(BlobOrdinal, u64)],
        warmed: &WarmProgress,
        all_answered: bool,
    ) -> Option<NodesState> {
        let began = Instant::now();
        loop {
            let state = self.state()?;
            let is_missing = all.iter().any(|(blob, _)| !state.has(*blob));
            let is_under_way = all_answered && warmed.skipped > 0 && is_missing;
            if !is_under_way || began.elapsed() > self.claim_lease {
                return Some(state);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn to_text(report: &WarmReport) -> String {
    let size = |bytes: u64| ByteSize(bytes).rounded();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in bytes")]
    let rate = ByteSize(report.bytes_per_second as u64).rounded();
    let mut text = format!(
        "{} of {} are resident ({} of {})\n{} fetched in {:.1} s ({rate}/s)\n",
        size(report.resident_bytes),
        size(report.bytes),
        report.resident_blobs,
        output::count(report.blobs, "blob"),
        size(report.fetched_bytes),
        report.seconds
    );
    for IncompleteNode { why, blobs, bytes, .. } in &report.incomplete_nodes {
        let blobs = output::count(*blobs, "blob");
        text.push_str(&format!("{blobs} ({}) were not fetched: {why}\n", size(*bytes)));
    }
    if report.uncached_blobs > 0 {
        let blobs = output::count(report.uncached_blobs, "blob");
        text.push_str(&format!("{blobs} not in the keep set; see `forebay explain`\n"));
    }
    if report.rejected_blobs > 0 {
        let blobs = output::count(report.rejected_blobs, "blob");
        text.push_str(&format!("{blobs} rejected by the node; see its log\n"));
    }
    text
}

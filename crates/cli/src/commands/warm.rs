//! `forebay warm`: a dataset is brought into the node before any job asks for it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use forebay_agent::{Behind, Config, Ended, Warmed, Warming, Why};
use forebay_client::Reader;
use forebay_core::{
    ByteSize,
    digest::Digest,
    kept::KEPT_MAX,
    presence::Known,
    ring::{Contacts, Membership},
};
use forebay_identity::Credentials;
use forebay_origin::Origin;
use serde::Serialize;

use crate::{
    contact::NodeArg,
    output::{self, Format, Verdict},
    reach::{self, Reach},
    stop::{self, Interrupted},
};

/// Bring a dataset into the node, before any job asks for it.
///
/// It is fetched with your own credentials, as a job's agent does, and each blob once, also if jobs are fetching
/// it. What is there is skipped: after an interruption it goes on where it was. Nothing is dropped to make room.
/// Of several nodes, one that is down, hung or full costs its own share. Exit code 0: all of it is there; 1: not
/// all of it; 2: no node could be used.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dataset.
    #[arg(value_name = "DIGEST")]
    digest: PathBuf,
    #[command(flatten)]
    node: NodeArg,
    /// Only the first so many chunks; each is a random share of the dataset.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Blobs that are fetched at once.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    at_once: u16,
    /// Read the data from here instead of where the digest says.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// The key file of the digest's namespace, if it is private.
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    reach: Reach,
}

const EXAMPLES: &str = "\
Examples:
  forebay warm train.digest
  forebay warm train.digest --chunks 3                three tenths of a dataset that is too large
  forebay warm train.digest --at-once 128 --format json";

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    dataset: String,
    /// Blobs that were asked for, and their bytes.
    blobs: u64,
    bytes: u64,
    /// Those that are resident now.
    resident_blobs: u64,
    resident_bytes: u64,
    /// Those that were fetched for this.
    fetched_blobs: u64,
    fetched_bytes: u64,
    /// Those that have no place on the node, and those that it did not take.
    outside_blobs: u64,
    refused_blobs: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// Whether all is there.
    is_complete: bool,
    /// Nodes that were not given all of their share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    behind: Vec<BehindReport>,
}

/// A node that was not given all of its share.
#[derive(Debug, Serialize)]
struct BehindReport {
    /// Nothing, if it is the only one.
    node: Option<String>,
    /// `full`, `away` or `takes nothing`.
    state: &'static str,
    /// The same in words, and what to do about it.
    why: String,
    /// What was not fetched for it.
    blobs: u64,
    bytes: u64,
}

impl From<&Behind> for BehindReport {
    fn from(behind: &Behind) -> Self {
        let Behind { node, why, blobs, bytes } = behind;
        let (state, remedy) = match why {
            Why::Full => ("full", "give it more (`capacity`), or ask for less (--chunks)"),
            Why::Away(_) => ("away", "warm it again when it is back (forebay status)"),
            Why::TakesNothing => ("takes nothing", "warm it again when that is mended"),
        };
        let name = match node {
            Some(name) => format!("the node `{name}`"),
            None => "the node".to_owned(),
        };
        let why = format!("{name} {why}: {remedy}");
        Self { node: node.clone(), state, why, blobs: *blobs, bytes: *bytes }
    }
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let asked = stop::asked()?;
    let file = forebay_digest::open(&args.digest)?;
    let digest = file.digest.clone();
    let namespace = reach::namespace_of(&args.digest, &digest, args.namespace_key.as_ref())?;
    let chunks = digest.chunking().chunks();
    if let Some(wanted) = args.chunks.filter(|wanted| *wanted > chunks) {
        bail!("--chunks {wanted}: the dataset has {}", output::count(chunks.into(), "chunk"));
    }
    let credentials = Credentials::from_environment()?;
    let all = wanted(&digest, args.chunks.unwrap_or(chunks))?;
    let nodes = Nodes::connect(&args.node, &digest)?;
    let before = nodes.look().context("the node is gone")?;
    let missing: Vec<(u64, u64)> =
        all.iter().copied().filter(|(blob, _)| !before.has(*blob)).collect();
    let sum = |blobs: &[(u64, u64)]| blobs.iter().map(|(_, length)| length).sum::<u64>();
    let (bytes, needed) = (sum(&all), sum(&missing));
    if needed > before.room {
        output::note(&format!(
            "the node has {} free, some of which it keeps for itself, and {} are missing: what has no place is not \
             fetched; give it more (`capacity`), or ask for less (--chunks)",
            ByteSize(before.room),
            ByteSize(needed)
        ));
    }
    let url = args.origin.as_ref().unwrap_or(&digest.summary().origin);
    let origin = Origin::new(url, &args.reach.options())?;
    let config = Config {
        socket: PathBuf::new(),
        nodes: args.node.contacts(),
        credentials,
        job: "warm".to_owned(),
        origin,
        mirror: *url != digest.summary().origin,
        digest: digest.clone(),
        namespace,
        memory: KEPT_MAX,
    };
    let bar = output::progress("warming");
    // Of what was there before nobody measures the speed.
    output::progress_total(&bar, needed);
    let began = Instant::now();
    let (warmed, behind, ended) = Warming::new(config, missing, args.at_once.into())
        .run(asked, |warmed| {
            bar.set_position(warmed.fetched_bytes + warmed.elsewhere_bytes);
            bar.set_message(format!("{} blobs", warmed.fetched));
        })
        .await;
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let so_far =
        || format!("{} of {} were fetched", ByteSize(warmed.fetched_bytes), ByteSize(needed));
    match ended {
        Some(Ended::Asked) => {
            let note =
                "interrupted; what was fetched stays, and the same command goes on from there";
            return Err(Interrupted(note).into());
        }
        Some(ended @ Ended::Origin(_)) => bail!("{}, then: {ended}", so_far()),
        None => {}
    }
    let behind: Vec<BehindReport> = behind.iter().map(Into::into).collect();
    let Some(after) = nodes.settle(&all, &warmed, behind.is_empty()) else {
        let why: Vec<&str> = behind.iter().map(|behind| behind.why.as_str()).collect();
        bail!("{}, then no node answered: {}", so_far(), why.join("; "));
    };
    let there: Vec<(u64, u64)> = all.iter().copied().filter(|(blob, _)| after.has(*blob)).collect();
    let report = Report {
        dataset: digest.summary().dataset.to_string(),
        blobs: all.len() as u64,
        bytes,
        resident_blobs: there.len() as u64,
        resident_bytes: sum(&there),
        fetched_blobs: warmed.fetched,
        fetched_bytes: warmed.fetched_bytes,
        outside_blobs: warmed.outside,
        refused_blobs: warmed.refused,
        seconds,
        bytes_per_second: warmed.fetched_bytes as f64 / seconds.max(1e-3),
        is_complete: there.len() == all.len(),
        behind,
    };
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&for_people(&report))?,
    }
    Ok(if report.is_complete { Verdict::Yes } else { Verdict::No })
}

/// The blobs of the first chunks, each with its length.
fn wanted(digest: &Digest, chunks: u32) -> anyhow::Result<Vec<(u64, u64)>> {
    let mut wanted = Vec::new();
    for (blob, row) in (0..).zip(digest.blobs()) {
        let row = row?;
        if row.chunk().0 < chunks {
            wanted.push((blob, row.length));
        }
    }
    Ok(wanted)
}

/// What the nodes have.
struct Seen {
    presence: Vec<u8>,
    room: u64,
}

impl Seen {
    fn has(&self, blob: u64) -> bool {
        let byte = usize::try_from(blob / 8).ok().and_then(|at| self.presence.get(at));
        byte.is_some_and(|byte| byte >> (blob % 8) & 1 == 1)
    }
}

/// All nodes, to be looked at before and after.
struct Nodes {
    contacts: Contacts,
    credentials: Credentials,
    digest: Digest,
    lease: Duration,
}

impl Nodes {
    fn connect(node: &NodeArg, digest: &Digest) -> anyhow::Result<Self> {
        tokio::task::block_in_place(|| {
            let mut client = node.connect()?;
            client.open(digest).context("the node does not let us at the dataset")?;
            // Whoever told us of the others may be gone when they are looked at again.
            let ring = client.ring()?;
            let zone = |own: &Membership| own.list().member(own.name())?.zone.clone();
            let listed = ring.and_then(|own| Contacts::of_list(own.list().clone(), zone(&own)));
            Ok(Self {
                contacts: listed.unwrap_or_else(|| node.contacts()),
                credentials: Credentials::from_environment()?,
                digest: digest.clone(),
                lease: client.lease(),
            })
        })
    }

    /// What they have, and could still take, together. Nothing, if none of them answers.
    fn look(&self) -> Option<Seen> {
        tokio::task::block_in_place(|| {
            let (digest, contacts) = (self.digest.clone(), self.contacts.clone());
            let mut known = Known::new(u32::try_from(digest.summary().blobs).ok()?);
            // One that knows nothing is told how things are now. An agent is not needed to look.
            let reader = Reader::new(digest, Some(contacts), Path::new(""), "warm");
            let mut reader = reader.known_by(self.credentials.clone());
            reader.presence(&mut known);
            let counters: BTreeMap<String, u64> = reader.node_stats()?.into_iter().collect();
            let value = |name: &str| counters.get(name).copied().unwrap_or(0);
            let room = value("capacity_bytes").saturating_sub(value("resident_bytes"));
            Some(Seen { presence: known.bits().to_vec(), room })
        })
    }

    /// What is there in the end. What others were fetching is waited for, for as long as a claim may be idle.
    fn settle(&self, all: &[(u64, u64)], warmed: &Warmed, is_over: bool) -> Option<Seen> {
        let began = Instant::now();
        loop {
            let seen = self.look()?;
            let is_missing = all.iter().any(|(blob, _)| !seen.has(*blob));
            let others = is_over && warmed.elsewhere > 0 && is_missing;
            if !others || began.elapsed() > self.lease {
                return Some(seen);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn for_people(report: &Report) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in bytes")]
    let rate = ByteSize(report.bytes_per_second as u64);
    let mut text = format!(
        "{} of {} are resident ({} of {})\n{} fetched in {:.1} s ({rate}/s)\n",
        size(report.resident_bytes),
        size(report.bytes),
        report.resident_blobs,
        output::count(report.blobs, "blob"),
        size(report.fetched_bytes),
        report.seconds
    );
    for BehindReport { why, blobs, bytes, .. } in &report.behind {
        let blobs = output::count(*blobs, "blob");
        text.push_str(&format!("{blobs} ({}) were not fetched: {why}\n", size(*bytes)));
    }
    if report.outside_blobs > 0 {
        let blobs = output::count(report.outside_blobs, "blob");
        text.push_str(&format!("{blobs} have no place there; `forebay explain` says why\n"));
    }
    if report.refused_blobs > 0 {
        let blobs = output::count(report.refused_blobs, "blob");
        text.push_str(&format!("the node did not take {blobs}; its log says why\n"));
    }
    text
}

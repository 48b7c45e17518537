//! `forebay warm`: a dataset is brought into the node before any job asks for it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use forebay_agent::{Config, Ended, Warmed, Warming};
use forebay_client::Reader;
use forebay_core::{ByteSize, Endpoint, digest::Digest, presence::Known};
use forebay_identity::Credentials;
use forebay_origin::Origin;
use forebay_server::default_socket;
use serde::Serialize;

use crate::{
    output::{self, Format, Verdict},
    reach::{self, Reach},
    status,
    stop::{self, Interrupted},
};

/// Bring a dataset into the node, before any job asks for it.
///
/// It is fetched with your own credentials, as a job's agent does, and each blob once, also if jobs are fetching
/// it. What is there is skipped: after an interruption it goes on where it was. Nothing is dropped to make room.
/// Exit code 0: all of it is there; 1: not all of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dataset.
    #[arg(value_name = "DIGEST")]
    digest: PathBuf,
    /// Where a node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT; by default `$FOREBAY_SOCKET`,
    /// or this user's socket.
    #[arg(long, value_name = "ENDPOINT", visible_alias = "socket")]
    node: Option<Endpoint>,
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
    /// Why it ended before.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
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
    let place = args.node.unwrap_or_else(|| default_socket().into());
    let credentials = Credentials::from_environment()?;
    let all = wanted(&digest, args.chunks.unwrap_or(chunks))?;
    let before = look(&place, &digest)?;
    let missing: Vec<(u64, u64)> =
        all.iter().copied().filter(|(blob, _)| !before.has(*blob)).collect();
    let sum = |blobs: &[(u64, u64)]| blobs.iter().map(|(_, length)| length).sum::<u64>();
    let (bytes, needed) = (sum(&all), sum(&missing));
    if needed > before.room {
        output::note(&format!(
            "the node has room for {} more, and {} are missing: it stops when the node is full; give it more \
             (`capacity`), or ask for less (--chunks)",
            ByteSize(before.room),
            ByteSize(needed)
        ));
    }
    let url = args.origin.as_ref().unwrap_or(&digest.summary().origin);
    let origin = Origin::new(url, &args.reach.options())?;
    let config = Config {
        socket: PathBuf::new(),
        nodes: place.clone().into(),
        credentials,
        job: "warm".to_owned(),
        origin,
        mirror: *url != digest.summary().origin,
        digest: digest.clone(),
        namespace,
    };
    let bar = output::progress("warming");
    output::progress_total(&bar, bytes);
    bar.set_position(bytes - needed);
    bar.reset_eta();
    let began = Instant::now();
    let (warmed, ended) = Warming::new(config, missing, args.at_once.into())
        .run(asked, |warmed| {
            bar.set_position(bytes - needed + warmed.fetched_bytes + warmed.elsewhere_bytes);
            bar.set_message(format!("{} blobs", warmed.fetched));
        })
        .await;
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    match &ended {
        Some(Ended::Asked) => {
            let note =
                "interrupted; what was fetched stays, and the same command goes on from there";
            return Err(Interrupted(note).into());
        }
        Some(ended @ (Ended::NoNode | Ended::TakesNothing | Ended::Origin(_))) => {
            bail!(
                "{} of {} were fetched, then: {ended}",
                ByteSize(warmed.fetched_bytes),
                ByteSize(needed)
            );
        }
        Some(Ended::Full) | None => {}
    }
    let after = settle(&place, &digest, &all, &warmed, ended.is_none())?;
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
        ended: ended.map(|ended| ended.to_string()),
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

/// What a node has.
struct Seen {
    presence: Vec<u8>,
    room: u64,
    lease: Duration,
}

impl Seen {
    fn has(&self, blob: u64) -> bool {
        let byte = usize::try_from(blob / 8).ok().and_then(|at| self.presence.get(at));
        byte.is_some_and(|byte| byte >> (blob % 8) & 1 == 1)
    }
}

/// What the nodes have, and could still take, together.
fn look(node: &Endpoint, digest: &Digest) -> anyhow::Result<Seen> {
    tokio::task::block_in_place(|| {
        let mut client = status::connect(Some(node))?;
        client.open(digest).context("the node does not let us at the dataset")?;
        // An agent is not needed to look.
        let mut reader =
            Reader::new(digest.clone(), Some(node.clone().into()), Path::new(""), "warm")
                .known_by(Credentials::from_environment()?);
        let mut known = Known::new(u32::try_from(digest.summary().blobs)?);
        reader.presence(&mut known);
        let presence = known.bits().to_vec();
        let counters: BTreeMap<String, u64> =
            reader.node_stats().context("the node is gone")?.into_iter().collect();
        let value = |name: &str| counters.get(name).copied().unwrap_or(0);
        let capacity = value("capacity_bytes");
        ensure!(capacity > 0, "the node says nothing of its capacity; is it newer?");
        let room = capacity.saturating_sub(value("resident_bytes"));
        Ok(Seen { presence, room, lease: client.lease() })
    })
}

/// What is there in the end. What others were fetching is waited for, for as long as a claim may be idle.
fn settle(
    node: &Endpoint,
    digest: &Digest,
    all: &[(u64, u64)],
    warmed: &Warmed,
    is_over: bool,
) -> anyhow::Result<Seen> {
    let began = Instant::now();
    loop {
        let seen = look(node, digest)?;
        let is_missing = all.iter().any(|(blob, _)| !seen.has(*blob));
        let others = is_over && warmed.elsewhere > 0 && is_missing;
        if !others || began.elapsed() > seen.lease {
            return Ok(seen);
        }
        std::thread::sleep(Duration::from_millis(100));
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
    if let Some(ended) = &report.ended {
        text.push_str(&format!("{ended}: give it more (`capacity`), or ask for less (--chunks)\n"));
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

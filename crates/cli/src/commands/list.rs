//! `forebay list`: the datasets of this user, and what the node holds of each.

use anyhow::Context as _;
use forebay_core::ByteSize;
use forebay_digest::DigestFile;
use serde::Serialize;

use crate::{
    args::{
        digest::{DigestArg, kept_digests},
        node::NodeArg,
    },
    commands::explain,
    output::{self, Format, Verdict},
};

/// List datasets, and what the node holds of each.
///
/// The datasets are those whose URLs this user has read, and those of the digests that are named. A
/// node shows a dataset only to a client that holds its digest, so other users' datasets are not
/// listed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Also list these datasets: digests, or URLs.
    #[arg(value_name = "DIGEST")]
    digests: Vec<DigestArg>,
    #[command(flatten)]
    node: NodeArg,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  forebay list
  forebay list train.digest --format json | jq '.[].resident_blobs'";

/// A dataset and what the node holds of it.
#[derive(Debug, Serialize)]
struct Listed {
    url: String,
    dataset: String,
    digest: String,
    items: u64,
    blobs: u64,
    bytes: u64,
    /// Absent if the node refuses the digest, for example because it lacks the namespace.
    resident_blobs: Option<u64>,
    /// Names of the jobs that report on the dataset.
    jobs: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut client = args.node.connect()?;
    let mut files: Vec<(String, DigestFile)> = Vec::new();
    for kept in kept_digests()? {
        files.push((kept.path.display().to_string(), kept.file));
    }
    for named in &args.digests {
        let path = named.path()?.display().to_string();
        if files.iter().all(|(known, _)| *known != path) {
            files.push((path, named.open()?));
        }
    }
    let mut listed = Vec::new();
    for (digest, file) in files {
        let summary = file.digest.summary();
        let (mut resident_blobs, mut jobs) = (None, Vec::new());
        if let Ok(handle) = client.open(&file.digest) {
            let presence = client.presence(handle, summary.blobs);
            let presence = presence.context("cannot query the node")?;
            resident_blobs = Some(presence.iter().map(|bits| u64::from(bits.count_ones())).sum());
            let explanation = explain::describe(&mut client, handle)?;
            jobs = explanation.into_iter().flat_map(|one| one.jobs).map(|job| job.name).collect();
        }
        listed.push(Listed {
            url: summary.origin.clone(),
            dataset: summary.dataset.to_string(),
            digest,
            items: summary.items,
            blobs: summary.blobs,
            bytes: summary.bytes,
            resident_blobs,
            jobs,
        });
    }
    match args.format {
        Format::Json => output::json(&listed)?,
        Format::Text if listed.is_empty() => output::data(
            "no datasets; forebay.Dataset(\"s3://...\") keeps the digests of URLs, and others are \
             named here\n",
        )?,
        Format::Text => {
            let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
            let header = ["URL", "ITEMS", "SIZE", "ON THE NODE", "JOBS", "DATASET"];
            output::data(&output::table(&header, &rows))?;
        }
    }
    Ok(Verdict::Yes)
}

fn row(listed: &Listed) -> Vec<String> {
    let held = match listed.resident_blobs {
        Some(held) => {
            format!("{:.1} %", held as f64 / listed.blobs.max(1) as f64 * 100.0)
        }
        None => "refused".to_owned(),
    };
    vec![
        listed.url.clone(),
        listed.items.to_string(),
        ByteSize(listed.bytes).rounded(),
        held,
        listed.jobs.len().to_string(),
        listed.dataset.chars().take(16).collect(),
    ]
}

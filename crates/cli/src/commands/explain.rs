//! `forebay explain` and `forebay evict`: how a dataset stands on the node, and the end of that.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use forebay_client::{Client, Handle};
use forebay_core::{
    ByteSize, Endpoint,
    chunking::PIECES_PER_CHUNK,
    manager::{Description, JobDescription, Piece},
    ring::Membership,
};
use forebay_digest::DigestFile;

use crate::{
    contact::{self, NodeArg},
    output::{self, Format, Verdict},
};

/// Which dataset, on which node.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest.
    digest: PathBuf,
    #[command(flatten)]
    node: NodeArg,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, serde::Serialize)]
struct Evicted {
    dataset: String,
    bytes: u64,
}

/// What is known of a dataset: how much of it is on the node that was asked, and what its manager decided.
#[derive(Debug, serde::Serialize)]
struct Explained {
    dataset: String,
    /// The node that was asked, and how many there are; nothing, if it is alone.
    node: Option<String>,
    nodes: usize,
    blobs: u64,
    /// Those on that node.
    blobs_here: u64,
    /// Nothing, if no job reports of it.
    #[serde(flatten)]
    description: Option<Description>,
}

/// How a dataset stands, and why.
pub fn explain(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, &args.node)?;
    let ring = client.ring()?;
    let summary = file.digest.summary();
    let presence = client.presence(handle, summary.blobs)?;
    let mut description = describe(&mut client, handle)?;
    if let (Some(told), Some(own)) = (&description, &ring)
        && let Some(whole) = ask_manager(told, own, &file)
    {
        description = Some(whole);
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
        Format::Text => output::data(&explained.for_people())?,
    }
    Ok(Verdict::Yes)
}

fn describe(client: &mut Client, handle: Handle) -> anyhow::Result<Option<Description>> {
    let json = client.explain(handle)?;
    serde_json::from_slice(&json).context("the node's answer makes no sense; is it newer?")
}

/// What the node that manages a dataset says of it: others know which pieces have a place, but not why.
fn ask_manager(told: &Description, own: &Membership, file: &DigestFile) -> Option<Description> {
    let manager = own.list().member(&told.manager.parse().ok()?)?;
    if manager.name == *own.name() {
        return None;
    }
    let mut client = contact::connect(&manager.endpoint).ok()?.ok()?;
    let handle = client.open(&file.digest).ok()?;
    describe(&mut client, handle).ok()?
}

impl Explained {
    fn for_people(&self) -> String {
        let here = format!("{} of {}", self.blobs_here, output::count(self.blobs, "blob"));
        let at = match &self.node {
            Some(name) => format!("on the node `{name}`, one of {}", self.nodes),
            None => "here".to_owned(),
        };
        match &self.description {
            Some(description) if self.node.is_some() => {
                format!("{here} are {at}\n\n{}", for_people(description))
            }
            Some(description) => for_people(description),
            None => format!(
                "no job reports of it, so nothing is decided: {here} are {at}, and the oldest go when room is \
                 needed\n"
            ),
        }
    }
}

/// Nothing of a dataset is kept any more, on any node that shares the work.
pub fn evict(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, &args.node)?;
    let bytes = match client.ring()? {
        None => client.evict(handle)?,
        Some(own) => evict_everywhere(&own, &file)?,
    };
    let dataset = file.digest.summary().dataset.to_string();
    match args.format {
        Format::Json => output::json(&Evicted { dataset, bytes })?,
        Format::Text => output::data(&format!("{} are gone for good\n", ByteSize(bytes)))?,
    }
    Ok(Verdict::Yes)
}

/// All that can be reached are told, also if others cannot.
fn evict_everywhere(own: &Membership, file: &DigestFile) -> anyhow::Result<u64> {
    let (mut bytes, mut failed) = (0, Vec::new());
    for member in own.list().members() {
        match evict_from(&member.endpoint, file) {
            Ok(more) => bytes += more,
            Err(error) => failed.push(format!("{} ({})", member.name, output::one_line(&error))),
        }
    }
    ensure!(
        failed.is_empty(),
        "{} are gone, but some may be left on {}; evict it again when they are back",
        ByteSize(bytes),
        failed.join(", ")
    );
    Ok(bytes)
}

fn evict_from(endpoint: &Endpoint, file: &DigestFile) -> anyhow::Result<u64> {
    let mut client = contact::connect(endpoint)?.map_err(|error| contact::in_words(&error))?;
    let handle = client.open(&file.digest)?;
    Ok(client.evict(handle)?)
}

fn open(digest: &Path, node: &NodeArg) -> anyhow::Result<(DigestFile, Client, Handle)> {
    let file = forebay_digest::open(digest)?;
    let mut client = node.connect()?;
    let handle = client.open(&file.digest).context("the node does not let us at the dataset")?;
    Ok((file, client, handle))
}

pub fn for_people(described: &Description) -> String {
    let Description { manager, term, why, pieces, .. } = described;
    let chunks = chunks(pieces);
    let mut text = format!("{why}\n\nmanager   {manager}, term {term}\nchunks    {chunks}\n");
    text.push_str(
        "          H held  R rotating  L loading  - not kept; small letters: one half of it\n",
    );
    if !described.jobs.is_empty() {
        let rows: Vec<Vec<String>> = described.jobs.iter().map(row).collect();
        let header =
            ["JOB", "GPUS", "CACHED", "TO READ", "PACE", "HELD ms", "ROTATING ms", "ORIGIN ms"];
        text.push('\n');
        text.push_str(&output::table(&header, &rows));
    }
    text
}

/// A letter for each chunk.
fn chunks(pieces: &[Piece]) -> String {
    let letter = |piece: &Piece| match piece {
        Piece::Held => 'H',
        Piece::Rotating => 'R',
        Piece::Loading => 'L',
        Piece::Absent => '-',
    };
    let chunk = |halves: &[Piece]| {
        let first = letter(&halves[0]);
        if halves.iter().all(|half| letter(half) == first) {
            return first;
        }
        let there = halves.iter().map(letter).find(|letter| *letter != '-');
        there.unwrap_or('-').to_ascii_lowercase()
    };
    pieces.chunks(PIECES_PER_CHUNK as usize).map(chunk).collect()
}

fn row(job: &JobDescription) -> Vec<String> {
    let time = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{:.1}", time * 1e3));
    vec![
        job.name.clone(),
        job.gpus.to_string(),
        if job.is_cached { "yes" } else { "no, it gains nothing" }.to_owned(),
        ByteSize(job.unread_bytes).to_string(),
        format!("{}/s", ByteSize(job.bytes_per_second)),
        time(job.hit_s),
        time(job.rotating_s),
        time(job.miss_s),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_a_letter() {
        use Piece::{Absent, Held, Loading, Rotating};
        let pieces =
            [Held, Held, Rotating, Rotating, Loading, Loading, Absent, Absent, Absent, Rotating];
        assert_eq!(chunks(&pieces), "HRL-r");
    }
}

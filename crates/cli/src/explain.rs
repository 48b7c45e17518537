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
    output::{self, Format, Verdict},
    status,
};

/// Which dataset, on which node.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest.
    digest: PathBuf,
    /// Where the node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT; by default `$FOREBAY_SOCKET`,
    /// or this user's socket.
    #[arg(long, value_name = "ENDPOINT", visible_alias = "socket")]
    node: Option<Endpoint>,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, serde::Serialize)]
struct Evicted {
    dataset: String,
    bytes: u64,
}

/// How a dataset stands, and why.
pub fn explain(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, args.node.as_ref())?;
    let json = client.explain(handle)?;
    let described: Option<Description> =
        serde_json::from_slice(&json).context("the node's answer makes no sense; is it newer?")?;
    match (args.format, &described) {
        (Format::Json, _) => output::json(&described)?,
        (Format::Text, Some(described)) => output::data(&for_people(described))?,
        (Format::Text, None) => {
            let presence = client.presence(handle, file.digest.summary().blobs)?;
            let here: u32 = presence.iter().map(|bits| bits.count_ones()).sum();
            let blobs = output::count(file.digest.summary().blobs, "blob");
            output::data(&format!(
                "no job reports of it, so nothing is decided: {here} of {blobs} are here, and the oldest go \
                 when room is needed\n"
            ))?;
        }
    }
    Ok(Verdict::Yes)
}

/// Nothing of a dataset is kept any more, on any node that shares the work.
pub fn evict(args: &Args) -> anyhow::Result<Verdict> {
    let (file, mut client, handle) = open(&args.digest, args.node.as_ref())?;
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
        let evicted = status::connect(Some(&member.endpoint)).and_then(|mut client| {
            let handle = client.open(&file.digest)?;
            Ok(client.evict(handle)?)
        });
        match evicted {
            Ok(more) => bytes += more,
            Err(error) => failed.push(format!("{} ({error:#})", member.name)),
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

fn open(digest: &Path, node: Option<&Endpoint>) -> anyhow::Result<(DigestFile, Client, Handle)> {
    let file = forebay_digest::open(digest)?;
    let mut client = status::connect(node)?;
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

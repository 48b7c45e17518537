//! `forebay stream ls`, `rm` and `facts`.

use std::collections::BTreeSet;

use forebay_core::{
    ByteSize,
    streams::{
        Lifetime,
        catalogue::{CatalogueError, StreamInfo, StreamState},
    },
};
use forebay_streams::{OpenedStore, StreamError};
use serde::Serialize;

use super::{StoreArgs, StreamPlace};
use crate::output::{self, Format, Verdict};

/// A store.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Streams to remove.
#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The names of the streams.
    #[arg(required = true)]
    names: Vec<String>,
}

/// A stream of `stream ls`.
#[derive(Debug, Serialize)]
pub struct ListedStream {
    name: String,
    family: String,
    state: &'static str,
    blocks: u64,
    bytes: u64,
    lost_blocks: u64,
    lease_seconds: Option<u64>,
}

impl ListedStream {
    pub fn of(info: &StreamInfo) -> Self {
        let state = match info.state {
            StreamState::Writing => "writing",
            StreamState::Sealed => "sealed",
            StreamState::Consumed => "consumed",
            StreamState::Destroyed => "destroyed",
        };
        let lease_seconds = match info.lifetime {
            Lifetime::Lease(time) => Some(time.as_secs()),
            Lifetime::Kept | Lifetime::Process => None,
        };
        Self {
            name: info.name.to_string(),
            family: info.family.to_string(),
            state,
            blocks: info.blocks,
            bytes: info.bytes,
            lost_blocks: info.lost.iter().map(|lost| lost.end - lost.start).sum(),
            lease_seconds,
        }
    }
}

pub fn list(args: &Args) -> anyhow::Result<Verdict> {
    let streams: Vec<_> = args.store.open(None)?.list()?.iter().map(ListedStream::of).collect();
    match args.format {
        Format::Json => output::json(&streams)?,
        Format::Text => {
            let row = |stream: &ListedStream| {
                let lost = if stream.lost_blocks > 0 { "lost blocks" } else { stream.state };
                let (blocks, bytes) = (stream.blocks.to_string(), ByteSize(stream.bytes));
                vec![stream.name.clone(), bytes.to_string(), blocks, lost.to_owned()]
            };
            let rows: Vec<_> = streams.iter().map(row).collect();
            output::data(&output::table(&["NAME", "SIZE", "BLOCKS", "STATE"], &rows))?;
        }
    }
    Ok(Verdict::Yes)
}

pub fn remove(args: &RemoveArgs) -> anyhow::Result<Verdict> {
    let store = args.store.open(None)?;
    let names: BTreeSet<&str> = args.names.iter().map(String::as_str).collect();
    let (mut removed, mut missing, mut failed) = (0, Vec::new(), None);
    for name in names {
        match store.destroy(name) {
            Ok(()) => removed += 1,
            Err(error) if is_missing(&error) => missing.push(format!("{name:?}")),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if !missing.is_empty() {
        let removed = output::count(removed, "other");
        output::note(&format!("error: no stream {}; {removed} removed", missing.join(", ")));
    }
    match failed {
        Some(error) => Err(error),
        None if missing.is_empty() => Ok(Verdict::Yes),
        None => Ok(Verdict::No),
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let missing =
        |error: &StreamError| matches!(error, StreamError::Catalogue(CatalogueError::NotFound(_)));
    error.downcast_ref().is_some_and(missing)
}

/// What a store has. A borrower does not know the counters of the owner.
#[derive(Debug, Serialize)]
struct ListedFacts {
    is_owned_by_another_process: bool,
    capacity_bytes: u64,
    free_bytes: Option<u64>,
    streams: u64,
    block_bytes: u64,
    read_memory_bytes: u64,
}

/// What a node keeps for this user.
#[derive(Debug, Serialize)]
struct ListedBudget {
    budget_bytes: u64,
    used_bytes: u64,
    streams: u64,
    readers: u64,
    block_bytes: u64,
}

pub fn facts(args: &Args) -> anyhow::Result<Verdict> {
    let store = match args.store.open(None)? {
        StreamPlace::Local(store) => store,
        StreamPlace::Node(node) => {
            let (account, block_bytes) = node.facts()?;
            let facts = ListedBudget {
                budget_bytes: account.budget.0,
                used_bytes: account.used.0,
                streams: account.streams,
                readers: account.readers,
                block_bytes,
            };
            let rows = [
                ("budget", size(facts.budget_bytes)),
                ("used", size(facts.used_bytes)),
                ("streams", facts.streams.to_string()),
                ("open readers", facts.readers.to_string()),
                ("longest block", size(facts.block_bytes)),
            ];
            return print(args.format, &facts, &rows);
        }
    };
    let facts = match &store {
        OpenedStore::Owned(store) => {
            let facts = store.facts();
            ListedFacts {
                is_owned_by_another_process: false,
                capacity_bytes: facts.capacity.0,
                free_bytes: Some(facts.free.0),
                streams: facts.streams,
                block_bytes: facts.block_length.0,
                read_memory_bytes: facts.read_memory.0,
            }
        }
        OpenedStore::Borrowed(store) => ListedFacts {
            is_owned_by_another_process: true,
            capacity_bytes: store.capacity().0,
            free_bytes: None,
            streams: store.list()?.len() as u64,
            block_bytes: store.block_length(),
            read_memory_bytes: store.read_memory_sizes().0.0,
        },
    };
    let owner = if facts.is_owned_by_another_process { "another process" } else { "none" };
    let rows = [
        ("owner", owner.to_owned()),
        ("capacity", size(facts.capacity_bytes)),
        ("free", facts.free_bytes.map_or_else(|| "unknown".into(), size)),
        ("streams", facts.streams.to_string()),
        ("longest block", size(facts.block_bytes)),
        ("memory for reading", size(facts.read_memory_bytes)),
    ];
    print(args.format, &facts, &rows)
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn print(
    format: Format,
    facts: &impl Serialize,
    rows: &[(&str, String)],
) -> anyhow::Result<Verdict> {
    match format {
        Format::Json => output::json(facts)?,
        Format::Text => {
            let lines: String =
                rows.iter().map(|(name, value)| format!("{name:<20}{value}\n")).collect();
            output::data(&lines)?;
        }
    }
    Ok(Verdict::Yes)
}

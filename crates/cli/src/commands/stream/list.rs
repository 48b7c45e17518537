//! `forebay stream ls`, `rm` and `facts`.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    streams::{
        Lifetime,
        catalogue::{StreamInfo, StreamState},
    },
};
use forebay_streams::OpenedStore;
use serde::Serialize;

use super::{StoreArgs, streams};
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
    let store = args.store.open_or_borrow(None)?;
    let streams: Vec<_> = streams(&store)?.iter().map(ListedStream::of).collect();
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
    for name in &args.names {
        store.destroy(name, Duration::ZERO)?;
    }
    Ok(Verdict::Yes)
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

pub fn facts(args: &Args) -> anyhow::Result<Verdict> {
    let store = args.store.open_or_borrow(None)?;
    let streams = streams(&store)?.len() as u64;
    let facts = match &store {
        OpenedStore::Owned(store) => {
            let facts = store.facts();
            ListedFacts {
                is_owned_by_another_process: false,
                capacity_bytes: facts.capacity.0,
                free_bytes: Some(facts.free.0),
                streams,
                block_bytes: facts.block_length.0,
                read_memory_bytes: facts.read_memory.0,
            }
        }
        OpenedStore::Borrowed(store) => ListedFacts {
            is_owned_by_another_process: true,
            capacity_bytes: store.capacity().0,
            free_bytes: None,
            streams,
            block_bytes: store.block_length(),
            read_memory_bytes: store.read_memory_sizes().0.0,
        },
    };
    match args.format {
        Format::Json => output::json(&facts)?,
        Format::Text => {
            let size = |bytes: u64| ByteSize(bytes).to_string();
            let owner = if facts.is_owned_by_another_process { "another process" } else { "none" };
            let rows = [
                ("owner", owner.to_owned()),
                ("capacity", size(facts.capacity_bytes)),
                ("free", facts.free_bytes.map_or_else(|| "unknown".into(), size)),
                ("streams", facts.streams.to_string()),
                ("longest block", size(facts.block_bytes)),
                ("memory for reading", size(facts.read_memory_bytes)),
            ];
            let lines = rows.map(|(name, value)| format!("{name:<20}{value}\n"));
            output::data(&lines.concat())?;
        }
    }
    Ok(Verdict::Yes)
}

//! `forebay status`: the counters of a node, and the state of the other nodes of its cluster.

use std::collections::BTreeMap;

use forebay_auth::Credentials;
use forebay_core::{ByteSize, Endpoint};
use serde::Serialize;

use crate::{
    args::node::NodeArg,
    commands::cluster_status::{self, NodeStatus},
    node_facts::NodeFacts,
    output::{self, Format, Verdict},
};

/// Show a node's process and counters, and the state of the other nodes of its cluster.
///
/// With `--format json`, all counters are shown; docs/reference/metrics.md describes them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    node: NodeArg,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  forebay status
  forebay status --node tls://a.example:7070
  forebay status --format json | jq .hits";

/// The counters of one node, its process, and the state of every node of its cluster.
#[derive(Debug, Serialize)]
struct Status {
    /// Absent if it is not this user's node of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeFacts>,
    #[serde(flatten)]
    counters: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeStatus>,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut client = args.node.connect()?;
    let sockets = args.node.contacts();
    let node = sockets.endpoints().iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(socket) => NodeFacts::read(socket),
        _ => None,
    });
    let counters = client.stats()?.into_iter().collect();
    let nodes = match client.ring()? {
        Some(own) => cluster_status::query(&own, &Credentials::from_environment()?),
        None => Vec::new(),
    };
    let status = Status { node, counters, nodes };
    match args.format {
        Format::Json => output::json(&status)?,
        Format::Text => {
            let mut text = status.node.as_ref().map(facts_to_text).unwrap_or_default();
            text += &counters_to_text(&status.counters);
            if !status.nodes.is_empty() {
                text = format!("{text}\n{}", cluster_status::to_text(&status.nodes));
            }
            output::data(&text)?;
        }
    }
    Ok(Verdict::Yes)
}

fn facts_to_text(facts: &NodeFacts) -> String {
    let name = facts.name.as_ref().map_or(String::new(), |name| format!(" `{name}`"));
    let mut text = format!("node      forebay {}{name}, process {}\n", facts.version, facts.pid);
    text += &format!("socket    {}\n", facts.socket.display());
    text += &format!("directory {}\n", facts.directory.display());
    if let Some(config) = &facts.config {
        text += &format!("config    {}\n", config.display());
    }
    text
}

fn counters_to_text(counters: &BTreeMap<String, u64>) -> String {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let size = |name: &str| ByteSize(value(name)).rounded();
    let reads = value("hits") + value("misses") + value("wait_timeouts");
    let share = match reads {
        0 => "-".to_owned(),
        reads => format!("{:.1} %", value("hits") as f64 / reads as f64 * 100.0),
    };
    let rows = [
        (
            "resident",
            format!(
                "{} of {} in {}",
                size("resident_bytes"),
                size("capacity_bytes"),
                output::count(value("resident_blobs"), "blob")
            ),
        ),
        (
            "memory",
            format!(
                "at most {}; {} of {} cached",
                size("memory_max_bytes"),
                size("memory_bytes"),
                size("memory_capacity_bytes")
            ),
        ),
        (
            "clients",
            format!(
                "{} on {}",
                // Without the connection of this command.
                output::count(value("connections_open").saturating_sub(1), "connection"),
                output::count(value("datasets_open"), "dataset")
            ),
        ),
        ("hits", format!("{} of {reads} ({share}), {}", value("hits"), size("hit_bytes"))),
        (
            "waits",
            format!(
                "{} for a fetch; {} more reads through the agent",
                value("waits"),
                value("wait_timeouts")
            ),
        ),
        (
            "stored",
            format!(
                "{}, {}; {} evicted",
                output::count(value("puts"), "blob"),
                size("put_bytes"),
                output::count(value("flash_regions_evicted"), "region")
            ),
        ),
        (
            "claims",
            format!(
                "{} held, {} granted, {} expired",
                value("claims_held"),
                value("claims_granted"),
                value("claims_expired")
            ),
        ),
        (
            "rejected",
            format!(
                "{} wrong hashes, {} puts without space, {} unproven digests",
                value("put_hash_mismatches"),
                value("put_no_space"),
                value("proofs_refused")
            ),
        ),
        (
            "flash",
            format!(
                "{} of {} healthy; {} damaged entries, {} failed reads, {} failed writes",
                value("devices_healthy"),
                output::count(value("devices_configured"), "device"),
                value("flash_entries_damaged"),
                value("reads_failed"),
                value("puts_failed")
            ),
        ),
        ("up", format!("{} s", value("uptime_seconds"))),
    ];
    let streams = format!(
        "{} take {} of {}; {} refused",
        output::count(value("stream_count"), "stream"),
        size("stream_used_bytes"),
        size("stream_budget_bytes"),
        value("stream_refused")
    );
    let has_streams = value("stream_budget_bytes") > 0;
    let streams = has_streams.then_some(("streams", streams));
    rows.iter().chain(&streams).map(|(name, value)| format!("{name:<10}{value}\n")).collect()
}

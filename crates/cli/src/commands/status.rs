//! `forebay status`: what the node is doing.

use std::collections::BTreeMap;

use forebay_core::ByteSize;
use forebay_identity::Credentials;
use serde::Serialize;

use crate::{
    contact::NodeArg,
    members::{self, Standing},
    output::{self, Format, Verdict},
};

/// What the node is doing, and how the others stand that share its work.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forebay status\n  forebay status --format json | jq .hits")]
pub struct Args {
    #[command(flatten)]
    node: NodeArg,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What one node has counted, and how the others stand, if there are any.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(flatten)]
    counters: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<Standing>,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut client = args.node.connect()?;
    let counters = client.stats()?.into_iter().collect();
    let nodes = match client.ring()? {
        Some(own) => members::look(&own, &Credentials::from_environment()?),
        None => Vec::new(),
    };
    let status = Status { counters, nodes };
    match args.format {
        Format::Json => output::json(&status)?,
        Format::Text => {
            let mut text = for_people(&status.counters);
            if !status.nodes.is_empty() {
                text = format!("{text}\n{}", members::for_people(&status.nodes));
            }
            output::data(&text)?;
        }
    }
    Ok(Verdict::Yes)
}

fn for_people(counters: &BTreeMap<String, u64>) -> String {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let size = |name: &str| ByteSize(value(name)).to_string();
    let asked = value("hits") + value("misses") + value("waits_in_vain");
    let share = value("hits") as f64 / asked.max(1) as f64 * 100.0;
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
            "jobs",
            format!(
                "{} on {}",
                // Ours is not a job's.
                output::count(value("connections_open").saturating_sub(1), "connection"),
                output::count(value("datasets_open"), "dataset")
            ),
        ),
        ("hits", format!("{} of {asked} ({share:.1} %), {}", value("hits"), size("hit_bytes"))),
        (
            "waited",
            format!("{} for somebody's fetch, {} in vain", value("waits"), value("waits_in_vain")),
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
            "refused",
            format!(
                "{} poisoned, {} without space, {} proofs",
                value("puts_poisoned"),
                value("puts_without_space"),
                value("proofs_refused")
            ),
        ),
        (
            "flash",
            format!(
                "{} of {} well; {} damaged entries, {} failed reads, {} failed writes",
                value("devices_well"),
                output::count(value("devices_named"), "device"),
                value("flash_entries_damaged"),
                value("reads_failed"),
                value("puts_failed")
            ),
        ),
        ("up", format!("{} s", value("uptime_seconds"))),
    ];
    rows.iter().map(|(name, value)| format!("{name:<10}{value}\n")).collect()
}

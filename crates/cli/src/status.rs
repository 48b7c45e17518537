//! `forebay status`: what the node is doing.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use forebay_client::Client;
use forebay_core::{ByteSize, Endpoint};
use forebay_identity::Credentials;
use forebay_server::default_socket;

use crate::output::{self, Format, Verdict};

/// A node that does not answer within this is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the node is doing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forebay status\n  forebay status --format json | jq .hits")]
pub struct Args {
    /// Where the node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT; by default `$FOREBAY_SOCKET`,
    /// or this user's socket.
    #[arg(long, value_name = "ENDPOINT", visible_alias = "socket")]
    node: Option<Endpoint>,
    /// For people or for scripts.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let counters = connect(args.node.as_ref())?.stats()?;
    let counters: BTreeMap<String, u64> = counters.into_iter().collect();
    match args.format {
        Format::Json => output::json(&counters)?,
        Format::Text => output::data(&for_people(&counters))?,
    }
    Ok(Verdict::Yes)
}

/// Connects to a node: the one that listens there, or this user's; as whom the environment says.
pub fn connect(node: Option<&Endpoint>) -> anyhow::Result<Client> {
    let endpoint = node.cloned().unwrap_or_else(|| default_socket().into());
    let credentials = Credentials::from_environment()?;
    Client::connect_as(&credentials, &endpoint, "forebay", PATIENCE)
        .context("no forebay node; start one with `forebay serve`")
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
                output::count(value("connections_open"), "connection"),
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

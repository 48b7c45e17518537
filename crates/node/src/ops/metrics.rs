//! Metrics: counters and gauges of a node, each with name and help text in one place.
//!
//! The wire's `stats`, `forebay status`, `/metrics` and the page `docs/reference/metrics.md` show
//! them. A name ends with its unit (`_bytes`, `_seconds`) if it has one. On `/metrics`, names begin
//! with `forebay_` and counters end with `_total`.

use std::fmt::Write as _;

use forebay_core::{
    ByteSize, agent::free_space::FreeSpace, node::stream_quotas::AccountFacts,
    train::manager::Overview,
};
use forebay_flash::shard::Counters as Flash;
use forebay_transport::counters::Row;

use crate::store::long_blob::PART_LENGTH_MAX;

forebay_transport::counters! {
    /// The counters of a node.
    Counters;
    /// Ranges answered with bytes.
    hits,
    /// Bytes of hits.
    hit_bytes,
    /// Ranges answered with a miss.
    misses,
    /// Ranges whose blob was still claimed when the wait timed out, or that could not wait.
    wait_timeouts,
    /// Ranges that waited for a claimed blob.
    waits,
    /// Claims granted. Each is one fetch from the origin, except claims on names by `forebay.wrap`.
    claims_granted,
    /// Claims that ended because the blob was put.
    claims_fulfilled,
    /// Claims that ended because the holder did not renew them, or made no progress.
    claims_expired,
    /// Claims that ended because the holder disconnected.
    claims_abandoned,
    /// Claims that ended because they lasted a multiple of the usual fetch time and another job
    /// waited. One waiter fetches the blob again.
    claims_overtaken,
    /// Claims released by the holder, because its fetch failed or the node did not store the blob.
    claims_released,
    /// Claims not granted because the node would not keep the blob.
    claims_uncached,
    /// Mini-batches that jobs had to read from the origin, to measure the benefit of the cache.
    probe_batches,
    /// Blobs stored.
    puts,
    /// Bytes of stored blobs.
    put_bytes,
    /// Puts whose bytes did not hash to the address.
    put_hash_mismatches,
    /// Puts refused because there was no space.
    put_no_space,
    /// Puts that failed because a device failed.
    puts_failed,
    /// Reads that failed because a device failed.
    reads_failed,
    /// Blobs of which a client has received wrong bytes, and said so.
    blobs_reported,
    /// Reported blobs of which the node had a wrong copy. It is dropped.
    blobs_dropped,
    /// Reported blobs that the node did not check: it has no copy, or too much was reported.
    blobs_unchecked,
    /// Connections accepted.
    connections,
    /// Connections refused because `max_connections` were open.
    connections_refused,
    /// Connections that ended without authentication: evicted, timed out, malformed or refused.
    preauth_rejected,
    /// Requests that took longer than 0.2 s, gets excepted. The log names some of them.
    requests_slow,
    /// Wrong proofs of possession, and uploaded tables that did not match their dataset.
    proofs_refused,
    /// Bytes of hits placed in shm regions.
    shm_hit_bytes,
    /// Shm regions granted to clients of this machine.
    shm_regions_granted,
    /// Shm regions refused because `shared_memory` was used up.
    shm_regions_refused,
    /// Shm regions revoked from clients that released slots they did not hold.
    shm_regions_revoked,
    /// Reports of jobs.
    reports,
    /// Reports refused: invalid, or of a fenced process.
    reports_refused,
    /// Chunks and half-chunks added to keep sets.
    chunks_loaded,
    /// Chunks and half-chunks removed from keep sets.
    chunks_evicted,
    /// Datasets that this node began to manage.
    takeovers,
    /// Datasets that this node ceased to manage because of a newer term.
    leadership_lost,
    /// Keep sets of other nodes rejected because their term was older.
    stale_orders_rejected,
    /// Bytes appended to streams.
    stream_appended_bytes,
    /// Bytes read from streams.
    stream_read_bytes,
    /// Requests about streams refused because a budget or a limit was reached.
    stream_refused,
    /// Streams dropped unsealed, because their connection ended or their writer gave up.
    stream_abandoned,
    /// Reloads of the configuration that were applied.
    reloads,
    /// Reloads rejected because the configuration was invalid. The last valid one stays.
    reloads_refused,
}

/// The gauges of a node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// Whether the node serves. Same as `/readyz`.
    pub is_ready: bool,
    /// Most bytes of blobs on flash.
    pub capacity_bytes: u64,
    /// Bytes of resident blobs.
    pub resident_bytes: u64,
    /// Resident blobs; each part of a long blob counts.
    pub resident_blobs: u64,
    /// Configured devices.
    pub devices_configured: u64,
    /// Devices that can be read and written.
    pub devices_healthy: u64,
    /// Size of the memory cache.
    pub memory_capacity_bytes: u64,
    /// Bytes in the memory cache.
    pub memory_bytes: u64,
    /// Ranges answered from the memory cache, since the start.
    pub memory_hits: u64,
    /// Bytes of shm regions that clients may still map.
    pub shm_bytes: u64,
    /// Claims held.
    pub claims_held: u64,
    /// Open connections.
    pub connections_open: u64,
    /// Bytes of requests and replies that wait on connections.
    pub connection_bytes: u64,
    /// Connections closed because they were too slow while others waited for memory.
    pub connections_stalled: u64,
    /// The most memory that the node uses.
    pub memory_max_bytes: u64,
    /// Open datasets.
    pub datasets_open: u64,
    /// Other nodes of the cluster.
    pub peers_configured: u64,
    /// Other nodes that have answered recently.
    pub peers_reachable: u64,
    /// Highest term that this node follows.
    pub manager_term: u64,
    /// Summary of the managers on this node.
    pub managed: Overview,
    /// The streams of all clients.
    pub streams: AccountFacts,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

impl Gauges {
    fn all(&self) -> Vec<Row> {
        let Overview { datasets, jobs, pinned, rotating, loading } = self.managed;
        let ready = u64::from(self.is_ready);
        vec![
            ("ready", "1 if the node serves, 0 if it is stopping or has no healthy device.", ready),
            ("capacity_bytes", "Most bytes of blobs on flash.", self.capacity_bytes),
            ("resident_bytes", "Bytes of resident blobs.", self.resident_bytes),
            (
                "resident_blobs",
                "Resident blobs; each part of a long blob counts.",
                self.resident_blobs,
            ),
            ("devices_configured", "Configured devices.", self.devices_configured),
            ("devices_healthy", "Devices that can be read and written.", self.devices_healthy),
            ("memory_capacity_bytes", "Size of the memory cache.", self.memory_capacity_bytes),
            ("memory_bytes", "Bytes in the memory cache.", self.memory_bytes),
            ("shm_bytes", "Bytes of shm regions that clients may still map.", self.shm_bytes),
            ("claims_held", "Claims held.", self.claims_held),
            ("connections_open", "Open connections.", self.connections_open),
            (
                "connection_bytes",
                "Bytes of requests and replies that wait on connections.",
                self.connection_bytes,
            ),
            ("memory_max_bytes", "The most memory that the node uses.", self.memory_max_bytes),
            ("datasets_open", "Open datasets.", self.datasets_open),
            ("peers_configured", "Other nodes of the cluster.", self.peers_configured),
            ("peers_reachable", "Other nodes that have answered recently.", self.peers_reachable),
            ("manager_term", "Highest term that this node follows.", self.manager_term),
            ("datasets_managed", "Datasets that this node manages.", datasets),
            ("jobs", "Jobs that report to this node.", jobs),
            ("half_chunks_pinned", "Pinned half-chunks of managed datasets.", pinned),
            ("half_chunks_rotating", "Rotating half-chunks of managed datasets.", rotating),
            (
                "half_chunks_loading",
                "Half-chunks in a keep set that are not completely resident.",
                loading,
            ),
            (
                "stream_budget_bytes",
                "Flash for streams, of all budgets together.",
                self.streams.budget.0,
            ),
            (
                "stream_used_bytes",
                "Flash charged for streams, in whole regions.",
                self.streams.used.0,
            ),
            ("stream_count", "Streams, also those that are written.", self.streams.streams),
            ("stream_readers", "Open readers of streams.", self.streams.readers),
            ("uptime_seconds", "Seconds since the start.", self.uptime_seconds),
        ]
    }
}

/// The longest part of a blob that every device can store as one entry.
fn part_bytes(devices: &[Flash]) -> u64 {
    devices.iter().map(|device| device.entry_length_max).min().unwrap_or(0).min(PART_LENGTH_MAX)
}

/// Empty regions on the healthy device that has the fewest.
fn regions_free_min(devices: &[Flash]) -> u64 {
    let healthy = devices.iter().filter(|device| device.healthy);
    healthy.map(|device| device.regions_free).min().unwrap_or(0)
}

/// The space that agents may prefetch into.
pub fn free_space(capacity: ByteSize, devices: &[Flash], claims: u64) -> FreeSpace {
    let resident = devices.iter().map(|device| device.bytes).sum();
    FreeSpace {
        bytes: capacity.0.saturating_sub(resident),
        regions: regions_free_min(devices),
        regions_evicted: devices.iter().map(|device| device.regions_evicted).sum(),
        part_bytes: part_bytes(devices),
        claims,
    }
}

/// Counters and gauges of all devices together.
fn flash_rows(devices: &[Flash]) -> (Vec<Row>, [Row; 4]) {
    let sum = |part: fn(&Flash) -> u64| devices.iter().map(part).sum::<u64>();
    let part = part_bytes(devices);
    let counters = vec![
        ("flash_inserted_bytes", "Bytes of blobs written.", sum(|d| d.inserted_bytes)),
        (
            "flash_device_written_bytes",
            "Bytes written to devices, metadata included.",
            sum(|d| d.device_bytes_written),
        ),
        (
            "flash_regions_evicted",
            "Regions evicted to free space, with all their entries.",
            sum(|d| d.regions_evicted),
        ),
        (
            "flash_regions_lost",
            "Regions lost because a device failed or many of their entries were damaged.",
            sum(|d| d.regions_lost),
        ),
        (
            "flash_entries_damaged",
            "Entries whose checksum did not match. They are misses.",
            sum(|d| d.entries_damaged),
        ),
        ("flash_scrubbed_bytes", "Bytes verified by the scrubber.", sum(|d| d.scrubbed_bytes)),
        ("flash_faults", "I/O commands that failed.", sum(|d| d.commands_failed)),
        ("flash_reads_timed_out", "Reads that timed out.", sum(|d| d.reads_timed_out)),
    ];
    let gauges = [
        ("flash_regions_free", "Empty regions.", sum(|d| d.regions_free)),
        (
            "flash_regions_free_min",
            "Empty regions on the healthy device that has the fewest.",
            regions_free_min(devices),
        ),
        (
            "flash_part_bytes",
            "Part length of long blobs. Shorter blobs are stored as one entry.",
            part,
        ),
        (
            "flash_regions_quarantined",
            "Regions not in use for a while because many of their entries were damaged.",
            sum(|d| d.regions_quarantined),
        ),
    ];
    (counters, gauges)
}

/// Metrics of another component of the process.
#[derive(Debug, Clone, Default)]
pub struct ExtraRows {
    /// Gauges.
    pub gauges: Vec<Row>,
    /// Counters.
    pub counters: Vec<Row>,
}

/// All gauges and all counters of a node.
fn node_rows(
    gauges: &Gauges,
    counters: &Counters,
    devices: &[Flash],
    extra: ExtraRows,
) -> [Vec<Row>; 2] {
    let (flash_counters, flash_gauges) = flash_rows(devices);
    let memory = ("memory_hits", "Ranges answered from the memory cache.", gauges.memory_hits);
    let stalled = (
        "connections_stalled",
        "Connections closed because they were too slow while others waited for memory.",
        gauges.connections_stalled,
    );
    let counters = counters.all().into_iter().chain([stalled, memory]).chain(flash_counters);
    let gauges = gauges.all().into_iter().chain(flash_gauges).chain(extra.gauges);
    [gauges.collect(), counters.chain(extra.counters).collect()]
}

/// Names and values, for the wire.
pub fn pairs(
    gauges: &Gauges,
    counters: &Counters,
    devices: &[Flash],
    extra: ExtraRows,
) -> Vec<(String, u64)> {
    let all = node_rows(gauges, counters, devices, extra).into_iter().flatten();
    all.map(|(name, _, value)| (name.to_owned(), value)).collect()
}

/// The text of `/metrics`, for Prometheus.
pub fn exposition(
    gauges: &Gauges,
    counters: &Counters,
    devices: &[Flash],
    extra: ExtraRows,
) -> String {
    let [gauge_rows, counter_rows] = node_rows(gauges, counters, devices, extra);
    let mut text = String::new();
    let mut metric = |name: &str, suffix: &str, kind: &str, help: &str, value: u64| {
        let name = format!("forebay_{name}{suffix}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    for (name, help, value) in gauge_rows {
        metric(name, "", "gauge", help, value);
    }
    for (name, help, value) in counter_rows {
        metric(name, "_total", "counter", help, value);
    }
    text
}

const PAGE_HEAD: &str = "\
# Metrics

Generated by `forebay dev reference metrics`; a test fails when it is stale.

A node serves `/metrics` for Prometheus at the address in `metrics` of its
[configuration](config.md). `forebay status --format json` and the wire's *stats* have the same
numbers, without `forebay_` and `_total`. Agents have no server of their own: they answer *stats* on
their socket, and the Python loader's `stats()` shows the numbers.

## One fetch, and its exceptions

A resident blob, or one whose claim is held and renewed, is not fetched again. Every exception is
counted:

| exception | on the node | on the agent |
|---|---|---|
| a holder died, stalled or failed | `claims_expired`, `claims_abandoned`, `claims_released` | |
| a holder took much longer than usual, and another job waited | `claims_overtaken` | |
| a wait timed out, or the node could not be reached | `wait_timeouts` | `agent_fallbacks` |
| an uncached read: the node does not keep the blob | `claims_uncached` | `agent_uncached` |
| a probe | `probe_batches` | `agent_probes` |
| a transfer was damaged | | `agent_transfers_damaged` |
| a copy was wrong, and a client noticed | `blobs_dropped` | `agent_hash_mismatches`, `agent_wrong_bytes_reported` |
| the list of nodes changed, or one of several nodes did not answer | | `agent_ring_changes`, `agent_fallbacks_ring` |

Every granted claim ends in one counted way or is still held: `claims_granted` is the sum of
`claims_fulfilled`, `claims_expired`, `claims_abandoned`, `claims_overtaken`, `claims_released` and
`claims_held`.
";

/// The page `docs/reference/metrics.md`.
pub fn page(agent: Vec<Row>, gateway: ExtraRows) -> String {
    let none = ExtraRows::default();
    let [gauge_rows, counter_rows] = node_rows(&Gauges::default(), &Counters::default(), &[], none);
    let mut page = PAGE_HEAD.to_owned();
    let mut section = |title: &str, prefix: &str, suffix: &str, rows: Vec<Row>| {
        let _ = writeln!(page, "\n## {title}\n\n| name | meaning |\n|---|---|");
        for (name, help, _) in rows {
            let _ = writeln!(page, "| `{prefix}{name}{suffix}` | {} |", help.trim_end_matches('.'));
        }
    };
    section("Gauges of a node", "forebay_", "", gauge_rows);
    section("Counters of a node", "forebay_", "_total", counter_rows);
    section("Gauges of a gateway", "forebay_", "", gateway.gauges);
    section("Counters of a gateway", "forebay_", "_total", gateway.counters);
    section("Counters of an agent", "agent_", "", agent);
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Rules of Prometheus' linter: base units at the end of names, no name twice, help for all.
    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let text = exposition(&Gauges::default(), &Counters::default(), &[], ExtraRows::default());
        let mut names = BTreeSet::new();
        for line in text.lines() {
            let Some(line) = line.strip_prefix("# TYPE ") else { continue };
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(names.insert(name.to_owned()), "{name} twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            let bare = name.trim_end_matches("_total");
            for unit in ["bytes", "seconds"] {
                let parts: Vec<&str> = bare.split('_').collect();
                let at = parts.iter().position(|part| *part == unit);
                assert!(
                    at.is_none_or(|at| at + 1 == parts.len()),
                    "{name}: the unit must come last"
                );
            }
            assert!(!["_ms", "_kb", "_mb", "_gb"].iter().any(|bad| bare.ends_with(bad)), "{name}");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
            assert!(
                page(Vec::new(), ExtraRows::default()).contains(&format!("`{name}`")),
                "{name} is on the page"
            );
        }
        assert!(names.len() > 40);
    }
}

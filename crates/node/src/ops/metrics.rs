//! What a node and an agent count, each with its name, its unit and its meaning in one place.
//!
//! The wire's `stats`, `forebay status`, `/metrics` and the page `docs/metrics.md` all show these. A name says
//! its unit (`_bytes`, `_seconds`) where it has one; on `/metrics` it begins with `forebay_`, and what only grows
//! ends in `_total`.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use forebay_core::manager::Overview;
use forebay_flash::shard::Counters as Flash;

use crate::blobs::PIECE;

/// Name, meaning and value.
type Row = (&'static str, &'static str, u64);

/// Defines counters, once.
macro_rules! counters {
    ($(#[doc = $what:literal])+ $all:ident; $($(#[doc = $help:literal])+ $name:ident,)+) => {
        $(#[doc = $what])+
        #[derive(Debug, Default)]
        pub struct $all {
            $($(#[doc = $help])+ pub $name: Counter,)+
        }

        impl $all {
            /// Name, meaning and value of each.
            fn all(&self) -> Vec<Row> {
                vec![$((stringify!($name), concat!($($help),+).trim_ascii(), self.$name.get())),+]
            }
        }
    };
}

counters! {
    /// Everything of a node that only grows.
    Counters;
    /// Ranges answered with bytes.
    hits,
    /// Bytes of those.
    hit_bytes,
    /// Ranges answered with a miss.
    misses,
    /// Ranges that somebody was still fetching when the wait was over.
    waits_in_vain,
    /// Ranges that waited for somebody's fetch.
    waits,
    /// Claims granted: each is one fetch from the origin.
    claims_granted,
    /// Claims that ended because the blob was stored.
    claims_fulfilled,
    /// Claims that ended because their holder did not renew them, or made no headway.
    claims_expired,
    /// Claims that ended because their holder's connection did.
    claims_abandoned,
    /// Claims that their holder gave back: its fetch failed, or the node did not take the blob.
    claims_released,
    /// Claims not granted because the blob would not be kept.
    claims_outside,
    /// Mini-batches that jobs were told to read from the origin, to measure what they gain.
    probe_batches,
    /// Blobs stored.
    puts,
    /// Bytes of those.
    put_bytes,
    /// Puts that did not hash to their address.
    puts_poisoned,
    /// Puts for which there was no space.
    puts_without_space,
    /// Puts that the device failed.
    puts_failed,
    /// Reads that the device failed.
    reads_failed,
    /// Connections accepted.
    connections,
    /// Connections refused, for there were too many.
    connections_refused,
    /// Connections of those whom the node does not know, and of tenants who had too many.
    strangers_refused,
    /// Challenges answered wrongly, and tables that were not what they said.
    proofs_refused,
    /// Bytes of hits that were placed in segments.
    placed_bytes,
    /// Segments lent to clients of this machine.
    segments_lent,
    /// Segments not lent, because there was no memory left for them.
    segments_refused,
    /// Segments taken from clients that let go of what they did not hold.
    segments_lost,
    /// Reports of jobs.
    reports,
    /// Reports that could not be, and those of jobs that were started again elsewhere.
    reports_refused,
    /// Chunks, or halves of them, that were given a place.
    chunks_loaded,
    /// Those that lost it.
    chunks_evicted,
    /// Datasets that this node began to manage.
    takeovers,
    /// Datasets that this node manages no more because another node does, in a newer term.
    stepped_down,
    /// Orders of other nodes that were refused because a newer term is known.
    orders_refused,
    /// Times that the configuration was read again and taken up.
    reloads,
    /// Times that it was read again and could not be used: the node runs on with the last good one.
    reloads_refused,
}

counters! {
    /// Everything that an agent counts. `stats` has the names with `agent_` before them.
    AgentCounters;
    /// Ranges that the job was given.
    gets,
    /// Blobs read from the origin, by whatever right.
    origin_fetches,
    /// Bytes read from the origin.
    origin_bytes,
    /// Blobs read without a claim because the node could not be reached, or a wait was over.
    fallbacks,
    /// Bytes of those.
    fallback_bytes,
    /// Those among them that one of several nodes is to blame for.
    fallbacks_ring,
    /// Blobs read without a claim because the node would not keep them.
    outside,
    /// Bytes of those.
    outside_bytes,
    /// Blobs read past the cache because the job was told to, to measure what it gains.
    probes,
    /// Bytes of those.
    probe_bytes,
    /// Times that a node had another list of nodes than the one that is used.
    ring_differs,
    /// Times that somebody else was found where a node should be.
    ring_wrong,
    /// Times that the list of nodes changed.
    ring_changes,
    /// Blobs that the node did not take.
    puts_refused,
    /// Bytes of those.
    puts_refused_bytes,
}

impl AgentCounters {
    /// For the wire: names and values.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        self.all().into_iter().map(|(name, _, value)| (format!("agent_{name}"), value)).collect()
    }
}

/// One number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// How many there have been.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a node has now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// Whether it serves: `/readyz` says the same.
    pub is_ready: bool,
    /// Most bytes that may be resident.
    pub capacity_bytes: u64,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Blobs resident, and pieces of those that are too long for one entry.
    pub resident_blobs: u64,
    /// Devices that the node is to use.
    pub devices_named: u64,
    /// Those that can be read and written.
    pub devices_well: u64,
    /// Most bytes of blobs that may be in memory.
    pub memory_capacity_bytes: u64,
    /// Bytes of blobs in memory.
    pub memory_bytes: u64,
    /// Ranges answered from memory since the start.
    pub memory_hits: u64,
    /// Bytes of segments that clients of this machine may still hold.
    pub segment_bytes: u64,
    /// Claims held.
    pub claims_held: u64,
    /// Connections open.
    pub connections_open: u64,
    /// Datasets that somebody has open.
    pub datasets_open: u64,
    /// Other nodes of the ring,
    pub peers_named: u64,
    /// and those that have answered lately.
    pub peers_reachable: u64,
    /// The highest term that this node obeys.
    pub manager_term: u64,
    /// What the managers have decided.
    pub managed: Overview,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

impl Gauges {
    fn all(&self) -> Vec<Row> {
        let Overview { datasets, jobs, held, rotating, loading } = self.managed;
        vec![
            ("ready", "1 if the node serves, 0 if it is stopping or no device is well.", {
                u64::from(self.is_ready)
            }),
            ("capacity_bytes", "Most bytes that may be resident.", self.capacity_bytes),
            ("resident_bytes", "Bytes resident.", self.resident_bytes),
            ("resident_blobs", "Blobs resident.", self.resident_blobs),
            ("devices_named", "Devices that the node is to use.", self.devices_named),
            ("devices_well", "Devices that can be read and written.", self.devices_well),
            ("memory_capacity_bytes", "Most bytes of blobs that may be in memory.", {
                self.memory_capacity_bytes
            }),
            ("memory_bytes", "Bytes of blobs in memory.", self.memory_bytes),
            (
                "segment_bytes",
                "Bytes of segments that clients of this machine may still hold.",
                self.segment_bytes,
            ),
            ("claims_held", "Claims held.", self.claims_held),
            ("connections_open", "Connections open.", self.connections_open),
            ("datasets_open", "Datasets that somebody has open.", self.datasets_open),
            ("peers_named", "Other nodes of the ring.", self.peers_named),
            ("peers_reachable", "Those that have answered lately.", self.peers_reachable),
            ("manager_term", "The highest term that this node obeys.", self.manager_term),
            ("datasets_managed", "Datasets that this node manages.", datasets),
            ("jobs", "Jobs that report.", jobs),
            ("pieces_held", "Half chunks that stay for good.", held),
            ("pieces_rotating", "Half chunks that stay for a while.", rotating),
            ("pieces_loading", "Half chunks that have a place and are not all here.", loading),
            ("uptime_seconds", "Seconds since the start.", self.uptime_seconds),
        ]
    }
}

/// What all devices together have counted, and have now.
fn of_flash(devices: &[Flash]) -> (Vec<Row>, [Row; 4]) {
    let sum = |part: fn(&Flash) -> u64| devices.iter().map(part).sum::<u64>();
    let well = || devices.iter().filter(|device| device.well);
    let part = devices.iter().map(|device| device.entry_length_max).min().unwrap_or(0).min(PIECE);
    let counted = vec![
        ("flash_inserted_bytes", "Bytes of blobs written.", sum(|d| d.inserted_bytes)),
        (
            "flash_device_written_bytes",
            "Bytes written to the devices, for whatever purpose.",
            sum(|d| d.device_bytes_written),
        ),
        (
            "flash_regions_evicted",
            "Regions evicted to make room, each with all that was in it.",
            sum(|d| d.regions_evicted),
        ),
        (
            "flash_regions_lost",
            "Regions given up because a device failed, or much in them was damaged.",
            sum(|d| d.regions_lost),
        ),
        (
            "flash_entries_damaged",
            "Entries that were not what was written: misses, never handed out.",
            sum(|d| d.entries_damaged),
        ),
        ("flash_scrubbed_bytes", "Bytes that the scrubber has proved.", sum(|d| d.scrubbed_bytes)),
        ("flash_faults", "Commands that a device failed.", sum(|d| d.faults)),
        ("flash_reads_timed_out", "Reads that took too long.", sum(|d| d.reads_timed_out)),
    ];
    let now = [
        ("flash_regions_free", "Regions with nothing in them.", sum(|d| d.regions_free)),
        (
            "flash_regions_free_min",
            "Those on the device that has the fewest of them, among devices that are well.",
            well().map(|device| device.regions_free).min().unwrap_or(0),
        ),
        ("flash_part_bytes", "A longer blob is cut into parts of this length.", part),
        (
            "flash_regions_quarantined",
            "Regions that are not used for a while, because much in them was damaged.",
            sum(|d| d.regions_quarantined),
        ),
    ];
    (counted, now)
}

/// All that a node has now, and all that it has counted.
fn of_node(gauges: &Gauges, counters: &Counters, devices: &[Flash]) -> [Vec<Row>; 2] {
    let (flash, free) = of_flash(devices);
    let memory = ("memory_hits", "Ranges answered from memory.", gauges.memory_hits);
    let counted = counters.all().into_iter().chain([memory]).chain(flash);
    [gauges.all().into_iter().chain(free).collect(), counted.collect()]
}

/// For the wire: names and values.
pub fn pairs(gauges: &Gauges, counters: &Counters, devices: &[Flash]) -> Vec<(String, u64)> {
    let all = of_node(gauges, counters, devices).into_iter().flatten();
    all.map(|(name, _, value)| (name.to_owned(), value)).collect()
}

/// For Prometheus.
pub fn exposition(gauges: &Gauges, counters: &Counters, devices: &[Flash]) -> String {
    let [now, counted] = of_node(gauges, counters, devices);
    let mut text = String::new();
    let mut metric = |name: &str, suffix: &str, kind: &str, help: &str, value: u64| {
        let name = format!("forebay_{name}{suffix}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    for (name, help, value) in now {
        metric(name, "", "gauge", help, value);
    }
    for (name, help, value) in counted {
        metric(name, "_total", "counter", help, value);
    }
    text
}

const PAGE_HEAD: &str = "\
# Metrics

This page is written by `forebay dev metrics`; a test fails when it is stale.

A node serves `/metrics` for Prometheus where `metrics` in its [configuration](node.md) says. `forebay status --format json`
and the wire's *stats* have the same numbers, without `forebay_` and `_total`. Agents have no server of their own: they tell
theirs to whoever is connected to them, and the Python loader's `stats()` shows them.

## One fetch, and its exceptions

A blob that is resident, or claimed by someone who keeps renewing the claim, is not fetched again. Every exception is
counted:

| exception | on the node | on the agent |
|---|---|---|
| a holder died, stalled or failed | `claims_expired`, `claims_abandoned`, `claims_released` | |
| a deadline was over, or the node could not be reached | `waits_in_vain` | `agent_fallbacks` |
| a read outside the chunks that have a place | `claims_outside` | `agent_outside` |
| a probe | `probe_batches` | `agent_probes` |
| the list of nodes changed, or one of several nodes was of no help | | `agent_ring_changes`, `agent_fallbacks_ring` |

Every claim that was granted has come to an end that was counted, or is held: `claims_granted` is
`claims_fulfilled`, `claims_expired`, `claims_abandoned`, `claims_released` and `claims_held` together.
";

/// The reference page.
pub fn page() -> String {
    let [now, counted] = of_node(&Gauges::default(), &Counters::default(), &[]);
    let mut page = PAGE_HEAD.to_owned();
    let mut section = |title: &str, prefix: &str, suffix: &str, rows: Vec<Row>| {
        let _ = writeln!(page, "\n## {title}\n\n| name | |\n|---|---|");
        for (name, help, _) in rows {
            let _ = writeln!(page, "| `{prefix}{name}{suffix}` | {} |", help.trim_end_matches('.'));
        }
    };
    section("What a node has now (gauges)", "forebay_", "", now);
    section("What a node has counted (counters)", "forebay_", "_total", counted);
    section("What an agent has counted", "agent_", "", AgentCounters::default().all());
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What Prometheus' own linter asks for: units at the end and whole, no name twice, help for all.
    #[test]
    fn names_say_their_units() {
        let text = exposition(&Gauges::default(), &Counters::default(), &[]);
        let mut names = BTreeSet::new();
        for line in text.lines() {
            let Some(told) = line.strip_prefix("# TYPE ") else { continue };
            let (name, kind) = told.split_once(' ').unwrap();
            assert!(names.insert(name.to_owned()), "{name} twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            let bare = name.trim_end_matches("_total");
            for unit in ["bytes", "seconds"] {
                let parts: Vec<&str> = bare.split('_').collect();
                let at = parts.iter().position(|part| *part == unit);
                assert!(at.is_none_or(|at| at + 1 == parts.len()), "{name}: the unit comes last");
            }
            assert!(!["_ms", "_kb", "_mb", "_gb"].iter().any(|bad| bare.ends_with(bad)), "{name}");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
            assert!(page().contains(&format!("`{name}`")), "{name} is on the page");
        }
        assert!(names.len() > 40);
    }
}

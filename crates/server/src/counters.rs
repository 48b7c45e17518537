//! What a node counts, each with its name, its unit and its meaning in one place.
//!
//! The wire's `stats`, `forebay status` and `/metrics` all show these.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use forebay_flash::shard::Counters as Flash;

/// Name, meaning and value.
type Row = (&'static str, &'static str, u64);

/// Defines the counters, once.
macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident,)+) => {
        /// Everything that only grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $help])+ pub $name: Counter,)+
        }

        impl Counters {
            /// Name, meaning and value of each.
            fn all(&self) -> Vec<Row> {
                vec![$((stringify!($name), concat!($($help),+).trim_ascii(), self.$name.get())),+]
            }
        }
    };
}

counters! {
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
    /// Claims granted.
    claims_granted,
    /// Claims that ended because their holder did not renew them, or made no headway.
    claims_expired,
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
    /// Claims not granted because the blob would not be kept.
    claims_outside,
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
    /// Datasets that this node manages.
    pub datasets_managed: u64,
    /// The highest term that this node obeys.
    pub manager_term: u64,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

impl Gauges {
    fn all(&self) -> [Row; 16] {
        [
            ("capacity_bytes", "Most bytes that may be resident.", self.capacity_bytes),
            ("resident_bytes", "Bytes resident.", self.resident_bytes),
            ("resident_blobs", "Blobs resident.", self.resident_blobs),
            ("devices_named", "Devices that the node is to use.", self.devices_named),
            ("devices_well", "Devices that can be read and written.", self.devices_well),
            ("memory_bytes", "Bytes of blobs in memory.", self.memory_bytes),
            ("memory_hits", "Ranges answered from memory since the start.", self.memory_hits),
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
            ("datasets_managed", "Datasets that this node manages.", self.datasets_managed),
            ("manager_term", "The highest term that this node obeys.", self.manager_term),
            ("uptime_seconds", "Seconds since the start.", self.uptime_seconds),
        ]
    }
}

/// What all devices together have counted, and have now.
fn of_flash(devices: &[Flash]) -> (Vec<Row>, [Row; 2]) {
    let sum = |part: fn(&Flash) -> u64| devices.iter().map(part).sum::<u64>();
    let counted = vec![
        ("flash_inserted_bytes", "Bytes of blobs written.", sum(|d| d.inserted_bytes)),
        (
            "flash_device_bytes_written",
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
            "flash_regions_quarantined",
            "Regions that are not used for a while, because much in them was damaged.",
            sum(|d| d.regions_quarantined),
        ),
    ];
    (counted, now)
}

/// For the wire: names and values.
pub fn pairs(gauges: &Gauges, counters: &Counters, devices: &[Flash]) -> Vec<(String, u64)> {
    let (counted, now) = of_flash(devices);
    let all = gauges.all().into_iter().chain(now).chain(counters.all()).chain(counted);
    all.map(|(name, _, value)| (name.to_owned(), value)).collect()
}

/// For Prometheus.
pub fn exposition(gauges: &Gauges, counters: &Counters, devices: &[Flash]) -> String {
    let (counted, now) = of_flash(devices);
    let mut text = String::new();
    let mut metric = |name: &str, suffix: &str, kind: &str, help: &str, value: u64| {
        let name = format!("forebay_{name}{suffix}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    for (name, help, value) in gauges.all().into_iter().chain(now) {
        metric(name, "", "gauge", help, value);
    }
    for (name, help, value) in counters.all().into_iter().chain(counted) {
        metric(name, "_total", "counter", help, value);
    }
    text
}

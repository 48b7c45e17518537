//! What a node counts, each with its name, its unit and its meaning in one place.
//!
//! The wire's `stats`, `forebay status` and `/metrics` all show these.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

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
            fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
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
    /// Puts that the disk failed.
    puts_failed,
    /// Blobs evicted to make room.
    evictions,
    /// Reads that did not match their checksums: counted as misses, never handed out.
    reads_damaged,
    /// Reads that the disk failed.
    reads_failed,
    /// Connections accepted.
    connections,
    /// Connections refused, for there were too many.
    connections_refused,
    /// Challenges answered wrongly, and tables that were not what they said.
    proofs_refused,
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
    /// Blobs resident.
    pub resident_blobs: u64,
    /// Claims held.
    pub claims_held: u64,
    /// Connections open.
    pub connections_open: u64,
    /// Datasets that somebody has open.
    pub datasets_open: u64,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

impl Gauges {
    fn all(&self) -> [(&'static str, &'static str, u64); 7] {
        [
            ("capacity_bytes", "Most bytes that may be resident.", self.capacity_bytes),
            ("resident_bytes", "Bytes resident.", self.resident_bytes),
            ("resident_blobs", "Blobs resident.", self.resident_blobs),
            ("claims_held", "Claims held.", self.claims_held),
            ("connections_open", "Connections open.", self.connections_open),
            ("datasets_open", "Datasets that somebody has open.", self.datasets_open),
            ("uptime_seconds", "Seconds since the start.", self.uptime_seconds),
        ]
    }
}

/// For the wire: names and values.
pub fn pairs(gauges: &Gauges, counters: &Counters) -> Vec<(String, u64)> {
    let all = gauges.all().into_iter().chain(counters.all());
    all.map(|(name, _, value)| (name.to_owned(), value)).collect()
}

/// For Prometheus.
pub fn exposition(gauges: &Gauges, counters: &Counters) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, suffix: &str, kind: &str, help: &str, value: u64| {
        let name = format!("forebay_{name}{suffix}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    for (name, help, value) in gauges.all() {
        metric(name, "", "gauge", help, value);
    }
    for (name, help, value) in counters.all() {
        metric(name, "_total", "counter", help, value);
    }
    text
}

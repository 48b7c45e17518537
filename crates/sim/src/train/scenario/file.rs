//! Tables and keys of a training scenario file, with the positions of values.
//!
//! serde rejects what does not match the format. `check.rs` rejects invalid values, and needs their
//! positions for that.

use std::time::Duration;

use forebay_core::{ByteSize, units::ByteRate};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    scenario_file::{Capacity, FromText, Hints, Kind, Text},
    train::policy::Policy,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Checked by `scenario_file::kind`.
    #[serde(rename = "kind")]
    pub _kind: Option<Text<Kind>>,
    pub about: String,
    pub policy: Option<Text<Policy>>,
    pub seed: Option<u64>,
    pub warm_up: Option<Spanned<Text<Duration>>>,
    pub duration: Option<Spanned<Text<Duration>>>,
    pub origin: Origin,
    pub cache: Cache,
    #[serde(default)]
    pub dataset: Vec<Spanned<Dataset>>,
    #[serde(default)]
    pub job: Vec<Spanned<Job>>,
    #[serde(default)]
    pub fault: Vec<Spanned<Fault>>,
    #[serde(default)]
    pub variant: Vec<Spanned<Variant>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Origin {
    pub bandwidth: Text<ByteRate>,
    pub per_connection: Option<Text<ByteRate>>,
    pub latency: Option<Text<Duration>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    pub capacity: Spanned<Text<Capacity>>,
    pub nodes: Option<Spanned<u32>>,
    pub read_bandwidth: Text<ByteRate>,
    pub network: Option<Text<ByteRate>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dataset {
    pub name: Spanned<String>,
    pub size: Spanned<Text<ByteSize>>,
    pub items: Spanned<u64>,
    pub chunks: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    pub name: Spanned<String>,
    pub dataset: Spanned<String>,
    pub count: Option<Spanned<u32>>,
    pub gpus: Option<Spanned<u32>>,
    pub batch: Spanned<u32>,
    pub compute: Spanned<Text<Duration>>,
    pub transform: Option<Text<Duration>>,
    pub workers: Option<Spanned<u32>>,
    pub depth: Option<Spanned<u32>>,
    pub connections: Option<Spanned<u32>>,
    pub starts: Option<Spanned<Text<Duration>>>,
    pub epochs: Option<Spanned<u32>>,
    pub batches: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    pub at: Spanned<Text<Duration>>,
    pub job: Option<Spanned<String>>,
    pub node: Option<Spanned<u32>>,
    pub origin: Option<Text<ByteRate>>,
    #[serde(rename = "for")]
    pub lasting: Option<Text<Duration>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variant {
    pub name: Spanned<String>,
    pub capacity: Option<Spanned<Text<Capacity>>>,
    pub jobs: Option<Spanned<Vec<Spanned<String>>>>,
}

/// Most items of all datasets of a scenario. A permutation of them takes 400 MB.
pub(super) const ITEMS_MAX: u64 = 100_000_000;
/// Most jobs: more than any built-in scenario has, and few enough to simulate.
pub(super) const JOBS_MAX: u64 = 1000;
/// Most chunks. Half-chunks are numbered with 16 bits.
pub(super) const CHUNKS_MAX: u64 = 1 << 15;
/// Most workers, mini-batches in flight, connections, GPUs and epochs.
const COUNT_MAX: u64 = 1 << 16;

/// Lowest and highest values of numbers.
const RANGES: [(&str, u64, u64); 13] = [
    ("seed", 0, i64::MAX as u64),
    ("nodes", 1, 10_000),
    ("items", 1, ITEMS_MAX),
    ("chunks", 1, CHUNKS_MAX),
    ("count", 1, JOBS_MAX),
    ("gpus", 1, COUNT_MAX),
    ("batch", 1, 1 << 20),
    ("workers", 1, COUNT_MAX),
    ("depth", 1, COUNT_MAX),
    ("connections", 1, COUNT_MAX),
    ("epochs", 1, COUNT_MAX),
    ("batches", 1, i64::MAX as u64),
    ("node", 1, 10_000),
];

/// Tables that occur once.
const SINGLE: [&str; 2] = ["origin", "cache"];
/// Tables that may occur several times.
const SEVERAL: [&str; 4] = ["dataset", "job", "fault", "variant"];

/// Examples of keys that may be missing.
const EXAMPLES: [(&str, &str); 14] = [
    ("about", "about = \"what this shows, in one line\""),
    ("origin", "[origin] with bandwidth = \"1GB/s\" below it"),
    ("cache", "[cache] with capacity = \"20%\" and read_bandwidth = \"2GB/s\" below it"),
    ("bandwidth", "bandwidth = \"1GB/s\""),
    ("capacity", "capacity = \"100GB\""),
    ("read_bandwidth", "read_bandwidth = \"2GB/s\""),
    ("name", "name = \"imagenet\""),
    ("size", "size = \"154GB\""),
    ("items", "items = 1_281_167"),
    ("dataset", "dataset = \"imagenet\""),
    ("batch", "batch = 512"),
    ("compute", "compute = \"90ms\""),
    ("at", "at = \"10min\""),
    ("jobs", "jobs = [\"resnet50\"]"),
];

/// Examples of names of jobs and variants.
const NAMES: [(&str, &str); 2] =
    [("[[job]]", "name = \"resnet50\""), ("[[variant]]", "name = \"small\"")];

/// Remedies for errors.
pub(super) const HINTS: Hints<'static> = Hints {
    examples: &EXAMPLES,
    names: &NAMES,
    ranges: &RANGES,
    single: &SINGLE,
    several: &SEVERAL,
};

impl FromText for Policy {
    const EXPECTED: &'static str = "the name of a policy, in quotes, such as \"forebay\"";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| error.to_string())
    }
}

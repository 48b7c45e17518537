//! A scenario as it is written: the tables and keys of the file, and where each value stood.
//!
//! What the format cannot express is refused here, by serde; what makes no sense is refused by
//! `check.rs`, which needs to know where things were said.

use std::time::Duration;

use forebay_core::{ByteSize, units::ByteRate};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    train::policy::Policy,
    written::{Capacity, Kind, Text, Written},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Has been looked at already.
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
    pub compute: Text<Duration>,
    pub transform: Option<Text<Duration>>,
    pub workers: Option<Spanned<u32>>,
    pub depth: Option<Spanned<u32>>,
    pub connections: Option<Spanned<u32>>,
    pub starts: Option<Text<Duration>>,
    pub epochs: Option<Spanned<u32>>,
    pub batches: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    pub at: Text<Duration>,
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

/// What to add when a key is missing.
pub(super) const EXAMPLES: [(&str, &str); 14] = [
    ("about", "\"what this shows, in a line\""),
    ("origin", "{ bandwidth = \"1GB/s\" }"),
    ("cache", "{ capacity = \"20%\", read_bandwidth = \"2GB/s\" }"),
    ("bandwidth", "\"1GB/s\""),
    ("capacity", "\"100GB\""),
    ("read_bandwidth", "\"2GB/s\""),
    ("name", "\"imagenet\""),
    ("size", "\"154GB\""),
    ("items", "1_281_167"),
    ("dataset", "\"imagenet\""),
    ("batch", "512"),
    ("compute", "\"90ms\""),
    ("at", "\"10min\""),
    ("jobs", "[\"resnet50\"]"),
];

impl Written for Policy {
    const EXPECTED: &'static str = "the name of a policy, in quotes, such as \"forebay\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| error.to_string())
    }
}

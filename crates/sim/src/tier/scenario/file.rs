//! Tables and keys of a tier scenario file, with the positions of values.

use std::time::Duration;

use forebay_core::{ByteSize, tier::PolicyKind, units::ByteRate};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    scenario_file::{FromText, Hints, Kind, Share, Text},
    tier::workload::{Announced, Order},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Checked by `scenario_file::kind`.
    #[serde(rename = "kind")]
    pub _kind: Text<Kind>,
    pub about: String,
    pub policy: Option<Text<PolicyKind>>,
    pub seed: Option<u64>,
    pub segment: Option<Spanned<Text<ByteSize>>>,
    pub skew: Option<Text<Share>>,
    pub vary: Option<Spanned<Text<Share>>>,
    pub tier: Tier,
    pub disks: Option<Disks>,
    #[serde(default)]
    pub partition: Vec<Spanned<Partition>>,
    #[serde(default)]
    pub job: Vec<Spanned<Job>>,
    pub generator: Option<Spanned<Generator>>,
    #[serde(default)]
    pub variant: Vec<Spanned<Variant>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tier {
    pub flash: Spanned<Text<ByteSize>>,
    pub dram: Option<Text<ByteSize>>,
    pub nodes: Option<Spanned<u32>>,
    pub region_segments: Option<Spanned<u32>>,
    pub write_limit: Option<Text<ByteRate>>,
    pub threshold_min: Option<Spanned<f64>>,
    pub refresh: Option<Spanned<Text<Duration>>>,
    pub reinsertion: Option<bool>,
    pub history: Option<Text<Duration>>,
    pub history_segments: Option<usize>,
    pub expert: Option<Vec<Spanned<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disks {
    pub capacity: Text<ByteSize>,
    pub bandwidth: Text<ByteRate>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Partition {
    pub name: Spanned<String>,
    pub count: Option<Spanned<u32>>,
    pub size: Spanned<Text<ByteSize>>,
    pub columns: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    pub name: Spanned<String>,
    pub count: Option<Spanned<u32>>,
    pub reads: Spanned<Vec<Spanned<String>>>,
    pub says: Option<Spanned<Vec<Spanned<String>>>>,
    pub columns: Option<Spanned<u32>>,
    pub readers: Option<Spanned<u32>>,
    pub rate: Text<ByteRate>,
    pub wave: Option<Spanned<u32>>,
    pub order: Option<Text<Order>>,
    pub announced: Option<Text<Announced>>,
    pub stops_after: Option<Spanned<Text<Share>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Generator {
    pub tables: Spanned<u32>,
    pub days: Spanned<u32>,
    pub partition: Spanned<Text<ByteSize>>,
    pub jobs: Spanned<u32>,
    pub over: Spanned<Text<Duration>>,
    pub rate: Text<ByteRate>,
    pub expert_tables: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variant {
    pub name: Spanned<String>,
    pub flash: Option<Spanned<Text<ByteSize>>>,
    pub region_segments: Option<Spanned<u32>>,
    pub skew: Option<Text<Share>>,
    pub vary: Option<Spanned<Text<Share>>>,
    pub order: Option<Text<Order>>,
    pub announced: Option<Text<Announced>>,
    pub write_limit: Option<Text<ByteRate>>,
    pub threshold_min: Option<Spanned<f64>>,
    pub reinsertion: Option<bool>,
}

/// Examples of keys that may be missing.
const EXAMPLES: [(&str, &str); 14] = [
    ("about", "about = \"what this shows, in one line\""),
    ("tier", "[tier] with flash = \"1TB\" below it"),
    ("flash", "flash = \"1TB\""),
    ("name", "name = \"trainer\""),
    ("size", "size = \"5TB\""),
    ("reads", "reads = [\"day-1\", \"day-2\"]"),
    ("rate", "rate = \"1.5GB/s\""),
    ("capacity", "capacity = \"16TB\""),
    ("bandwidth", "bandwidth = \"200MB/s\""),
    ("tables", "tables = 85"),
    ("days", "days = 30"),
    ("partition", "partition = \"5TB\""),
    ("jobs", "jobs = 600"),
    ("over", "over = \"1440min\""),
];

/// Remedies for errors.
pub(super) const HINTS: Hints<'static> = Hints {
    examples: &EXAMPLES,
    names: &[("[[partition]]", "name = \"day\""), ("[[variant]]", "name = \"shuffled\"")],
    ranges: &[],
    single: &["tier", "disks", "generator"],
    several: &["partition", "job", "variant"],
};

impl FromText for PolicyKind {
    const EXPECTED: &'static str = "the name of a policy, in quotes, such as \"next-use\"";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| error.to_string())
    }
}

impl FromText for Order {
    const EXPECTED: &'static str =
        "an order, in quotes: \"sequence\", \"reverse\", \"parts\", \"shuffle\" or \"shuffle 10%\"";

    fn from_text(text: &str) -> Result<Self, String> {
        match text.trim() {
            "sequence" => Ok(Self::Sequence),
            "reverse" => Ok(Self::Reverse),
            "parts" => Ok(Self::Parts),
            "shuffle" => Ok(Self::Shuffle(1.0)),
            other => match other.strip_prefix("shuffle ") {
                Some(window) => Share::from_text(window).map(|share| Self::Shuffle(share.0)),
                None => Err(format!("there is no order `{other}`; write {}", Self::EXPECTED)),
            },
        }
    }
}

impl FromText for Announced {
    const EXPECTED: &'static str =
        "when a job announces its reads, in quotes: \"queued\", \"launch\", \"start\" or \"never\"";

    fn from_text(text: &str) -> Result<Self, String> {
        match text.trim() {
            "queued" => Ok(Self::Queued),
            "launch" => Ok(Self::Launch),
            "start" => Ok(Self::Start),
            "never" => Ok(Self::Never),
            other => Err(format!("`{other}` is no such time; write {}", Self::EXPECTED)),
        }
    }
}

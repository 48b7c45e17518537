//! The size of the demo's cache: the requested share of the dataset, and the overhead of a node.

use anyhow::{bail, ensure};
use forebay_core::ByteSize;
use forebay_digest::Digest;

use crate::output;

/// Fewer items cannot be cut into ten chunks that resemble the dataset.
const ITEMS_MIN: u64 = 100;
/// Regions of a small node that hold no datasets (`docs/guide/node.md`).
const SPARE_REGIONS: u64 = 3;
/// One part in this many of the blobs' length is for what regions hold beside them, and for their
/// ends.
const OVERHEAD_SHARE: u64 = 16;
/// Size of a device before its regions.
const DEVICE_HEAD: u64 = 1 << 20;
/// Size of the smallest regions.
const REGION: u64 = 1 << 20;
/// Regions of the smallest device. A node refuses a capacity of less than 8 MiB.
const REGIONS_MIN: u64 = 7;
/// Memory of the node and of each agent. It is small, because it would be another cache.
const NODE_MEMORY: ByteSize = ByteSize::mib(16);
const AGENT_MEMORY: ByteSize = ByteSize::mib(4);

/// The cache of the demo.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Share of the dataset that fits.
    pub share: f64,
    /// Capacity of the node.
    pub capacity: ByteSize,
    agent_memory: ByteSize,
}

impl Cache {
    /// A cache for a share of a dataset.
    pub fn new(share: f64, digest: &Digest) -> anyhow::Result<Self> {
        let summary = digest.summary();
        ensure!(
            summary.items >= ITEMS_MIN,
            "the dataset has {}, too few for chunks that resemble it; give {ITEMS_MIN} or more, or \
             a larger --size",
            output::count(summary.items, "item")
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
        let bytes = (share * summary.bytes as f64).ceil() as u64;
        let regions = (bytes + bytes / OVERHEAD_SHARE).div_ceil(REGION) + SPARE_REGIONS;
        if regions < REGIONS_MIN {
            let least = (REGIONS_MIN - SPARE_REGIONS) * REGION;
            let percent = (least * 100).div_ceil(summary.bytes.max(1)).next_multiple_of(10);
            let larger =
                if percent <= 100 { format!(", or --cache {percent}%") } else { String::new() };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
            let size = ByteSize((least as f64 / share).ceil() as u64);
            bail!(
                "{} of {} of data is less than the smallest cache; use {} or more{larger}",
                output::percent(share),
                ByteSize(summary.bytes),
                size
            );
        }
        let blob_max = digest.blobs().filter_map(Result::ok).map(|blob| blob.length).max();
        Ok(Self {
            share,
            capacity: ByteSize(DEVICE_HEAD + regions * REGION),
            agent_memory: AGENT_MEMORY.max(ByteSize(2 * blob_max.unwrap_or(0))),
        })
    }

    pub fn node_flags(&self) -> Vec<String> {
        let flags = ["--capacity", "--memory-cache", "--idle-exit"].map(str::to_owned);
        let [capacity, memory, idle_exit] = flags;
        vec![
            capacity,
            format!("{}B", self.capacity.0),
            memory,
            format!("{}B", NODE_MEMORY.0),
            // The node ends by itself if this process is killed.
            idle_exit,
            "10s".to_owned(),
        ]
    }

    pub fn agent_flags(&self) -> [String; 2] {
        ["--memory".to_owned(), format!("{}B", self.agent_memory.0)]
    }
}

//! The size of the demo's cache: the chunks of the requested share, and the overhead of a node.

use anyhow::{bail, ensure};
use forebay_client::ItemMap;
use forebay_core::{ByteSize, dataset::chunking::HALF_CHUNKS_PER_CHUNK};
use forebay_digest::Digest;

use crate::output;

/// Fewer items cannot be cut into ten chunks that resemble the dataset.
const ITEMS_MIN: u64 = 100;
/// The smallest number of chunks that can rotate.
const CHUNKS_MIN: u32 = 2;
/// Share of its capacity that a node gives to datasets. The rest is for regions that are not full.
const USABLE: (u64, u64) = (9, 10);
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
    /// Chunks that fit into the cache.
    pub chunks: u32,
    /// Chunks of the dataset.
    pub dataset_chunks: u32,
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
        let dataset_chunks = summary.chunking.chunks();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
        let wanted = (share * f64::from(dataset_chunks)).round() as u32;
        let chunks = wanted.max(CHUNKS_MIN).min(dataset_chunks);
        let item_map = ItemMap::new(digest)?;
        let halves = item_map.sizes().chunks(HALF_CHUNKS_PER_CHUNK as usize);
        let sizes = halves.map(|halves| halves.iter().map(|size| size.bytes.0).sum::<u64>());
        let bytes = sizes.max().unwrap_or(0) * u64::from(chunks);
        let regions = (bytes * USABLE.1 / USABLE.0).div_ceil(REGION);
        if regions < REGIONS_MIN {
            let least = REGIONS_MIN * REGION * USABLE.0 / USABLE.1;
            let share = (least * 100).div_ceil(summary.bytes.max(1)).next_multiple_of(10);
            let larger =
                if share <= 100 { format!(", or --cache {share}%") } else { String::new() };
            bail!(
                "{} of data are too little: the smallest cache holds more than {} of \
                 {dataset_chunks} chunks; use {} or more{larger}",
                ByteSize(summary.bytes),
                chunks,
                ByteSize(least * u64::from(dataset_chunks) / u64::from(chunks))
            );
        }
        let blob_max = digest.blobs().filter_map(Result::ok).map(|blob| blob.length).max();
        Ok(Self {
            chunks,
            dataset_chunks,
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

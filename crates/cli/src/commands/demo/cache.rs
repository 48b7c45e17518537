//! How large the cache is: so many of the dataset's chunks as the user's share says, and what a node needs
//! around them.

use anyhow::{bail, ensure};
use forebay_client::Layout;
use forebay_core::{ByteSize, chunking::PIECES_PER_CHUNK, digest::Digest};

/// Fewer items cannot be cut into ten chunks that look like the whole.
const ITEMS_MIN: u64 = 100;
/// The least that can rotate.
const CHUNKS_MIN: u32 = 2;
/// What a node lets datasets have, of its capacity: the rest is for regions that are not full.
const USABLE: (u64, u64) = (9, 10);
/// What a device has before its regions, how large the smallest of those are, and how many it takes: a node
/// refuses less than 8 MiB.
const DEVICE_HEAD: u64 = 1 << 20;
const REGION: u64 = 1 << 20;
const REGIONS_MIN: u64 = 7;
/// The node's and the agents' memory would be a cache of its own, if it were not small beside the data.
const NODE_MEMORY: ByteSize = ByteSize::mib(16);
const AGENT_MEMORY: ByteSize = ByteSize::mib(4);

/// The cache of the demonstration.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Chunks that it has room for, of how many.
    pub chunks: u32,
    pub of: u32,
    /// What it reserves.
    pub capacity: ByteSize,
    agent_memory: ByteSize,
}

impl Cache {
    /// For a share of a dataset.
    pub fn new(share: f64, digest: &Digest) -> anyhow::Result<Self> {
        let summary = digest.summary();
        ensure!(
            summary.items >= ITEMS_MIN,
            "{} items are too few to be cut into chunks that look alike; give {ITEMS_MIN} or more",
            summary.items
        );
        let of = summary.chunking.chunks();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
        let wanted = (share * f64::from(of)).round() as u32;
        let chunks = wanted.max(CHUNKS_MIN).min(of);
        let layout = Layout::new(digest)?;
        let pieces = layout.sizes().chunks(PIECES_PER_CHUNK as usize);
        let sizes = pieces.map(|halves| halves.iter().map(|(bytes, _)| bytes.0).sum::<u64>());
        let room = sizes.max().unwrap_or(0) * u64::from(chunks);
        let regions = (room * USABLE.1 / USABLE.0).div_ceil(REGION);
        if regions < REGIONS_MIN {
            let least = REGIONS_MIN * REGION * USABLE.0 / USABLE.1;
            let share = (least * 100).div_ceil(summary.bytes.max(1)).next_multiple_of(10);
            let larger =
                if share <= 100 { format!(", or --cache {share}%") } else { String::new() };
            bail!(
                "{} of data are too little: the smallest cache would hold more than {} of their {of} chunks; \
                 give {} or more{larger}",
                ByteSize(summary.bytes),
                chunks,
                ByteSize(least * u64::from(of) / u64::from(chunks))
            );
        }
        let blob_max = digest.blobs().filter_map(Result::ok).map(|blob| blob.length).max();
        Ok(Self {
            chunks,
            of,
            capacity: ByteSize(DEVICE_HEAD + regions * REGION),
            agent_memory: AGENT_MEMORY.max(ByteSize(2 * blob_max.unwrap_or(0))),
        })
    }

    pub fn node_flags(&self) -> Vec<String> {
        let flags = ["--capacity", "--memory", "--idle-exit"].map(str::to_owned);
        let [capacity, memory, idle_exit] = flags;
        vec![
            capacity,
            format!("{}B", self.capacity.0),
            memory,
            format!("{}B", NODE_MEMORY.0),
            // Should this process be killed, nobody else would end it.
            idle_exit,
            "10s".to_owned(),
        ]
    }

    pub fn agent_flags(&self) -> [String; 2] {
        ["--memory".to_owned(), format!("{}B", self.agent_memory.0)]
    }
}

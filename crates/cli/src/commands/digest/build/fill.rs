//! Fill: puts what a build reads into the nodes, so that the first epoch does not read it again.
//!
//! A thread of its own claims and puts blobs by address, as `forebay.wrap` does. Nothing is evicted
//! for this: it ends when a node evicts a region, has no empty one, or fails. The build goes on in
//! any case.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_client::{BlobRef, BlobsByAddress, ReadReason};
use forebay_core::{Address, BlobOrdinal, Namespace, cluster::ring::Seeds};
use tokio::sync::mpsc;

/// Longest blob that is kept in memory for a put.
pub const LENGTH_MAX: u64 = 32 << 20;
/// Blobs that wait for the thread.
const QUEUE: usize = 32;
/// A report of free space is trusted for this time. Jobs may fill the node meanwhile.
const REPORT_AGE_MAX: Duration = Duration::from_millis(500);
/// Shortest region: an empty one holds at least this.
const REGION_MIN: u64 = 1 << 20;
/// Empty regions that are left.
const REGIONS_LEFT: u64 = 2;
/// Batches without an answer after which the nodes are given up.
const FAILURES_MAX: u32 = 3;

/// What was put.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filled {
    /// Blobs that nodes have stored.
    pub blobs: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// Puts blobs into nodes.
pub struct Fill {
    sink: FillSink,
    thread: JoinHandle<Filled>,
}

/// Takes blobs for the nodes.
#[derive(Clone)]
pub struct FillSink {
    sender: mpsc::Sender<(BlobRef, Bytes)>,
    has_ended: Arc<AtomicBool>,
}

impl Fill {
    /// Begins with the nodes at `nodes`.
    pub fn start(nodes: Seeds, namespace: Namespace) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let has_ended = Arc::<AtomicBool>::default();
        let blobs = BlobsByAddress::new(Some(nodes), namespace, None, "digest build")
            .with_credentials(Credentials::from_environment()?);
        let filler = Filler {
            blobs,
            has_ended: Arc::clone(&has_ended),
            evicted: None,
            reported_at: Instant::now(),
            free: 0,
        };
        let thread = thread::Builder::new().name("forebay-fill".to_owned());
        let thread = thread.spawn(move || filler.run(receiver)).context("cannot start a thread")?;
        Ok(Self { sink: FillSink { sender, has_ended }, thread })
    }

    /// Where blobs go.
    pub fn sink(&self) -> FillSink {
        self.sink.clone()
    }

    /// Waits for the last puts. All other sinks have been dropped.
    pub fn finish(self) -> Filled {
        drop(self.sink);
        self.thread.join().unwrap_or_default()
    }
}

impl FillSink {
    /// Whether a blob of this length should be kept for [`FillSink::put`].
    pub fn wants(&self, length: u64) -> bool {
        (1..=LENGTH_MAX).contains(&length) && !self.has_ended.load(Relaxed)
    }

    /// Hands over a blob. Waits while the nodes are slower than the origin.
    pub async fn put(&self, address: Address, content: Bytes) {
        let (length, ordinal) = (content.len() as u64, BlobOrdinal::new(0));
        // The thread has ended: the nodes are full.
        let _ = self.sender.send((BlobRef { address, length, ordinal }, content)).await;
    }
}

struct Filler {
    blobs: BlobsByAddress,
    has_ended: Arc<AtomicBool>,
    /// Regions that nodes had evicted at the first report.
    evicted: Option<u64>,
    /// When free space was last reported.
    reported_at: Instant,
    /// Bytes that fit into empty regions for certain.
    free: u64,
}

impl Filler {
    fn run(mut self, mut receiver: mpsc::Receiver<(BlobRef, Bytes)>) -> Filled {
        let (mut filled, mut failures) = (Filled::default(), 0);
        while let Some(first) = receiver.blocking_recv() {
            let others = std::iter::from_fn(|| receiver.try_recv().ok()).take(QUEUE - 1);
            let batch: Vec<(BlobRef, Bytes)> = std::iter::once(first).chain(others).collect();
            if !self.has_space(batch.iter().map(|(blob, _)| blob.length).sum()) {
                break;
            }
            let refs: Vec<BlobRef> = batch.iter().map(|(blob, _)| *blob).collect();
            let reasons = self.blobs.claim(&refs);
            let is_failed = reasons.iter().all(|reason| *reason == ReadReason::NoNode);
            failures = if is_failed { failures + 1 } else { 0 };
            if failures == FAILURES_MAX {
                break;
            }
            for ((blob, content), reason) in batch.iter().zip(reasons) {
                if reason == ReadReason::Claim && self.blobs.put(blob, content) {
                    filled.blobs += 1;
                    filled.bytes += blob.length;
                }
            }
        }
        self.has_ended.store(true, Relaxed);
        filled
    }

    /// Whether these bytes fit into empty regions. They count as put.
    fn has_space(&mut self, bytes: u64) -> bool {
        if self.reported_at.elapsed() >= REPORT_AGE_MAX || self.free < bytes {
            self.free = self.ask_for_free();
            self.reported_at = Instant::now();
        }
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(0);
        left.is_some()
    }

    /// Bytes that fit into empty regions; none if a node has evicted one since the first report.
    fn ask_for_free(&mut self) -> u64 {
        let Some(stats) = self.blobs.node_stats() else { return 0 };
        let of =
            |name: &str| stats.iter().find(|(key, _)| key == name).map_or(0, |(_, value)| *value);
        let evicted = of("flash_regions_evicted");
        if *self.evicted.get_or_insert(evicted) != evicted {
            return 0;
        }
        of("flash_regions_free_min").saturating_sub(REGIONS_LEFT).saturating_mul(REGION_MIN)
    }
}

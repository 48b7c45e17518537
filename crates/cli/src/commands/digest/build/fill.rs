//! Fill: puts what a build reads into the nodes, so that the first epoch does not read it again.
//!
//! A thread of its own claims and puts blobs by address, as `forebay.wrap` does. It ends when a
//! node is full or fails ([`FillLedger`] decides), and the build goes on. Nothing is evicted for
//! it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_client::{BlobRef, BlobsByAddress, ReadReason};
use forebay_core::{
    Address, BlobOrdinal, Namespace, agent::free_space::FillLedger, cluster::ring::Seeds,
};
use tokio::sync::mpsc;

/// Longest blob that is kept in memory for a put.
pub const LENGTH_MAX: u64 = 32 << 20;
/// Blobs that wait for the thread.
const QUEUE: usize = 32;

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
        let (ledger, began) = (FillLedger::default(), Instant::now());
        let filler = Filler { blobs, has_ended: Arc::clone(&has_ended), ledger, began };
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
    ledger: FillLedger,
    began: Instant,
}

impl Filler {
    fn run(mut self, mut receiver: mpsc::Receiver<(BlobRef, Bytes)>) -> Filled {
        let mut filled = Filled::default();
        while let Some(first) = receiver.blocking_recv() {
            let others = std::iter::from_fn(|| receiver.try_recv().ok()).take(QUEUE - 1);
            let batch: Vec<(BlobRef, Bytes)> = std::iter::once(first).chain(others).collect();
            let refs: Vec<BlobRef> = batch.iter().map(|(blob, _)| *blob).collect();
            self.update_space(refs.iter().map(|blob| blob.length).sum());
            if !self.ledger.take(refs.iter().map(|blob| blob.length).sum()) {
                break;
            }
            let reasons = self.blobs.claim(&refs);
            if !self.ledger.on_batch(reasons.iter().any(|reason| *reason != ReadReason::NoNode)) {
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

    /// Asks the nodes for their free space, if the last report is too old for `bytes` more.
    fn update_space(&mut self, bytes: u64) {
        let now = self.began.elapsed();
        if !self.ledger.is_stale(now, bytes) {
            return;
        }
        let stats = self.blobs.node_stats().unwrap_or_default();
        let of =
            |name: &str| stats.iter().find(|(key, _)| key == name).map_or(0, |(_, value)| *value);
        let (regions, evicted) = (of("flash_regions_free_min"), of("flash_regions_evicted"));
        self.ledger.on_report(now, regions, evicted);
    }
}

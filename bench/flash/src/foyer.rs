//! foyer's engine.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_bench_stats::load::{Sample, Watch, drive};
use forebay_core::ByteSize;
use foyer::{
    BlockEngineConfig, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, IoEngineConfig, Load, PsyncIoEngineConfig, RecoverMode, UringIoEngineConfig,
};

use crate::{
    REGION_SIZE, STAGING, payload,
    side::{EngineKind, Store, Task},
};

/// An entry takes whole pages, one more than its value.
const PAGE: u64 = 4 << 10;

pub struct Foyer {
    cache: HybridCache<u64, Bytes>,
    payload: Bytes,
    /// Items that are certainly still resident: the last ones.
    resident: u64,
    next: u64,
    random: fastrand::Rng,
}

fn bytes(ByteSize(size): ByteSize) -> usize {
    usize::try_from(size).expect("in memory")
}

impl Foyer {
    pub async fn fill(
        directory: &Path,
        size: ByteSize,
        item: usize,
        kind: EngineKind,
    ) -> anyhow::Result<Self> {
        let device = FsDeviceBuilder::new(directory.join("foyer"))
            .with_capacity(bytes(size))
            .with_direct(true)
            .build()?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(bytes(REGION_SIZE))
            .with_buffer_pool_size(bytes(STAGING))
            .with_submit_queue_size_threshold(bytes(STAGING));
        let io: Box<dyn IoEngineConfig> = match kind {
            EngineKind::Psync => Box::new(PsyncIoEngineConfig::new()),
            _ => Box::new(UringIoEngineConfig::new()),
        };
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(1)
            .with_shards(1)
            .storage()
            .with_io_engine_config(io)
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::None)
            .build()
            .await?;
        let (payload, random) = (payload(item), fastrand::Rng::with_seed(1));
        let mut foyer = Self { cache, payload, resident: 0, next: 0, random };
        // All blocks, and an eighth more.
        foyer.insert_all(size.0 / item as u64 * 9 / 8).await?;
        foyer.resident = size.0 / 2 / (item as u64 + 2 * PAGE);
        Ok(foyer)
    }

    /// Inserts `items` items, at most as fast as memory permits, and waits until they are written.
    async fn insert_all(&mut self, items: u64) -> anyhow::Result<Sample> {
        self.insert_while(|inserted, _| inserted < items).await
    }

    async fn insert_while(
        &mut self,
        more: impl Fn(u64, Duration) -> bool,
    ) -> anyhow::Result<Sample> {
        let length = self.payload.len() as u64;
        let written = || self.cache.statistics().disk_write_bytes() as u64;
        let (before, first) = (written(), self.next);
        let mut watch = Watch::start();
        while more(self.next - first, watch.elapsed()) {
            let began = std::time::Instant::now();
            let inserted = (self.next - first) * (length + PAGE);
            if inserted.saturating_sub(written() - before) > STAGING.0 / 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            self.cache.storage_writer(self.next).force().insert(self.payload.clone());
            self.next += 1;
            watch.count(began, length);
            // Lets foyer's own tasks run.
            tokio::task::consume_budget().await;
        }
        self.cache.storage().wait().await;
        let sample = watch.finish();
        // Checks that foyer has not dropped items for lack of memory.
        for _ in 0..100 {
            let last = (self.next - first).min(64);
            let number = self.next - 1 - self.random.u64(..last);
            ensure!(self.cache.storage().may_contains(&number), "foyer dropped an item");
        }
        Ok(sample)
    }
}

impl Foyer {
    async fn read(&mut self, depth: usize, limit: Duration) -> anyhow::Result<Sample> {
        let Self { cache, random, resident, next, .. } = self;
        let store = cache.storage();
        let read = || {
            let number = *next - 1 - random.u64(..*resident);
            async move {
                match store.load(&number).await? {
                    Load::Entry { value, .. } => anyhow::Ok(value.len() as u64),
                    _ => None.context("an item is missing in foyer, or in memory"),
                }
            }
        };
        Ok(drive(depth, limit, read).await?.finish())
    }
}

impl Store for Foyer {
    async fn run(&mut self, task: Task) -> anyhow::Result<Sample> {
        match task {
            Task::Read { depth, limit } => self.read(depth, limit).await,
            Task::Write { limit, .. } => self.insert_while(|_, elapsed| elapsed < limit).await,
            Task::Rotate { items, .. } => self.insert_all(items).await,
        }
    }

    async fn device_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.cache.statistics().disk_write_bytes() as u64)
    }
}

//! forebay's engine.

use std::{cell::Cell, path::Path, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_bench_stats::load::{Sample, Watch, drive};
use forebay_core::ByteSize;
use forebay_flash::{DeviceConfig, EntryKey, Flash, FlashConfig, Group, GroupGuard, io::Backend};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{
    REGION_SIZE, STAGING, payload,
    side::{Store, Task},
};

pub struct Forebay {
    flash: Flash,
    payload: Bytes,
    items: u64,
    next: Cell<u64>,
    churn: Group,
    pin: Option<GroupGuard>,
    groups: Vec<Group>,
    random: fastrand::Rng,
}

fn key(number: u64) -> EntryKey {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    EntryKey(key)
}

impl Forebay {
    /// Fills the device. One half is pinned for reads; the other is overwritten repeatedly.
    pub async fn fill(directory: &Path, size: ByteSize, item: usize) -> anyhow::Result<Self> {
        let device = DeviceConfig {
            path: directory.join("forebay"),
            capacity: size,
            region_size: Some(REGION_SIZE),
            owner: *b"forebay's bench ",
        };
        let mut config = FlashConfig::new(vec![device]);
        config.backend = Backend::Uring;
        config.staging_buffers = STAGING;
        let flash = Flash::open(&config)?;
        let payload = payload(item);
        let items = size.0 / 2 / (item as u64 + item as u64 / 16);
        let read = flash.group(b"read", 1, false).await?;
        let churn = flash.group(b"churn", 1, false).await?;
        let (pin, groups) = (Some(read.pin()?), vec![read]);
        let (next, random) = (Cell::new(0), fastrand::Rng::with_seed(1));
        let mut forebay = Self { flash, payload, items, next, churn, pin, groups, random };
        forebay.append_all(0, items, 16).await?;
        while forebay.flash.counters()[0].regions_evicted == 0 {
            forebay.write(16, Duration::from_millis(200)).await?;
        }
        Ok(forebay)
    }

    /// Appends to one of the groups, and seals it.
    async fn append_all(&self, group: usize, items: u64, depth: usize) -> anyhow::Result<Sample> {
        let group = &self.groups[group];
        let mut watch = Watch::start();
        let appends = futures::stream::iter(0..items).map(async |_| {
            let began = std::time::Instant::now();
            self.append(group).await.map(|_| began)
        });
        let mut appends = appends.buffer_unordered(depth);
        while let Some(began) = appends.try_next().await? {
            watch.count(began, self.payload.len() as u64);
        }
        group.seal().await?;
        Ok(watch.finish())
    }

    async fn append(&self, group: &Group) -> anyhow::Result<u64> {
        let number = self.next.replace(self.next.get() + 1);
        group.append(key(number), 0, self.payload.clone()).await?;
        Ok(self.payload.len() as u64)
    }
}

impl Forebay {
    async fn read(&mut self, depth: usize, limit: Duration) -> anyhow::Result<Sample> {
        let Self { flash, random, items, .. } = self;
        let read = || {
            let key = key(random.u64(..*items));
            let flash = &*flash;
            async move {
                let found =
                    flash.read(key, None).await?.context("a pinned item is missing in forebay")?;
                anyhow::Ok(found.bytes.len() as u64)
            }
        };
        Ok(drive(depth, limit, read).await?.finish())
    }

    async fn write(&mut self, depth: usize, limit: Duration) -> anyhow::Result<Sample> {
        let watch = drive(depth, limit, || self.append(&self.churn)).await?;
        self.flash.flush().await?;
        Ok(watch.finish())
    }

    async fn rotate(&mut self, depth: usize, items: u64) -> anyhow::Result<Sample> {
        if self.pin.take().is_some() {
            // The first rotation: from here on there are only groups of this size.
            self.churn.free(Duration::ZERO).await?;
            self.groups.remove(0).free(Duration::ZERO).await?;
            for name in [&b"rotation 0"[..], b"rotation 1"] {
                self.groups.push(self.flash.group(name, 1, false).await?);
                self.append_all(self.groups.len() - 1, items, 16).await?;
            }
        }
        let name = format!("rotation at {}", self.next.get());
        let oldest = self.groups.remove(0);
        self.groups.push(self.flash.group(name.as_bytes(), 1, false).await?);
        let fill = self.append_all(self.groups.len() - 1, items, depth);
        let (filled, freed) = futures::join!(fill, oldest.free(Duration::ZERO));
        freed?;
        filled
    }
}

impl Store for Forebay {
    async fn run(&mut self, task: Task) -> anyhow::Result<Sample> {
        match task {
            Task::Read { depth, limit } => self.read(depth, limit).await,
            Task::Write { depth, limit } => self.write(depth, limit).await,
            Task::Rotate { depth, items } => self.rotate(depth, items).await,
        }
    }

    async fn device_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.flash.counters()[0].device_bytes_written)
    }
}

//! Our side.

use std::{cell::Cell, path::Path, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{Config, DeviceConfig, Flash, Group, Held, Key, io::Backend};
use forebay_measure::load::{Sample, Watch, drive};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{
    REGION_SIZE, STAGING, payload,
    side::{Order, Store},
};

pub struct Ours {
    flash: Flash,
    payload: Bytes,
    items: u64,
    next: Cell<u64>,
    churn: Group,
    pin: Option<Held>,
    groups: Vec<Group>,
    random: fastrand::Rng,
}

fn key(number: u64) -> Key {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    Key(key)
}

impl Ours {
    /// Half of the device can be read and stays; the rest is written over and over.
    pub async fn fill(directory: &Path, size: ByteSize, item: usize) -> anyhow::Result<Self> {
        let device = DeviceConfig {
            path: directory.join("ours"),
            capacity: size,
            region_size: Some(REGION_SIZE),
            owner: *b"forebay's bench ",
        };
        let mut config = Config::new(vec![device]);
        config.backend = Backend::Uring;
        config.staging = STAGING;
        let flash = Flash::open(&config)?;
        let payload = payload(item);
        let items = size.0 / 2 / (item as u64 + item as u64 / 16);
        let read = flash.group(b"read", 1, false).await?;
        let churn = flash.group(b"churn", 1, false).await?;
        let (pin, groups) = (Some(read.pin()?), vec![read]);
        let (next, random) = (Cell::new(0), fastrand::Rng::with_seed(1));
        let mut ours = Self { flash, payload, items, next, churn, pin, groups, random };
        ours.append_all(0, items, 16).await?;
        while ours.flash.counters()[0].regions_evicted == 0 {
            ours.write(16, Duration::from_millis(200)).await?;
        }
        Ok(ours)
    }

    /// Into one of the groups, which is then sealed.
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

impl Ours {
    async fn read(&mut self, depth: usize, limit: Duration) -> anyhow::Result<Sample> {
        let Self { flash, random, items, .. } = self;
        let read = || {
            let key = key(random.u64(..*items));
            let flash = &*flash;
            async move {
                let found = flash.read(key, None).await?.context("an item of ours is gone")?;
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

    async fn turn(&mut self, depth: usize, items: u64) -> anyhow::Result<Sample> {
        if self.pin.take().is_some() {
            // The first time: only groups of this size from here on.
            self.churn.free(Duration::ZERO).await?;
            self.groups.remove(0).free(Duration::ZERO).await?;
            for name in [&b"turn"[..], b"turn and turn"] {
                self.groups.push(self.flash.group(name, 1, false).await?);
                self.append_all(self.groups.len() - 1, items, 16).await?;
            }
        }
        let name = format!("turn {}", self.next.get());
        let oldest = self.groups.remove(0);
        self.groups.push(self.flash.group(name.as_bytes(), 1, false).await?);
        let fill = self.append_all(self.groups.len() - 1, items, depth);
        let (filled, freed) = futures::join!(fill, oldest.free(Duration::ZERO));
        freed?;
        filled
    }
}

impl Store for Ours {
    async fn run(&mut self, order: Order) -> anyhow::Result<Sample> {
        match order {
            Order::Read { depth, limit } => self.read(depth, limit).await,
            Order::Write { depth, limit } => self.write(depth, limit).await,
            Order::Turn { depth, items } => self.turn(depth, items).await,
        }
    }

    async fn device_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.flash.counters()[0].device_bytes_written)
    }
}

//! The engine under load: one half of a device is a sealed, pinned group that is read, the other is for
//! what is written and evicted.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{Config, DeviceConfig, Flash, Group, Held, Key, io::Backend};
use forebay_measure::load::{Sample, drive};

use super::Case;

/// As on a device of a common size; by default a small one has smaller regions.
const REGION_SIZE: ByteSize = ByteSize::mib(32);
/// Filling needs no more to keep a device busy.
const FILL_DEPTH: usize = 16;

/// An engine with something to read.
pub struct Engine {
    flash: Flash,
    backend: Backend,
    payload: Bytes,
    /// Items that can be read: these keys, counted from nought.
    items: u64,
    churn: Group,
    next: AtomicU64,
    random: fastrand::Rng,
    pin: Held,
    file: Temporary,
}

/// Groups that come and go.
pub struct Rotation {
    flash: Flash,
    payload: Bytes,
    /// Items of a group.
    count: u64,
    older: Group,
    newer: Group,
    turns: u64,
    _file: Temporary,
}

/// A file that goes when nobody needs it any more.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A key like the hash it would be.
pub fn key(number: u64) -> Key {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    Key(key)
}

/// Incompressible, in case somebody below compresses.
pub fn payload(item: usize) -> Bytes {
    let mut payload = vec![0; item];
    fastrand::Rng::with_seed(9).fill(&mut payload);
    payload.into()
}

/// An engine on one file.
pub fn open(path: &Path, capacity: ByteSize, backend: Backend) -> anyhow::Result<Flash> {
    let device = DeviceConfig {
        path: path.to_owned(),
        capacity,
        region_size: Some(REGION_SIZE),
        owner: *b"forebay's bench ",
    };
    let mut config = Config::new(vec![device]);
    config.backend = backend;
    Ok(Flash::open(&config)?)
}

/// Appends so many items from this number on.
pub async fn fill(
    group: &Group,
    payload: &Bytes,
    numbers: std::ops::Range<u64>,
    depth: usize,
) -> anyhow::Result<Sample> {
    use futures::{StreamExt as _, TryStreamExt as _};
    let mut watch = forebay_measure::load::Watch::start();
    let appends = futures::stream::iter(numbers).map(async |number| {
        let began = std::time::Instant::now();
        group.append(key(number), 0, payload.clone()).await.map(|()| began)
    });
    let mut appends = appends.buffer_unordered(depth);
    while let Some(began) = appends.try_next().await? {
        watch.count(began, payload.len() as u64);
    }
    group.seal().await?;
    Ok(watch.finish())
}

impl Engine {
    /// A device, written from one end to the other.
    pub async fn fill(
        directory: &Path,
        size: ByteSize,
        backend: Backend,
        item: usize,
    ) -> anyhow::Result<Self> {
        let file = Temporary(directory.join("engine"));
        let flash = open(&file.0, size, backend)?;
        let payload = payload(item);
        // Headers and footers take a little; 4 KiB items pay for theirs with three hundredths.
        let items = size.0 / 2 / (item as u64 + item as u64 / 16);
        let group = flash.group(b"read", 1, false).await?;
        fill(&group, &payload, 0..items, FILL_DEPTH).await?;
        let pin = group.pin()?;
        let churn = flash.group(b"churn", 2, false).await?;
        let written = AtomicU64::new(items);
        let engine = Self {
            flash,
            backend,
            payload,
            items,
            churn,
            next: written,
            random: fastrand::Rng::with_seed(2),
            pin,
            file,
        };
        // Until something has been evicted: every block has been written.
        while engine.flash.counters()[0].regions_evicted == 0 {
            let limit = Duration::from_millis(100);
            drive(FILL_DEPTH, limit, || engine.append()).await?;
        }
        engine.flash.flush().await?;
        Ok(engine)
    }

    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Does this for a while.
    pub async fn run(&mut self, case: Case) -> anyhow::Result<Sample> {
        let mut random = self.random.fork();
        let engine = &*self;
        let watch = drive(case.depth, case.limit, || {
            let write = case.load.is_write(&mut random);
            let number = random.u64(..engine.items);
            async move { if write { engine.append().await } else { engine.read(number).await } }
        })
        .await?;
        if case.load != super::Load::Read {
            self.flash.flush().await?;
        }
        Ok(watch.finish())
    }

    async fn append(&self) -> anyhow::Result<u64> {
        let number = self.next.fetch_add(1, Relaxed);
        self.churn.append(key(number), 0, self.payload.clone()).await?;
        Ok(self.payload.len() as u64)
    }

    async fn read(&self, number: u64) -> anyhow::Result<u64> {
        let found = self.flash.read(key(number), None).await?;
        Ok(found.context("an item is gone that was pinned")?.bytes.len() as u64)
    }

    /// The same device, with two groups of so many items on it and nothing else.
    pub async fn into_rotation(self, count: usize) -> anyhow::Result<Rotation> {
        let Self { flash, payload, churn, pin, file, .. } = self;
        drop(pin);
        churn.free(Duration::ZERO).await?;
        flash.group(b"read", 1, false).await?.free(Duration::ZERO).await?;
        let count = count as u64;
        let older = flash.group(b"turn 0", 1, false).await?;
        fill(&older, &payload, 0..count, FILL_DEPTH).await?;
        let newer = flash.group(b"turn 1", 1, false).await?;
        fill(&newer, &payload, count..2 * count, FILL_DEPTH).await?;
        Ok(Rotation { flash, payload, count, older, newer, turns: 2, _file: file })
    }
}

impl Rotation {
    /// Frees the older group and fills the next; also tells how much was written to the device for it.
    pub async fn turn(&mut self, depth: usize) -> anyhow::Result<(Sample, u64)> {
        let before = self.flash.counters()[0].device_bytes_written;
        let name = format!("turn {}", self.turns);
        let numbers = self.turns * self.count..(self.turns + 1) * self.count;
        let next = self.flash.group(name.as_bytes(), 1, false).await?;
        let (filled, freed) = futures::join!(
            fill(&next, &self.payload, numbers, depth),
            self.older.free(Duration::ZERO)
        );
        freed?;
        let filled = filled?;
        self.turns += 1;
        self.older = std::mem::replace(&mut self.newer, next);
        let after = self.flash.counters()[0].device_bytes_written;
        Ok((filled, after - before))
    }
}

//! The engine under load. One half of the device is a sealed, pinned group, which is read. The
//! other half takes writes and evictions.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_bench_stats::load::{Sample, drive};
use forebay_core::ByteSize;
use forebay_flash::{DeviceConfig, EntryKey, Flash, FlashConfig, Group, GroupGuard, io::Backend};

use super::Case;

/// Region size of a large device. A small device has smaller regions by default.
const REGION_SIZE: ByteSize = ByteSize::mib(32);
/// Appends in flight while filling: enough to keep a device busy.
const FILL_DEPTH: usize = 16;

/// An engine with items to read.
pub struct Engine {
    flash: Flash,
    backend: Backend,
    payload: Bytes,
    /// Number of readable items: the keys of 0..items.
    items: u64,
    churn: Group,
    next: AtomicU64,
    random: fastrand::Rng,
    pin: GroupGuard,
    file: Temporary,
}

/// An engine with two groups, of which the older one is replaced in each turn.
pub struct Rotation {
    flash: Flash,
    payload: Bytes,
    /// Items per group.
    count: u64,
    older: Group,
    newer: Group,
    turns: u64,
    _file: Temporary,
}

/// A file that is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A key that looks like a hash.
pub fn key(number: u64) -> EntryKey {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    EntryKey(key)
}

/// Incompressible bytes, because a file system or device may compress.
pub fn payload(item: usize) -> Bytes {
    let mut payload = vec![0; item];
    fastrand::Rng::with_seed(9).fill(&mut payload);
    payload.into()
}

/// Opens an engine on one file.
pub fn open(path: &Path, capacity: ByteSize, backend: Backend) -> anyhow::Result<Flash> {
    let device = DeviceConfig {
        path: path.to_owned(),
        capacity,
        region_size: Some(REGION_SIZE),
        owner: *b"forebay's bench ",
    };
    let mut config = FlashConfig::new(vec![device]);
    config.backend = backend;
    Ok(Flash::open(&config)?)
}

/// Appends these items to a group and seals it.
pub async fn fill(
    group: &Group,
    payload: &Bytes,
    numbers: std::ops::Range<u64>,
    depth: usize,
) -> anyhow::Result<Sample> {
    use futures::{StreamExt as _, TryStreamExt as _};
    let mut watch = forebay_bench_stats::load::Watch::start();
    let appends = futures::stream::iter(numbers).map(async |number| {
        let began = std::time::Instant::now();
        group.append(key(number), 0, payload.clone()).await.map(|_| began)
    });
    let mut appends = appends.buffer_unordered(depth);
    while let Some(began) = appends.try_next().await? {
        watch.count(began, payload.len() as u64);
    }
    group.seal().await?;
    Ok(watch.finish())
}

impl Engine {
    /// Makes a device on which every block has been written.
    pub async fn fill(
        directory: &Path,
        size: ByteSize,
        backend: Backend,
        item: usize,
    ) -> anyhow::Result<Self> {
        let file = Temporary(directory.join("engine"));
        let flash = open(&file.0, size, backend)?;
        let payload = payload(item);
        // Room for headers and footers, which take 3 % with items of 4 KiB.
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
        // After the first eviction every block has been written.
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

    /// Runs a load.
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
        Ok(found.context("a pinned item is missing")?.bytes.len() as u64)
    }

    /// Replaces the contents of the device by two groups of `count` items each.
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
    /// Frees the older group and fills the next. Also returns the bytes written to the device.
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

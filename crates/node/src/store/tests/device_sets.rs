//! Device sets: between two runs, devices are added, removed, reordered and resized, with every
//! combination of capacities and region sizes. Each blob is kept or forgotten. None is resident and
//! unreadable.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, Namespace,
    dataset::blob_table::{BlobRow, BlobTable},
};
use forebay_flash::{
    DeviceConfig, Flash, FlashConfig,
    device_thread::DeviceThread,
    format::{BLOCK_SIZE, DeviceId, Geometry, SUPERBLOCK_OFFSETS, Superblock},
    io::{Completion, Disk, IoCommand, Waker, sim::SimDisk},
    recovery::Recovery,
    shard::{BufferPools, OldestFirst, Settings},
};
use forebay_transport::Entropy;
use parking_lot::{Condvar, Mutex};

use crate::store::{
    blob_store::{BlobStore, Read},
    eviction::DatasetUses,
};

/// Devices that a world can use.
const DEVICES: usize = 4;
/// Runs of a world, each with other devices.
const RUNS: usize = 6;
/// Around the sizes that decide: empty, a head's 48 bytes, one unit, and what fits into a region.
const LENGTHS: [usize; 14] = [
    0, 1, 47, 48, 49, 64, 65, 4096, 100_000, 1_000_000, 1_048_576, 1_500_000, 2_200_000, 4_300_000,
];

/// One device of a run.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    device: usize,
    regions: u32,
    /// For a device that is formatted now.
    region_size: u64,
}

/// Where the devices are.
trait Medium {
    fn open(&mut self, devices: &[Chosen]) -> Flash;
    /// Closes the devices. With `crash`, what was not synced may be lost.
    fn close(&mut self, store: BlobStore, crash: bool);
    /// Region size of a device, if it is formatted.
    fn region_size(&self, device: usize) -> Option<u64>;
}

struct Files {
    directory: tempfile::TempDir,
    region_sizes: [Option<u64>; DEVICES],
}

impl Medium for Files {
    fn open(&mut self, devices: &[Chosen]) -> Flash {
        let config = |chosen: &Chosen| {
            let region_size = *self.region_sizes[chosen.device].get_or_insert(chosen.region_size);
            DeviceConfig {
                path: self.directory.path().join(format!("{}.flash", chosen.device)),
                capacity: ByteSize((1 << 20) + u64::from(chosen.regions) * region_size),
                region_size: Some(ByteSize(region_size)),
                owner: [7; 16],
            }
        };
        let mut config = FlashConfig::new(devices.iter().map(config).collect());
        config.read_buffers = ByteSize::mib(16);
        config.staging_buffers = ByteSize::mib(4);
        Flash::open(&config).unwrap()
    }

    fn close(&mut self, store: BlobStore, _crash: bool) {
        drop(store);
    }

    fn region_size(&self, device: usize) -> Option<u64> {
        self.region_sizes[device]
    }
}

/// A simulated disk that a device thread uses and the test takes back.
#[derive(Clone)]
struct Drive(Arc<DriveState>);

struct DriveState {
    disk: Mutex<Option<SimDisk>>,
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Drive {
    fn new(disk: SimDisk) -> Self {
        let (disk, woken, wakes) = (Mutex::new(Some(disk)), Mutex::new(false), Condvar::new());
        Self(Arc::new(DriveState { disk, woken, wakes }))
    }
}

impl Disk for Drive {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        self.0.disk.lock().as_mut().expect("in use").submit(commands);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        self.0.disk.lock().as_mut().expect("in use").wait(timeout, done);
        if done.is_empty() {
            let mut woken = self.0.woken.lock();
            if !*woken {
                let timeout = timeout.unwrap_or(Duration::from_secs(1));
                self.0.wakes.wait_for(&mut woken, timeout);
            }
            *woken = false;
        }
    }

    fn waker(&self) -> Waker {
        let state = Arc::clone(&self.0);
        Arc::new(move || {
            *state.woken.lock() = true;
            state.wakes.notify_all();
        })
    }
}

struct Simulated {
    seed: u64,
    disks: [Option<SimDisk>; DEVICES],
    open: Vec<(usize, Drive)>,
}

impl Simulated {
    /// The disk of a device with a superblock for this run, and the number of regions before.
    fn prepare(&mut self, chosen: &Chosen) -> (SimDisk, Superblock, u32) {
        let formatted = self.disks[chosen.device].take();
        let (disk, known) = if let Some(disk) = formatted {
            let copies = SUPERBLOCK_OFFSETS.map(|at| Superblock::decode(&disk.get(at)));
            let newest = copies.into_iter().flatten().max_by_key(|copy| copy.epoch);
            (disk, newest.expect("one copy is valid"))
        } else {
            let device = DeviceId(chosen.device as u64 + 1);
            let (region_size, regions) = (chosen.region_size, chosen.regions);
            let geometry = Geometry { device, region_size, regions };
            let superblock = Superblock { geometry, owner: [7; 16], epoch: 0 };
            let mut block = vec![0; BLOCK_SIZE];
            superblock.encode(&mut block);
            let seed = self.seed * 100 + chosen.device as u64;
            let mut disk = SimDisk::new(seed, geometry.device_size());
            for at in SUPERBLOCK_OFFSETS {
                disk.put(at, &block);
            }
            (disk, superblock)
        };
        let geometry = Geometry { regions: chosen.regions, ..known.geometry };
        let superblock = Superblock { geometry, epoch: known.epoch + 1, ..known };
        (disk.resized(geometry.device_size()), superblock, known.geometry.regions)
    }
}

impl Medium for Simulated {
    fn open(&mut self, devices: &[Chosen]) -> Flash {
        let mut threads = Vec::new();
        for chosen in devices {
            let (disk, superblock, regions_before) = self.prepare(chosen);
            let drive = Drive::new(disk);
            self.open.push((chosen.device, drive.clone()));
            let pools = BufferPools::new(4 << 20, 1 << 20, 16 << 20).unwrap();
            let settings = Settings { scrub_rate: None, ..Settings::default() };
            let eviction = Box::new(OldestFirst);
            let recovery =
                Recovery::new(settings, superblock, regions_before, pools.clone(), eviction);
            let name = format!("simulated {}", chosen.device);
            let started = DeviceThread::start(name, recovery, pools, move || Box::new(drive));
            threads.push(started.unwrap().expect("the disk has no faults"));
        }
        Flash::on_devices(threads)
    }

    fn close(&mut self, store: BlobStore, crash: bool) {
        drop(store);
        for (device, drive) in self.open.drain(..) {
            let disk = drive.0.disk.lock().take().expect("in use");
            self.disks[device] = Some(if crash { disk.crash() } else { disk });
        }
    }

    fn region_size(&self, device: usize) -> Option<u64> {
        let disk = self.disks[device].as_ref()?;
        let copies = SUPERBLOCK_OFFSETS.map(|at| Superblock::decode(&disk.get(at)));
        Some(copies.into_iter().flatten().next()?.geometry.region_size)
    }
}

fn content(blob: usize) -> Bytes {
    let mut bytes = vec![0; LENGTHS[blob]];
    Rng::with_seed(blob as u64).fill(&mut bytes);
    bytes.into()
}

fn table() -> BlobTable {
    let row = |blob: usize| {
        let mut address = [0; 32];
        Rng::with_seed(1000 + blob as u64).fill(&mut address);
        BlobRow { address: Address::from_bytes(address), length: LENGTHS[blob] as u64 }
    };
    let rows: Vec<BlobRow> = (0..LENGTHS.len()).map(row).collect();
    BlobTable::by_address(Namespace::public().id(), &rows).unwrap()
}

/// The devices of a run: one to three of them, in any order.
fn choose(random: &mut Rng, medium: &dyn Medium) -> Vec<Chosen> {
    let mut devices: Vec<usize> = (0..DEVICES).collect();
    random.shuffle(&mut devices);
    devices.truncate(random.usize(1..=3));
    let chosen = |device| {
        let region_size = 1 << random.u32(20..=23);
        let size = medium.region_size(device).unwrap_or(region_size);
        // 16 to 40 MiB, and at least four regions.
        let regions = (random.u64(16..=40) << 20) / size;
        Chosen { device, region_size, regions: u32::try_from(regions).unwrap().max(4) }
    };
    devices.into_iter().map(chosen).collect()
}

async fn is_readable(store: &BlobStore, row: BlobRow, blob: usize, range: Range<u64>) -> bool {
    let expected = |at: u64| usize::try_from(at).unwrap();
    match store.read(row, range.clone()).await {
        Read::Hit(bytes) => {
            let expected = content(blob).slice(expected(range.start)..expected(range.end));
            assert!(bytes == expected, "promise 1: blob {blob} {range:?}");
            true
        }
        Read::Gone | Read::OtherLength | Read::Failed => false,
    }
}

async fn put(store: &BlobStore, table: &BlobTable, row: BlobRow, blob: usize) {
    let ordinal = BlobOrdinal::new(blob as u64);
    let mut write = store.begin_write(table, ordinal, row).unwrap().expect("memory");
    for part in content(blob).chunks(700_000) {
        write.append(store, Bytes::copy_from_slice(part)).await.unwrap();
    }
    write.finish(store).await.unwrap();
}

async fn run(random: &mut Rng, store: &BlobStore, kept: &[usize]) -> Vec<usize> {
    let table = table();
    for (blob, row) in table.rows().iter().enumerate() {
        let start = random.u64(..=row.length);
        let range = start..random.u64(start..=row.length);
        let was_resident = store.contains(&row.address);
        for range in [range, 0..row.length] {
            if !is_readable(store, *row, blob, range.clone()).await {
                assert!(!kept.contains(&blob), "blob {blob} was kept by all its devices");
                let is_resident = store.contains(&row.address);
                assert!(!is_resident, "blob {blob} is resident and not readable {range:?}");
            }
        }
        if !was_resident {
            assert!(!store.contains(&row.address), "a read makes nothing resident");
        }
    }
    // Puts may evict.
    for (blob, row) in table.rows().iter().enumerate() {
        if !store.contains(&row.address) && random.u8(..4) > 0 {
            put(store, &table, *row, blob).await;
            assert!(is_readable(store, *row, blob, 0..row.length).await, "blob {blob}, just put");
        }
    }
    let mut readable = Vec::new();
    for (blob, row) in table.rows().iter().enumerate() {
        if is_readable(store, *row, blob, 0..row.length).await {
            readable.push(blob);
        }
    }
    readable
}

fn live(seed: u64, medium: &mut dyn Medium) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut random = Rng::with_seed(seed);
    let (mut before, mut readable): (Vec<Chosen>, Vec<usize>) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut chosen = choose(&mut random, medium);
        if random.bool() {
            // The same devices and more: nothing is lost.
            let more = chosen.into_iter();
            let more = more.filter(|one| before.iter().all(|other| other.device != one.device));
            chosen = before.iter().copied().chain(more).collect();
            random.shuffle(&mut chosen);
            if chosen.is_empty() {
                continue;
            }
        }
        let is_same = |one: &Chosen| {
            chosen.iter().any(|new| new.device == one.device && new.regions >= one.regions)
        };
        if !before.iter().all(is_same) {
            readable.clear();
        }
        let flash = medium.open(&chosen);
        let store = BlobStore::new(flash, DatasetUses::new(), ByteSize(0), Entropy::kernel());
        readable = runtime.block_on(run(&mut random, &store, &readable));
        let crash = random.u8(..4) == 0;
        if crash {
            readable.clear();
        } else {
            runtime.block_on(store.flush()).unwrap();
        }
        medium.close(store, crash);
        before = chosen;
    }
}

/// Promises 3 and 7, on files.
#[test]
fn blobs_are_kept_or_forgotten_on_any_set_of_files() {
    for seed in 0..8 {
        let directory = tempfile::tempdir().unwrap();
        live(seed, &mut Files { directory, region_sizes: [None; DEVICES] });
    }
}

/// Promises 3 and 7, on simulated disks, with power failures.
#[test]
fn blobs_are_kept_or_forgotten_on_any_set_of_simulated_disks() {
    for seed in 0..12 {
        live(seed, &mut Simulated { seed, disks: [const { None }; DEVICES], open: Vec::new() });
    }
}

//! Disks: the simulated devices of one node, which outlive its runs.
//!
//! Between two runs, devices are added and removed, and each new one has a region size of its own.
//! Within a run a task takes the turns of each device, with the disk's latency in between.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use forebay_flash::{
    Flash,
    device_thread::{DeviceDriver, DeviceThread, Turn},
    format::{BLOCK_SIZE, DeviceId, Geometry, SUPERBLOCK_OFFSETS, Superblock},
    io::{
        Completion, Disk, IoCommand, Waker,
        sim::{FaultRates, SimDisk},
    },
    recovery::Recovery,
    shard::{BufferPools, Eviction, Settings},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Devices that a node can have.
pub const DEVICES_MAX: usize = 2;
/// Size of a data write: small, so that small worlds write often.
const WRITE_SIZE: usize = 16 << 10;
/// Memory of a device: on its way to it, of that filled in place, and read from it.
const POOLS: (usize, usize, usize) = (3 << 20, 1 << 20, 4 << 20);

/// Makes the eviction policy of a device.
pub type EvictionPolicy = Arc<dyn Fn() -> Box<dyn Eviction> + Send + Sync>;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The process has ended. Completed writes stay.
    Process,
    /// The power has failed. Of writes that were not synced, any part is lost.
    Power,
}

/// The devices of a node.
pub struct Disks {
    random: Rng,
    regions: u32,
    shelf: [Option<SimDisk>; DEVICES_MAX],
    running: Vec<(usize, Drive)>,
}

/// A simulated disk that a device uses and the world takes back.
#[derive(Clone)]
struct Drive(Arc<DriveState>);

struct DriveState {
    disk: Mutex<Option<SimDisk>>,
    woken: Notify,
}

impl Drive {
    /// Number of commands that run.
    fn pending(&self) -> usize {
        self.0.disk.lock().as_ref().map_or(0, |disk| disk.pending().count())
    }
}

impl Disk for Drive {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        if let Some(disk) = &mut *self.0.disk.lock() {
            disk.submit(commands);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        if let Some(disk) = &mut *self.0.disk.lock() {
            disk.wait(timeout, done);
        }
    }

    fn waker(&self) -> Waker {
        let state = Arc::clone(&self.0);
        Arc::new(move || state.woken.notify_one())
    }
}

impl Disks {
    /// No devices. Each new one has this number of regions.
    pub fn new(random: Rng, regions: u32) -> Self {
        Self { random, regions, shelf: [None, None], running: Vec::new() }
    }

    /// Opens these devices, and starts a task for each.
    pub fn open(
        &mut self,
        devices: &[usize],
        eviction: &EvictionPolicy,
        tasks: &mut JoinSet<()>,
    ) -> Flash {
        let mut threads = Vec::new();
        for device in devices {
            let (disk, superblock, regions_before) = self.prepare(*device);
            let (staging, in_place, read) = POOLS;
            let pools = BufferPools::new(staging, in_place, read).expect("memory");
            let settings =
                Settings { write_size: WRITE_SIZE, scrub_rate: None, ..Settings::default() };
            let recovery =
                Recovery::new(settings, superblock, regions_before, pools.clone(), eviction());
            let (disk, woken) = (Mutex::new(Some(disk)), Notify::new());
            let drive = Drive(Arc::new(DriveState { disk, woken }));
            let (thread, driver) =
                DeviceThread::driven(recovery, pools.clone(), Box::new(drive.clone()))
                    .expect("a disk has no faults while it is opened");
            pools.read.on_release({
                // A reply may keep its buffer after the device is closed.
                let waker = Arc::downgrade(&thread.waker());
                move || {
                    if let Some(waker) = waker.upgrade() {
                        waker();
                    }
                }
            });
            tasks.spawn(drive_device(driver, drive.clone(), self.random.fork()));
            threads.push(thread);
            self.running.push((*device, drive));
        }
        Flash::on_devices(threads)
    }

    /// The disk of a device, with the superblock of this run and the number of regions before.
    fn prepare(&mut self, device: usize) -> (SimDisk, Superblock, u32) {
        let seed = self.random.u64(..);
        let region_size = 1 << self.random.u32(20..=21);
        let (disk, known) = if let Some(disk) = self.shelf[device].take() {
            let copies = SUPERBLOCK_OFFSETS.map(|at| Superblock::decode(&disk.get(at)));
            let newest = copies.into_iter().flatten().max_by_key(|copy| copy.epoch);
            (disk, newest.expect("one copy is valid"))
        } else {
            let device = DeviceId(seed | 1);
            let geometry = Geometry { device, region_size, regions: self.regions };
            let superblock = Superblock { geometry, owner: [7; 16], epoch: 0 };
            let mut block = vec![0; BLOCK_SIZE];
            superblock.encode(&mut block);
            let mut disk = SimDisk::new(seed, geometry.device_size());
            for at in SUPERBLOCK_OFFSETS {
                disk.put(at, &block);
            }
            (disk, superblock)
        };
        let superblock = Superblock { epoch: known.epoch + 1, ..known };
        (disk, superblock, known.geometry.regions)
    }

    /// Sets the fault rates of all devices that run.
    pub fn set_faults(&mut self, faults: FaultRates) {
        for (_, drive) in &self.running {
            if let Some(disk) = &mut *drive.0.disk.lock() {
                disk.set_fault_rates(faults);
            }
        }
    }

    /// Takes the disks back after the end of a run.
    pub fn close(&mut self, end: RunEnd) {
        for (device, drive) in self.running.drain(..) {
            let disk = drive.0.disk.lock().take().expect("opened once");
            let mut disk = match end {
                RunEnd::Process => disk.kill(),
                RunEnd::Power => disk.crash(),
            };
            disk.set_fault_rates(FaultRates::default());
            self.shelf[device] = Some(disk);
        }
    }
}

/// Takes the turns of a device until it is closed.
async fn drive_device(mut driver: DeviceDriver, drive: Drive, mut random: Rng) {
    loop {
        let Turn::Next(after) = driver.turn() else { return };
        let pending = drive.pending();
        if pending == 0 {
            let woken = drive.0.woken.notified();
            match after {
                Some(after) => drop(timeout(after, woken).await),
                None => woken.await,
            }
            continue;
        }
        // Half of the commands are fast, as reads of a flash device are.
        if random.bool() {
            sleep(Duration::from_micros(random.u64(100..2000))).await;
        } else {
            tokio::task::yield_now().await;
        }
        for _ in 0..random.usize(1..=pending) {
            driver.complete();
        }
    }
}

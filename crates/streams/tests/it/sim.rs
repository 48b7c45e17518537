//! An engine on a simulated disk, and an executor that runs futures by running its commands.

use std::{
    cell::Cell,
    ops::Range,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use forebay_flash::{
    buffers::BufferPool,
    device_thread::{AnswerSink, Engine},
    format::{BLOCK_SIZE, DeviceId, Geometry, SUPERBLOCK_OFFSETS, Superblock},
    index::Index,
    io::{Completion, Disk as _, sim::SimDisk},
    recovery::Recovery,
    shard::{BufferPools, Counters, OldestFirst, Settings, Shard, ShardRequest},
};
use forebay_streams::Store;
use parking_lot::{Mutex, RwLock};

pub const REGION_SIZE: u64 = 1 << 20;

/// The seeds to run.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

/// The bytes of a block, as a function of a seed.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

pub struct SimEngine {
    state: Mutex<SimState>,
    posted: Mutex<Vec<(AnswerSink, ShardRequest)>>,
    index: Arc<RwLock<Index>>,
    pools: BufferPools,
    geometry: Geometry,
}

struct SimState {
    shard: Shard<AnswerSink>,
    /// `None` after a crash.
    disk: Option<SimDisk>,
    now: Duration,
}

pub fn new_disk(seed: u64, regions: u32) -> SimDisk {
    let geometry = Geometry { device: DeviceId(seed), region_size: REGION_SIZE, regions };
    let mut disk = SimDisk::new(seed, geometry.device_size());
    let mut block = vec![0; BLOCK_SIZE];
    Superblock { geometry, owner: [7; 16], epoch: 1 }.encode(&mut block);
    for offset in SUPERBLOCK_OFFSETS {
        disk.put(offset, &block);
    }
    disk
}

thread_local! {
    /// Memory of engines that are gone: touching new memory takes longer than most tests.
    static MEMORY: Cell<Option<(Arc<BufferPool>, Arc<BufferPool>)>> = const { Cell::new(None) };
}

fn pools() -> BufferPools {
    let is_free = |pool: &BufferPool| pool.free_bytes() == pool.size();
    let known = MEMORY.take().filter(|(staging, read)| is_free(staging) && is_free(read));
    let new = || (BufferPool::new(4 << 20).unwrap(), BufferPool::new(5 << 20).unwrap());
    let (staging, read) = known.unwrap_or_else(new);
    MEMORY.set(Some((Arc::clone(&staging), Arc::clone(&read))));
    let in_place = staging.carve(5 << 19).expect("all of it is free");
    // Wakers are added to a pool of their own.
    let read = read.carve(5 << 20).expect("all of it is free");
    BufferPools { staging, in_place, read }
}

impl SimEngine {
    /// Opens the device on a disk.
    pub fn open(mut disk: SimDisk) -> Arc<Self> {
        let settings =
            Settings { write_size: 4 * BLOCK_SIZE, scrub_rate: None, ..Settings::default() };
        let pools = pools();
        let copies = SUPERBLOCK_OFFSETS.map(|offset| Superblock::decode(&disk.get(offset)));
        let newest = copies.into_iter().flatten().max_by_key(|superblock| superblock.epoch);
        let mut superblock = newest.expect("one of the two is valid");
        superblock.epoch += 1;
        let geometry = superblock.geometry;
        let eviction = Box::new(OldestFirst);
        let recovery =
            Recovery::new(settings, superblock, geometry.regions, pools.clone(), eviction);
        let (shard, _) =
            recovery.run(&mut disk).expect("the disk has no faults while it is opened");
        let index = shard.index();
        let state = SimState { shard, disk: Some(disk), now: Duration::ZERO };
        let (state, posted) = (Mutex::new(state), Mutex::default());
        Arc::new(Self { state, posted, index, pools, geometry })
    }

    /// Runs one command. False if there was none.
    pub fn step(&self) -> bool {
        let posted = std::mem::take(&mut *self.posted.lock());
        let mut busy = !posted.is_empty();
        for (reply, request) in posted {
            self.submit(reply, request);
        }
        let mut answers = Vec::new();
        {
            let mut state = self.state.lock();
            let SimState { shard, disk: Some(disk), .. } = &mut *state else { return false };
            let (mut commands, mut done) = (Vec::new(), Vec::<Completion>::new());
            shard.take(&mut commands, &mut answers);
            disk.submit(&mut commands);
            disk.wait(None, &mut done);
            busy |= !done.is_empty();
            done.drain(..).for_each(|completion| shard.on_completion(completion));
            shard.take(&mut commands, &mut answers);
            disk.submit(&mut commands);
            busy |= !answers.is_empty() || !disk.is_idle();
        }
        for (reply, outcome) in answers {
            reply.send(outcome);
        }
        busy
    }

    /// Runs until no command is left.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Lets time pass up to the shard's next deadline. False if it has none.
    fn pass_time(&self) -> bool {
        let mut state = self.state.lock();
        let Some(wake) = state.shard.wake_at() else { return false };
        state.now = state.now.max(wake);
        let now = state.now;
        state.shard.advance(now);
        true
    }

    /// Runs a future. `None` if it has not ended after `commands` commands.
    pub fn run_for<T>(&self, future: impl Future<Output = T>, commands: &mut u64) -> Option<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            if *commands == 0 {
                return None;
            }
            *commands -= 1;
            if self.step() {
                idle = 0;
            } else {
                idle += 1;
                assert!(self.pass_time() && idle < 1000, "a deadlock: nothing is left to do");
            }
        }
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.run_for(future, &mut u64::MAX.clone()).expect("no limit")
    }

    /// Milliseconds since the engine was opened.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.state.lock().now.as_millis()).expect("tests are short")
    }

    /// The disk after a power failure.
    pub fn crash(&self) -> SimDisk {
        self.state.lock().disk.take().expect("crashed once").crash()
    }

    pub fn set_fault_rates(&self, faults: forebay_flash::io::sim::FaultRates) {
        if let Some(disk) = &mut self.state.lock().disk {
            disk.set_fault_rates(faults);
        }
    }
}

impl Engine for SimEngine {
    fn submit(&self, reply: AnswerSink, request: ShardRequest) {
        let mut answers = Vec::new();
        {
            let mut state = self.state.lock();
            let SimState { shard, disk: Some(disk), .. } = &mut *state else { return };
            shard.submit(reply, request);
            let mut commands = Vec::new();
            shard.take(&mut commands, &mut answers);
            disk.submit(&mut commands);
        }
        for (reply, outcome) in answers {
            reply.send(outcome);
        }
    }

    fn post(&self, reply: AnswerSink, request: ShardRequest) {
        self.posted.lock().push((reply, request));
    }

    fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    fn counters(&self) -> Counters {
        self.state.lock().shard.counters()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn pools(&self) -> &BufferPools {
        &self.pools
    }
}

/// A store on a disk, at this time in milliseconds.
pub fn open_store(disk: SimDisk, now_ms: u64) -> (Arc<SimEngine>, Store) {
    open_store_with(disk, move || now_ms)
}

/// A store on a disk, with this clock.
pub fn open_store_with(
    disk: SimDisk,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> (Arc<SimEngine>, Store) {
    let engine = SimEngine::open(disk);
    let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
    let store = engine.run(Store::on_engine(shared, clock)).expect("the disk has no faults");
    (engine, store)
}

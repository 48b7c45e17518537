//! A drive with slow syncs: a real one, whose syncs complete later than they did.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_core::ByteSize;
use forebay_flash::{
    DeviceConfig,
    device_open::open_device,
    device_thread::DeviceThread,
    io::{Backend, Completion, Disk, IoCommand, IoId, Waker, open_disk},
    recovery::Recovery,
    shard::{BufferPools, OldestFirst, Settings},
};
use forebay_streams::{Store, block_on};

/// As in stores from 16 GiB on.
const REGION: ByteSize = ByteSize::mib(64);
/// As in a store with 64 MiB of memory.
const STAGING: usize = 16 << 20;
const IN_PLACE: usize = 12 << 20;
const READ: usize = 47 << 20;

/// A store in a new file, on a drive whose syncs take `delay` longer.
pub fn store(path: &Path, capacity: ByteSize, delay: Duration) -> anyhow::Result<Store> {
    let config = DeviceConfig {
        path: path.to_owned(),
        capacity,
        region_size: Some(REGION),
        owner: *b"forebay bench\0\0\0",
    };
    let opened = open_device(&config)?;
    let pools = BufferPools::new(STAGING, IN_PLACE, READ)?;
    let recovery = Recovery::new(
        Settings::default(),
        opened.superblock,
        opened.regions_before,
        pools.clone(),
        Box::new(OldestFirst),
    );
    let file = Arc::new(opened.file);
    let memory = [Arc::clone(&pools.staging), Arc::clone(&pools.read)];
    let disk = open_disk(&file, Backend::Auto, &memory)?;
    let disk = SlowSyncs { disk, delay, syncs: BTreeSet::new(), held: Vec::new() };
    let engine = DeviceThread::start("slow syncs".into(), recovery, pools, || Box::new(disk))?;
    let engine = engine.context("recover a new device")?;
    Ok(block_on(Store::on_engine(Arc::new(engine), || 0))?)
}

struct SlowSyncs {
    disk: Box<dyn Disk>,
    delay: Duration,
    /// Syncs that run.
    syncs: BTreeSet<IoId>,
    /// Syncs that have completed, and when that is reported.
    held: Vec<(Instant, Completion)>,
}

impl Disk for SlowSyncs {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        self.syncs.extend(commands.iter().filter_map(|command| match command {
            IoCommand::Sync { id } => Some(*id),
            _ => None,
        }));
        self.disk.submit(commands);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        let due = self.held.iter().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let timeout = due.chain(timeout).min();
        let mut completed = Vec::new();
        self.disk.wait(timeout, &mut completed);
        let now = Instant::now();
        for completion in completed {
            if self.syncs.remove(&completion.id) {
                self.held.push((now + self.delay, completion));
            } else {
                done.push(completion);
            }
        }
        let (due, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(at, _)| *at <= now);
        self.held = held;
        let due: Vec<(Instant, Completion)> = due;
        done.extend(due.into_iter().map(|(_, completion)| completion));
    }

    fn waker(&self) -> Waker {
        self.disk.waker()
    }
}

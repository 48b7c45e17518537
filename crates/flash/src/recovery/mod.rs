//! Recovery: from the contents of a device to a shard.
//!
//! 1. Regions that the device did not have before are marked free.
//! 2. The superblock is written with the next epoch.
//! 3. The header and footer of every region are read.
//! 4. Regions without a footer are scanned and then sealed.
//!
//! Pure, like the shard that it produces.

mod unsealed;

use std::collections::{BTreeMap, VecDeque};

use crate::{
    buffers::Buffer,
    format::{
        BLOCK_SIZE, Descriptor, EntryShape, Footer, Generation, Geometry, RegionHeader, RegionId,
        RegionUse, SUPERBLOCK_OFFSETS, Superblock, round_up,
    },
    index::{EntryKey, Location, ORDINALS_MAX},
    io::{Completion, Disk, IoCommand, IoFault, IoId},
    shard::{BufferPools, EntryName, Eviction, OpenRegion, RegionState, Settings, Shard},
};

use self::unsealed::Scan;

/// Regions that are read in parallel.
const REGIONS_IN_FLIGHT: usize = 32;
/// First read of a region's end: long enough for most footers, except those of very small entries.
const FOOTER_READ: u64 = 32 << 10;
/// Bytes per read of a scan.
const WINDOW: u64 = 1 << 20;

/// A device that is being recovered.
pub struct Recovery<T> {
    shard: Shard<T>,
    superblock: Superblock,
    pools: BufferPools,
    step: Step,
    /// Regions that wait to be read.
    queue: VecDeque<(RegionId, Task)>,
    running: BTreeMap<IoId, (RegionId, Task)>,
    begun: u64,
    report: RecoveryReport,
    commands: Vec<IoCommand>,
}

/// What recovery found on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Entries that can be read again.
    pub entries: u64,
    /// Regions that were sealed.
    pub regions_sealed: u64,
    /// Regions with entries that were not sealed and had to be scanned.
    pub regions_scanned: u64,
    /// Regions that could not be read.
    pub regions_unreadable: u64,
}

enum Step {
    /// Regions from this one on have yet to be marked free.
    FreeRegions(u32),
    FreeSync,
    Superblock,
    Sync,
    Regions,
    Failed(IoFault),
}

/// The next read of a region.
enum Task {
    Header,
    Footer(RegionHeader, u64),
    Window(RegionHeader, Box<Scan>, u64),
}

impl<T> Recovery<T> {
    /// Begins the recovery of a device. `superblock` is the one to write. `regions_before` is the
    /// number of regions so far; later regions may hold data from a time when the device was
    /// larger.
    pub fn new(
        settings: Settings,
        superblock: Superblock,
        regions_before: u32,
        pools: BufferPools,
        eviction: Box<dyn Eviction>,
    ) -> Self {
        let mut recovery = Self {
            shard: Shard::new(settings, superblock, pools.clone(), eviction),
            superblock,
            pools,
            step: Step::FreeRegions(regions_before),
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            begun: 0,
            report: RecoveryReport::default(),
            commands: Vec::new(),
        };
        recovery.free_new_regions(regions_before);
        recovery
    }

    /// Marks the next new region free. After the last one, writes the superblock.
    fn free_new_regions(&mut self, from: u32) {
        let Geometry { device, regions, .. } = self.superblock.geometry;
        if from >= regions {
            if self.begun == 0 {
                return self.write_superblock();
            }
            self.step = Step::FreeSync;
            let id = self.begin();
            return self.commands.push(IoCommand::Sync { id });
        }
        let generation = Generation(u64::from(self.superblock.epoch) << 32);
        let mut block = self.pools.staging.take(BLOCK_SIZE).expect("one header at a time");
        RegionHeader { device, generation, usage: RegionUse::Free }.encode(&mut block);
        let offset = self.superblock.geometry.region_offset(RegionId(from));
        let id = self.begin();
        self.commands.push(IoCommand::Write { id, offset, bytes: block.freeze() });
        self.step = Step::FreeRegions(from + 1);
    }

    fn write_superblock(&mut self) {
        let mut block = self.pools.staging.take(BLOCK_SIZE).expect("no other buffers are in use");
        self.superblock.encode(&mut block);
        let offset = SUPERBLOCK_OFFSETS[self.superblock.epoch as usize % 2];
        let id = self.begin();
        self.commands.push(IoCommand::Write { id, offset, bytes: block.freeze() });
        self.step = Step::Superblock;
    }

    fn begin(&mut self) -> IoId {
        self.begun += 1;
        IoId(self.begun - 1)
    }

    /// Runs recovery on this disk.
    pub fn run(mut self, disk: &mut dyn Disk) -> Result<(Shard<T>, RecoveryReport), IoFault> {
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        while !self.is_finished() {
            self.take(&mut commands);
            disk.submit(&mut commands);
            disk.wait(None, &mut done);
            done.drain(..).for_each(|completion| self.on_completion(completion));
        }
        self.finish()
    }

    /// Moves the pending commands into `commands`.
    pub fn take(&mut self, commands: &mut Vec<IoCommand>) {
        commands.append(&mut self.commands);
    }

    /// Whether recovery has ended.
    pub fn is_finished(&self) -> bool {
        match self.step {
            Step::FreeRegions(_) | Step::FreeSync | Step::Superblock | Step::Sync => false,
            Step::Regions => self.queue.is_empty() && self.running.is_empty(),
            Step::Failed(_) => true,
        }
    }

    /// The recovered shard.
    pub fn finish(mut self) -> Result<(Shard<T>, RecoveryReport), IoFault> {
        assert!(self.is_finished(), "recovery has ended");
        if let Step::Failed(fault) = self.step {
            return Err(fault);
        }
        self.shard.finish_recovery();
        Ok((self.shard, self.report))
    }

    /// A command has completed or failed.
    pub fn on_completion(&mut self, completion: Completion) {
        let Completion { id, buffer, result } = completion;
        match (&self.step, result) {
            (Step::FreeRegions(next), Ok(())) => self.free_new_regions(*next),
            (Step::FreeSync, Ok(())) => self.write_superblock(),
            (Step::Superblock, Ok(())) => {
                let id = self.begin();
                self.commands.push(IoCommand::Sync { id });
                self.step = Step::Sync;
            }
            (Step::Sync, Ok(())) => {
                let regions = (0..self.superblock.geometry.regions).map(RegionId);
                self.queue = regions.map(|region| (region, Task::Header)).collect();
                self.step = Step::Regions;
            }
            (Step::FreeRegions(_) | Step::FreeSync | Step::Superblock | Step::Sync, Err(fault)) => {
                self.step = Step::Failed(fault);
            }
            (Step::Regions, _) => {
                let (region, task) =
                    self.running.remove(&id).expect("every command completes once");
                let buffer = buffer.expect("a read gives its buffer back");
                if let Ok(()) = result {
                    self.on_region_read(region, task, &buffer);
                } else {
                    self.report.regions_unreadable += 1;
                    self.shard.quarantine_unreadable(region);
                }
            }
            (Step::Failed(_), _) => {}
        }
        self.pump();
    }

    fn pump(&mut self) {
        while self.running.len() < REGIONS_IN_FLIGHT
            && let Some((region, task)) = self.queue.pop_front()
        {
            let geometry = self.superblock.geometry;
            let (offset, length) = match &task {
                Task::Header => (0, BLOCK_SIZE as u64),
                Task::Footer(_, length) => (geometry.region_size - length, *length),
                Task::Window(_, _, from) => (*from, WINDOW.min(geometry.region_size - from)),
            };
            let length = usize::try_from(length).expect("in memory");
            let Some(buffer) = self.pools.read.take(length) else {
                assert!(!self.running.is_empty(), "the pool holds at least one window");
                self.queue.push_front((region, task));
                return;
            };
            let id = self.begin();
            self.running.insert(id, (region, task));
            let offset = geometry.region_offset(region) + offset;
            self.commands.push(IoCommand::Read { id, offset, buffer, length });
        }
    }

    fn on_region_read(&mut self, region: RegionId, task: Task, bytes: &Buffer) {
        let Geometry { device, region_size, .. } = self.superblock.geometry;
        match task {
            Task::Header => {
                let header = RegionHeader::decode(bytes);
                let header = header
                    .filter(|header| header.device == device && header.usage.survives_restart());
                if let Some(header) = header {
                    self.queue
                        .push_front((region, Task::Footer(header, FOOTER_READ.min(region_size))));
                }
            }
            Task::Footer(header, length) => {
                let tail = &bytes[..usize::try_from(length).expect("in memory")];
                match Footer::size_at(tail, device, header.generation) {
                    // A longer footer cannot be read: its count is damaged, or it was written with
                    // more memory.
                    Some(size) if size > length && size <= self.pools.footer_max() => {
                        self.queue.push_front((region, Task::Footer(header, size)));
                    }
                    Some(_) if let Some(footer) = Footer::decode(tail, region_size) => {
                        self.report.regions_sealed += 1;
                        self.adopt(region, &header, &footer.entries, Some(footer.last));
                    }
                    _ => {
                        let scan = Box::new(Scan::new(device, header.generation));
                        self.queue.push_front((region, Task::Window(header, scan, Scan::START)));
                    }
                }
            }
            Task::Window(header, mut scan, from) => {
                let length = WINDOW.min(region_size - from);
                let window = &bytes[..usize::try_from(length).expect("in memory")];
                let next = from + length;
                if scan.feed(window) && next < region_size {
                    self.queue.push_front((region, Task::Window(header, scan, next)));
                } else {
                    let mut entries = scan.into_entries();
                    while let Some(last) = entries.last()
                        && (last.end() + Footer::size(entries.len()) > region_size
                            || Footer::size(entries.len()) > self.pools.footer_max())
                    {
                        entries.pop();
                    }
                    self.report.regions_scanned += u64::from(!entries.is_empty());
                    self.adopt(region, &header, &entries, None);
                }
            }
        }
    }

    /// Adopts a region. `sealed` is `None` without a footer, else whether the region ends its
    /// group.
    fn adopt(
        &mut self,
        region: RegionId,
        header: &RegionHeader,
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        if entries.is_empty() && sealed != Some(true) {
            return;
        }
        self.report.entries += entries.len() as u64;
        self.shard.adopt(region, header, entries, sealed);
    }
}

impl<T> Shard<T> {
    /// Adopts a region that was found on the device.
    fn adopt(
        &mut self,
        id: RegionId,
        header: &RegionHeader,
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        let RegionUse::Group { name, class, dense } = &header.usage else {
            unreachable!("free regions are not adopted")
        };
        let generation = header.generation;
        let group = self.group_named(name, *class, *dense);
        self.adopt_region(id, generation, group, entries, sealed);
        for entry in entries {
            let size = EntryShape::of(u64::from(entry.length)).size();
            let location = Location::new(id, entry.start(), size);
            let name = match self.ordinal_in(group, &entry.key) {
                None => EntryName::Key(EntryKey(entry.key)),
                Some(Some(ordinal)) if ordinal < ORDINALS_MAX => EntryName::Ordinal(group, ordinal),
                Some(_) => {
                    self.subtract_entry(location);
                    continue;
                }
            };
            // The later one of two entries with one name counts. Regions are read in any order.
            let known = self.locate(&name);
            if known.is_none_or(|known| self.generation_at(known) <= generation) {
                self.index_entry(name, &EntryKey(entry.key), location);
            } else {
                self.subtract_entry(location);
            }
        }
    }
}

/// State of a scanned region, which continues to be sealed.
pub(crate) fn scanned_state(entries: &[Descriptor]) -> RegionState {
    let mut open = OpenRegion::default();
    let end = entries.last().map_or(open.fill, Descriptor::end);
    open.fill = round_up(end, BLOCK_SIZE as u64);
    open.header_is_durable = true;
    open.descriptors = entries.to_vec();
    RegionState::Sealing(Box::new(open))
}

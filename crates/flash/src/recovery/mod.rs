//! Opening a device: regions that it did not have before are made blank, what it says of itself is renewed, then the header and the footer of every region are
//! read, and those without a footer are scanned and sealed. Pure, like the shard that comes out of it.

mod scan;

use std::collections::{BTreeMap, VecDeque};

use crate::{
    arena::Buffer,
    index::{Key, Location, ORDINALS_MAX},
    io::{Command, Completion, Disk, Fault, IoId},
    layout::{
        BLOCK_SIZE, Descriptor, EntryShape, Footer, Generation, Geometry, RegionHeader, RegionId,
        SUPERBLOCK_OFFSETS, Superblock, Use, round_up,
    },
    shard::{Eviction, Memory, Name, Open, RegionState, Settings, Shard},
};

use self::scan::Scan;

/// Regions that are looked at at once.
const AT_ONCE: usize = 32;
/// What is read of a region's end at first: enough for the footers of all but the smallest entries.
const TAIL: u64 = 32 << 10;
/// What is scanned at once.
const WINDOW: u64 = 1 << 20;

/// A device that is being opened.
pub struct Recovery<T> {
    shard: Shard<T>,
    superblock: Superblock,
    memory: Memory,
    step: Step,
    /// Regions that have not been looked at, or wait for memory.
    next: VecDeque<(RegionId, Task)>,
    running: BTreeMap<IoId, (RegionId, Task)>,
    begun: u64,
    found: Found,
    commands: Vec<Command>,
}

/// What was found on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Entries that can be read again.
    pub entries: u64,
    /// Regions that were sealed.
    pub sealed: u64,
    /// Regions that were not sealed, and had to be scanned for what is in them.
    pub scanned: u64,
    /// Regions that could not be read.
    pub unreadable: u64,
}

enum Step {
    /// Regions from this one on are still to be made blank.
    Blank(u32),
    BlankSync,
    Superblock,
    Sync,
    Regions,
    Failed(Fault),
}

/// What is to be read of a region.
enum Task {
    Header,
    Tail(RegionHeader, u64),
    Window(RegionHeader, Box<Scan>, u64),
}

impl<T> Recovery<T> {
    /// Begins to open a device. `superblock` is what it shall say of itself from now on, `regions_before` how
    /// many regions it has had until now: what lies beyond may be from a time when it was larger.
    pub fn new(
        settings: Settings,
        superblock: Superblock,
        regions_before: u32,
        memory: Memory,
        eviction: Box<dyn Eviction>,
    ) -> Self {
        let mut recovery = Self {
            shard: Shard::new(settings, superblock, memory.clone(), eviction),
            superblock,
            memory,
            step: Step::Blank(regions_before),
            next: VecDeque::new(),
            running: BTreeMap::new(),
            begun: 0,
            found: Found::default(),
            commands: Vec::new(),
        };
        recovery.make_blank(regions_before);
        recovery
    }

    /// Makes the next regions say that they are free, or, if all do, the superblock what it shall say.
    fn make_blank(&mut self, from: u32) {
        let Geometry { device, regions, .. } = self.superblock.geometry;
        if from >= regions {
            if self.begun == 0 {
                return self.write_superblock();
            }
            self.step = Step::BlankSync;
            let id = self.begin();
            return self.commands.push(Command::Sync { id });
        }
        let generation = Generation(u64::from(self.superblock.epoch) << 32);
        let mut block = self.memory.staging.take(BLOCK_SIZE).expect("one at a time");
        RegionHeader { device, generation, usage: Use::Free }.encode(&mut block);
        let offset = self.superblock.geometry.region_offset(RegionId(from));
        let id = self.begin();
        self.commands.push(Command::Write { id, offset, bytes: block.freeze() });
        self.step = Step::Blank(from + 1);
    }

    fn write_superblock(&mut self) {
        let mut block =
            self.memory.staging.take(BLOCK_SIZE).expect("nothing else needs memory yet");
        self.superblock.encode(&mut block);
        let offset = SUPERBLOCK_OFFSETS[self.superblock.epoch as usize % 2];
        let id = self.begin();
        self.commands.push(Command::Write { id, offset, bytes: block.freeze() });
        self.step = Step::Superblock;
    }

    fn begin(&mut self) -> IoId {
        self.begun += 1;
        IoId(self.begun - 1)
    }

    /// Recovers what is on this disk.
    pub fn carry_out(mut self, disk: &mut dyn Disk) -> Result<(Shard<T>, Found), Fault> {
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        while !self.is_over() {
            self.take(&mut commands);
            disk.submit(&mut commands);
            disk.wait(None, &mut done);
            done.drain(..).for_each(|completion| self.completed(completion));
        }
        self.finish()
    }

    /// Takes what is to be done.
    pub fn take(&mut self, commands: &mut Vec<Command>) {
        commands.append(&mut self.commands);
    }

    /// Whether all is known.
    pub fn is_over(&self) -> bool {
        match self.step {
            Step::Blank(_) | Step::BlankSync | Step::Superblock | Step::Sync => false,
            Step::Regions => self.next.is_empty() && self.running.is_empty(),
            Step::Failed(_) => true,
        }
    }

    /// The engine, with all that was found.
    pub fn finish(mut self) -> Result<(Shard<T>, Found), Fault> {
        assert!(self.is_over(), "not before it is over");
        if let Step::Failed(fault) = self.step {
            return Err(fault);
        }
        self.shard.begin_after_recovery();
        Ok((self.shard, self.found))
    }

    /// A command has been carried out, or has failed.
    pub fn completed(&mut self, completion: Completion) {
        let Completion { id, buffer, result } = completion;
        match (&self.step, result) {
            (Step::Blank(next), Ok(())) => self.make_blank(*next),
            (Step::BlankSync, Ok(())) => self.write_superblock(),
            (Step::Superblock, Ok(())) => {
                let id = self.begin();
                self.commands.push(Command::Sync { id });
                self.step = Step::Sync;
            }
            (Step::Sync, Ok(())) => {
                let regions = (0..self.superblock.geometry.regions).map(RegionId);
                self.next = regions.map(|region| (region, Task::Header)).collect();
                self.step = Step::Regions;
            }
            (Step::Blank(_) | Step::BlankSync | Step::Superblock | Step::Sync, Err(fault)) => {
                self.step = Step::Failed(fault);
            }
            (Step::Regions, _) => {
                let (region, task) =
                    self.running.remove(&id).expect("every command completes once");
                let buffer = buffer.expect("a read gives its buffer back");
                if let Ok(()) = result {
                    self.looked_at(region, task, &buffer);
                } else {
                    self.found.unreadable += 1;
                    self.shard.distrust(region);
                }
            }
            (Step::Failed(_), _) => {}
        }
        self.pump();
    }

    fn pump(&mut self) {
        while self.running.len() < AT_ONCE
            && let Some((region, task)) = self.next.pop_front()
        {
            let geometry = self.superblock.geometry;
            let (offset, length) = match &task {
                Task::Header => (0, BLOCK_SIZE as u64),
                Task::Tail(_, length) => (geometry.region_size - length, *length),
                Task::Window(_, _, from) => (*from, WINDOW.min(geometry.region_size - from)),
            };
            let length = usize::try_from(length).expect("in memory");
            let Some(buffer) = self.memory.reading.take(length) else {
                assert!(!self.running.is_empty(), "memory for one window at least");
                self.next.push_front((region, task));
                return;
            };
            let id = self.begin();
            self.running.insert(id, (region, task));
            let offset = geometry.region_offset(region) + offset;
            self.commands.push(Command::Read { id, offset, buffer, length });
        }
    }

    fn looked_at(&mut self, region: RegionId, task: Task, bytes: &Buffer) {
        let Geometry { device, region_size, .. } = self.superblock.geometry;
        match task {
            Task::Header => {
                let header = RegionHeader::decode(bytes);
                let header =
                    header.filter(|header| header.device == device && header.usage != Use::Free);
                if let Some(header) = header {
                    self.next.push_front((region, Task::Tail(header, TAIL.min(region_size))));
                }
            }
            Task::Tail(header, length) => {
                let tail = &bytes[..usize::try_from(length).expect("in memory")];
                match Footer::size_at(tail, device, header.generation) {
                    // Longer ones we would not have written: a count that is damaged, or more memory then.
                    Some(size) if size > length && size <= self.memory.footer_max() => {
                        self.next.push_front((region, Task::Tail(header, size)));
                    }
                    Some(_) if let Some(footer) = Footer::decode(tail, region_size) => {
                        self.found.sealed += 1;
                        self.adopt(region, &header, &footer.entries, Some(footer.last));
                    }
                    _ => {
                        let scan = Box::new(Scan::new(device, header.generation));
                        self.next.push_front((region, Task::Window(header, scan, Scan::START)));
                    }
                }
            }
            Task::Window(header, mut scan, from) => {
                let length = WINDOW.min(region_size - from);
                let window = &bytes[..usize::try_from(length).expect("in memory")];
                let next = from + length;
                if scan.feed(window) && next < region_size {
                    self.next.push_front((region, Task::Window(header, scan, next)));
                } else {
                    let mut entries = scan.into_entries();
                    while let Some(last) = entries.last()
                        && (last.end() + Footer::size(entries.len()) > region_size
                            || Footer::size(entries.len()) > self.memory.footer_max())
                    {
                        entries.pop();
                    }
                    self.found.scanned += u64::from(!entries.is_empty());
                    self.adopt(region, &header, &entries, None);
                }
            }
        }
    }

    /// Takes a region up; `sealed` says whether its footer was there, and whether it was the group's last.
    fn adopt(
        &mut self,
        region: RegionId,
        header: &RegionHeader,
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        let Use::Group { name, class, dense } = &header.usage else { unreachable!("in use") };
        if entries.is_empty() && sealed != Some(true) {
            return;
        }
        self.found.entries += entries.len() as u64;
        self.shard.adopt(region, header.generation, (name, *class, *dense), entries, sealed);
    }
}

impl<T> Shard<T> {
    /// Takes up a region that was found on the device.
    fn adopt(
        &mut self,
        id: RegionId,
        generation: Generation,
        (name, class, dense): (&[u8], u8, bool),
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        let group = self.group_named(name, class, dense);
        self.take_up(id, generation, group, entries, sealed);
        for entry in entries {
            let size = EntryShape::of(u64::from(entry.length)).size();
            let location = Location::new(id, entry.start(), size);
            let name = match self.ordinal_in(group, &entry.key) {
                None => Name::Key(Key(entry.key)),
                Some(Some(ordinal)) if ordinal < ORDINALS_MAX => Name::Ordinal(group, ordinal),
                Some(_) => {
                    self.uncount(location);
                    continue;
                }
            };
            // Of two entries of one name the later one counts; regions come in any order here.
            let known = self.locate(&name);
            if known.is_none_or(|known| self.generation_at(known) <= generation) {
                self.found(name, &Key(entry.key), location);
            } else {
                self.uncount(location);
            }
        }
    }
}

/// The state of a region that was scanned: it goes on being sealed.
pub(crate) fn scanned(entries: &[Descriptor]) -> RegionState {
    let mut open = Open::default();
    let end = entries.last().map_or(open.fill, Descriptor::end);
    open.fill = round_up(end, BLOCK_SIZE as u64);
    open.header_is_durable = true;
    open.descriptors = entries.to_vec();
    RegionState::Sealing(Box::new(open))
}

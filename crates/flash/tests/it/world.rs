//! A shard on a simulated disk, with checks of every write in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use forebay_flash::{
    format::{
        BLOCK_SIZE, CLASS_EPHEMERAL, DeviceId, Geometry, RegionHeader, RegionId, RegionUse,
        SUPERBLOCK_OFFSETS, Superblock, frame_checksums,
    },
    index::{EntryKey, GroupId},
    io::{Completion, Disk as _, IoCommand, sim::SimDisk},
    recovery::{Recovery, RecoveryReport},
    reservation::Reservation,
    shard::{
        BufferPools, EntryName, Eviction, OldestFirst, RequestResult, Settings, Shard, ShardAnswer,
        ShardRequest, VerifiedRead,
    },
};

pub const REGION_SIZE: u64 = 1 << 20;

/// The seeds to run.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

pub struct World {
    pub disk: SimDisk,
    pub shard: Shard<u64>,
    pub now: Duration,
    pub answers: BTreeMap<u64, RequestResult>,
    pub found: RecoveryReport,
    /// Whether the disk has no faults, so that the checks may rely on its contents.
    pub disk_is_reliable: bool,
    settings: Settings,
    pools: BufferPools,
    tokens: u64,
    /// Blocks of each region that were written in its current generation.
    written: BTreeMap<RegionId, BTreeSet<u64>>,
    /// Regions whose current use needs no durable header.
    ephemeral: BTreeSet<RegionId>,
}

pub fn settings() -> Settings {
    Settings { write_size: 4 * BLOCK_SIZE, filling_max: 4, scrub_rate: None, ..Settings::default() }
}

pub fn key(number: u64) -> EntryKey {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    EntryKey(key)
}

/// The bytes of an entry, as a function of a seed.
pub fn content(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

fn superblock_on(disk: &SimDisk) -> Superblock {
    let copies = SUPERBLOCK_OFFSETS.map(|offset| Superblock::decode(&disk.get(offset)));
    let valid = copies.into_iter().flatten();
    valid.max_by_key(|superblock| superblock.epoch).expect("one of the two is valid")
}

impl World {
    pub fn new(seed: u64, regions: u32, settings: Settings) -> Self {
        let geometry = Geometry { device: DeviceId(seed), region_size: REGION_SIZE, regions };
        let mut disk = SimDisk::new(seed, geometry.device_size());
        let mut block = vec![0; BLOCK_SIZE];
        Superblock { geometry, owner: [7; 16], epoch: 1 }.encode(&mut block);
        for offset in SUPERBLOCK_OFFSETS {
            disk.put(offset, &block);
        }
        Self::open(disk, regions, settings)
    }

    /// A new device with this eviction policy.
    pub fn with_eviction(seed: u64, regions: u32, eviction: Box<dyn Eviction>) -> Self {
        let World { disk, settings, .. } = Self::new(seed, regions, settings());
        Self::open_with(disk, regions, settings, eviction)
    }

    /// Opens the device on a disk.
    pub fn open(disk: SimDisk, regions: u32, settings: Settings) -> Self {
        Self::open_with(disk, regions, settings, Box::new(OldestFirst))
    }

    fn open_with(
        mut disk: SimDisk,
        regions: u32,
        settings: Settings,
        eviction: Box<dyn Eviction>,
    ) -> Self {
        let pools =
            BufferPools::new(32 * settings.write_size + (2 << 20), 2 << 20, 4 << 20).unwrap();
        let mut superblock = superblock_on(&disk);
        let regions_before = superblock.geometry.regions;
        superblock.geometry.regions = regions;
        superblock.epoch += 1;
        let recovery =
            Recovery::new(settings.clone(), superblock, regions_before, pools.clone(), eviction);
        let (shard, found) = recovery.run(&mut disk).expect("the disk has no faults");
        let (answers, written) = (BTreeMap::new(), BTreeMap::new());
        let (now, disk_is_reliable, tokens) = (Duration::ZERO, true, 0);
        Self {
            disk,
            shard,
            now,
            answers,
            found,
            disk_is_reliable,
            settings,
            pools,
            tokens,
            written,
            ephemeral: BTreeSet::new(),
        }
    }

    /// The world after a power failure and a restart.
    pub fn crashed(self) -> Self {
        let (disk_is_reliable, settings) = (self.disk_is_reliable, self.settings.clone());
        let regions = self.shard.geometry().regions;
        let mut world = Self::open(self.disk.crash(), regions, settings);
        world.disk_is_reliable = disk_is_reliable;
        world
    }

    /// The world reopened with another number of regions, on a device that keeps what lies beyond.
    pub fn resized(self, regions: u32) -> Self {
        let geometry = Geometry { regions, ..self.shard.geometry() };
        let disk = self.disk.crash();
        let size = geometry.device_size().max(disk.size());
        Self::open(disk.resized(size), regions, self.settings)
    }

    /// Submits a request.
    pub fn begin(&mut self, request: ShardRequest) -> u64 {
        self.tokens += 1;
        self.shard.submit(self.tokens, request);
        self.tokens
    }

    /// Runs one command. False if there was none.
    pub fn step(&mut self) -> bool {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.shard.take(&mut commands, &mut answers);
        for (token, outcome) in answers {
            assert!(self.answers.insert(token, outcome).is_none(), "answered twice");
        }
        for command in &commands {
            self.audit(command);
        }
        self.disk.submit(&mut commands);
        let mut done: Vec<Completion> = Vec::new();
        self.disk.wait(None, &mut done);
        let idle = done.is_empty();
        done.drain(..).for_each(|completion| self.shard.on_completion(completion));
        !idle
    }

    /// Runs until no command is left.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        self.shard.advance(self.now);
    }

    /// Submits a request and waits for its answer.
    pub fn request(&mut self, request: ShardRequest) -> RequestResult {
        let token = self.begin(request);
        self.wait_for(token)
    }

    pub fn wait_for(&mut self, token: u64) -> RequestResult {
        loop {
            let busy = self.step();
            if let Some(outcome) = self.answers.remove(&token) {
                return outcome;
            }
            if !busy {
                let wake = self.shard.wake_at().expect("the request is never answered");
                let now = self.now.max(wake);
                self.advance(now.checked_sub(self.now).unwrap());
            }
        }
    }

    pub fn group(&mut self, name: &str, dense: bool) -> GroupId {
        self.group_of_class(name, 1, dense)
    }

    pub fn group_of_class(&mut self, name: &str, class: u8, dense: bool) -> GroupId {
        let open = ShardRequest::Open { name: name.into(), class, dense };
        match self.request(open) {
            Ok(ShardAnswer::Group(group)) => group,
            other => panic!("{other:?}"),
        }
    }

    pub fn append(&mut self, group: GroupId, name: EntryName, payload: &Bytes) -> RequestResult {
        self.request(append(group, name, payload))
    }

    /// Reads and verifies.
    pub fn read(&mut self, name: EntryName, range: Option<Range<u64>>) -> Option<VerifiedRead> {
        match self.request(ShardRequest::Read { name, range, leased: false, into: None }) {
            Ok(ShardAnswer::Read(unverified)) => {
                unverified.and_then(|unverified| self.shard.verify(&unverified))
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    pub fn bytes(&mut self, name: EntryName) -> Option<Vec<u8>> {
        self.read(name, None).map(|verified| verified.bytes.to_vec())
    }

    pub fn pools(&self) -> &BufferPools {
        &self.pools
    }

    /// Checks the order of writes before a command runs.
    fn audit(&mut self, command: &IoCommand) {
        let IoCommand::Write { offset, bytes, .. } = command else { return };
        let geometry = self.shard.geometry();
        let overlaps = |from: u64, length: u64| {
            self.disk.pending().any(|other| match other {
                IoCommand::Read { offset, length: read, .. } => {
                    *offset < from + length && from < offset + *read as u64
                }
                _ => false,
            })
        };
        let region = (0..geometry.regions).map(RegionId).find(|region| {
            let start = geometry.region_offset(*region);
            (start..start + geometry.region_size).contains(offset)
        });
        let Some(region) = region else { return };
        let start = geometry.region_offset(region);
        if *offset == start {
            assert!(!overlaps(start, geometry.region_size), "a region is reused while it is read");
            self.written.insert(region, BTreeSet::new());
            let header = RegionHeader::decode(bytes).expect("a header is written");
            match header.usage {
                RegionUse::Group { class: CLASS_EPHEMERAL, .. } => self.ephemeral.insert(region),
                _ => self.ephemeral.remove(&region),
            };
            return;
        }
        assert!(!overlaps(*offset, bytes.len() as u64), "blocks are written while they are read");
        let first = offset / BLOCK_SIZE as u64;
        let written = self.written.entry(region).or_default();
        if self.disk_is_reliable && !self.ephemeral.contains(&region) {
            let header = |block: &[u8]| RegionHeader::decode(block).map(|header| header.generation);
            let durable = header(&self.disk.durable_block(start));
            assert!(durable.is_some(), "an entry is written before its region's header is durable");
            assert_eq!(
                durable,
                header(&self.disk.get(start)),
                "an entry is written before its region's header"
            );
            let is_footer = offset + bytes.len() as u64 == start + geometry.region_size;
            for block in written.iter().filter(|_| is_footer) {
                let at = block * BLOCK_SIZE as u64;
                assert_eq!(
                    self.disk.durable_block(at),
                    self.disk.get(at),
                    "a footer is written before its entries are durable"
                );
            }
        }
        for block in first..first + (bytes.len() / BLOCK_SIZE) as u64 {
            assert!(written.insert(block), "a block is written twice in one generation");
        }
    }
}

/// An append of an entry that was filled in place.
pub fn commit(
    pools: &BufferPools,
    group: GroupId,
    name: EntryName,
    payload: &Bytes,
) -> ShardRequest {
    let mut reservation = Reservation::new(&pools.in_place, payload.len()).expect("memory");
    reservation.bytes_mut().copy_from_slice(payload);
    ShardRequest::Commit { group, name, tag: 9, entry: reservation.finish(payload.len()) }
}

pub fn append(group: GroupId, name: EntryName, payload: &Bytes) -> ShardRequest {
    let checksums = frame_checksums(payload);
    ShardRequest::Append { group, name, tag: 9, payload: payload.clone(), checksums }
}

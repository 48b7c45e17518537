//! An engine on a simulated disk, and an auditor between them who knows what may never happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use forebay_flash::{
    arena::Arena,
    index::{GroupId, Key},
    io::{Command, Completion, Disk as _, sim::SimDisk},
    layout::{
        BLOCK_SIZE, DeviceId, Geometry, RegionHeader, RegionId, SUPERBLOCK_OFFSETS, Superblock,
        frame_checksums,
    },
    recovery::{Found, Recovery},
    shard::{Answer, Memory, Name, OldestFirst, Outcome, Proved, Request, Settings, Shard},
};

pub const REGION_SIZE: u64 = 1 << 20;

/// Which seeds to run.
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
    pub answers: BTreeMap<u64, Outcome>,
    pub found: Found,
    /// Whether the disk keeps its word, so that the auditor may rely on what it reads.
    pub honest: bool,
    settings: Settings,
    memory: Memory,
    tokens: u64,
    /// Blocks of each region that were written in this life.
    written: BTreeMap<RegionId, BTreeSet<u64>>,
}

pub fn settings() -> Settings {
    Settings { piece_size: 4 * BLOCK_SIZE, filling_max: 4, scrub_rate: None, ..Settings::default() }
}

pub fn key(number: u64) -> Key {
    let mut key = [0; 32];
    fastrand::Rng::with_seed(number).fill(&mut key);
    Key(key)
}

/// The bytes of an entry are a function of what it is.
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

    /// Opens what is on a disk.
    pub fn open(mut disk: SimDisk, regions: u32, settings: Settings) -> Self {
        let memory = Memory {
            staging: Arena::new(32 * settings.piece_size).unwrap(),
            reading: Arena::new(4 << 20).unwrap(),
        };
        let mut superblock = superblock_on(&disk);
        let regions_before = superblock.geometry.regions;
        superblock.geometry.regions = regions;
        superblock.epoch += 1;
        let eviction = Box::new(OldestFirst);
        let recovery =
            Recovery::new(settings.clone(), superblock, regions_before, memory.clone(), eviction);
        let (shard, found) = recovery.carry_out(&mut disk).expect("the disk is well");
        let (answers, written) = (BTreeMap::new(), BTreeMap::new());
        let (now, honest, tokens) = (Duration::ZERO, true, 0);
        Self { disk, shard, now, answers, found, honest, settings, memory, tokens, written }
    }

    /// The power goes and comes back.
    pub fn crashed(self) -> Self {
        let (honest, settings) = (self.honest, self.settings.clone());
        let regions = self.shard.geometry().regions;
        let mut world = Self::open(self.disk.crash(), regions, settings);
        world.honest = honest;
        world
    }

    /// Opened again with another number of regions, on a device that does not forget what lies beyond.
    pub fn resized(self, regions: u32) -> Self {
        let geometry = Geometry { regions, ..self.shard.geometry() };
        let disk = self.disk.crash();
        let size = geometry.device_size().max(disk.size());
        Self::open(disk.resized(size), regions, self.settings)
    }

    /// Begins a request.
    pub fn begin(&mut self, request: Request) -> u64 {
        self.tokens += 1;
        self.shard.submit(self.tokens, request);
        self.tokens
    }

    /// Carries one command out. False if there was none.
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
        done.drain(..).for_each(|completion| self.shard.completed(completion));
        !idle
    }

    /// Goes on until nothing is under way.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        self.shard.advance(self.now);
    }

    /// Does a request and waits for its answer.
    pub fn ask(&mut self, request: Request) -> Outcome {
        let token = self.begin(request);
        self.wait_for(token)
    }

    pub fn wait_for(&mut self, token: u64) -> Outcome {
        loop {
            let busy = self.step();
            if let Some(outcome) = self.answers.remove(&token) {
                return outcome;
            }
            if !busy {
                let wake = self.shard.wake_at().expect("nobody would ever answer");
                let now = self.now.max(wake);
                self.advance(now.checked_sub(self.now).unwrap());
            }
        }
    }

    pub fn group(&mut self, name: &str, dense: bool) -> GroupId {
        let open = Request::Open { name: name.into(), class: 1, dense };
        match self.ask(open) {
            Ok(Answer::Group(group)) => group,
            other => panic!("{other:?}"),
        }
    }

    pub fn append(&mut self, group: GroupId, name: Name, payload: &Bytes) -> Outcome {
        self.ask(append(group, name, payload))
    }

    /// Reads and proves.
    pub fn read(&mut self, name: Name, range: Option<Range<u64>>) -> Option<Proved> {
        match self.ask(Request::Read { name, range, leased: false }) {
            Ok(Answer::Read(fetched)) => fetched.and_then(|fetched| self.shard.prove(&fetched)),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    pub fn bytes(&mut self, name: Name) -> Option<Vec<u8>> {
        self.read(name, None).map(|proved| proved.bytes.to_vec())
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Looks at a command before it is carried out.
    fn audit(&mut self, command: &Command) {
        let Command::Write { offset, bytes, .. } = command else { return };
        let geometry = self.shard.geometry();
        let overlaps = |from: u64, length: u64| {
            self.disk.pending().any(|other| match other {
                Command::Read { offset, length: read, .. } => {
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
            assert!(!overlaps(start, geometry.region_size), "a region is reused under a reader");
            self.written.insert(region, BTreeSet::new());
            return;
        }
        assert!(!overlaps(*offset, bytes.len() as u64), "written under a reader");
        let first = offset / BLOCK_SIZE as u64;
        let written = self.written.entry(region).or_default();
        if self.honest {
            let header = |block: &[u8]| RegionHeader::decode(block).map(|header| header.generation);
            let durable = header(&self.disk.durable_block(start));
            assert!(durable.is_some(), "an entry before its region's header is durable");
            assert_eq!(durable, header(&self.disk.get(start)), "an entry before its header");
            let is_footer = offset + bytes.len() as u64 == start + geometry.region_size;
            for block in written.iter().filter(|_| is_footer) {
                let at = block * BLOCK_SIZE as u64;
                assert_eq!(
                    self.disk.durable_block(at),
                    self.disk.get(at),
                    "a footer before what it lists is durable"
                );
            }
        }
        for block in first..first + (bytes.len() / BLOCK_SIZE) as u64 {
            assert!(written.insert(block), "a block is written twice in one life");
        }
    }
}

pub fn append(group: GroupId, name: Name, payload: &Bytes) -> Request {
    let checksums = frame_checksums(payload);
    Request::Append { group, name, tag: 9, payload: payload.clone(), checksums }
}

//! The engine on one or several devices. A key has a device of its own, and is looked for on all of them,
//! so that their number may change; a device that is lost costs what is on it, and no more.

use std::{error::Error as _, ops::Range, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::ByteSize;
use tokio::sync::oneshot;

use crate::{
    arena::Arena,
    driver::Driver,
    index::{GroupId, Key},
    io::{Backend, Fault, open_disk},
    layout::{Descriptor, frame_checksums},
    open::{DeviceConfig, DeviceError, check_distinct, open_device},
    recovery::{Found, Recovery},
    shard::{
        Answer, Counters, Eviction, Fetched, GroupFacts, Hold, Memory, Mismatch, Name, OldestFirst,
        Outcome, Proved, Refusal, Request, Settings,
    },
};

/// How the engine shall be.
pub struct Config {
    /// The devices: at least one.
    pub devices: Vec<DeviceConfig>,
    /// How I/O is done.
    pub backend: Backend,
    /// Memory for what is being written, of each device.
    pub staging: ByteSize,
    /// Memory for what has been read, of each device.
    pub reading: ByteSize,
    /// How each device works.
    pub settings: Settings,
    /// Makes the policy that decides what goes, for each device.
    pub eviction: Arc<dyn Fn() -> Box<dyn Eviction> + Send + Sync>,
}

impl Config {
    /// The usual, on these devices.
    pub fn new(devices: Vec<DeviceConfig>) -> Self {
        Self {
            devices,
            backend: Backend::Auto,
            staging: ByteSize::mib(32),
            reading: ByteSize::mib(64),
            settings: Settings::default(),
            eviction: Arc::new(|| Box::new(OldestFirst)),
        }
    }
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum FlashError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("there is no device: name at least one")]
    NoDevice,
    #[error("none of the devices can be read and written; the last said: {0}")]
    AllFailed(String),
    #[error("cannot get memory or threads")]
    System(#[from] std::io::Error),
}

/// The engine.
pub struct Flash {
    drivers: Vec<Arc<Driver>>,
    /// How many devices there were to be.
    named: usize,
}

/// A group on all devices.
#[derive(Clone)]
pub struct Group {
    drivers: Vec<Arc<Driver>>,
    /// Its number on each, or none where it could not be opened.
    ids: Vec<Option<GroupId>>,
    dense: bool,
}

/// What keeps a group from being evicted, until it is dropped.
#[must_use = "dropped, it holds nothing"]
pub struct Held {
    group: Group,
    hold: Hold,
}

impl Flash {
    /// Opens all devices and recovers what is on them. A device that cannot be read is left out, as long as
    /// there is another.
    pub fn open(config: &Config) -> Result<Self, FlashError> {
        let paths: Vec<_> = config.devices.iter().map(|device| device.path.clone()).collect();
        check_distinct(&paths)?;
        let (mut drivers, mut open): (Vec<Arc<Driver>>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        let mut last_fault = None;
        for device in &config.devices {
            let path = device.path.display().to_string();
            let fault = match start(device, config) {
                Ok(Ok(driver)) => {
                    let number = |driver: &Driver| driver.geometry().device;
                    let twin = drivers.iter().position(|other| number(other) == number(&driver));
                    if let Some(twin) = twin {
                        let (path, other) = (device.path.clone(), open[twin].clone());
                        return Err(DeviceError::Copy { path, other }.into());
                    }
                    open.push(device.path.clone());
                    let Found { entries, sealed, scanned, unreadable } = driver.found();
                    tracing::info!(%path, entries, sealed, scanned, unreadable, "a device is open");
                    drivers.push(Arc::new(driver));
                    continue;
                }
                Ok(Err(fault)) => fault.to_string(),
                // Not even what it says of itself can be read.
                Err(FlashError::Device(error @ DeviceError::Io { .. })) => {
                    error.source().map_or(error.to_string(), |cause| format!("{error}: {cause}"))
                }
                // Somebody has to decide something first.
                Err(error) => return Err(error),
            };
            tracing::error!(%path, %fault, "a device is left out");
            last_fault = Some(fault);
        }
        match (drivers.is_empty(), last_fault) {
            (false, _) => Ok(Self { drivers, named: config.devices.len() }),
            (true, Some(fault)) => Err(FlashError::AllFailed(fault)),
            (true, None) => Err(FlashError::NoDevice),
        }
    }

    /// Opens a group by its durable name, or makes it.
    pub async fn group(&self, name: &[u8], class: u8, dense: bool) -> Result<Group, Refusal> {
        let mut ids = Vec::new();
        let mut refusal = None;
        let open =
            |driver: &Arc<Driver>| driver.ask(Request::Open { name: name.to_vec(), class, dense });
        for answer in self.drivers.iter().map(open).collect::<Vec<_>>() {
            match outcome(answer).await {
                Ok(Answer::Group(id)) => ids.push(Some(id)),
                Ok(_) => unreachable!("a group is opened, or it is not"),
                Err(error) => {
                    ids.push(None);
                    refusal = Some(error);
                }
            }
        }
        match refusal {
            Some(refusal) if ids.iter().all(Option::is_none) => Err(refusal),
            _ => Ok(Group { drivers: self.drivers.clone(), ids, dense }),
        }
    }

    /// Whether something is there under this key, without asking anybody.
    pub fn contains(&self, key: &Key) -> bool {
        self.holder(key).is_some()
    }

    /// Some bytes of an entry, or all; `None` if it is not there, or was damaged.
    pub async fn read(
        &self,
        key: Key,
        range: Option<Range<u64>>,
    ) -> Result<Option<Proved>, Refusal> {
        match self.holder(&key) {
            None => Ok(None),
            Some(driver) => read(driver, Name::Key(key), range, false).await,
        }
    }

    /// Many at once; the answers come in the order of the questions.
    pub async fn read_batch(
        &self,
        wanted: &[(Key, Option<Range<u64>>)],
    ) -> Vec<Result<Option<Proved>, Refusal>> {
        let mut answers = Vec::with_capacity(wanted.len());
        let mut asked: Vec<Vec<(usize, Request)>> =
            self.drivers.iter().map(|_| Vec::new()).collect();
        for (at, (key, range)) in wanted.iter().enumerate() {
            answers.push(Ok(None));
            if let Some(driver) = self.drivers.iter().position(|driver| holds(driver, key)) {
                let (name, range) = (Name::Key(*key), range.clone());
                asked[driver].push((at, Request::Read { name, range, leased: false }));
            }
        }
        let mut receivers = Vec::with_capacity(wanted.len());
        for (driver, requests) in self.drivers.iter().zip(asked) {
            let (places, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
            let driver_answers = driver.ask_all(requests);
            receivers
                .extend(places.into_iter().zip(driver_answers).map(|(at, rx)| (at, driver, rx)));
        }
        for (at, driver, receiver) in receivers {
            answers[at] = outcome(receiver).await.map(|answer| proved(driver, answer));
        }
        answers
    }

    /// Forgets a key until it is written again, or until a restart.
    pub fn forget(&self, key: Key) {
        for driver in &self.drivers {
            driver.tell(Request::Forget { key });
        }
    }

    /// Seals everything that is being filled: a restart finds it at once.
    pub async fn flush(&self) -> Result<(), Refusal> {
        all(self.drivers.iter().map(|driver| driver.ask(Request::Flush)).collect()).await
    }

    /// The groups, device by device.
    pub async fn groups(&self) -> Result<Vec<GroupFacts>, Refusal> {
        let mut all = Vec::new();
        for driver in &self.drivers {
            match outcome(driver.ask(Request::Groups)).await? {
                Answer::Groups(groups) => all.extend(groups),
                _ => unreachable!("a list"),
            }
        }
        Ok(all)
    }

    /// What has been counted, device by device.
    pub fn counters(&self) -> Vec<Counters> {
        self.drivers.iter().map(|driver| driver.counters()).collect()
    }

    /// How many devices there were to be; those that could not be read were left out.
    pub fn devices_named(&self) -> usize {
        self.named
    }

    /// How much fits onto the devices.
    pub fn capacity(&self) -> ByteSize {
        let sizes = self.drivers.iter().map(|driver| driver.geometry());
        ByteSize(sizes.map(|geometry| u64::from(geometry.regions) * geometry.region_size).sum())
    }

    /// What was found when it was opened, device by device.
    pub fn found(&self) -> Vec<Found> {
        self.drivers.iter().map(|driver| driver.found()).collect()
    }

    /// The longest entry that fits on every device.
    pub fn entry_length_max(&self) -> u64 {
        let lengths = self.drivers.iter().map(|driver| driver.entry_length_max());
        lengths.min().expect("there is a device")
    }

    /// The size of the largest regions.
    pub fn region_size(&self) -> u64 {
        let sizes = self.drivers.iter().map(|driver| driver.geometry().region_size);
        sizes.max().expect("there is a device")
    }

    fn holder(&self, key: &Key) -> Option<&Driver> {
        self.drivers.iter().find(|driver| holds(driver, key)).map(|driver| &**driver)
    }
}

impl Group {
    /// Writes an entry under a key. It can be read when this returns; it is durable when it is sealed.
    ///
    /// A key stands for its bytes: other bytes under the same key may not be found on several devices before
    /// the group of the first has been freed. So it is with ordinals.
    pub async fn append(&self, key: Key, tag: u32, payload: Bytes) -> Result<(), Refusal> {
        assert!(!self.dense, "the entries of a dense group have ordinals");
        let [.., a, b, c, d] = key.0;
        let home = u32::from_le_bytes([a, b, c, d]) as usize;
        self.append_at(home, |_| Name::Key(key), tag, payload).await
    }

    /// Writes an entry of a dense group.
    pub async fn append_ordinal(
        &self,
        ordinal: u64,
        tag: u32,
        payload: Bytes,
    ) -> Result<(), Refusal> {
        let home = usize::try_from(ordinal).unwrap_or(0);
        self.append_at(home, |group| Name::Ordinal(group, ordinal), tag, payload).await
    }

    /// On its own device, or, if that is not well, on the next that is.
    async fn append_at(
        &self,
        home: usize,
        name: impl Fn(GroupId) -> Name,
        tag: u32,
        payload: Bytes,
    ) -> Result<(), Refusal> {
        let checksums = frame_checksums(&payload);
        let count = self.drivers.len();
        let mut refusal = Refusal::Gone;
        for at in (0..count).map(|step| (home + step) % count) {
            let Some(group) = self.ids[at] else { continue };
            let (payload, checksums) = (payload.clone(), checksums.clone());
            let append = Request::Append { group, name: name(group), tag, payload, checksums };
            match outcome(self.drivers[at].ask(append)).await {
                Ok(_) => return Ok(()),
                Err(error @ (Refusal::Unstable | Refusal::Failed | Refusal::TimedOut)) => {
                    refusal = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    /// Some bytes of an entry of a dense group, or all.
    pub async fn read_ordinal(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
    ) -> Result<Option<Proved>, Refusal> {
        self.read_as(ordinal, range, false).await
    }

    async fn read_as(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
        leased: bool,
    ) -> Result<Option<Proved>, Refusal> {
        for (driver, group) in self.each() {
            if driver.index().read().find_ordinal(group, ordinal).is_some() {
                return read(driver, Name::Ordinal(group, ordinal), range, leased).await;
            }
        }
        Ok(None)
    }

    /// Ends it: when this returns, everything in it is durable, and stays as it is.
    pub async fn seal(&self) -> Result<(), Refusal> {
        self.all(|group| Request::Seal { group }).await
    }

    /// No new readers from now on.
    pub async fn mark(&self) -> Result<(), Refusal> {
        self.all(|group| Request::Mark { group }).await
    }

    /// Gives its space back, once its leases have ended or patience has. It does not come back.
    pub async fn free(&self, patience: Duration) -> Result<(), Refusal> {
        self.all(|group| Request::Free { group, patience }).await
    }

    /// Keeps it from being evicted.
    pub fn pin(&self) -> Result<Held, Refusal> {
        self.hold(Hold::Pin)
    }

    /// Keeps it from being evicted, and readable when it is marked, until it is drained by force.
    pub fn lease(&self) -> Result<Held, Refusal> {
        self.hold(Hold::Lease)
    }

    /// It is answered at once, so that nobody can go away between the question and the answer. If one device
    /// refuses, the others are let go of.
    fn hold(&self, hold: Hold) -> Result<Held, Refusal> {
        let mut kept =
            Held { group: Self { ids: vec![None; self.ids.len()], ..self.clone() }, hold };
        for (at, id) in self.ids.iter().enumerate() {
            let Some(group) = *id else { continue };
            let mut answer = self.drivers[at].ask(Request::Hold { group, hold });
            answer.try_recv().unwrap_or(Err(Refusal::Gone))?;
            kept.group.ids[at] = Some(group);
        }
        Ok(kept)
    }

    /// What is in it, device by device, in the order of writing.
    pub async fn entries(&self) -> Result<Vec<Descriptor>, Refusal> {
        let mut entries = Vec::new();
        for (driver, group) in self.each() {
            match outcome(driver.ask(Request::Entries { group })).await? {
                Answer::Entries(some) => entries.extend(some),
                _ => unreachable!("a list"),
            }
        }
        Ok(entries)
    }

    fn each(&self) -> impl Iterator<Item = (&Driver, GroupId)> {
        let pairs = self.drivers.iter().zip(&self.ids);
        pairs.filter_map(|(driver, id)| Some((&**driver, (*id)?)))
    }

    async fn all(&self, request: impl Fn(GroupId) -> Request) -> Result<(), Refusal> {
        all(self.each().map(|(driver, group)| driver.ask(request(group))).collect()).await
    }
}

impl Held {
    /// Some bytes of an entry of a dense group, also when it has been marked.
    pub async fn read_ordinal(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
    ) -> Result<Option<Proved>, Refusal> {
        self.group.read_as(ordinal, range, true).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let hold = self.hold;
        for (driver, group) in self.group.each() {
            driver.tell(Request::LetGo { group, hold });
        }
    }
}

fn start(device: &DeviceConfig, config: &Config) -> Result<Result<Driver, Fault>, FlashError> {
    let opened = open_device(device)?;
    let size = |ByteSize(size): ByteSize| usize::try_from(size).unwrap_or(usize::MAX);
    let staging = size(config.staging).max(16 * config.settings.piece_size);
    let memory = Memory {
        staging: Arena::new(staging)?,
        // A window of recovery, and the longest entry twice.
        reading: Arena::new(size(config.reading).max(4 << 20))?,
    };
    let superblock = opened.superblock;
    // A file system stops all other I/O of a file while it takes some of its blocks, and is slow to write
    // to those it gave back; all that for space that stays reserved.
    let discard = config.settings.discard && opened.is_block_device;
    let name = device.path.display().to_string();
    let settings = Settings { name, discard, ..config.settings.clone() };
    let recovery = Recovery::new(
        settings,
        superblock,
        opened.regions_before,
        memory.clone(),
        (config.eviction)(),
    );
    let path = device.path.display().to_string();
    let file = Arc::new(opened.file);
    let disk = open_disk(&file, config.backend, &[memory.staging, memory.reading.clone()])
        .map_err(DeviceError::Open)?;
    let driver = Driver::start(format!("flash {path}"), recovery, move || disk)?;
    if let Ok(driver) = &driver {
        memory.reading.on_release({
            // What was read may be held for longer than the device is open.
            let waker = Arc::downgrade(&driver.waker());
            move || {
                if let Some(waker) = waker.upgrade() {
                    waker();
                }
            }
        });
        if let Some(size) = opened.shorten_to {
            file.shorten(size).map_err(DeviceError::Open)?;
        }
    }
    Ok(driver)
}

fn holds(driver: &Driver, key: &Key) -> bool {
    let index = driver.index().read();
    index.is_readable() && index.find(key).is_some()
}

async fn outcome(answer: oneshot::Receiver<Outcome>) -> Outcome {
    // The thread of a device ends only with the engine.
    answer.await.unwrap_or(Err(Refusal::Gone))
}

async fn all(answers: Vec<oneshot::Receiver<Outcome>>) -> Result<(), Refusal> {
    let mut result = Ok(());
    for answer in answers {
        result = result.and(outcome(answer).await.map(|_| ()));
    }
    result
}

async fn read(
    driver: &Driver,
    name: Name,
    range: Option<Range<u64>>,
    leased: bool,
) -> Result<Option<Proved>, Refusal> {
    let answer = outcome(driver.ask(Request::Read { name, range, leased })).await?;
    Ok(proved(driver, answer))
}

/// Proves what was read; what is damaged is made known to the device's owner.
fn proved(driver: &Driver, answer: Answer) -> Option<Proved> {
    let Answer::Read(fetched) = answer else { unreachable!("bytes, or none") };
    let fetched: Fetched = fetched?;
    match fetched.prove() {
        Ok(proved) => Some(proved),
        Err(mismatch) => {
            if mismatch == Mismatch::Damaged {
                let Fetched { name, location, generation, .. } = fetched;
                driver.tell(Request::Damaged { name, location, generation });
            }
            None
        }
    }
}

//! The engine: one cache on one or several flash devices.
//!
//! Each key has a home device, derived from the key. Reads look the key up on every device, so
//! devices can be added and removed between runs. A lost device costs only the entries on it.

use std::{error::Error as _, ops::Range, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::ByteSize;
use tokio::sync::oneshot;

use crate::{
    device_open::{DeviceConfig, DeviceError, check_distinct, open_device},
    device_thread::{AnswerSink, DeviceThread, Engine as _},
    format::{Descriptor, EntryShape, frame_checksums},
    index::{EntryKey, GroupId},
    io::{Backend, IoFault, Watch, open_disk},
    recovery::{Recovery, RecoveryReport},
    reservation::FilledEntry,
    shard::{
        BufferPools, Counters, EntryName, Eviction, GroupInfo, GuardKind, Mismatch, OldestFirst,
        RegionRef, RequestError, RequestResult, Settings, ShardAnswer, ShardRequest,
        UnverifiedRead, VerifiedRead,
    },
};

/// Shortest payload that is copied outside the shard's lock. Shorter ones share blocks with their
/// neighbours, and their copy takes less time than the lock.
const IN_PLACE_MIN: usize = 256 << 10;

/// Configuration of the engine.
pub struct FlashConfig {
    /// The devices, at least one.
    pub devices: Vec<DeviceConfig>,
    /// I/O backend of all devices.
    pub backend: Backend,
    /// Memory for bytes on their way to a device, per device.
    pub staging_buffers: ByteSize,
    /// The part of `staging_buffers` that callers fill in place.
    pub in_place_buffers: ByteSize,
    /// Memory for bytes read from a device, per device.
    pub read_buffers: ByteSize,
    /// Settings of each device's shard.
    pub settings: Settings,
    /// Constructor of the eviction policy; called once per device.
    pub eviction: Arc<dyn Fn() -> Box<dyn Eviction> + Send + Sync>,
    /// A descriptor that the thread of each device watches.
    pub watch: Option<Watch>,
}

impl FlashConfig {
    /// Default configuration for these devices.
    pub fn new(devices: Vec<DeviceConfig>) -> Self {
        Self {
            devices,
            backend: Backend::Auto,
            staging_buffers: ByteSize::mib(32),
            in_place_buffers: ByteSize::mib(16),
            read_buffers: ByteSize::mib(64),
            settings: Settings::default(),
            eviction: Arc::new(|| Box::new(OldestFirst)),
            watch: None,
        }
    }
}

/// Why the engine did not open.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum FlashError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("no devices are configured: name at least one")]
    NoDevice,
    #[error("no device can be read and written; last error: {0}")]
    AllFailed(String),
    #[error("cannot allocate memory or start threads")]
    System(#[from] std::io::Error),
}

/// The engine.
pub struct Flash {
    devices: Vec<Arc<DeviceThread>>,
    /// Number of devices in the configuration, including those that failed to open.
    configured: usize,
}

/// The place of an entry that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Position of the device among those that opened.
    pub device: usize,
    /// The region. [`Eviction::on_freed`] reports when it goes.
    pub region: RegionRef,
}

/// A handle for one group, across all devices.
#[derive(Clone)]
pub struct Group {
    devices: Vec<Arc<DeviceThread>>,
    /// The group's id on each device; `None` where it could not be opened.
    ids: Vec<Option<GroupId>>,
    dense: bool,
}

/// A pin or a lease on a group, which prevents its eviction until the guard is dropped.
#[must_use = "dropping the guard releases the pin or lease"]
pub struct GroupGuard {
    group: Group,
    kind: GuardKind,
}

impl Flash {
    /// Opens all devices and recovers their contents. A device that cannot be read is left out if
    /// another one opens.
    pub fn open(config: &FlashConfig) -> Result<Self, FlashError> {
        let paths: Vec<_> = config.devices.iter().map(|device| device.path.clone()).collect();
        check_distinct(&paths)?;
        let (mut devices, mut opened_paths): (Vec<Arc<DeviceThread>>, Vec<PathBuf>) =
            (Vec::new(), Vec::new());
        let mut last_fault = None;
        for device_config in &config.devices {
            let path = device_config.path.display().to_string();
            let fault = match start(device_config, config) {
                Ok(Ok(device)) => {
                    let id = |device: &DeviceThread| device.geometry().device;
                    let twin = devices.iter().position(|other| id(other) == id(&device));
                    if let Some(twin) = twin {
                        let (path, other) =
                            (device_config.path.clone(), opened_paths[twin].clone());
                        return Err(DeviceError::Copy { path, other }.into());
                    }
                    opened_paths.push(device_config.path.clone());
                    let RecoveryReport {
                        entries,
                        regions_sealed,
                        regions_scanned,
                        regions_unreadable,
                    } = device.recovery_report();
                    tracing::info!(
                        %path, entries, regions_sealed, regions_scanned, regions_unreadable,
                        "device opened"
                    );
                    devices.push(Arc::new(device));
                    continue;
                }
                Ok(Err(fault)) => fault.to_string(),
                // The superblocks cannot be read.
                Err(FlashError::Device(error @ DeviceError::Io { .. })) => {
                    error.source().map_or(error.to_string(), |cause| format!("{error}: {cause}"))
                }
                // The other errors need an operator's decision.
                Err(error) => return Err(error),
            };
            tracing::error!(%path, %fault, "device left out");
            last_fault = Some(fault);
        }
        match (devices.is_empty(), last_fault) {
            (false, _) => Ok(Self { devices, configured: config.devices.len() }),
            (true, Some(fault)) => Err(FlashError::AllFailed(fault)),
            (true, None) => Err(FlashError::NoDevice),
        }
    }

    /// An engine on devices that have been started, as a test does on simulated disks.
    pub fn on_devices(devices: Vec<DeviceThread>) -> Self {
        let configured = devices.len();
        Self { devices: devices.into_iter().map(Arc::new).collect(), configured }
    }

    /// Opens a group by its durable name, or creates it.
    pub async fn group(&self, name: &[u8], class: u8, dense: bool) -> Result<Group, RequestError> {
        let mut ids = Vec::new();
        let mut last_error = None;
        let open = |device: &Arc<DeviceThread>| {
            device.request(ShardRequest::Open { name: name.to_vec(), class, dense })
        };
        for answer in self.devices.iter().map(open).collect::<Vec<_>>() {
            match outcome(answer).await {
                Ok(ShardAnswer::Group(id)) => ids.push(Some(id)),
                Ok(_) => unreachable!("Open is answered with a group"),
                Err(error) => {
                    ids.push(None);
                    last_error = Some(error);
                }
            }
        }
        match last_error {
            Some(error) if ids.iter().all(Option::is_none) => Err(error),
            _ => Ok(Group { devices: self.devices.clone(), ids, dense }),
        }
    }

    /// Whether an entry is indexed under this key. Takes no I/O and no device request.
    pub fn contains(&self, key: &EntryKey) -> bool {
        self.device_with(key).is_some()
    }

    /// The longest payload that the entry under this key can have, or `None` if there is no entry.
    /// At most one unit (64 bytes) above its length. Takes no I/O and no device request.
    pub fn length_bound(&self, key: &EntryKey) -> Option<u64> {
        let location = self.device_with(key)?.index().read().find(key)?;
        Some(EntryShape::of_size(location.size()).length())
    }

    /// Whether a device accepts entries: it can be read, written and synced.
    pub fn is_accepting(&self) -> bool {
        self.devices.iter().any(|device| device.counters().healthy)
    }

    /// Reads an entry, or a byte range of it. `None` if it is missing or damaged.
    pub async fn read(
        &self,
        key: EntryKey,
        range: Option<Range<u64>>,
    ) -> Result<Option<VerifiedRead>, RequestError> {
        match self.device_with(&key) {
            None => Ok(None),
            Some(device) => read(device, EntryName::Key(key), range, false).await,
        }
    }

    /// Reads several entries at once. Answers are in the order of the requests.
    pub async fn read_batch(
        &self,
        wanted: &[(EntryKey, Option<Range<u64>>)],
    ) -> Vec<Result<Option<VerifiedRead>, RequestError>> {
        let mut answers = Vec::with_capacity(wanted.len());
        let mut per_device: Vec<Vec<(usize, ShardRequest)>> =
            self.devices.iter().map(|_| Vec::new()).collect();
        for (at, (key, range)) in wanted.iter().enumerate() {
            answers.push(Ok(None));
            if let Some(device) = self.devices.iter().position(|device| has_key(device, key)) {
                let (name, range) = (EntryName::Key(*key), range.clone());
                per_device[device]
                    .push((at, ShardRequest::Read { name, range, leased: false, into: None }));
            }
        }
        let mut receivers = Vec::with_capacity(wanted.len());
        for (device, requests) in self.devices.iter().zip(per_device) {
            let (positions, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
            let device_answers = device.request_all(requests);
            receivers
                .extend(positions.into_iter().zip(device_answers).map(|(at, rx)| (at, device, rx)));
        }
        for (at, device, receiver) in receivers {
            answers[at] = outcome(receiver).await.and_then(|answer| verified(device, answer));
        }
        answers
    }

    /// Removes a key from the index of every device, until it is written again or the device is
    /// reopened. When this returns, the key is not found.
    pub fn forget(&self, key: EntryKey) {
        for device in self.devices.iter().filter(|device| has_entry(device, &key)) {
            forget(device, key);
        }
    }

    /// Removes a key from the index of the device that reads find it on. Another device may have
    /// another copy: a device that comes back still has its old entries.
    pub fn forget_copy(&self, key: EntryKey) {
        if let Some(device) = self.device_with(&key) {
            forget(device, key);
        }
    }

    /// Seals every region that is being filled, so that a restart need not scan it.
    pub async fn flush(&self) -> Result<(), RequestError> {
        all(self.devices.iter().map(|device| device.request(ShardRequest::Flush)).collect()).await
    }

    /// The groups of all devices, device by device.
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, RequestError> {
        let mut all = Vec::new();
        for device in &self.devices {
            match outcome(device.request(ShardRequest::Groups)).await? {
                ShardAnswer::Groups(groups) => all.extend(groups),
                _ => unreachable!("Groups is answered with a list"),
            }
        }
        Ok(all)
    }

    /// Counters, device by device.
    pub fn counters(&self) -> Vec<Counters> {
        self.devices.iter().map(|device| device.counters()).collect()
    }

    /// Number of configured devices, including those that were left out.
    pub fn devices_configured(&self) -> usize {
        self.configured
    }

    /// Size of all regions together.
    pub fn capacity(&self) -> ByteSize {
        let sizes = self.devices.iter().map(|device| device.geometry());
        ByteSize(sizes.map(|geometry| u64::from(geometry.regions) * geometry.region_size).sum())
    }

    /// What recovery found, device by device.
    pub fn recovery_reports(&self) -> Vec<RecoveryReport> {
        self.devices.iter().map(|device| device.recovery_report()).collect()
    }

    /// The longest payload that fits on every device.
    pub fn entry_length_max(&self) -> u64 {
        let lengths = self.devices.iter().map(|device| device.entry_length_max());
        lengths.min().expect("at least one device")
    }

    /// The largest region size of all devices.
    pub fn region_size(&self) -> u64 {
        let sizes = self.devices.iter().map(|device| device.geometry().region_size);
        sizes.max().expect("at least one device")
    }

    fn device_with(&self, key: &EntryKey) -> Option<&DeviceThread> {
        self.devices.iter().find(|device| has_key(device, key)).map(|device| &**device)
    }
}

impl Group {
    /// Appends an entry under a key. The entry is readable when this returns, and durable when its
    /// region is sealed.
    ///
    /// A key must always name the same bytes. Other bytes under the same key may land on another
    /// device, and reads may return either until the first group is freed. The same holds for
    /// ordinals.
    pub async fn append(
        &self,
        key: EntryKey,
        tag: u32,
        payload: Bytes,
    ) -> Result<Appended, RequestError> {
        assert!(!self.dense, "entries of a dense group are named by ordinals");
        let [.., a, b, c, d] = key.0;
        let home = u32::from_le_bytes([a, b, c, d]) as usize;
        self.append_at(home, |_| EntryName::Key(key), tag, payload).await
    }

    /// Appends an entry of a dense group.
    pub async fn append_ordinal(
        &self,
        ordinal: u64,
        tag: u32,
        payload: Bytes,
    ) -> Result<Appended, RequestError> {
        let home = usize::try_from(ordinal).unwrap_or(0);
        self.append_at(home, |group| EntryName::Ordinal(group, ordinal), tag, payload).await
    }

    /// Appends on the home device, or on the next healthy one.
    async fn append_at(
        &self,
        home: usize,
        name: impl Fn(GroupId) -> EntryName,
        tag: u32,
        payload: Bytes,
    ) -> Result<Appended, RequestError> {
        let checksums = frame_checksums(&payload);
        let count = self.devices.len();
        let mut last_error = RequestError::Gone;
        for at in (0..count).map(|step| (home + step) % count) {
            let Some(group) = self.ids[at] else { continue };
            let device = &self.devices[at];
            let name = name(group);
            let (payload, checksums) = (payload.clone(), checksums.clone());
            // A long copy is made here, not under the shard's lock.
            let in_place = (payload.len() >= IN_PLACE_MIN)
                .then(|| {
                    FilledEntry::copy_of(&device.pools().in_place, &payload, checksums.clone())
                })
                .flatten();
            let append = match in_place {
                Some(entry) => ShardRequest::Commit { group, name, tag, entry },
                None => ShardRequest::Append { group, name, tag, payload, checksums },
            };
            match outcome(device.request(append)).await.and_then(committed) {
                Ok(ShardAnswer::Appended { region }) => {
                    return Ok(Appended { device: at, region });
                }
                Ok(_) => unreachable!("an append is answered with its region"),
                Err(
                    error @ (RequestError::Unhealthy
                    | RequestError::Failed
                    | RequestError::TimedOut),
                ) => last_error = error,
                Err(error) => return Err(error),
            }
        }
        Err(last_error)
    }

    /// Reads an entry of a dense group, or a byte range of it.
    pub async fn read_ordinal(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
    ) -> Result<Option<VerifiedRead>, RequestError> {
        self.read_as(ordinal, range, false).await
    }

    async fn read_as(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
        leased: bool,
    ) -> Result<Option<VerifiedRead>, RequestError> {
        for (device, group) in self.opened() {
            if device.index().read().find_ordinal(group, ordinal).is_some() {
                return read(device, EntryName::Ordinal(group, ordinal), range, leased).await;
            }
        }
        Ok(None)
    }

    /// Seals the group. When this returns, all its entries are durable and it accepts no more.
    pub async fn seal(&self) -> Result<(), RequestError> {
        self.request_all(|group| ShardRequest::Seal { group }).await
    }

    /// Marks the group: it accepts no new readers.
    pub async fn mark(&self) -> Result<(), RequestError> {
        self.request_all(|group| ShardRequest::Mark { group }).await
    }

    /// Frees the group's regions once its leases end, or after `lease_timeout`. Durable when this
    /// returns.
    pub async fn free(&self, lease_timeout: Duration) -> Result<(), RequestError> {
        self.request_all(|group| ShardRequest::Free { group, lease_timeout }).await
    }

    /// Prevents eviction until the guard is dropped.
    pub fn pin(&self) -> Result<GroupGuard, RequestError> {
        self.acquire(GuardKind::Pin)
    }

    /// Prevents eviction, and lets the holder read a marked group until the group is freed.
    pub fn lease(&self) -> Result<GroupGuard, RequestError> {
        self.acquire(GuardKind::Lease)
    }

    /// The shard answers these requests at once, so no cancellation can come between request and
    /// answer. If one device rejects the request, the guards on the others are released.
    fn acquire(&self, kind: GuardKind) -> Result<GroupGuard, RequestError> {
        let mut acquired =
            GroupGuard { group: Self { ids: vec![None; self.ids.len()], ..self.clone() }, kind };
        for (at, id) in self.ids.iter().enumerate() {
            let Some(group) = *id else { continue };
            let mut answer = self.devices[at].request(ShardRequest::Acquire { group, guard: kind });
            answer.try_recv().unwrap_or(Err(RequestError::Gone))?;
            acquired.group.ids[at] = Some(group);
        }
        Ok(acquired)
    }

    /// The group's entries, device by device, in the order in which they were written.
    pub async fn entries(&self) -> Result<Vec<Descriptor>, RequestError> {
        let mut entries = Vec::new();
        for (device, group) in self.opened() {
            match outcome(device.request(ShardRequest::Entries { group })).await? {
                ShardAnswer::Entries(some) => entries.extend(some),
                _ => unreachable!("Entries is answered with a list"),
            }
        }
        Ok(entries)
    }

    /// The devices on which the group is open, with its id on each.
    fn opened(&self) -> impl Iterator<Item = (&DeviceThread, GroupId)> {
        let pairs = self.devices.iter().zip(&self.ids);
        pairs.filter_map(|(device, id)| Some((&**device, (*id)?)))
    }

    async fn request_all(
        &self,
        request: impl Fn(GroupId) -> ShardRequest,
    ) -> Result<(), RequestError> {
        all(self.opened().map(|(device, group)| device.request(request(group))).collect()).await
    }
}

impl GroupGuard {
    /// Reads an entry of a dense group, or a byte range of it, even if the group is marked.
    pub async fn read_ordinal(
        &self,
        ordinal: u64,
        range: Option<Range<u64>>,
    ) -> Result<Option<VerifiedRead>, RequestError> {
        self.group.read_as(ordinal, range, true).await
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        let guard = self.kind;
        for (device, group) in self.group.opened() {
            device.post(AnswerSink::None, ShardRequest::Release { group, guard });
        }
    }
}

/// Opens one device alone, without the routing between several.
pub fn open_engine(
    device: &DeviceConfig,
    config: &FlashConfig,
) -> Result<DeviceThread, FlashError> {
    start(device, config)?.map_err(|fault| FlashError::AllFailed(fault.to_string()))
}

fn start(
    device: &DeviceConfig,
    config: &FlashConfig,
) -> Result<Result<DeviceThread, IoFault>, FlashError> {
    let opened = open_device(device)?;
    let size = |ByteSize(size): ByteSize| usize::try_from(size).unwrap_or(usize::MAX);
    let staging = size(config.staging_buffers).max(16 * config.settings.write_size);
    // At least a half, or 4 MiB, remains for headers, footers and entries that are copied.
    let in_place = size(config.in_place_buffers).min((staging / 2).max(staging - (4 << 20)));
    // Room for one recovery window, and for the longest entry twice.
    let pools = BufferPools::new(staging, in_place, size(config.read_buffers).max(4 << 20))?;
    let superblock = opened.superblock;
    // On a file, punching a hole blocks all other I/O of the file, and writes to the hole are slow
    // afterwards. The space stays reserved anyway, so nothing would be gained.
    let discard = config.settings.discard && opened.is_block_device;
    let name = device.path.display().to_string();
    let settings = Settings { name, discard, ..config.settings.clone() };
    let recovery = Recovery::new(
        settings,
        superblock,
        opened.regions_before,
        pools.clone(),
        (config.eviction)(),
    );
    let path = device.path.display().to_string();
    let file = Arc::new(opened.file);
    let mut disk = open_disk(&file, config.backend, &[pools.staging.clone(), pools.read.clone()])
        .map_err(DeviceError::Open)?;
    if let Some(watch) = &config.watch {
        disk.watch(watch.clone());
    }
    let thread = format!("flash {path}");
    let device = DeviceThread::start(thread, recovery, pools.clone(), move || disk)?;
    if let Ok(device) = &device {
        pools.read.on_release({
            // A caller may keep its buffers after the device is closed.
            let waker = Arc::downgrade(&device.waker());
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
    Ok(device)
}

fn forget(device: &DeviceThread, key: EntryKey) {
    // The shard removes the key before `request` returns.
    drop(device.request(ShardRequest::Forget { key }));
}

fn has_entry(device: &DeviceThread, key: &EntryKey) -> bool {
    device.index().read().find(key).is_some()
}

fn has_key(device: &DeviceThread, key: &EntryKey) -> bool {
    let index = device.index().read();
    index.is_readable() && index.find(key).is_some()
}

async fn outcome(answer: oneshot::Receiver<RequestResult>) -> RequestResult {
    // A device thread ends only with the engine, or after a panic.
    answer.await.unwrap_or(Err(RequestError::Gone))
}

/// The outcome of an append, also of one that returns its entry.
fn committed(answer: ShardAnswer) -> RequestResult {
    match answer {
        ShardAnswer::NotCommitted { error, .. } => Err(error),
        answer => Ok(answer),
    }
}

async fn all(answers: Vec<oneshot::Receiver<RequestResult>>) -> Result<(), RequestError> {
    let mut result = Ok(());
    for answer in answers {
        result = result.and(outcome(answer).await.map(|_| ()));
    }
    result
}

async fn read(
    device: &DeviceThread,
    name: EntryName,
    range: Option<Range<u64>>,
    leased: bool,
) -> Result<Option<VerifiedRead>, RequestError> {
    let request = ShardRequest::Read { name, range, leased, into: None };
    verified(device, outcome(device.request(request)).await?)
}

/// Verifies a read, and reports damage to the shard.
fn verified(
    device: &DeviceThread,
    answer: ShardAnswer,
) -> Result<Option<VerifiedRead>, RequestError> {
    let ShardAnswer::Read(unverified) = answer else { unreachable!("Read is answered with bytes") };
    let Some(unverified) = unverified else { return Ok(None) };
    match unverified.verify() {
        Ok(verified) => Ok(Some(verified)),
        Err(Mismatch::OtherKey) => Ok(None),
        // The entry is intact. Only the index's bound on its length allowed the range.
        Err(Mismatch::Range) => Err(RequestError::Range),
        Err(Mismatch::Damaged) => {
            let UnverifiedRead { name, location, generation, .. } = unverified;
            let report = ShardRequest::ReportDamage { name, location, generation };
            device.post(AnswerSink::None, report);
            Ok(None)
        }
    }
}

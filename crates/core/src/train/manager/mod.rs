//! The manager of one dataset (Quiver's cache manager): which jobs read it, what each gains, and
//! which half-chunks are kept.
//!
//! It combines three state machines. `benefit` decides for each job whether it gains from the
//! cache. Jobs that do are **members** of the `rotation`, which decides which chunks are loaded and
//! evicted. `placement` decides how many chunks there may be, for all datasets together
//! ([`Space`]). Events and the time go in, orders about half-chunks come out. The caller (a node,
//! the simulator) carries them out.
//!
//! A manager can be lost, because its state can be collected again: jobs join the next manager with
//! what they have not read, and nodes state what they have ([`Manager::take_over`]).
//!
//! An event that contradicts the state changes nothing. It is returned as an error, and counted.

mod draining;
mod draw_set;
mod events;
mod explain;
mod half_chunks;
mod load;
mod ranks;
mod reader;
mod registry;
mod space;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use draw_set::{CacheClass, DrawSet, batch_mode};
pub use explain::{Explanation, HalfChunkState, JobExplanation};
use half_chunks::HalfChunks;
pub use ranks::JobRank;
use reader::DatasetReader;
pub use reader::JobProfile;
pub use registry::{
    HalfChunkBytes, JOB_HALF_CHUNK_BYTES, JOB_HALF_CHUNKS_MAX, ManagerRegistry, MeasuredBatch,
    Overview, Report, ReportAnswer, ReportRefusal,
};
pub use space::{PlacementRule, Space};

use crate::{
    ByteSize, HalfChunk, HalfChunkRange,
    dataset::chunking::ChunkOrdinal,
    train::{
        benefit::Mode,
        placement::{Allocation, DatasetDemand},
        rotation::{
            ChunkBytes, ChunkDrawSet, ChunkOrder, InvalidEvent, JobNumber, Rotation,
            RotationCounters, RotationEvent, RotationPolicy, RotationSettings,
        },
    },
    units::ByteRate,
};
use load::Load;

/// What does not change while a dataset is managed.
#[derive(Debug, Clone)]
pub struct ManagerSettings {
    /// The rule by which chunks are loaded and evicted.
    pub policy: RotationPolicy,
    /// Time after which a job without events is forgotten.
    pub lease: Duration,
    /// Rate at which its jobs fetch together, until it is measured.
    pub load_rate: ByteRate,
    /// Sizes of all half-chunks.
    pub half_chunk_sizes: Vec<ByteSize>,
    /// Half-chunks of a chunk: two, or one if chunks are never halved.
    pub half_chunks_per_chunk: u32,
}

/// An order about half-chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HalfChunkOrder {
    /// Keep what jobs fetch of these.
    Load(HalfChunkRange),
    /// Free these. The caller calls [`Manager::on_evicted`] when that is complete.
    Evict(HalfChunkRange),
    /// Apply [`Manager::keep_set`] again: it has changed without a load or an eviction.
    Keep,
}

/// The manager of one dataset.
#[derive(Debug)]
pub struct Manager {
    policy: RotationPolicy,
    lease: Duration,
    load_rate: ByteRate,
    now: Duration,
    half_chunks: HalfChunks,
    allocation: Allocation,
    rotation: Rotation,
    /// Counts of rotations before the last regrouping.
    counted_before: RotationCounters,
    readers: BTreeMap<JobNumber, DatasetReader>,
    classes: Vec<CacheClass>,
    /// Half-chunks of which blobs are present, whether or not rotation ordered them.
    present: BTreeSet<HalfChunk>,
    /// Time of the last event of any job.
    last_read_at: Duration,
    /// Chunks that are being loaded.
    loads: BTreeMap<ChunkOrdinal, Load>,
    /// Evicted chunks whose last items are on their way to jobs.
    draining: BTreeSet<ChunkOrdinal>,
    /// Half-chunks from before a regrouping that are not free yet. Nothing is loaded until they
    /// are.
    clearing: BTreeSet<HalfChunk>,
    /// Changes when placement has a reason to split the space again.
    demand_revision: u64,
}

type Orders = Result<Vec<HalfChunkOrder>, InvalidEvent>;

impl Manager {
    /// A dataset without jobs and without space.
    pub fn new(settings: ManagerSettings) -> Self {
        let ManagerSettings { policy, lease, load_rate, half_chunk_sizes, half_chunks_per_chunk } =
            settings;
        let classes = vec![CacheClass::Uncached; half_chunk_sizes.len()];
        let half_chunks = HalfChunks::new(half_chunk_sizes, half_chunks_per_chunk);
        let rotation = new_rotation(policy, lease, load_rate, &half_chunks);
        Self {
            policy,
            lease,
            load_rate,
            now: Duration::ZERO,
            half_chunks,
            allocation: Allocation::Nothing,
            rotation,
            counted_before: RotationCounters::default(),
            readers: BTreeMap::new(),
            classes,
            present: BTreeSet::new(),
            last_read_at: Duration::ZERO,
            loads: BTreeMap::new(),
            draining: BTreeSet::new(),
            clearing: BTreeSet::new(),
            demand_revision: 0,
        }
    }

    /// When [`Manager::on_tick`] is due, if no event comes before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let all = self.readers.values();
        let outside = all.filter(|reader| !reader.benefit.is_cached());
        let expiry = outside.map(|reader| reader.last_event_at.saturating_add(self.lease)).min();
        let inactive = self.members().filter_map(|job| self.rotation.inactive_at(job));
        let inactive = inactive.filter(|at| *at > self.now).min();
        let inactive = inactive.filter(|_| !self.loads.is_empty() || !self.draining.is_empty());
        [self.rotation.next_deadline(), expiry, inactive].into_iter().flatten().min()
    }

    /// Members with recent events. Loads and evictions do not wait for the others.
    fn active_members(&self, now: Duration) -> impl Iterator<Item = &DatasetReader> {
        let is_active =
            move |job: &JobNumber| self.rotation.inactive_at(*job).is_some_and(|at| at > now);
        self.members().filter(is_active).map(|job| &self.readers[&job])
    }

    /// The draw set of a job. Empty for a job that gains nothing or is unknown.
    pub fn draw_set(&mut self, job: JobNumber) -> DrawSet {
        let Ok(ChunkDrawSet { pinned, first, then }) = self.rotation.draw_set(job) else {
            return DrawSet::default();
        };
        let of = |chunk: &ChunkOrdinal| self.half_chunks.of(*chunk);
        let all = |chunks: &[ChunkOrdinal]| chunks.iter().flat_map(of).collect();
        let draw_set = DrawSet {
            pinned: all(&pinned),
            first: all(&first),
            then: then.iter().map(|chunk| of(chunk).into_iter().collect()).collect(),
        };
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.offered.clear();
            reader.offered.extend(pinned.into_iter().chain(first).chain(then));
        }
        draw_set
    }

    /// The mode of a mini-batch of a job: see [`batch_mode`].
    pub fn mode(
        &self,
        job: JobNumber,
        half_chunks: impl IntoIterator<Item = HalfChunk>,
        all_resident: bool,
    ) -> Option<Mode> {
        if !self.is_member(job) {
            return Some(Mode::Miss);
        }
        batch_mode(
            half_chunks.into_iter().map(|half_chunk| self.classes[half_chunk.index()]),
            all_resident,
        )
    }

    /// Half-chunks that are being loaded, so that jobs prefetch what they need of them.
    pub fn loading(&self) -> impl Iterator<Item = HalfChunk> {
        self.loads.keys().flat_map(|chunk| self.half_chunks.of(*chunk))
    }

    /// How the cache treats a half-chunk.
    pub fn class_of(&self, half_chunk: HalfChunk) -> CacheClass {
        self.classes.get(half_chunk.index()).copied().unwrap_or_default()
    }

    /// The half-chunks of which nodes keep what is put, in order. If the whole dataset has space,
    /// these are all, in whichever order they are loaded.
    pub fn keep_set(&self) -> impl Iterator<Item = HalfChunk> {
        let takes_all = self.takes_all();
        let is_kept = move |(_, class): &(HalfChunk, &CacheClass)| {
            takes_all || **class != CacheClass::Uncached
        };
        self.half_chunks
            .all()
            .into_iter()
            .zip(&self.classes)
            .filter(is_kept)
            .map(|(half_chunk, _)| half_chunk)
    }

    /// Number of half-chunks of the dataset.
    pub fn half_chunk_count(&self) -> u32 {
        self.half_chunks.count()
    }

    /// Whether nodes keep every blob that is put.
    fn takes_all(&self) -> bool {
        self.is_whole() && self.clearing.is_empty()
    }

    /// Whether the whole dataset has space.
    fn is_whole(&self) -> bool {
        matches!(self.allocation, Allocation::Chunks(chunks) if chunks >= self.half_chunks.chunks())
    }

    /// Whether a job has joined and its lease has not ended.
    pub fn is_alive(&self, now: Duration, job: JobNumber) -> bool {
        self.live_reader(now, job).is_ok()
    }

    /// Whether a job takes part in the rotation.
    pub fn is_member(&self, job: JobNumber) -> bool {
        self.readers.get(&job).is_some_and(|reader| reader.benefit.is_cached())
    }

    /// The dataset, as placement weighs it.
    pub fn demand(&self, now: Duration) -> DatasetDemand {
        let (members, others): (Vec<&DatasetReader>, Vec<&DatasetReader>) =
            self.readers.values().partition(|reader| reader.benefit.is_cached());
        DatasetDemand {
            chunks: self.half_chunks.chunks(),
            chunk_size: self.half_chunks.chunk_size_max(),
            half_size: self.half_chunks.size_max(),
            total: self.half_chunks.total(),
            jobs: members.into_iter().map(DatasetReader::demand).collect(),
            compute_bound: others.into_iter().map(|reader| reader.profile.name.clone()).collect(),
            allocated: self.allocation,
            chunks_present: u32::try_from(self.chunks_present().len())
                .expect("fewer chunks than half-chunks"),
            idle_for: if self.readers.is_empty() {
                now.saturating_sub(self.last_read_at)
            } else {
                Duration::ZERO
            },
        }
    }

    /// Chunks that take space: loading, present, or evicted and not yet free.
    fn chunks_present(&self) -> BTreeSet<ChunkOrdinal> {
        let half_chunks = self.present.iter().chain(&self.clearing);
        let present = half_chunks.map(|half_chunk| self.half_chunks.chunk_of(*half_chunk));
        present.chain(self.rotation.occupied()).collect()
    }

    /// Whether more is present than the allocation permits: space that another dataset may get as
    /// soon as it is free.
    fn is_over_allocated(&self) -> bool {
        let chunks = match self.allocation {
            Allocation::Nothing => 0,
            Allocation::Halves => 2,
            Allocation::Chunks(chunks) => chunks as usize,
        };
        self.chunks_present().len() > chunks
    }

    /// Changes when placement has a reason to split the space again.
    pub fn demand_revision(&self) -> u64 {
        self.demand_revision
    }

    /// The current allocation.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// Counts since the manager started.
    pub fn counters(&self) -> RotationCounters {
        self.counted_before + self.rotation.counters()
    }

    fn members(&self) -> impl Iterator<Item = JobNumber> {
        let cached = self.readers.iter().filter(|(_, reader)| reader.benefit.is_cached());
        cached.map(|(job, _)| *job)
    }

    fn reader(&self, job: JobNumber) -> Result<&DatasetReader, InvalidEvent> {
        self.readers.get(&job).ok_or(InvalidEvent::UnknownJob { job })
    }

    /// The reader of a job whose lease has not ended.
    fn live_reader(&self, now: Duration, job: JobNumber) -> Result<&DatasetReader, InvalidEvent> {
        let reader = self.reader(job)?;
        let is_alive = !reader.benefit.is_cached() || self.rotation.is_alive(now, job);
        is_alive.then_some(reader).ok_or(InvalidEvent::UnknownJob { job })
    }

    fn touch(&mut self, now: Duration, job: JobNumber) {
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.last_event_at = now;
            self.last_read_at = now;
        }
    }

    fn size_of(&self, half_chunk: HalfChunk) -> Result<ByteSize, InvalidEvent> {
        let unknown =
            InvalidEvent::UnknownHalfChunk { half_chunk, half_chunks: self.classes.len() };
        self.half_chunks.size(half_chunk).ok_or(unknown)
    }

    /// Checks that these are half-chunks of the dataset.
    fn check_half_chunks<'a>(
        &self,
        half_chunks: impl IntoIterator<Item = &'a HalfChunk>,
    ) -> Result<(), InvalidEvent> {
        half_chunks.into_iter().try_for_each(|half_chunk| self.size_of(*half_chunk).map(|_| ()))
    }

    /// Checks that no more is unread than before.
    fn check_unread(
        &self,
        unread: &[HalfChunkBytes],
        known: impl Fn(HalfChunk) -> Option<ByteSize>,
        job: JobNumber,
    ) -> Result<(), InvalidEvent> {
        for HalfChunkBytes { half_chunk, bytes } in unread {
            self.size_of(*half_chunk)?;
            let known = known(*half_chunk).unwrap_or(ByteSize(0));
            if *bytes > known {
                let (half_chunk, unread) = (*half_chunk, *bytes);
                return Err(InvalidEvent::HalfChunkUnreadGrew { job, half_chunk, unread, known });
            }
        }
        Ok(())
    }

    fn budget(&mut self, now: Duration) -> Orders {
        let chunks = match self.allocation {
            Allocation::Nothing => 0,
            Allocation::Halves => 2,
            Allocation::Chunks(chunks) => chunks,
        };
        self.send(now, RotationEvent::Budget { chunks })
    }

    fn send_all_unread(&mut self, now: Duration, job: JobNumber) -> Orders {
        let chunks = self.half_chunks.rotating();
        self.send_unread(now, job, chunks)
    }

    fn send_unread(
        &mut self,
        now: Duration,
        job: JobNumber,
        chunks: impl IntoIterator<Item = ChunkOrdinal>,
    ) -> Orders {
        let reader = self.reader(job)?;
        let unread = |chunk| ChunkBytes { chunk, bytes: reader.unread(&self.half_chunks, chunk) };
        let (unread, pace): (Vec<_>, _) = (chunks.into_iter().map(unread).collect(), reader.pace);
        self.send(now, RotationEvent::Progress { job, unread: &unread, pace })
    }

    fn send_if_member(
        &mut self,
        now: Duration,
        event: RotationEvent<'_>,
        job: JobNumber,
    ) -> Orders {
        if self.rotation.is_alive(now, job) {
            self.send(now, event)
        } else {
            self.send(now, RotationEvent::Tick)
        }
    }

    /// Completes loads of which every active member has what it needs.
    fn check_loaded(&mut self, now: Duration) -> Orders {
        let is_loaded = |(chunk, load): &(&ChunkOrdinal, &Load)| {
            let needs_nothing = |reader: &DatasetReader| {
                self.half_chunks
                    .of(**chunk)
                    .into_iter()
                    .all(|half_chunk| reader.needs_nothing_of(half_chunk))
            };
            load.is_whole(self.half_chunks.rotating_size(**chunk))
                || self.active_members(now).all(needs_nothing)
        };
        let loaded: Vec<ChunkOrdinal> =
            self.loads.iter().filter(is_loaded).map(|(chunk, _)| *chunk).collect();
        let mut orders = Vec::new();
        for chunk in loaded {
            // An earlier iteration may have removed it.
            if self.loads.remove(&chunk).is_none() {
                continue;
            }
            orders.extend(self.send(now, RotationEvent::Loaded { chunk })?);
        }
        Ok(orders)
    }

    /// Sends an event to the rotation, and translates its orders to half-chunks.
    fn send(&mut self, now: Duration, event: RotationEvent<'_>) -> Orders {
        let orders = self.rotation.on_event(now, event)?;
        self.now = now;
        self.forget_expired(now);
        let mut result = Vec::new();
        for order in orders {
            match order {
                ChunkOrder::Load(chunk) => {
                    self.loads.insert(chunk, Load::default());
                    self.readers.values_mut().for_each(|reader| {
                        reader.on_chunk_lost(chunk, self.half_chunks.of(chunk));
                    });
                    result.push(HalfChunkOrder::Load(self.half_chunks.of(chunk)));
                }
                // `draw_set` has the consequences.
                ChunkOrder::Mark(_) => {}
                ChunkOrder::Evict { chunk, .. } => {
                    self.loads.remove(&chunk);
                    self.readers.values_mut().for_each(|reader| {
                        reader.on_chunk_lost(chunk, self.half_chunks.of(chunk));
                    });
                    self.draining.insert(chunk);
                }
            }
        }
        self.update_classes();
        result.extend(self.free_drained(now));
        Ok(result)
    }

    /// Forgets jobs whose leases have ended.
    fn forget_expired(&mut self, now: Duration) {
        let (rotation, lease, before) = (&self.rotation, self.lease, self.readers.len());
        self.readers.retain(|job, reader| {
            if reader.benefit.is_cached() {
                rotation.is_alive(now, *job)
            } else {
                reader.last_event_at.saturating_add(lease) > now
            }
        });
        self.demand_revision += u64::from(self.readers.len() < before);
    }

    /// Derives the class of every half-chunk from the rotation.
    fn update_classes(&mut self) {
        self.classes.fill(CacheClass::Uncached);
        // Quiver's policy pins nothing, except when the whole dataset has space.
        let is_whole = self.is_whole();
        let draining = self.draining.iter().copied();
        for chunk in self.rotation.drawable_chunks().chain(draining) {
            let class = if is_whole { CacheClass::Pinned } else { CacheClass::Rotating };
            self.classes[self.half_chunks.of(chunk).indices()].fill(class);
        }
        for chunk in self.rotation.pinned() {
            self.classes[self.half_chunks.of(chunk).indices()].fill(CacheClass::Pinned);
        }
    }
}

fn new_rotation(
    policy: RotationPolicy,
    lease: Duration,
    rate: ByteRate,
    half_chunks: &HalfChunks,
) -> Rotation {
    let chunk_sizes = half_chunks.rotating_sizes();
    let largest = chunk_sizes.iter().max().map_or(0, |size| size.0);
    // An estimate for jobs that fetch nothing else. The first load corrects it.
    let load_time = Duration::from_secs_f64(largest as f64 / rate.0.0.max(1) as f64);
    Rotation::new(&RotationSettings { policy, lease, load_time, chunk_sizes })
}

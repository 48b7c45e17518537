//! The state that both policies share: chunks, jobs with what they have not read, and load times.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{ChunkBytes, ChunkOrder, InvalidEvent, JobNumber, RotationEvent, RotationSettings};
use crate::{ByteSize, dataset::chunking::ChunkOrdinal};

/// Jobs of a dataset at most.
const JOBS_MAX: usize = 1 << 12;
/// Jobs times chunks at most: each job takes 8 bytes per chunk.
const UNREAD_MAX: usize = 1 << 24;
/// A load of less than 1/16 of a chunk says nothing about the time of a whole one.
const MEASURED_SHARE_MIN: u64 = 16;

/// A job without an event for 1/10 of its lease is inactive: it is ignored until its next event.
const INACTIVE_SHARE: u32 = 10;
/// A job that usually has longer gaps is inactive only after twice its usual gap.
const INACTIVE_GAPS: u32 = 2;

/// Limits of the estimated load time. With the minimum, a job asks for a chunk before its supply is
/// empty. A load of more than a day is no measure for the next one.
const LOAD_TIME_MIN: Duration = Duration::from_millis(10);
const LOAD_TIME_MAX: Duration = Duration::from_hours(24);

/// State of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkState {
    Absent,
    Loading { since: Duration, bytes: u64 },
    Loaded,
    Evicting,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub size: u64,
    pub state: ChunkState,
    /// Number of the last order to load it, counted over all chunks.
    pub load_number: u64,
    /// Stays in the cache (demand policy).
    pub pinned: bool,
    /// Takes no new readers (Quiver's policy).
    pub marked: bool,
    /// When the first job had exhausted it.
    pub first_done: Option<Duration>,
}

impl Chunk {
    /// Whether jobs may draw from it.
    pub fn is_drawable(&self) -> bool {
        matches!(self.state, ChunkState::Loading { .. } | ChunkState::Loaded)
    }
}

/// A job in the rotation of its dataset.
#[derive(Debug)]
pub(super) struct JobState {
    last_event_at: Duration,
    /// Largest recent gap between two events.
    usual_gap: Duration,
    pub unread: Vec<u64>,
    pub unread_total: u64,
    pub pace: u64,
    pub reported_at: Duration,
    pub references: BTreeSet<ChunkOrdinal>,
    /// The rotating chunk that it draws from first (demand policy).
    pub focus: Option<ChunkOrdinal>,
}

impl JobState {
    pub fn unread_of(&self, chunk: ChunkOrdinal) -> u64 {
        self.unread[chunk.0 as usize]
    }

    /// End of its lease.
    fn lease_end(&self, lease: Duration) -> Duration {
        self.last_event_at.saturating_add(lease)
    }

    fn set_unread(&mut self, chunk: ChunkOrdinal, unread: u64) {
        let slot = &mut self.unread[chunk.0 as usize];
        // Subtract first: if a chunk is named twice, the last value counts, and it may be larger
        // than the first.
        self.unread_total = self.unread_total - *slot + unread;
        *slot = unread;
    }
}

#[derive(Debug)]
pub(super) struct RotationState {
    pub now: Duration,
    pub budget: usize,
    pub chunks: Vec<Chunk>,
    pub jobs: BTreeMap<JobNumber, JobState>,
    /// Estimated time to load a whole chunk.
    pub load_time: Duration,
    lease: Duration,
    /// Orders to load so far.
    loads: u64,
}

impl RotationState {
    pub fn new(settings: &RotationSettings) -> Self {
        let RotationSettings { lease, load_time, chunk_sizes: sizes, .. } = settings;
        assert!(*lease > Duration::ZERO, "a lease must be longer than zero");
        assert!(u32::try_from(sizes.len()).is_ok(), "more than 2^32 chunks");
        let chunk = |size: &ByteSize| Chunk {
            size: size.0,
            state: ChunkState::Absent,
            load_number: 0,
            pinned: false,
            marked: false,
            first_done: None,
        };
        Self {
            now: Duration::ZERO,
            budget: 0,
            chunks: sizes.iter().map(chunk).collect(),
            jobs: BTreeMap::new(),
            load_time: (*load_time).clamp(LOAD_TIME_MIN, LOAD_TIME_MAX),
            lease: *lease,
            loads: 0,
        }
    }

    pub fn ordinals(&self) -> impl DoubleEndedIterator<Item = ChunkOrdinal> + use<> {
        (0..u32::try_from(self.chunks.len()).expect("checked by `new`")).map(ChunkOrdinal)
    }

    pub fn chunk(&self, chunk: ChunkOrdinal) -> &Chunk {
        &self.chunks[chunk.0 as usize]
    }

    fn chunk_mut(&mut self, chunk: ChunkOrdinal) -> &mut Chunk {
        &mut self.chunks[chunk.0 as usize]
    }

    pub fn occupied(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).state != ChunkState::Absent)
    }

    pub fn pinned(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).pinned)
    }

    /// Chunks that jobs may draw from.
    pub fn drawable(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.ordinals().filter(|chunk| self.chunk(*chunk).is_drawable())
    }

    /// Drawable chunks that are not pinned.
    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.drawable().filter(|chunk| !self.chunk(*chunk).pinned)
    }

    pub fn job(&self, job: JobNumber) -> Result<&JobState, InvalidEvent> {
        self.jobs.get(&job).ok_or(InvalidEvent::UnknownJob { job })
    }

    pub fn is_alive(&self, now: Duration, job: JobNumber) -> bool {
        self.jobs.get(&job).is_some_and(|job_state| job_state.lease_end(self.lease) > now)
    }

    fn live(&self, now: Duration) -> usize {
        self.jobs.values().filter(|job_state| job_state.lease_end(self.lease) > now).count()
    }

    /// When a job becomes inactive, if it has no event before: it was killed or stopped, or does
    /// something else.
    pub fn inactive_at(&self, job_state: &JobState) -> Duration {
        let long =
            (self.lease / INACTIVE_SHARE).max(job_state.usual_gap.saturating_mul(INACTIVE_GAPS));
        job_state.last_event_at.saturating_add(long)
    }

    /// Jobs that decisions take into account.
    pub fn active_jobs(&self) -> impl Iterator<Item = (JobNumber, &JobState)> {
        let active_jobs =
            self.jobs.iter().filter(|(_, job_state)| self.inactive_at(job_state) > self.now);
        active_jobs.map(|(job, job_state)| (*job, job_state))
    }

    fn jobs_max(&self) -> usize {
        (UNREAD_MAX / self.chunks.len().max(1)).clamp(1, JOBS_MAX)
    }

    /// Bytes that all jobs together have not read of a chunk.
    pub fn unread_by_all(&self, chunk: ChunkOrdinal) -> u64 {
        let unread = self.jobs.values().map(|job| job.unread_of(chunk));
        unread.fold(0, u64::saturating_add)
    }

    pub fn next_expiry(&self) -> Option<Duration> {
        self.jobs.values().map(|job| job.lease_end(self.lease)).min()
    }

    /// Applies an event, if it is valid. Returns the number of leases that have ended.
    pub fn on_event(
        &mut self,
        now: Duration,
        event: RotationEvent<'_>,
    ) -> Result<u64, InvalidEvent> {
        self.validate(now, event)?;
        self.now = now;
        let before = self.jobs.len();
        self.jobs.retain(|_, job| job.lease_end(self.lease) > now);
        let expired = (before - self.jobs.len()) as u64;
        self.apply_event(event);
        Ok(expired)
    }

    fn validate(&self, now: Duration, event: RotationEvent<'_>) -> Result<(), InvalidEvent> {
        if now < self.now {
            return Err(InvalidEvent::TimeWentBack { now, last: self.now });
        }
        let live = |job| {
            let live = self.jobs.get(&job).filter(|_| self.is_alive(now, job));
            live.ok_or(InvalidEvent::UnknownJob { job })
        };
        let known = |chunk: ChunkOrdinal| {
            let chunks = self.chunks.len();
            self.chunks.get(chunk.0 as usize).ok_or(InvalidEvent::UnknownChunk { chunk, chunks })
        };
        match event {
            RotationEvent::Joined { job } if live(job).is_ok() => {
                return Err(InvalidEvent::JoinedTwice { job });
            }
            RotationEvent::Joined { .. } if self.live(now) >= self.jobs_max() => {
                return Err(InvalidEvent::TooManyJobs { jobs: self.jobs_max() });
            }
            RotationEvent::Joined { .. } | RotationEvent::Budget { .. } | RotationEvent::Tick => {}
            RotationEvent::Renewed { job }
            | RotationEvent::NextEpoch { job }
            | RotationEvent::Left { job } => {
                live(job)?;
            }
            RotationEvent::Progress { job, unread, .. } => {
                let job_state = live(job)?;
                for ChunkBytes { chunk, bytes } in unread {
                    known(*chunk)?;
                    let (chunk, unread, known) =
                        (*chunk, *bytes, ByteSize(job_state.unread_of(*chunk)));
                    if unread > known {
                        return Err(InvalidEvent::UnreadGrew { job, chunk, unread, known });
                    }
                }
            }
            RotationEvent::Referenced { job, chunk } => {
                let (job_state, known) = (live(job)?, known(chunk)?);
                let is_reading = job_state.references.contains(&chunk);
                if !known.is_drawable() || (known.marked && !is_reading) {
                    return Err(InvalidEvent::NotDrawable { job, chunk });
                }
            }
            RotationEvent::Exhausted { job, chunk } => {
                known(chunk)?;
                if !live(job)?.references.contains(&chunk) {
                    return Err(InvalidEvent::NotReferenced { job, chunk });
                }
            }
            RotationEvent::Loading { chunk, bytes } => match *known(chunk)? {
                Chunk { state: ChunkState::Loading { bytes: known, .. }, size, .. } => {
                    if !(known..=size).contains(&bytes.0) {
                        let (known, size) = (ByteSize(known), ByteSize(size));
                        return Err(InvalidEvent::WrongLength { chunk, bytes, known, size });
                    }
                }
                _ => return Err(InvalidEvent::NotLoading { chunk }),
            },
            RotationEvent::Loaded { chunk } => {
                if !matches!(known(chunk)?.state, ChunkState::Loading { .. }) {
                    return Err(InvalidEvent::NotLoading { chunk });
                }
            }
            RotationEvent::Evicted { chunk } => {
                if known(chunk)?.state != ChunkState::Evicting {
                    return Err(InvalidEvent::NotEvicting { chunk });
                }
            }
            RotationEvent::Found { chunk } => {
                if known(chunk)?.state != ChunkState::Absent {
                    return Err(InvalidEvent::FoundTwice { chunk });
                }
            }
        }
        Ok(())
    }

    fn apply_event(&mut self, event: RotationEvent<'_>) {
        let now = self.now;
        match event {
            RotationEvent::Joined { job } => {
                let job_state = JobState {
                    last_event_at: now,
                    usual_gap: Duration::ZERO,
                    unread: self.sizes(),
                    unread_total: self.sizes().iter().sum(),
                    pace: 0,
                    reported_at: now,
                    references: BTreeSet::new(),
                    focus: None,
                };
                self.jobs.insert(job, job_state);
            }
            RotationEvent::Renewed { job } => {
                self.touch(job);
            }
            RotationEvent::Progress { job, unread, pace } => {
                let job_state = self.touch(job);
                for ChunkBytes { chunk, bytes } in unread {
                    job_state.set_unread(*chunk, bytes.0);
                }
                job_state.pace = pace.0.0;
                job_state.reported_at = now;
            }
            RotationEvent::Referenced { job, chunk } => {
                self.touch(job).references.insert(chunk);
            }
            RotationEvent::Exhausted { job, chunk } => {
                let job_state = self.touch(job);
                job_state.set_unread(chunk, 0);
                job_state.references.remove(&chunk);
                let first_done = &mut self.chunk_mut(chunk).first_done;
                *first_done = first_done.or(Some(now));
            }
            RotationEvent::NextEpoch { job } => {
                let sizes = self.sizes();
                let job_state = self.touch(job);
                job_state.unread_total = sizes.iter().sum();
                job_state.unread = sizes;
                job_state.references.clear();
                job_state.reported_at = now;
            }
            RotationEvent::Left { job } => {
                self.jobs.remove(&job);
            }
            RotationEvent::Loading { chunk, bytes } => {
                if let ChunkState::Loading { bytes: known, .. } = &mut self.chunk_mut(chunk).state {
                    *known = bytes.0;
                }
                self.measure(chunk, false);
            }
            RotationEvent::Loaded { chunk } => {
                self.measure(chunk, true);
                self.chunk_mut(chunk).state = ChunkState::Loaded;
            }
            RotationEvent::Evicted { chunk } => self.chunk_mut(chunk).state = ChunkState::Absent,
            RotationEvent::Found { chunk } => {
                self.loads += 1;
                let load_number = self.loads;
                let found = self.chunk_mut(chunk);
                (found.state, found.load_number) = (ChunkState::Loaded, load_number);
            }
            RotationEvent::Budget { chunks } => {
                self.budget = chunks as usize;
                if self.budget >= self.chunks.len() {
                    // All chunks may stay.
                    self.chunks.iter_mut().for_each(|chunk| chunk.marked = false);
                }
            }
            RotationEvent::Tick => {}
        }
    }

    /// Sets whether a chunk is pinned (demand policy).
    pub fn set_pinned(&mut self, chunk: ChunkOrdinal, pinned: bool) {
        self.chunk_mut(chunk).pinned = pinned;
    }

    /// Applies an order.
    pub fn apply_order(&mut self, order: ChunkOrder) {
        let now = self.now;
        match order {
            ChunkOrder::Load(chunk) => {
                assert!(self.occupied().count() < self.budget, "no room to load chunk {}", chunk.0);
                self.loads += 1;
                let load_number = self.loads;
                let loading = self.chunk_mut(chunk);
                assert_eq!(loading.state, ChunkState::Absent, "chunk {} is present", chunk.0);
                loading.state = ChunkState::Loading { since: now, bytes: 0 };
                (loading.load_number, loading.first_done) = (load_number, None);
            }
            ChunkOrder::Mark(chunk) => {
                self.chunk_mut(chunk).marked = true;
                // All present jobs may read it, even those that have not started to.
                for job in self.jobs.values_mut().filter(|job| job.unread_of(chunk) > 0) {
                    job.references.insert(chunk);
                }
            }
            ChunkOrder::Evict { chunk, .. } => {
                let leaving = self.chunk_mut(chunk);
                assert!(leaving.is_drawable(), "chunk {} is not drawable", chunk.0);
                (leaving.state, leaving.marked, leaving.pinned) =
                    (ChunkState::Evicting, false, false);
                for job in self.jobs.values_mut() {
                    job.references.remove(&chunk);
                }
            }
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.chunks.iter().map(|chunk| chunk.size).collect()
    }

    fn touch(&mut self, job: JobNumber) -> &mut JobState {
        let job_state = self.jobs.get_mut(&job).expect("checked by `validate`");
        let silent = self.now.saturating_sub(job_state.last_event_at);
        if !silent.is_zero() {
            job_state.usual_gap = silent.max(job_state.usual_gap * 7 / 8);
            job_state.last_event_at = self.now;
        }
        job_state
    }

    /// Updates the estimate of the load time from a load. A slower load counts at once, even before
    /// it is complete. A faster one counts by a quarter. A load of a small part of a chunk does not
    /// count: almost nothing was missing.
    fn measure(&mut self, chunk: ChunkOrdinal, is_over: bool) {
        let (size, state) = (self.chunk(chunk).size, self.chunk(chunk).state);
        let ChunkState::Loading { since, bytes } = state else {
            unreachable!("checked by `validate`")
        };
        let took = self.now.saturating_sub(since);
        let load_time = match (is_over, bytes) {
            (false, _) => self.load_time.max(took),
            (true, bytes) if bytes == 0 || bytes < size / MEASURED_SHARE_MIN => self.load_time,
            (true, bytes) => {
                let whole = took.as_secs_f64() * (size as f64 / bytes as f64);
                let whole = Duration::try_from_secs_f64(whole).unwrap_or(LOAD_TIME_MAX);
                whole.max((self.load_time * 3 + whole) / 4)
            }
        };
        self.load_time = load_time.clamp(LOAD_TIME_MIN, LOAD_TIME_MAX);
    }
}

//! Registry: the tracked jobs, their readings, the reader bits of each bucket, and leases.

use std::time::Duration;

use super::{
    positions::BitmapBudget,
    progress::{JobState, Reading},
};
use crate::{
    ByteSize,
    tier::{
        follower_lag::FollowerLag,
        invalid_event::InvalidEvent,
        types::{Bucket, Job},
    },
    util::stable_hash::StableMap,
};

/// Index into the slab of jobs.
pub(in crate::tier) type JobIndex = u32;
/// Index into the slab of readings.
pub(in crate::tier) type ReadingIndex = u32;

/// Most readers of a bucket at once, which bounds the cost of an estimate.
pub(super) const READERS_MAX: usize = 64;
/// Most readings at once, some hundred bytes each, reserved at the start.
pub(super) const READINGS_MAX: usize = 1 << 17;
/// Jobs and readings that a slice of a tick looks at.
const TICK_READINGS: usize = 1024;
/// Lease of an announced job that has not started, from its announced start if there is one.
const QUEUE_LEASE: Duration = Duration::from_hours(24);

/// Counts of unusual events of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobCounters {
    /// Jobs seen in requests without an announcement.
    pub inferred: u64,
    /// Requests without a tag.
    pub untagged: u64,
    /// Requests of an announced job outside its specification.
    pub unannounced_reads: u64,
    /// Specifications dropped because of such reads.
    pub refuted: u64,
    /// Jobs dropped because their lease ended.
    pub expired: u64,
    /// Readings not tracked, because a bucket has 64 readers or there are too many readings.
    pub untracked: u64,
    /// Reads whose position was not recorded, because the bitmaps' budget was exhausted.
    pub unmarked: u64,
    /// Events rejected with [`InvalidEvent`].
    pub invalid_events: u64,
}

/// All tracked jobs.
#[derive(Debug)]
pub(in crate::tier) struct Jobs {
    lease: Duration,
    bitmap_bytes: ByteSize,
    pub(super) ids: StableMap<Job, JobIndex>,
    pub(super) states: Vec<Option<JobState>>,
    pub(super) readings: Vec<Option<Reading>>,
    free_states: Vec<JobIndex>,
    free_readings: Vec<ReadingIndex>,
    /// Readings of each bucket.
    pub(super) readers: StableMap<Bucket, Vec<ReadingIndex>>,
    pub(super) bitmaps: BitmapBudget,
    /// The next job of the tick that is under way.
    tick_at: usize,
    pub(super) segment_bytes: f64,
    pub(super) counters: JobCounters,
}

impl Jobs {
    /// Without jobs. `segment` is the usual length of a segment, `bitmaps` the memory for what jobs
    /// have read.
    pub fn new(lease: Duration, segment: ByteSize, bitmaps: ByteSize) -> Self {
        Self {
            lease,
            bitmap_bytes: bitmaps,
            ids: StableMap::default(),
            states: Vec::new(),
            readings: Vec::new(),
            free_states: Vec::new(),
            free_readings: Vec::new(),
            readers: StableMap::default(),
            bitmaps: BitmapBudget::new(bitmaps),
            tick_at: usize::MAX,
            segment_bytes: segment.0 as f64,
            counters: JobCounters::default(),
        }
    }

    /// Without jobs, with the same settings.
    pub(super) fn empty(&self) -> Self {
        Self::new(self.lease, ByteSize::ZERO, self.bitmap_bytes)
    }

    /// Drops a job that has ended.
    pub fn on_ended(&mut self, job: Job) -> Result<(), InvalidEvent> {
        let Some(index) = self.ids.get(&job).copied() else {
            self.counters.invalid_events += 1;
            return Err(InvalidEvent::UnknownJob { job });
        };
        self.drop_job(index);
        Ok(())
    }

    /// Begins a tick, which [`Self::tick_slice`] does.
    pub fn begin_tick(&mut self) {
        self.tick_at = 0;
    }

    /// A slice of a tick: measures rates, and drops expired jobs and idle readings. Returns whether
    /// some is left.
    pub fn tick_slice(&mut self, now: Duration) -> bool {
        let mut looked = 0;
        while self.tick_at < self.states.len() && looked < TICK_READINGS {
            (self.tick_at, looked) = (self.tick_at + 1, looked + 1);
            let Some(state) = &mut self.states[self.tick_at - 1] else { continue };
            looked += state.readings.len();
            state.measure_rate(now);
            let announced = state.plan.as_ref().and_then(|plan| plan.lease);
            let lease = if state.started {
                announced.unwrap_or(self.lease)
            } else {
                let starts = state.plan.as_ref().and_then(|plan| plan.starts);
                let wait =
                    starts.map_or(Duration::ZERO, |starts| starts.saturating_sub(state.last_seen));
                announced.unwrap_or(QUEUE_LEASE).saturating_add(wait)
            };
            let index = JobIndex::try_from(self.tick_at - 1).expect("at most JOBS_MAX jobs");
            if now.saturating_sub(state.last_seen) > lease {
                self.counters.expired += 1;
                self.drop_job(index);
            } else {
                self.drop_idle_readings(now, index);
            }
        }
        self.tick_at < self.states.len()
    }

    /// Drops a job's unannounced readings that had no read for longer than the lease.
    fn drop_idle_readings(&mut self, now: Duration, job: JobIndex) {
        let (readings, lease) = (&self.readings, self.lease);
        let Some(state) = &mut self.states[job as usize] else { return };
        let latest = state.latest.map(|(_, reading)| reading);
        let idle = state.readings.extract_if(.., |index| {
            let reading = readings[*index as usize].as_ref().expect("listed readings exist");
            let unannounced = reading.stage.is_none() && Some(*index) != latest;
            unannounced && now.saturating_sub(reading.last_read) > lease
        });
        for index in idle.collect::<Vec<_>>() {
            self.drop_reading(index);
        }
    }

    /// Readings of a bucket, begun or announced.
    pub fn readers(&self, bucket: Bucket) -> impl Iterator<Item = (ReadingIndex, &Reading)> {
        let readers = self.readers.get(&bucket).map_or(&[][..], |readers| readers);
        readers.iter().map(|index| (*index, self.reading(*index)))
    }

    pub fn reading(&self, index: ReadingIndex) -> &Reading {
        self.readings[index as usize].as_ref().expect("listed readings exist")
    }

    pub fn state(&self, index: JobIndex) -> &JobState {
        self.states[index as usize].as_ref().expect("a job exists while it has readings")
    }

    /// Follower lag of a job, if the job is still tracked.
    pub fn follower_lag(&mut self, job: Job) -> Option<&mut FollowerLag> {
        let index = *self.ids.get(&job)?;
        Some(&mut self.state_mut(index).follower_lag)
    }

    /// Whether a job has announced a bucket.
    pub fn has_announced(&self, job: Job, bucket: Bucket) -> bool {
        let Some(index) = self.ids.get(&job) else { return false };
        self.readers(bucket).any(|(_, reading)| reading.job == *index && reading.stage.is_some())
    }

    /// Trail position of a job in a bucket.
    pub fn head(&self, job: Job, bucket: Bucket) -> Option<u32> {
        let index = *self.ids.get(&job)?;
        let found = self.readers(bucket).find(|(_, reading)| reading.job == index);
        found.map(|(_, reading)| reading.head_position())
    }

    /// Counts of unusual events so far.
    pub fn counters(&self) -> JobCounters {
        JobCounters { unmarked: self.bitmaps.unmarked, ..self.counters }
    }

    /// Mean length of a segment.
    pub fn segment_bytes(&self) -> f64 {
        self.segment_bytes.max(1.0)
    }

    /// Index of a job, which is added if it is new.
    pub(super) fn job_index(&mut self, job: Job, now: Duration) -> JobIndex {
        if let Some(index) = self.ids.get(&job) {
            return *index;
        }
        let index = self.free_states.pop().unwrap_or_else(|| {
            self.states.push(None);
            JobIndex::try_from(self.states.len() - 1).expect("at most JOBS_MAX jobs")
        });
        self.states[index as usize] = Some(JobState::new(job, now));
        self.ids.insert(job, index);
        index
    }

    /// Reading of a job and a bucket, which is added if it is new and within the limits.
    pub(super) fn reading_index(
        &mut self,
        job: JobIndex,
        bucket: Bucket,
        now: Duration,
    ) -> Option<ReadingIndex> {
        let readers = self.readers.get(&bucket).map_or(&[][..], |readers| readers);
        let known = readers.iter().find(|index| self.reading(**index).job == job);
        if let Some(index) = known {
            return Some(*index);
        }
        let readings = self.readings.len() - self.free_readings.len();
        if readers.len() >= READERS_MAX || readings >= READINGS_MAX {
            self.counters.untracked += 1;
            return None;
        }
        let index = self.free_readings.pop().unwrap_or_else(|| {
            self.readings.push(None);
            ReadingIndex::try_from(self.readings.len() - 1).expect("at most READINGS_MAX readings")
        });
        self.readings[index as usize] = Some(Reading::new(job, bucket, now));
        self.readers.entry(bucket).or_default().push(index);
        self.state_mut(job).readings.push(index);
        Some(index)
    }

    fn drop_job(&mut self, job: JobIndex) {
        let state = self.states[job as usize].take().expect("the job is in the slab");
        self.ids.remove(&state.id);
        for reading in state.readings {
            self.drop_reading(reading);
        }
        self.free_states.push(job);
    }

    /// Frees a reading. The caller removes it from the job's list.
    pub(super) fn drop_reading(&mut self, index: ReadingIndex) {
        let reading = self.readings[index as usize].take().expect("the reading is in the slab");
        reading.read.release(&mut self.bitmaps);
        let readers = self.readers.get_mut(&reading.bucket).expect("a reading is listed");
        readers.retain(|other| *other != index);
        if readers.is_empty() {
            self.readers.remove(&reading.bucket);
        }
        self.free_readings.push(index);
    }

    pub(super) fn state_mut(&mut self, index: JobIndex) -> &mut JobState {
        self.states[index as usize].as_mut().expect("a job exists while it has readings")
    }

    pub(super) fn reading_mut(&mut self, index: ReadingIndex) -> &mut Reading {
        self.readings[index as usize].as_mut().expect("listed readings exist")
    }
}

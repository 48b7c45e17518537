//! Registry: the tracked jobs, their readings, the reader bits of each bucket, and leases.

use std::time::Duration;

use super::progress::{JobState, Reading};
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

/// Most readers of a bucket at once: bits in a mask.
const READERS_MAX: usize = 64;
/// Most readings at once, some hundred bytes each.
const READINGS_MAX: usize = 1 << 22;
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
    /// Events rejected with [`InvalidEvent`].
    pub invalid_events: u64,
}

/// All tracked jobs.
#[derive(Debug)]
pub(in crate::tier) struct Jobs {
    lease: Duration,
    pub(super) ids: StableMap<Job, JobIndex>,
    pub(super) states: Vec<Option<JobState>>,
    pub(super) readings: Vec<Option<Reading>>,
    free_states: Vec<JobIndex>,
    free_readings: Vec<ReadingIndex>,
    /// Readings of each bucket, by bit.
    pub(super) readers: StableMap<Bucket, Vec<Option<ReadingIndex>>>,
    /// Reader bits that have a new owner and may still be set in masks of residents.
    pub recycled_bits: Vec<(Bucket, u8)>,
    last_tick: Duration,
    pub(super) segment_bytes: f64,
    pub counters: JobCounters,
}

impl Jobs {
    /// Without jobs. `segment` is the usual length of a segment.
    pub fn new(lease: Duration, segment: ByteSize) -> Self {
        Self {
            lease,
            ids: StableMap::default(),
            states: Vec::new(),
            readings: Vec::new(),
            free_states: Vec::new(),
            free_readings: Vec::new(),
            readers: StableMap::default(),
            recycled_bits: Vec::new(),
            last_tick: Duration::ZERO,
            segment_bytes: segment.0 as f64,
            counters: JobCounters::default(),
        }
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

    /// Measures rates, and drops expired jobs and idle readings.
    pub fn tick(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last_tick).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        self.last_tick = now;
        let mut expired = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            let Some(state) = state else { continue };
            let announced = state.plan.as_ref().and_then(|plan| plan.lease);
            let lease = if state.started {
                announced.unwrap_or(self.lease)
            } else {
                let starts = state.plan.as_ref().and_then(|plan| plan.starts);
                let wait =
                    starts.map_or(Duration::ZERO, |starts| starts.saturating_sub(state.last_seen));
                announced.unwrap_or(QUEUE_LEASE).saturating_add(wait)
            };
            if now.saturating_sub(state.last_seen) > lease {
                expired.push(JobIndex::try_from(index).expect("at most JOBS_MAX jobs"));
            }
            state.measure_rate(elapsed);
        }
        for index in expired {
            self.counters.expired += 1;
            self.drop_job(index);
        }
        self.drop_idle_readings(now);
    }

    /// Drops unannounced readings that had no read for longer than the lease.
    fn drop_idle_readings(&mut self, now: Duration) {
        let mut all_idle = Vec::new();
        let (readings, lease) = (&self.readings, self.lease);
        for state in self.states.iter_mut().flatten() {
            let latest = state.latest.map(|(_, reading)| reading);
            let idle = state.readings.extract_if(.., |index| {
                let reading = readings[*index as usize].as_ref().expect("listed readings exist");
                let unannounced = reading.stage.is_none() && Some(*index) != latest;
                unannounced && now.saturating_sub(reading.last_read) > lease
            });
            all_idle.extend(idle);
        }
        for index in all_idle {
            self.drop_reading(index);
        }
    }

    /// Drops the reader bits of a bucket that has no readers left. Returns whether it still has
    /// readers.
    pub fn retain_readers(&mut self, bucket: Bucket) -> bool {
        let Some(readers) = self.readers.get(&bucket) else { return false };
        if readers.iter().any(Option::is_some) {
            return true;
        }
        let bits = u8::try_from(readers.len()).expect("at most 64");
        self.readers.remove(&bucket);
        self.recycled_bits.extend((0..bits).map(|bit| (bucket, bit)));
        false
    }

    /// Drops buckets without readers, except where residents may still carry their reader bits.
    pub fn drop_unread_buckets(&mut self, may_have_bits: impl Fn(Bucket) -> bool) {
        self.readers.retain(|bucket, readers| {
            readers.iter().any(Option::is_some) || may_have_bits(*bucket)
        });
    }

    /// Readings of a bucket, begun or announced.
    pub fn readers(&self, bucket: Bucket) -> impl Iterator<Item = (ReadingIndex, &Reading)> {
        let readers = self.readers.get(&bucket).map_or(&[][..], |readers| readers);
        readers.iter().flatten().map(|index| (*index, self.reading(*index)))
    }

    /// Bits of the readers that have read this trail position.
    pub fn readers_of(&self, bucket: Bucket, position: u32) -> u64 {
        let readers = self.readers(bucket).filter(|(_, reading)| reading.has_read(position));
        readers.fold(0, |mask, (_, reading)| mask | 1 << reading.bit)
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

    /// Reading of a job and a bucket, which is added if it is new and a reader bit is free.
    pub(super) fn reading_index(
        &mut self,
        job: JobIndex,
        bucket: Bucket,
        now: Duration,
    ) -> Option<ReadingIndex> {
        let readers = self.readers.entry(bucket).or_default();
        for index in readers.iter().flatten() {
            let reading = self.readings[*index as usize].as_ref().expect("listed readings exist");
            if reading.job == job {
                return Some(*index);
            }
        }
        if self.readings.len() - self.free_readings.len() >= READINGS_MAX {
            self.counters.untracked += 1;
            return None;
        }
        let bit = if readers.len() < READERS_MAX {
            readers.push(None);
            readers.len() - 1
        } else if let Some(bit) = readers.iter().position(Option::is_none) {
            self.recycled_bits.push((bucket, u8::try_from(bit).expect("one of 64")));
            bit
        } else {
            self.counters.untracked += 1;
            return None;
        };
        let index = self.free_readings.pop().unwrap_or_else(|| {
            self.readings.push(None);
            ReadingIndex::try_from(self.readings.len() - 1).expect("at most READINGS_MAX readings")
        });
        let reading = Reading::new(job, bucket, u8::try_from(bit).expect("one of 64"), now);
        self.readings[index as usize] = Some(reading);
        self.readers.get_mut(&bucket).expect("added above")[bit] = Some(index);
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

    /// Frees a reading and its bit. The caller removes it from the job's list.
    pub(super) fn drop_reading(&mut self, index: ReadingIndex) {
        let reading = self.readings[index as usize].take().expect("the reading is in the slab");
        let readers = self.readers.get_mut(&reading.bucket).expect("a reading is listed");
        readers[usize::from(reading.bit)] = None;
        self.free_readings.push(index);
    }

    pub(super) fn state_mut(&mut self, index: JobIndex) -> &mut JobState {
        self.states[index as usize].as_mut().expect("a job exists while it has readings")
    }

    pub(super) fn reading_mut(&mut self, index: ReadingIndex) -> &mut Reading {
        self.readings[index as usize].as_mut().expect("listed readings exist")
    }
}

//! Progress: what each job has read, and its rate.

use std::time::Duration;

use super::{
    registry::{JobIndex, Jobs, ReadingIndex},
    spec::{self, Plan},
};
use crate::tier::{
    follower_lag::FollowerLag,
    history::Observation,
    invalid_event::JOBS_MAX,
    types::{Bucket, Job, Request},
};

/// Most trail positions of a bucket with a read bit (at 256 KiB: 64 TiB).
const POSITIONS_MAX: u32 = 1 << 28;
/// Weight of the last tick in a job's rate.
const RATE_GAIN: f64 = 0.3;
/// Rate of a job before anything is known, in bytes per second: that of one reader in the paper.
const RATE_GUESS: f64 = 1.5e9;

/// State of a job.
#[derive(Debug)]
pub(in crate::tier) struct JobState {
    pub(super) id: Job,
    pub(super) plan: Option<Plan>,
    /// Time of the last request or announcement.
    pub(super) last_seen: Duration,
    pub(super) started: bool,
    /// The stage that it is in.
    pub(super) stage: u32,
    /// Bytes read of this stage.
    pub(super) stage_bytes: u64,
    pub(super) bytes: u64,
    tick_bytes: u64,
    measured_rate: f64,
    /// Mean distance between a segment's trail position and the job's, as a share of the trail.
    pub scatter: f64,
    pub(super) reads: u64,
    /// Reads of buckets that its specification does not name.
    pub(super) unannounced_reads: u64,
    pub(super) readings: Vec<ReadingIndex>,
    pub(super) latest: Option<(Bucket, ReadingIndex)>,
    /// Reads by other jobs of the segments that this one brought in.
    pub follower_lag: FollowerLag,
}

impl JobState {
    pub(super) fn new(id: Job, now: Duration) -> Self {
        Self {
            id,
            plan: None,
            last_seen: now,
            started: false,
            stage: 0,
            stage_bytes: 0,
            bytes: 0,
            tick_bytes: 0,
            measured_rate: 0.0,
            scatter: 0.0,
            reads: 0,
            unannounced_reads: 0,
            readings: Vec::new(),
            latest: None,
            follower_lag: FollowerLag::default(),
        }
    }

    /// Bytes per second: measured, announced or assumed, in this order.
    pub fn rate(&self) -> f64 {
        let announced = || self.plan.as_ref().and_then(|plan| plan.rate).unwrap_or(RATE_GUESS);
        if self.measured_rate > 0.0 { self.measured_rate.max(1.0) } else { announced().max(1.0) }
    }

    /// Measures the rate since the last tick.
    pub(super) fn measure_rate(&mut self, elapsed_seconds: f64) {
        let rate = std::mem::take(&mut self.tick_bytes) as f64 / elapsed_seconds;
        if self.measured_rate > 0.0 {
            self.measured_rate += RATE_GAIN * (rate - self.measured_rate);
        } else if self.started {
            self.measured_rate = rate;
        }
    }
}

/// One job and one bucket.
#[derive(Debug)]
pub(in crate::tier) struct Reading {
    pub job: JobIndex,
    pub bucket: Bucket,
    /// Stage of the bucket in the job's specification.
    pub stage: Option<u32>,
    /// Size of the bucket according to the specification.
    pub size: u64,
    /// The reader's bit in the masks of residents.
    pub bit: u8,
    /// Bit per trail position.
    read: Vec<u64>,
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Estimated trail position of the job.
    pub head: f64,
    pub(super) last_read: Duration,
}

impl Reading {
    pub(super) fn new(job: JobIndex, bucket: Bucket, bit: u8, now: Duration) -> Self {
        Self {
            job,
            bucket,
            stage: None,
            size: 0,
            bit,
            read: Vec::new(),
            segments: 0,
            bytes: 0,
            head: 0.0,
            last_read: now,
        }
    }

    /// Whether the job has read this trail position.
    pub fn has_read(&self, position: u32) -> bool {
        self.read.get(position as usize / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    fn mark(&mut self, position: u32) {
        if position >= POSITIONS_MAX {
            return;
        }
        let word = position as usize / 64;
        if word >= self.read.len() {
            self.read.resize(word + 1, 0);
        }
        self.read[word] |= 1 << (position % 64);
    }
}

impl Jobs {
    /// Records a read. Returns the reading, or `None` if the request is untagged or a limit is
    /// reached.
    #[inline]
    pub fn on_read(
        &mut self,
        now: Duration,
        request: &Request,
        observed: Observation,
    ) -> Option<ReadingIndex> {
        self.segment_bytes += (f64::from(request.length) - self.segment_bytes) / 64.0;
        let Some(job) = request.job else {
            self.counters.untagged += 1;
            return None;
        };
        let index = match self.ids.get(&job) {
            Some(index) => *index,
            None if self.ids.len() >= JOBS_MAX => return None,
            None => {
                self.counters.inferred += 1;
                self.job_index(job, now)
            }
        };
        let known = self.state(index).latest.filter(|(bucket, _)| *bucket == request.bucket);
        let reading_index = match known {
            Some((_, reading)) => reading,
            None => self.reading_index(index, request.bucket, now)?,
        };
        let state = self.states[index as usize].as_mut().expect("the job is in the slab");
        let reading =
            self.readings[reading_index as usize].as_mut().expect("the reading is in the slab");
        let bytes = u64::from(request.bytes);
        state.latest = Some((request.bucket, reading_index));
        state.last_seen = now;
        state.started = true;
        state.reads += 1;
        state.bytes += bytes;
        state.tick_bytes += bytes;
        match reading.stage {
            Some(step) if step > state.stage => (state.stage, state.stage_bytes) = (step, bytes),
            Some(step) if step == state.stage => state.stage_bytes += bytes,
            None if state.plan.is_some() => {
                self.counters.unannounced_reads += 1;
                state.unannounced_reads += 1;
            }
            _ => {}
        }
        // The head moves by one per read, with a slow correction towards the observed position.
        match observed.position {
            Some(position) if !observed.is_first => {
                let offset = f64::from(position) - reading.head;
                if reading.segments == 0 {
                    reading.head = f64::from(position) + 1.0;
                } else {
                    let share = (offset.abs() / f64::from(observed.trail_len.max(1))).min(1.0);
                    state.scatter += (share - state.scatter) / 256.0;
                    reading.head += 1.0 + (offset - 1.0) / 16.0;
                }
            }
            _ => reading.head += 1.0,
        }
        if let Some(position) = observed.position {
            reading.mark(position);
        }
        reading.segments += 1;
        reading.bytes += bytes;
        reading.last_read = now;
        if state.plan.is_some() && spec::is_refuted(state.unannounced_reads, state.reads) {
            self.counters.refuted += 1;
            self.drop_plan(index);
        }
        Some(reading_index)
    }
}

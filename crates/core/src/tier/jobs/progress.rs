//! Progress: what each job has read, and its rate.

use std::time::Duration;

use super::{
    positions::PositionSet,
    registry::{JobIndex, Jobs, ReadingIndex},
    spec::{self, Plan},
};
use crate::tier::{
    follower_lag::FollowerLag,
    history::Observation,
    invalid_event::JOBS_MAX,
    types::{Bucket, Job, Request},
};

/// Weight of the last tick in a job's rate.
const RATE_GAIN: f64 = 0.3;
/// Rate of a job before anything is known, in bytes per second: that of one reader in the paper.
const RATE_GUESS: f64 = 1.5e9;

/// Result of recording a read.
#[derive(Debug, Clone, Copy)]
pub(in crate::tier) struct Progress {
    /// Trail position of the segment.
    pub position: u32,
}

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
    pub(super) measured_rate: f64,
    /// Time of the last measurement.
    pub(super) measured_at: Duration,
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
            measured_at: now,
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

    /// Measures the rate since the last measurement.
    pub(super) fn measure_rate(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.measured_at).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        self.measured_at = now;
        let rate = std::mem::take(&mut self.tick_bytes) as f64 / elapsed;
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
    /// Trail positions read.
    pub(super) read: PositionSet,
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Estimated trail position of the job.
    pub head: f64,
    pub(super) last_read: Duration,
}

impl Reading {
    pub(super) fn new(job: JobIndex, bucket: Bucket, now: Duration) -> Self {
        Self {
            job,
            bucket,
            stage: None,
            size: 0,
            read: PositionSet::default(),
            segments: 0,
            bytes: 0,
            head: 0.0,
            last_read: now,
        }
    }

    /// The last whole trail position that the job has reached.
    pub fn head_position(&self) -> u32 {
        truncated((self.head - 1.0).max(0.0))
    }

    /// Whether the job has read this trail position. Beyond the budget of bitmaps, a job is assumed
    /// to read along the trail.
    pub fn has_read(&self, position: u32) -> bool {
        let assumed = || self.segments > 0 && f64::from(position) < self.head;
        self.read.contains(position).unwrap_or_else(assumed)
    }
}

impl Jobs {
    /// Records a range that was read; `is_pass` if it begins a read of the segment. Returns the
    /// reading and the segment's position, or `None` if the request is untagged or a limit is
    /// reached.
    #[inline]
    pub fn on_read(
        &mut self,
        now: Duration,
        request: &Request,
        observed: Observation,
        is_pass: bool,
    ) -> Option<Progress> {
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
        state.reads += u64::from(is_pass);
        state.bytes += bytes;
        state.tick_bytes += bytes;
        match reading.stage {
            Some(step) if step > state.stage => (state.stage, state.stage_bytes) = (step, bytes),
            Some(step) if step == state.stage => state.stage_bytes += bytes,
            None if state.plan.is_some() && is_pass => {
                self.counters.unannounced_reads += 1;
                state.unannounced_reads += 1;
            }
            _ => {}
        }
        reading.bytes += bytes;
        reading.last_read = now;
        // A segment outside the history's sample is assumed to be at the job's position.
        let position = observed.position.unwrap_or(truncated(reading.head));
        let progress = Progress { position };
        if !is_pass {
            return Some(progress);
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
        if observed.trail_len > 0 {
            reading.read.insert(position, &mut self.bitmaps);
        }
        reading.segments += 1;
        if state.plan.is_some() && spec::is_refuted(state.unannounced_reads, state.reads) {
            self.counters.refuted += 1;
            self.drop_plan(index);
        }
        Some(progress)
    }
}

/// Whole trail position.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are positive; the cast saturates"
)]
fn truncated(position: f64) -> u32 {
    position as u32
}

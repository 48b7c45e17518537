//! Specifications: checked and applied when a job announces one, dropped when reads refute it.

use std::time::Duration;

use super::registry::{JobIndex, Jobs};
use crate::{
    tier::{
        invalid_event::{InvalidEvent, JOBS_MAX, STAGES_MAX},
        types::{Job, Spec},
    },
    util::stable_hash::StableSet,
};

/// Unannounced reads that refute a specification, if they are also an eighth of all reads.
const REFUTING_READS: u64 = 64;

/// A job's specification, without its buckets: those are readings with a stage.
#[derive(Debug)]
pub(super) struct Plan {
    /// Bytes before each stage; the last element is the sum of all stages.
    pub before: Vec<u64>,
    pub starts: Option<Duration>,
    pub rate: Option<f64>,
    pub lease: Option<Duration>,
}

/// Whether a job's reads refute its specification.
pub(super) fn is_refuted(unannounced_reads: u64, reads: u64) -> bool {
    unannounced_reads > REFUTING_READS && unannounced_reads > reads / 8
}

impl Jobs {
    /// Applies a job's specification. It replaces an earlier one.
    pub fn on_announced(
        &mut self,
        now: Duration,
        job: Job,
        spec: &Spec,
    ) -> Result<(), InvalidEvent> {
        let checked = self.check(now, job, spec);
        let before = checked.inspect_err(|_| self.counters.invalid_events += 1)?;
        let index = self.job_index(job, now);
        self.drop_plan(index);
        for (stage, buckets) in spec.stages.iter().enumerate() {
            let stage = u32::try_from(stage).expect("at most STAGES_MAX stages");
            for (bucket, size) in &buckets.buckets {
                if let Some(reading) = self.reading_index(index, *bucket, now) {
                    let reading = self.reading_mut(reading);
                    (reading.stage, reading.size) = (Some(stage), size.0);
                }
            }
        }
        let rate = spec.rate.map(|rate| rate.0.0 as f64);
        let state = self.state_mut(index);
        state.plan = Some(Plan { before, starts: spec.starts, rate, lease: spec.lease });
        (state.last_seen, state.unannounced_reads, state.reads) = (now, 0, 0);
        (state.stage, state.stage_bytes) = (0, 0);
        Ok(())
    }

    /// Checks a specification. Returns the bytes before each stage.
    fn check(&self, now: Duration, job: Job, spec: &Spec) -> Result<Vec<u64>, InvalidEvent> {
        if self.ids.len() >= JOBS_MAX && !self.ids.contains_key(&job) {
            return Err(InvalidEvent::TooManyJobs);
        }
        if spec.stages.iter().all(|stage| stage.buckets.is_empty()) {
            return Err(InvalidEvent::Empty { job });
        }
        if let Some(starts) = spec.starts.filter(|starts| *starts < now) {
            return Err(InvalidEvent::StartsInThePast { job, starts, now });
        }
        let mut seen = StableSet::default();
        let (mut before, mut sum) = (vec![0], 0_u64);
        for stage in &spec.stages {
            for (bucket, size) in &stage.buckets {
                if !seen.insert(*bucket) {
                    return Err(InvalidEvent::Repeated { job, bucket: *bucket });
                }
                sum = sum.checked_add(size.0).ok_or(InvalidEvent::TooLong { job })?;
            }
            before.push(sum);
        }
        let too_long = seen.len() > STAGES_MAX || spec.stages.len() > STAGES_MAX;
        if too_long { Err(InvalidEvent::TooLong { job }) } else { Ok(before) }
    }

    /// Drops a job's specification with the readings that it has not begun. Begun ones remain.
    pub(super) fn drop_plan(&mut self, job: JobIndex) {
        let state = self.state_mut(job);
        state.plan = None;
        let readings = std::mem::take(&mut state.readings);
        let (begun, announced): (Vec<_>, Vec<_>) =
            readings.into_iter().partition(|index| self.reading(*index).segments > 0);
        for index in announced {
            self.drop_reading(index);
        }
        for index in &begun {
            let reading = self.reading_mut(*index);
            (reading.stage, reading.size) = (None, 0);
        }
        self.state_mut(job).readings = begun;
    }
}

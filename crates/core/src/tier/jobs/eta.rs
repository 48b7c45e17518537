//! Expected time of arrival: what each job has yet to read, and how much it reads before that.

use std::time::Duration;

use super::{progress::Reading, registry::Jobs};
use crate::tier::types::Bucket;

/// Time for which a job that has moved to another bucket may return for what its slower readers
/// left.
const STRAGGLER_GRACE: Duration = Duration::from_mins(1);

/// Distance of a job from a bucket that it has not begun.
#[derive(Debug, Clone, Copy)]
pub(in crate::tier) struct Distance {
    /// Bytes that the job reads first.
    pub bytes: f64,
    /// Time until the job starts reading at all.
    pub wait: Duration,
}

impl Jobs {
    /// Number of started jobs that have announced a bucket and not finished it (Shift's future
    /// priority).
    pub fn future_readers(&self, now: Duration, bucket: Bucket) -> u32 {
        let readers = self.readers(bucket);
        let counted = readers.filter(|(_, reading)| {
            let state = self.state(reading.job);
            state.started && reading.stage.is_some() && !self.is_finished(now, reading)
        });
        u32::try_from(counted.count()).expect("at most 64 readers")
    }

    /// Whether a job has read all that it will of a bucket.
    pub fn is_finished(&self, now: Duration, reading: &Reading) -> bool {
        let state = self.state(reading.job);
        if reading.size > 0 && reading.bytes >= reading.size {
            return true;
        }
        let elsewhere = state.latest.is_some_and(|(bucket, _)| bucket != reading.bucket);
        let idle = now.saturating_sub(reading.last_read) > STRAGGLER_GRACE;
        reading.segments > 0 && elsewhere && idle
    }

    /// A bucket's share of its stage, whose buckets are read side by side.
    pub fn share_of_stage(&self, reading: &Reading) -> f64 {
        let state = self.state(reading.job);
        let (Some(plan), Some(step)) = (&state.plan, reading.stage) else { return 1.0 };
        let stage_bytes = plan.before[step as usize + 1] - plan.before[step as usize];
        if stage_bytes == 0 { 1.0 } else { reading.size as f64 / stage_bytes as f64 }
    }

    /// Distance of a job from a bucket that it has not begun; `None` if it has not announced it.
    /// `unknown_start` is the assumed time until a queued job starts.
    pub fn distance(
        &self,
        now: Duration,
        reading: &Reading,
        unknown_start: Duration,
    ) -> Option<Distance> {
        let state = self.state(reading.job);
        let plan = state.plan.as_ref()?;
        let step = reading.stage? as usize;
        if !state.started {
            let wait = plan.starts.map_or(unknown_start, |starts| starts.saturating_sub(now));
            return Some(Distance { bytes: plan.before[step] as f64, wait });
        }
        let all = *plan.before.last().expect("`before` ends with the sum of all stages") as f64;
        let bytes = if step >= state.stage as usize {
            let begun = plan.before[state.stage as usize] as f64 + state.stage_bytes as f64;
            (plan.before[step] as f64 - begun).max(0.0)
        } else {
            // The job does not follow its announced order: on average, after half of the rest.
            (all - state.bytes as f64).max(0.0) / 2.0
        };
        Some(Distance { bytes, wait: Duration::ZERO })
    }
}

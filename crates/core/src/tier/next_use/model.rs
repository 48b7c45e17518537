//! Read model: everything that ranks are computed from.

use std::time::Duration;

use super::{
    estimate::{self, NextUseEstimate, Target},
    rank::{FAR, Rank, SPENT},
    region::Content,
    unannounced::Expectation,
};
use crate::tier::{
    history::History,
    jobs::Jobs,
    types::{Bucket, Resident},
};

/// Mean reads per segment above which a bucket is expected to be read again (the paper's minimum).
const POPULAR: f64 = 1.1;
/// Least seconds until a next use, so that one segment that is read now does not hide the others of
/// its region.
const SECONDS_MIN: f64 = 0.1;

/// Evaluation of a segment that may be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub rank: Rank,
    /// Expected reads.
    pub expected: f64,
    /// Whether a reader is expected.
    pub expectation: Expectation,
}

/// Jobs, history, and whether LRU decides.
#[derive(Debug)]
pub(super) struct ReadModel {
    pub jobs: Jobs,
    pub history: History,
    pub unknown_start: Duration,
    pub is_lru: bool,
}

impl ReadModel {
    fn estimate(&self, now: Duration, bucket: Bucket, position: u32) -> NextUseEstimate {
        let trail_len = self.history.trail_len(bucket).max(1);
        let target = Target { bucket, position, trail_len };
        estimate::estimate(&self.jobs, now, target, self.unknown_start)
    }

    /// Whether the bucket was read repeatedly in the history's window.
    pub fn is_popular(&self, bucket: Bucket) -> bool {
        self.history.recent_reads_per_segment(bucket) > POPULAR
    }

    /// Evaluates a trail position that was last read at `touched`.
    pub fn candidate(
        &self,
        now: Duration,
        bucket: Bucket,
        position: u32,
        touched: Duration,
    ) -> Candidate {
        let unknown = Candidate {
            rank: Rank::by_age(touched),
            expected: 0.0,
            expectation: Expectation::Unknown,
        };
        if self.is_lru {
            return Candidate { expected: 1.0, expectation: Expectation::Read, ..unknown };
        }
        let estimate = self.estimate(now, bucket, position);
        if estimate.readers > 0 {
            let at = now.as_secs_f64() + estimate.seconds.min(FAR / 2.0);
            let (rank, expected) = (Rank::at(at), f64::from(estimate.readers));
            return Candidate { rank, expected, expectation: Expectation::Read };
        }
        if estimate.is_announced {
            return unknown;
        }
        // Followers are expected with the lag seen so far.
        if let Some(follower) = estimate.follower {
            let at = touched.as_secs_f64() + follower.lag;
            if at >= now.as_secs_f64() {
                return Candidate { rank: Rank::at(at), expected: follower.share, ..unknown };
            }
        }
        let reads = self.history.recent_reads_per_segment(bucket);
        if reads > POPULAR {
            let window = self.history.window().min(now).as_secs_f64().max(1.0);
            let at = (touched.as_secs_f64() + window / (reads - 1.0)).max(now.as_secs_f64());
            let (rank, expected) = (Rank::at(at), reads - 1.0);
            return Candidate { rank, expected, expectation: Expectation::Read };
        }
        unknown
    }

    /// Evaluates a segment that is to be written. Without an expected reader, it is spent if the
    /// job that brings it in has announced it.
    pub fn newcomer(
        &self,
        now: Duration,
        resident: &Resident,
        position: u32,
        touched: Duration,
    ) -> Candidate {
        let Resident { bucket, brought_by, .. } = *resident;
        let candidate = self.candidate(now, bucket, position, touched);
        let has_announced = |job| self.jobs.has_announced(job, bucket);
        if candidate.expected > 0.0 || !brought_by.is_some_and(has_announced) {
            return candidate;
        }
        Candidate { rank: Rank::at(SPENT), expectation: Expectation::Spent, ..candidate }
    }

    /// Rank of a region: the inverse of the mean rate at which its segments will be read.
    pub fn rank(&self, now: Duration, content: &Content) -> Rank {
        let now_s = now.as_secs_f64();
        let mut reads_per_second = 0.0;
        if self.is_lru {
            return Rank::by_age(content.touched);
        }
        for at in content.sample() {
            let candidate = self.candidate(now, Bucket(at.bucket), at.position, content.touched);
            if candidate.expected > 0.0 {
                let seconds = candidate.rank.seconds() - now_s;
                reads_per_second += 1.0 / seconds.max(SECONDS_MIN);
            }
        }
        if reads_per_second > 0.0 {
            let seconds = content.sample().len() as f64 / reads_per_second;
            Rank::at(now_s + seconds.min(FAR / 2.0))
        } else {
            Rank::by_age(content.touched)
        }
    }

    /// Where a segment is on the trail of its bucket: as first read, or at the position of the job
    /// that brings it in.
    pub fn position(&self, resident: &Resident) -> u32 {
        let Resident { segment, bucket, brought_by, .. } = *resident;
        let known = self.history.position(bucket, segment);
        known.or_else(|| self.jobs.head(brought_by?, bucket)).unwrap_or(0)
    }
}

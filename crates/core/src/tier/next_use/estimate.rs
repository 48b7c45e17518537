//! Next-use estimates: when a segment is read next, and by how many jobs.
//!
//! Each job moves along the trail of a bucket, or is a number of bytes away from beginning it. For
//! a job that stays close to the trail, the time to a position is the distance divided by the rate.
//! A job that shuffles reads a segment some way before or after its position; that scatter is
//! measured, and spreads the expected reads evenly over a range. Readers that may read a segment at
//! any moment add up: two of them come twice as soon as one. For a job that shuffles fully, only
//! the number of segments that it has yet to read counts.

use std::time::Duration;

use crate::tier::{
    follower_lag::FollowerEstimate,
    jobs::{Jobs, Reading},
    types::Bucket,
};

/// Expected reads of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NextUseEstimate {
    /// Seconds until the first expected read; infinite without one.
    pub seconds: f64,
    /// Number of expected readers.
    pub readers: u32,
    /// Whether a job has announced the bucket, which takes precedence over the history.
    pub is_announced: bool,
    /// If exactly one job has read the segment: its followers.
    pub follower: Option<FollowerEstimate>,
}

/// What an estimate is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub bucket: Bucket,
    /// Trail position.
    pub position: u32,
    pub trail_len: u32,
}

/// Positions behind a job's own that it may still return to, beside its scatter, because parallel
/// readers are not in step.
const SLACK_POSITIONS: f64 = 32.0;
/// The same as a share of the bucket.
const SLACK_SHARE: f64 = 0.01;
/// Half-width of a uniform spread, in units of its mean absolute deviation.
const HALF_WIDTHS: f64 = 2.0;
/// Half-width, as a share of the bucket, above which a job counts as shuffling fully. A uniform
/// order deviates by a quarter of the bucket on average, and the last read then says nothing about
/// the next.
const FULL_SHUFFLE: f64 = 0.4;

/// Estimates the next use of a target by readers that have not read it yet. `unknown_start` is the
/// assumed time until a queued job starts.
pub(super) fn estimate(
    jobs: &Jobs,
    now: Duration,
    target: Target,
    unknown_start: Duration,
) -> NextUseEstimate {
    let Target { bucket, position, .. } = target;
    let mut have_read = 0;
    let mut estimate =
        NextUseEstimate { seconds: f64::INFINITY, readers: 0, is_announced: false, follower: None };
    let mut reads_per_second = 0.0;
    for (_, reading) in jobs.readers(bucket) {
        estimate.is_announced |= reading.stage.is_some();
        if reading.has_read(position) {
            have_read += 1;
            let follower_lag = &jobs.state(reading.job).follower_lag;
            estimate.follower = (have_read == 1).then(|| follower_lag.estimate()).flatten();
            continue;
        }
        match next_read(jobs, now, reading, target, unknown_start) {
            None => continue,
            Some(NextRead::In(seconds)) => estimate.seconds = estimate.seconds.min(seconds),
            Some(NextRead::AnyMoment(seconds)) => reads_per_second += 1.0 / seconds.max(1e-9),
        }
        estimate.readers += 1;
    }
    if reads_per_second > 0.0 {
        estimate.seconds = estimate.seconds.min(1.0 / reads_per_second);
    }
    estimate
}

/// When one job reads a target.
enum NextRead {
    /// After about this many seconds.
    In(f64),
    /// At any moment, after this many seconds on average.
    AnyMoment(f64),
}

fn next_read(
    jobs: &Jobs,
    now: Duration,
    reading: &Reading,
    Target { position, trail_len, .. }: Target,
    unknown_start: Duration,
) -> Option<NextRead> {
    let position = f64::from(position);
    if jobs.is_finished(now, reading) {
        return None;
    }
    let state = jobs.state(reading.job);
    let rate = state.rate();
    let segment_bytes = jobs.segment_bytes();
    let positions = (reading.size as f64 / segment_bytes).max(f64::from(trail_len)).max(1.0);
    let speed = rate * jobs.share_of_stage(reading) / segment_bytes;
    let half = (HALF_WIDTHS * state.scatter * f64::from(trail_len)).min(positions);
    let shuffles = HALF_WIDTHS * state.scatter > FULL_SHUFFLE;
    if reading.segments == 0 {
        let distance = jobs.distance(now, reading, unknown_start)?;
        let begins = distance.wait.as_secs_f64() + distance.bytes / rate;
        let position = if shuffles { positions / 2.0 } else { position };
        return Some(NextRead::In(begins + position / speed));
    }
    if shuffles {
        let left = (positions - reading.segments as f64).max(1.0);
        return Some(NextRead::AnyMoment(left / 2.0 / speed));
    }
    let ahead = position - reading.head;
    if ahead + half < -(SLACK_POSITIONS + SLACK_SHARE * positions) {
        return None;
    }
    let left = (positions - reading.head).max(1.0);
    let (from, to) = ((ahead - half).clamp(0.0, left), (ahead + half).clamp(0.0, left));
    let seconds = f64::midpoint(from, to).max(0.5) / speed;
    Some(if from > 0.0 { NextRead::In(seconds) } else { NextRead::AnyMoment(seconds) })
}

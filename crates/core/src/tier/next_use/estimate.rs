//! When a segment is due, and for how many jobs.
//!
//! Each job moves along the trail of a bucket, or is so many bytes away from beginning it. Where it keeps close to
//! the trail, that says when it reaches a place: the distance divided by its rate. A job that shuffles reads a segment
//! some way before or after its place; how far is measured, and makes its reads spread evenly over a
//! stretch. As soon as a read may come at any moment, readers add up: two who shuffle
//! come twice as soon as one. For a job that shuffles fully all that counts is who has yet to read a segment.

use std::time::Duration;

use super::super::{
    jobs::{Jobs, Reading},
    words::Bucket,
};

/// What lies ahead of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outlook {
    /// Until the first of its readers is expected; infinite without any.
    pub seconds: f64,
    /// How many readers are expected.
    pub readers: u32,
    /// Whether some job has named the bucket, whose word stands against what history says.
    pub named: bool,
    /// If just one job has read it: how long after that job others come, and how many.
    pub followed: Option<(f64, f64)>,
}

/// Places behind a job's own that it may yet come back to, beside what it scatters: parallel readers are not in step.
const SLACK_PLACES: f64 = 32.0;
const SLACK_SHARE: f64 = 0.01;
/// A uniform spread of width w is w/4 off on average, to either side half of it.
const HALF_WIDTHS: f64 = 2.0;
/// A job whose spread is most of the bucket shuffles fully: any order is off by a quarter of it on average. Where it read last
/// then says nothing about where it reads next.
const SHUFFLES: f64 = 0.4;

/// Looks ahead for a place of a bucket, for all but those who have read it.
pub(super) fn look(
    jobs: &Jobs,
    now: Duration,
    (bucket, place, trail): (Bucket, f64, u32),
    read_by: u64,
    unknown_start: Duration,
) -> Outlook {
    let mut outlook = Outlook { seconds: f64::INFINITY, readers: 0, named: false, followed: None };
    let mut at_any_moment = 0.0;
    for (_, reading) in jobs.readers(bucket) {
        outlook.named |= reading.stage.is_some();
        if read_by >> reading.bit & 1 == 1 {
            if read_by.is_power_of_two() {
                outlook.followed = jobs.state(reading.job).followed.expected();
            }
            continue;
        }
        match due(jobs, now, reading, place, trail, unknown_start) {
            None => continue,
            Some(Due::In(seconds)) => outlook.seconds = outlook.seconds.min(seconds),
            Some(Due::AtAnyMoment(seconds)) => at_any_moment += 1.0 / seconds.max(1e-9),
        }
        outlook.readers += 1;
    }
    if at_any_moment > 0.0 {
        outlook.seconds = outlook.seconds.min(1.0 / at_any_moment);
    }
    outlook
}

/// When a job reads a place.
enum Due {
    /// Then, more or less.
    In(f64),
    /// At any moment, then on average.
    AtAnyMoment(f64),
}

fn due(
    jobs: &Jobs,
    now: Duration,
    reading: &Reading,
    place: f64,
    trail: u32,
    unknown_start: Duration,
) -> Option<Due> {
    if jobs.finished(now, reading) {
        return None;
    }
    let state = jobs.state(reading.job);
    let rate = state.rate();
    let segment_bytes = jobs.segment_bytes();
    let places = (reading.size as f64 / segment_bytes).max(f64::from(trail)).max(1.0);
    let speed = rate * jobs.share_of_stage(reading) / segment_bytes;
    let half = (HALF_WIDTHS * state.scatter * f64::from(trail)).min(places);
    let shuffles = HALF_WIDTHS * state.scatter > SHUFFLES;
    if reading.segments == 0 {
        let (bytes, wait) = jobs.until(now, reading, unknown_start)?;
        let begins = wait.as_secs_f64() + bytes / rate;
        let place = if shuffles { places / 2.0 } else { place };
        return Some(Due::In(begins + place / speed));
    }
    if shuffles {
        let left = (places - reading.segments as f64).max(1.0);
        return Some(Due::AtAnyMoment(left / 2.0 / speed));
    }
    let ahead = place - reading.head;
    if ahead + half < -(SLACK_PLACES + SLACK_SHARE * places) {
        return None;
    }
    let left = (places - reading.head).max(1.0);
    let (from, to) = ((ahead - half).clamp(0.0, left), (ahead + half).clamp(0.0, left));
    let seconds = f64::midpoint(from, to).max(0.5) / speed;
    Some(if from > 0.0 { Due::In(seconds) } else { Due::AtAnyMoment(seconds) })
}

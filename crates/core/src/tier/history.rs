//! History: recent reads per bucket and segment (Shift's request history window, 5.1).
//!
//! Each segment has one byte: the five-minute interval in which it was last read. Each bucket has
//! two counters per interval: all reads, and the segments last read then. Their sums over the
//! window give the exact mean reads per segment of a bucket: [`History::reads_per_segment`].
//!
//! Memory is bounded by a budget of segments; a bucket costs as much as 64 of them. When the budget
//! is exceeded, only a sample chosen by hash is counted, and the sample is halved until it fits.
//! The result stays a ratio of two counts of the same sample. With n sampled segments in a bucket
//! the relative error is about the spread of reads per segment divided by √n: 3 % at n = 1,000
//! where the spread equals the mean.
//!
//! Each segment also gets its **trail position** in its bucket: the number of segments of the
//! bucket first read before it. Jobs that share an order read along that trail.

use std::time::Duration;

use super::types::{Bucket, Segment};
use crate::util::stable_hash::{StableMap, mix};

/// Size of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySettings {
    /// Length of the window (6 hours in the paper). At most 120 intervals count.
    pub window: Duration,
    /// Resolution of the window.
    pub interval: Duration,
    /// Most segments, about 20 bytes each.
    pub segments_max: usize,
}

impl Default for HistorySettings {
    fn default() -> Self {
        let (window, interval) = (Duration::from_hours(6), Duration::from_mins(5));
        Self { window, interval, segments_max: 50_000_000 }
    }
}

/// Longest interval. A longer one would distinguish nothing in practice.
const INTERVAL_MAX: Duration = Duration::from_hours(24);
/// Most intervals of a window. A stamp is one byte, so it repeats after 256 intervals; stale stamps
/// are swept before that.
const INTERVALS_MAX: u32 = 120;
const SWEEP_EVERY: u32 = 128;
/// The smallest sample is one in 2^this.
const SHIFT_MAX: u32 = 32;
/// Memory of a bucket's counters, in segments.
const BUCKET_WEIGHT: usize = 64;
/// Buckets that are counted however small the budget is.
const BUCKETS_MIN: usize = 1024;

/// The request history window.
#[derive(Debug)]
pub struct History {
    interval: Duration,
    intervals: u32,
    segments_max: usize,
    buckets_max: usize,
    /// One in 2^shift segments is counted.
    shift: u32,
    /// The current interval.
    now: u32,
    segments: usize,
    logs: StableMap<Bucket, Log>,
}

/// State of a segment.
#[derive(Debug, Clone, Copy)]
struct Seen {
    position: u32,
    /// Lowest byte of the interval of the last read.
    stamp: u8,
}

/// State of a bucket.
#[derive(Debug)]
struct Log {
    seen: StableMap<u64, Seen>,
    /// Ring: reads per interval.
    reads: Box<[u32]>,
    /// Ring: segments last read in the interval.
    fresh: Box<[u32]>,
    read_sum: u64,
    fresh_sum: u64,
    /// The interval that the rings have advanced to.
    at: u32,
    swept: u32,
    /// Trail position of the next new segment.
    next_position: u32,
}

/// Result of recording a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Trail position of the segment, if it is in the sample.
    pub position: Option<u32>,
    /// Whether this is the first read of the segment in the window.
    pub is_first: bool,
    /// Length of the bucket's trail.
    pub trail_len: u32,
}

impl History {
    /// An empty history.
    pub fn new(settings: &HistorySettings) -> Self {
        let interval = settings.interval.clamp(Duration::from_secs(1), INTERVAL_MAX);
        let intervals = settings.window.as_nanos().div_ceil(interval.as_nanos());
        Self {
            interval,
            intervals: u32::try_from(intervals).unwrap_or(u32::MAX).clamp(1, INTERVALS_MAX),
            segments_max: settings.segments_max.max(1),
            buckets_max: (settings.segments_max / BUCKET_WEIGHT).max(BUCKETS_MIN),
            shift: 0,
            now: 0,
            segments: 0,
            logs: StableMap::default(),
        }
    }

    /// Records a read.
    #[inline]
    pub fn record(&mut self, now: Duration, bucket: Bucket, segment: Segment) -> Observation {
        self.advance(now);
        if !self.samples(segment.0) {
            let trail_len = self.trail_len(bucket);
            return Observation { position: None, is_first: false, trail_len };
        }
        let (now, intervals, step) = (self.now, self.intervals, 1_u32 << self.shift.min(31));
        let log = self.logs.entry(bucket).or_insert_with(|| Log::new(now, intervals));
        self.segments -= log.advance(now, intervals);
        let (stamp, slot) = (stamp_of(now), slot_of(now, intervals));
        log.reads[slot] = log.reads[slot].saturating_add(1);
        log.read_sum += 1;
        let next_position = log.next_position;
        let mut is_first = false;
        let seen = log.seen.entry(segment.0).or_insert_with(|| {
            is_first = true;
            Seen { position: next_position, stamp: stamp.wrapping_sub(128) }
        });
        if is_first {
            self.segments += 1;
            log.next_position = next_position.saturating_add(step);
        }
        if seen.stamp != stamp || is_first {
            let age = u32::from(stamp.wrapping_sub(seen.stamp));
            if !is_first && age < intervals {
                log.fresh[slot_of(now - age, intervals)] -= 1;
                log.fresh_sum -= 1;
            }
            seen.stamp = stamp;
            log.fresh[slot] += 1;
            log.fresh_sum += 1;
        }
        let (position, trail_len) = (seen.position, log.next_position);
        if self.is_over_budget() {
            self.halve();
        }
        Observation { position: Some(position), is_first, trail_len }
    }

    /// Mean reads per segment that was read in the window (Shift's historic priority: total bytes
    /// divided by unique bytes); 0 without reads.
    pub fn reads_per_segment(&mut self, now: Duration, bucket: Bucket) -> f64 {
        self.advance(now);
        let Some(log) = self.logs.get_mut(&bucket) else { return 0.0 };
        self.segments -= log.advance(self.now, self.intervals);
        if log.fresh_sum == 0 { 0.0 } else { log.read_sum as f64 / log.fresh_sum as f64 }
    }

    /// Length of a bucket's trail: the number of its segments that have a position.
    pub fn trail_len(&self, bucket: Bucket) -> u32 {
        self.logs.get(&bucket).map_or(0, |log| log.next_position)
    }

    /// The history counts one in this number of segments.
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    /// Number of buckets in the history.
    pub fn buckets(&self) -> usize {
        self.logs.len()
    }

    /// Number of segments in the history.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Length of the window.
    pub fn window(&self) -> Duration {
        self.interval * self.intervals
    }

    /// Advances to the interval of `now`, never back, and drops buckets that left the window.
    #[inline]
    fn advance(&mut self, now: Duration) {
        // Fast path: most requests fall into the current interval.
        if now >= self.interval * self.now.saturating_add(1) {
            let interval = now.as_nanos() / self.interval.as_nanos();
            self.now = u32::try_from(interval).unwrap_or(u32::MAX - 1).max(self.now);
            let (now, intervals) = (self.now, self.intervals);
            let mut dropped = 0;
            self.logs.retain(|_, log| {
                let stays = now - log.at < intervals;
                dropped += if stays { 0 } else { log.seen.len() };
                stays
            });
            self.segments -= dropped;
        }
    }

    fn is_over_budget(&self) -> bool {
        self.segments > self.segments_max || self.logs.len() > self.buckets_max
    }

    #[inline]
    fn samples(&self, segment: u64) -> bool {
        self.shift == 0 || mix(segment) >> (64 - self.shift) == 0
    }

    /// Halves the sample until it fits the budget.
    fn halve(&mut self) {
        while self.is_over_budget() && self.shift < SHIFT_MAX {
            self.shift += 1;
            let shift = self.shift;
            self.segments = 0;
            for log in self.logs.values_mut() {
                log.seen.retain(|segment, _| mix(*segment) >> (64 - shift) == 0);
                log.seen.shrink_to_fit();
                self.segments += log.seen.len();
                log.recount(self.intervals);
            }
            self.logs.retain(|_, log| !log.seen.is_empty());
        }
    }
}

impl Log {
    fn new(now: u32, intervals: u32) -> Self {
        let ring = || vec![0; intervals as usize].into_boxed_slice();
        Self {
            seen: StableMap::default(),
            reads: ring(),
            fresh: ring(),
            read_sum: 0,
            fresh_sum: 0,
            at: now,
            swept: now,
            next_position: 0,
        }
    }

    /// Drops what has left the window. Returns the number of segments dropped.
    #[inline]
    fn advance(&mut self, now: u32, intervals: u32) -> usize {
        if now == self.at { 0 } else { self.advance_rings(now, intervals) }
    }

    fn advance_rings(&mut self, now: u32, intervals: u32) -> usize {
        let before = self.seen.len();
        if now - self.at >= intervals {
            *self = Self::new(now, intervals);
            return before;
        }
        for interval in self.at + 1..=now {
            let slot = slot_of(interval, intervals);
            self.read_sum -= u64::from(std::mem::take(&mut self.reads[slot]));
            self.fresh_sum -= u64::from(std::mem::take(&mut self.fresh[slot]));
        }
        self.at = now;
        let stale = self.seen.len() as u64 - self.fresh_sum;
        if stale > self.fresh_sum + 1024 || now - self.swept >= SWEEP_EVERY {
            let stamp = stamp_of(now);
            self.seen.retain(|_, seen| u32::from(stamp.wrapping_sub(seen.stamp)) < intervals);
            self.seen.shrink_to_fit();
            self.swept = now;
        }
        before - self.seen.len()
    }

    /// Recounts after the sample was halved. Last reads are known per segment; reads are not, so
    /// they are halved.
    fn recount(&mut self, intervals: u32) {
        self.fresh.fill(0);
        let stamp = stamp_of(self.at);
        for seen in self.seen.values() {
            let age = u32::from(stamp.wrapping_sub(seen.stamp));
            if age < intervals {
                self.fresh[slot_of(self.at - age.min(self.at), intervals)] += 1;
            }
        }
        for (reads, fresh) in self.reads.iter_mut().zip(&self.fresh) {
            *reads = (*reads / 2).max(*fresh);
        }
        self.fresh_sum = self.fresh.iter().map(|count| u64::from(*count)).sum();
        self.read_sum = self.reads.iter().map(|count| u64::from(*count)).sum();
    }
}

fn stamp_of(interval: u32) -> u8 {
    interval.to_le_bytes()[0]
}

fn slot_of(interval: u32, intervals: u32) -> usize {
    (interval % intervals) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn history(window_min: u32, interval_min: u32, segments_max: usize) -> History {
        let [window, interval] = [window_min, interval_min].map(|minutes| MINUTE * minutes);
        History::new(&HistorySettings { window, interval, segments_max })
    }

    /// Reference implementation: a list of (interval, bucket, segment).
    fn reference(reads: &[(u32, u32, u64)], now: u32, intervals: u32, bucket: u32) -> f64 {
        let window = reads.iter().filter(|(at, of, _)| *of == bucket && now - at < intervals);
        let mut counts = BTreeMap::new();
        window.for_each(|(_, _, segment)| *counts.entry(segment).or_insert(0) += 1);
        match counts.len() {
            0 => 0.0,
            unique => f64::from(counts.values().sum::<u32>()) / unique as f64,
        }
    }

    /// The history is exact and bounded through wrapped bytes, gaps and sweeps.
    #[test]
    fn counts_match_a_log_of_every_read() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut history = history(60, 5, 1 << 20);
        let (mut reads, mut interval) = (Vec::new(), 0);
        for step in 0..30_000_u32 {
            if random.u32(..40) == 0 {
                interval += if random.u32(..30) == 0 { random.u32(..300) } else { 1 };
            }
            let (bucket, segment) = (random.u32(..3), random.u64(..200));
            history.record(MINUTE * 5 * interval, Bucket(bucket), Segment(segment));
            reads.push((interval, bucket, segment));
            if step % 500 == 0 {
                for bucket in 0..3 {
                    let ours = history.reads_per_segment(MINUTE * 5 * interval, Bucket(bucket));
                    let theirs = reference(&reads, interval, 12, bucket);
                    assert!((ours - theirs).abs() < 1e-9, "step {step}: {ours} {theirs}");
                }
                reads.retain(|(at, ..)| interval - at < 12);
            }
        }
    }

    /// A stamp repeats after 256 intervals: an old read must not look fresh.
    #[test]
    fn a_stamp_that_repeats_after_256_intervals_is_not_fresh() {
        let mut history = history(60, 5, 1000);
        let mut record = |interval: u32, segment| {
            history.record(MINUTE * 5 * interval, Bucket(1), Segment(segment));
        };
        record(0, 1);
        (0..=256).for_each(|interval| record(interval, 2));
        record(256, 1);
        let reads = history.reads_per_segment(MINUTE * 5 * 256, Bucket(1));
        assert!((reads - 6.5).abs() < 1e-9, "13 reads of two segments in 12 intervals: {reads}");
    }

    /// Promise 6 (bounded), with the error stated in the module head.
    #[test]
    fn beyond_the_budget_a_sample_estimates_the_whole() {
        let mut history = history(360, 5, 10_000);
        for round in 0..3_u64 {
            for segment in 0..300_000_u64 {
                let reads = 1 + u64::from(segment % 4 == 0);
                if round < reads {
                    history.record(MINUTE, Bucket(1), Segment(mix(segment)));
                }
                assert!(history.segments() <= 10_000);
            }
        }
        assert!(history.one_in() >= 32);
        let reads = history.reads_per_segment(MINUTE, Bucket(1));
        assert!((reads - 1.25).abs() < 0.04, "{reads}");
        let trail = f64::from(history.trail_len(Bucket(1))) / 300_000.0;
        assert!((trail - 1.0).abs() < 0.1, "positions are scaled to all segments: {trail}");
    }

    /// Promise 6 (bounded), where every segment has its own bucket; and what has left the window is
    /// dropped.
    #[test]
    fn buckets_are_bounded() {
        let mut history = history(60, 5, 10_000);
        for segment in 0..100_000_u32 {
            history.record(MINUTE, Bucket(segment), Segment(u64::from(segment)));
            assert!(history.buckets() <= BUCKETS_MIN, "fewer than the segment budget allows");
        }
        assert!(history.buckets() > BUCKETS_MIN / 4, "a sample remains: {}", history.buckets());
        history.record(MINUTE * 90, Bucket(7), Segment(7));
        assert!(history.buckets() <= 1, "{}", history.buckets());
        assert!(history.segments() <= 1);
    }

    /// "A history budget too small for one interval": the sample shrinks until it fits.
    #[test]
    fn a_budget_of_one_segment_is_segments() {
        let mut history = history(60, 5, 1);
        for segment in 0..10_000_u64 {
            history.record(Duration::ZERO, Bucket(0), Segment(segment));
            assert!(history.segments() <= 1);
        }
    }

    #[test]
    fn positions_follow_the_first_reader_and_time_does_not_go_back() {
        let mut history = history(60, 5, 100);
        let mut record =
            |at: u32, segment| history.record(MINUTE * at, Bucket(7), Segment(segment));
        assert_eq!(record(10, 9), Observation { position: Some(0), is_first: true, trail_len: 1 });
        assert_eq!(record(10, 4), Observation { position: Some(1), is_first: true, trail_len: 2 });
        assert_eq!(record(3, 9), Observation { position: Some(0), is_first: false, trail_len: 2 });
        assert!((history.reads_per_segment(MINUTE * 10, Bucket(7)) - 1.5).abs() < 1e-9);
        // All reads are older than the window of an hour.
        assert!(history.reads_per_segment(MINUTE * 71, Bucket(7)).abs() < 1e-9);
        assert_eq!((history.segments(), history.trail_len(Bucket(7))), (0, 0));
    }
}

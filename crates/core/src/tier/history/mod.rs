//! History: recent reads per bucket and segment (Shift's request history window, 5.1).
//!
//! Each segment has ten bytes (`segment_table.rs`): the five-minute interval in which it was last
//! read, and its **trail position** in its bucket, the number of segments of the bucket first read
//! before it. Jobs that share an order read along that trail. Each bucket has two counters per
//! interval: all reads, and the segments last read then. Their sums over the window give the exact
//! mean reads per segment of a bucket: [`History::reads_per_segment`].
//!
//! Memory is reserved at the start: a number of segments, and a bucket for each 512 of them. When a
//! segment finds no slot, only a sample chosen by hash is counted from then on, half as large. The
//! result stays a ratio of two counts of the same sample. With n sampled segments in a bucket the
//! relative error is about the spread of reads per segment divided by √n: 3 % at n = 1,000 where
//! the spread equals the mean. When a bucket finds no room, one that was not read lately yields.
//!
//! No call looks at all segments or buckets. What has left the window is overwritten when its slot
//! is needed.

mod saved;
mod segment_table;

use std::{hash::BuildHasherDefault, time::Duration};

use self::segment_table::{Key, Seen, SegmentTable, Validity};
use super::types::{Bucket, Segment};
use crate::util::stable_hash::StableMap;

/// Size of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySettings {
    /// Length of the window (6 hours in the paper). At most 120 intervals count.
    pub window: Duration,
    /// Resolution of the window.
    pub interval: Duration,
    /// Most segments, 10 bytes each and 1 for their buckets, reserved at the start.
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
/// Most intervals of a window.
const INTERVALS_MAX: u32 = 120;
/// The smallest sample is one in 2^this.
const SHIFT_MAX: u32 = 31;
/// Segments for each bucket that is reserved.
const SEGMENTS_PER_BUCKET: usize = 512;
/// Buckets that are counted however small the budget is.
const BUCKETS_MIN: usize = 1024;
/// Buckets that are compared when one has to yield.
const COMPARED: usize = 16;

/// The request history window.
#[derive(Debug)]
pub struct History {
    settings: HistorySettings,
    interval: Duration,
    intervals: u32,
    /// One in 2^shift segments is counted.
    shift: u32,
    /// The current interval.
    now: u32,
    table: SegmentTable,
    by_bucket: StableMap<Bucket, u32>,
    logs: Vec<Log>,
    logs_max: usize,
    /// Per log, two rings: reads per interval, and segments last read in the interval.
    rings: Vec<u32>,
    /// Where the next search for a bucket that yields begins.
    compared: usize,
}

/// State of a bucket.
#[derive(Debug)]
struct Log {
    bucket: Bucket,
    read_sum: u64,
    fresh_sum: u64,
    /// The interval that the rings have advanced to.
    at: u32,
    /// The sample that the rings count.
    shift: u32,
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

impl Observation {
    /// Nothing observed.
    pub const NONE: Self = Self { position: None, is_first: false, trail_len: 0 };
}

impl History {
    /// An empty history.
    pub fn new(settings: &HistorySettings) -> Self {
        let interval = settings.interval.clamp(Duration::from_secs(1), INTERVAL_MAX);
        let intervals = settings.window.as_nanos().div_ceil(interval.as_nanos());
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX).clamp(1, INTERVALS_MAX);
        let logs_max = (settings.segments_max / SEGMENTS_PER_BUCKET).max(BUCKETS_MIN);
        Self {
            settings: *settings,
            interval,
            intervals,
            shift: 0,
            now: 0,
            table: SegmentTable::new(settings.segments_max),
            by_bucket: StableMap::with_capacity_and_hasher(logs_max, BuildHasherDefault::new()),
            logs: Vec::with_capacity(logs_max),
            logs_max,
            rings: vec![0; logs_max * 2 * intervals as usize],
            compared: 0,
        }
    }

    /// Records a read.
    #[inline]
    pub fn record(&mut self, now: Duration, bucket: Bucket, segment: Segment) -> Observation {
        self.advance(now);
        let key = Key::new(bucket.0, segment.0);
        if !key.is_sampled(self.shift) {
            return Observation { trail_len: self.trail_len(bucket), ..Observation::NONE };
        }
        let index = self.log_index(bucket);
        self.advance_log(index);
        let stamp = self.validity().stamp;
        if let Some(slot) = self.table.find(key, self.validity()) {
            let seen = self.table.at(slot);
            self.count_read(index);
            if seen.stamp != stamp {
                self.table.set_stamp(slot, stamp);
                self.count_fresh(index, u32::from(stamp.wrapping_sub(seen.stamp)));
            }
            let trail_len = self.logs[index].next_position;
            return Observation { position: Some(seen.position), is_first: false, trail_len };
        }
        let position = self.insert(index, key, stamp);
        if position.is_some() {
            self.count_read(index);
            self.count_fresh(index, u32::MAX);
        }
        let trail_len = self.logs[index].next_position;
        Observation { position, is_first: position.is_some(), trail_len }
    }

    /// Trail position of a segment, without recording a read.
    pub fn observe(&self, bucket: Bucket, segment: Segment) -> Observation {
        let (position, trail_len) = (self.position(bucket, segment), self.trail_len(bucket));
        Observation { position, is_first: false, trail_len }
    }

    /// Trail position of a segment, if it was read in the window and is in the sample.
    pub fn position(&self, bucket: Bucket, segment: Segment) -> Option<u32> {
        let slot = self.table.find(Key::new(bucket.0, segment.0), self.validity())?;
        Some(self.table.at(slot).position)
    }

    /// Position of a segment that was found on flash: its own, or the next one of the trail. It
    /// does not count as read.
    pub fn adopt(&mut self, now: Duration, bucket: Bucket, segment: Segment) -> u32 {
        self.advance(now);
        let key = Key::new(bucket.0, segment.0);
        let index = self.log_index(bucket);
        self.advance_log(index);
        if let Some(slot) = self.table.find(key, self.validity()) {
            return self.table.at(slot).position;
        }
        let next = self.logs[index].next_position;
        if key.is_sampled(self.shift) {
            // Stamped an interval earlier, so that its first read counts.
            let stamp = stamp_of(self.now).wrapping_sub(u16::from(self.intervals > 1));
            self.insert(index, key, stamp).unwrap_or(next)
        } else {
            next
        }
    }

    /// Mean reads per segment that was read in the window (Shift's historic priority: total bytes
    /// divided by unique bytes); 0 without reads.
    pub fn reads_per_segment(&mut self, now: Duration, bucket: Bucket) -> f64 {
        self.advance(now);
        if let Some(index) = self.by_bucket.get(&bucket) {
            self.advance_log(*index as usize);
        }
        self.recent_reads_per_segment(bucket)
    }

    /// The same for the window that ends with the bucket's last read.
    pub fn recent_reads_per_segment(&self, bucket: Bucket) -> f64 {
        let Some(log) = self.log(bucket) else { return 0.0 };
        if log.fresh_sum == 0 { 0.0 } else { log.read_sum as f64 / log.fresh_sum as f64 }
    }

    /// Length of a bucket's trail: the number of its segments that have a position.
    pub fn trail_len(&self, bucket: Bucket) -> u32 {
        self.log(bucket).map_or(0, |log| log.next_position)
    }

    /// The history counts one in this number of segments.
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    /// Number of buckets in the history. Looks at all of them.
    pub fn buckets(&self) -> usize {
        self.logs.iter().filter(|log| self.is_recent(log)).count()
    }

    /// Number of segments in the history. Looks at all of them.
    pub fn segments(&self) -> usize {
        self.table.len(self.validity())
    }

    /// Length of the window.
    pub fn window(&self) -> Duration {
        self.interval * self.intervals
    }

    fn validity(&self) -> Validity {
        let intervals = u16::try_from(self.intervals).expect("at most INTERVALS_MAX");
        Validity { shift: self.shift, stamp: stamp_of(self.now), intervals }
    }

    /// Log of a bucket that was read in the window.
    fn log(&self, bucket: Bucket) -> Option<&Log> {
        let log = &self.logs[*self.by_bucket.get(&bucket)? as usize];
        self.is_recent(log).then_some(log)
    }

    fn is_recent(&self, log: &Log) -> bool {
        self.now - log.at < self.intervals
    }

    /// Advances to the interval of `now`, never back.
    #[inline]
    fn advance(&mut self, now: Duration) {
        // Fast path: most requests fall into the current interval.
        if now >= self.interval * self.now.saturating_add(1) {
            let interval = now.as_nanos() / self.interval.as_nanos();
            self.now = u32::try_from(interval).unwrap_or(u32::MAX - 1).max(self.now);
            self.table.sweep(self.validity());
        }
    }

    /// Index of a bucket's log, which is added if it is new.
    fn log_index(&mut self, bucket: Bucket) -> usize {
        if let Some(index) = self.by_bucket.get(&bucket) {
            return *index as usize;
        }
        let (at, shift) = (self.now, self.shift);
        let log = Log { bucket, read_sum: 0, fresh_sum: 0, at, shift, next_position: 0 };
        let index = if self.logs.len() < self.logs_max {
            self.logs.push(log);
            self.logs.len() - 1
        } else {
            let candidates = (0..COMPARED).map(|step| (self.compared + step) % self.logs_max);
            let oldest = candidates.min_by_key(|index| self.logs[*index].at).expect("not empty");
            self.compared = (self.compared + COMPARED) % self.logs_max;
            self.by_bucket.remove(&self.logs[oldest].bucket);
            self.logs[oldest] = log;
            self.rings_of(oldest).fill(0);
            oldest
        };
        self.by_bucket.insert(bucket, u32::try_from(index).expect("fewer than 2^32 buckets"));
        index
    }

    /// Advances the rings of a log to the current interval and sample.
    #[inline]
    fn advance_log(&mut self, index: usize) {
        let log = &self.logs[index];
        if log.at != self.now || log.shift != self.shift {
            self.turn_log(index);
        }
    }

    fn turn_log(&mut self, index: usize) {
        let (now, intervals, shift) = (self.now, self.intervals, self.shift);
        let log = &mut self.logs[index];
        let (at, halvings) = (log.at, shift - log.shift);
        (log.at, log.shift) = (now, shift);
        let (reads, fresh) = rings_at(&mut self.rings, index, intervals);
        if now - at >= intervals {
            (log.read_sum, log.fresh_sum, log.next_position) = (0, 0, 0);
            reads.fill(0);
            fresh.fill(0);
            return;
        }
        for interval in at + 1..=now {
            let slot = slot_of(interval, intervals);
            log.read_sum -= u64::from(std::mem::take(&mut reads[slot]));
            log.fresh_sum -= u64::from(std::mem::take(&mut fresh[slot]));
        }
        if halvings > 0 {
            // Which half of the sample the reads were of is not known.
            for (reads, fresh) in reads.iter_mut().zip(&mut *fresh) {
                *fresh >>= halvings.min(31);
                *reads = (*reads >> halvings.min(31)).max(*fresh);
            }
            log.read_sum = reads.iter().map(|count| u64::from(*count)).sum();
            log.fresh_sum = fresh.iter().map(|count| u64::from(*count)).sum();
        }
    }

    fn count_read(&mut self, index: usize) {
        let slot = slot_of(self.now, self.intervals);
        let (reads, _) = rings_at(&mut self.rings, index, self.intervals);
        reads[slot] = reads[slot].saturating_add(1);
        self.logs[index].read_sum += 1;
    }

    /// Counts a segment as last read now, and no longer `age` intervals ago.
    fn count_fresh(&mut self, index: usize, age: u32) {
        let (now, intervals) = (self.now, self.intervals);
        let (_, fresh) = rings_at(&mut self.rings, index, intervals);
        let log = &mut self.logs[index];
        if age < intervals {
            // The count may be missing, after the sample was halved or the bucket had yielded.
            let before = &mut fresh[slot_of(now - age.min(now), intervals)];
            if *before > 0 {
                *before -= 1;
                log.fresh_sum -= 1;
            }
        }
        fresh[slot_of(now, intervals)] += 1;
        log.fresh_sum += 1;
    }

    /// Gives a segment the next position of the trail. The sample is halved until there is a slot,
    /// or the segment is not in it.
    fn insert(&mut self, index: usize, key: Key, stamp: u16) -> Option<u32> {
        let position = self.logs[index].next_position;
        let seen = Seen { position, stamp };
        while !self.table.insert(key, seen, self.validity()) {
            if self.shift < SHIFT_MAX {
                self.shift += 1;
                self.advance_log(index);
            }
            if self.shift == SHIFT_MAX || !key.is_sampled(self.shift) {
                return None;
            }
        }
        self.logs[index].next_position = position.saturating_add(1 << self.shift);
        Some(position)
    }

    fn rings_of(&mut self, index: usize) -> &mut [u32] {
        let each = 2 * self.intervals as usize;
        &mut self.rings[index * each..][..each]
    }
}

/// The rings of a log: reads, and segments last read.
fn rings_at(rings: &mut [u32], index: usize, intervals: u32) -> (&mut [u32], &mut [u32]) {
    let each = intervals as usize;
    rings[index * 2 * each..][..2 * each].split_at_mut(each)
}

fn stamp_of(interval: u32) -> u16 {
    let [low, next, ..] = interval.to_le_bytes();
    u16::from_le_bytes([low, next])
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

    /// The lowest byte of an interval repeats after 256: an old read must not look fresh.
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
                    history.record(MINUTE, Bucket(1), Segment(segment * 7));
                }
            }
            assert!(history.segments() <= 10_000);
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

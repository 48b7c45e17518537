//! What was read lately: Shift's request history window (5.1).
//!
//! For each segment one byte says in which five-minute interval it was last seen, and for each bucket
//! there are two counters per interval: all reads, and the segments last seen then. Sums over the window
//! give what a bucket's segments are read on average, exactly: [`History::reads_per_segment`].
//!
//! Memory is bounded. When more segments (or, each counting as 64 of them, buckets) were seen than the budget allows, only those with a certain
//! hash are counted, then half of those, and so on; everything is still a ratio of two counts of the same
//! sample. With n segments of a bucket in the sample the relative error is about the spread of reads per segment
//! divided by √n: 3 % at a thousand where reads differ as much as their mean.
//!
//! In passing each segment gets its **place** in its bucket: how many others were seen before it. Jobs that
//! share an order read along that trail, whatever it was made of.

use std::time::Duration;

use super::words::{Bucket, Segment};
use crate::stable::{StableMap, mix};

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySettings {
    /// For how long (6 hours in the paper). At most 120 intervals count.
    pub window: Duration,
    /// How finely time is told apart.
    pub interval: Duration,
    /// How many segments at most, each some 20 bytes.
    pub segments_max: usize,
}

impl Default for HistorySettings {
    fn default() -> Self {
        let (window, interval) = (Duration::from_hours(6), Duration::from_mins(5));
        Self { window, interval, segments_max: 50_000_000 }
    }
}

/// Longer ones would tell nothing apart.
const INTERVAL_MAX: Duration = Duration::from_hours(24);
/// A byte tells 256 intervals apart: what is stale is swept before it could look fresh again.
const INTERVALS_MAX: u32 = 120;
const SWEEP_EVERY: u32 = 128;
/// A sample of one in so many (as a power of two) is the smallest.
const SHIFT_MAX: u32 = 32;
/// What a bucket's counters take, in segments; and so many buckets are remembered however small the budget is.
const BUCKET_WEIGHT: usize = 64;
const BUCKETS_MIN: usize = 1024;

/// The window.
#[derive(Debug)]
pub struct History {
    interval: Duration,
    intervals: u32,
    segments_max: usize,
    buckets_max: usize,
    /// One in 2^shift segments is counted.
    shift: u32,
    now: u32,
    kept: usize,
    logs: StableMap<Bucket, Log>,
}

/// What is known about a segment.
#[derive(Debug, Clone, Copy)]
struct Seen {
    place: u32,
    stamp: u8,
}

/// What is known about a bucket.
#[derive(Debug)]
struct Log {
    seen: StableMap<u64, Seen>,
    /// Reads per interval, and segments last seen in it: rings.
    reads: Box<[u32]>,
    fresh: Box<[u32]>,
    read_sum: u64,
    fresh_sum: u64,
    /// The interval that the rings have been turned to.
    at: u32,
    swept: u32,
    /// The place of the next segment that was never seen.
    next_place: u32,
}

/// What a look at the history found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// Its place in its bucket, if it is in the sample.
    pub place: Option<u32>,
    /// It was not seen before, as far as is known.
    pub first: bool,
    /// How many segments of its bucket have a place: how long the trail is.
    pub trail: u32,
}

impl History {
    /// Nothing was seen yet.
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
            kept: 0,
            logs: StableMap::default(),
        }
    }

    /// A segment is read.
    #[inline]
    pub fn note(&mut self, now: Duration, bucket: Bucket, segment: Segment) -> Sight {
        self.turn_to(now);
        if !self.samples(segment.0) {
            let trail = self.trail(bucket);
            return Sight { place: None, first: false, trail };
        }
        let (now, intervals, step) = (self.now, self.intervals, 1_u32 << self.shift.min(31));
        let log = self.logs.entry(bucket).or_insert_with(|| Log::new(now, intervals));
        self.kept -= log.turn_to(now, intervals);
        let (stamp, slot) = (stamp_of(now), slot_of(now, intervals));
        log.reads[slot] = log.reads[slot].saturating_add(1);
        log.read_sum += 1;
        let next_place = log.next_place;
        let mut first = false;
        let seen = log.seen.entry(segment.0).or_insert_with(|| {
            first = true;
            Seen { place: next_place, stamp: stamp.wrapping_sub(128) }
        });
        if first {
            self.kept += 1;
            log.next_place = next_place.saturating_add(step);
        }
        if seen.stamp != stamp || first {
            let age = u32::from(stamp.wrapping_sub(seen.stamp));
            if !first && age < intervals {
                log.fresh[slot_of(now - age, intervals)] -= 1;
                log.fresh_sum -= 1;
            }
            seen.stamp = stamp;
            log.fresh[slot] += 1;
            log.fresh_sum += 1;
        }
        let (place, trail) = (seen.place, log.next_place);
        if self.is_over_budget() {
            self.halve();
        }
        Sight { place: Some(place), first, trail }
    }

    /// How often the segments of a bucket were read in the window, on average over those that were
    /// (Shift's historic priority: total bytes by unique bytes); 0 where none was.
    pub fn reads_per_segment(&mut self, now: Duration, bucket: Bucket) -> f64 {
        self.turn_to(now);
        let Some(log) = self.logs.get_mut(&bucket) else { return 0.0 };
        self.kept -= log.turn_to(self.now, self.intervals);
        if log.fresh_sum == 0 { 0.0 } else { log.read_sum as f64 / log.fresh_sum as f64 }
    }

    /// How many segments of a bucket have a place: how long the trail through it is.
    pub fn trail(&self, bucket: Bucket) -> u32 {
        self.logs.get(&bucket).map_or(0, |log| log.next_place)
    }

    /// One in so many segments is counted.
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    /// How many buckets are remembered.
    pub fn buckets(&self) -> usize {
        self.logs.len()
    }

    /// How many segments are remembered.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// How long the window is.
    pub fn window(&self) -> Duration {
        self.interval * self.intervals
    }

    /// Time may stand still here, but it does not go back.
    #[inline]
    fn turn_to(&mut self, now: Duration) {
        // Most requests fall into the interval of the one before.
        if now >= self.interval * self.now.saturating_add(1) {
            let interval = now.as_nanos() / self.interval.as_nanos();
            self.now = u32::try_from(interval).unwrap_or(u32::MAX - 1).max(self.now);
            let (now, intervals) = (self.now, self.intervals);
            let mut forgotten = 0;
            self.logs.retain(|_, log| {
                let stays = now - log.at < intervals;
                forgotten += if stays { 0 } else { log.seen.len() };
                stays
            });
            self.kept -= forgotten;
        }
    }

    fn is_over_budget(&self) -> bool {
        self.kept > self.segments_max || self.logs.len() > self.buckets_max
    }

    #[inline]
    fn samples(&self, segment: u64) -> bool {
        self.shift == 0 || mix(segment) >> (64 - self.shift) == 0
    }

    /// Counts only every second of the segments that were counted so far.
    fn halve(&mut self) {
        while self.is_over_budget() && self.shift < SHIFT_MAX {
            self.shift += 1;
            let shift = self.shift;
            self.kept = 0;
            for log in self.logs.values_mut() {
                log.seen.retain(|segment, _| mix(*segment) >> (64 - shift) == 0);
                log.seen.shrink_to_fit();
                self.kept += log.seen.len();
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
            next_place: 0,
        }
    }

    /// Forgets what has left the window; returns how many segments are forgotten with it.
    #[inline]
    fn turn_to(&mut self, now: u32, intervals: u32) -> usize {
        if now == self.at { 0 } else { self.turn(now, intervals) }
    }

    fn turn(&mut self, now: u32, intervals: u32) -> usize {
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

    /// Counts again after the sample was halved: which segments were last seen when is known, how
    /// often the forgotten half was read is not, so reads are halved.
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

    /// The simplest possible history: every read with its interval.
    fn reference(reads: &[(u32, u32, u64)], now: u32, intervals: u32, bucket: u32) -> f64 {
        let window = reads.iter().filter(|(at, of, _)| *of == bucket && now - at < intervals);
        let mut counts = BTreeMap::new();
        window.for_each(|(_, _, segment)| *counts.entry(segment).or_insert(0) += 1);
        match counts.len() {
            0 => 0.0,
            unique => f64::from(counts.values().sum::<u32>()) / unique as f64,
        }
    }

    /// "History: exact and bounded" (DESIGN 4.6), through wrapped bytes, gaps and sweeps.
    #[test]
    fn counts_are_those_of_a_log_of_every_read() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut history = history(60, 5, 1 << 20);
        let (mut reads, mut interval) = (Vec::new(), 0);
        for step in 0..30_000_u32 {
            if random.u32(..40) == 0 {
                interval += if random.u32(..30) == 0 { random.u32(..300) } else { 1 };
            }
            let (bucket, segment) = (random.u32(..3), random.u64(..200));
            history.note(MINUTE * 5 * interval, Bucket(bucket), Segment(segment));
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

    /// A byte tells 256 intervals apart: what was seen so long ago is not taken for fresh.
    #[test]
    fn a_stamp_that_comes_round_again_is_no_stamp_of_today() {
        let mut history = history(60, 5, 1000);
        let mut note = |interval: u32, segment| {
            history.note(MINUTE * 5 * interval, Bucket(1), Segment(segment));
        };
        note(0, 1);
        (0..=256).for_each(|interval| note(interval, 2));
        note(256, 1);
        let reads = history.reads_per_segment(MINUTE * 5 * 256, Bucket(1));
        assert!((reads - 6.5).abs() < 1e-9, "13 reads of two segments in 12 intervals: {reads}");
    }

    /// Promise 6 (bounded); the error is the one stated above.
    #[test]
    fn beyond_its_budget_a_sample_speaks_for_all() {
        let mut history = history(360, 5, 10_000);
        for round in 0..3_u64 {
            for segment in 0..300_000_u64 {
                let reads = 1 + u64::from(segment % 4 == 0);
                if round < reads {
                    history.note(MINUTE, Bucket(1), Segment(mix(segment)));
                }
                assert!(history.kept() <= 10_000);
            }
        }
        assert!(history.one_in() >= 32);
        let reads = history.reads_per_segment(MINUTE, Bucket(1));
        assert!((reads - 1.25).abs() < 0.04, "{reads}");
        let trail = f64::from(history.trail(Bucket(1))) / 300_000.0;
        assert!((trail - 1.0).abs() < 0.1, "places are those of all segments: {trail}");
    }

    /// Promise 6 (bounded), where every segment has a bucket of its own; and what has left the window is forgotten.
    #[test]
    fn buckets_are_bounded_too() {
        let mut history = history(60, 5, 10_000);
        for segment in 0..100_000_u32 {
            history.note(MINUTE, Bucket(segment), Segment(u64::from(segment)));
            assert!(history.buckets() <= BUCKETS_MIN, "fewer than the segments would allow");
        }
        assert!(history.buckets() > BUCKETS_MIN / 4, "a sample remains: {}", history.buckets());
        history.note(MINUTE * 90, Bucket(7), Segment(7));
        assert!(history.buckets() <= 1, "{}", history.buckets());
        assert!(history.kept() <= 1);
    }

    /// "A history budget too small for one interval": the sample shrinks until it fits.
    #[test]
    fn a_budget_of_one_segment_is_kept() {
        let mut history = history(60, 5, 1);
        for segment in 0..10_000_u64 {
            history.note(Duration::ZERO, Bucket(0), Segment(segment));
            assert!(history.kept() <= 1);
        }
    }

    #[test]
    fn places_follow_the_first_reader_and_time_does_not_go_back() {
        let mut history = history(60, 5, 100);
        let mut note = |at: u32, segment| history.note(MINUTE * at, Bucket(7), Segment(segment));
        assert_eq!(note(10, 9), Sight { place: Some(0), first: true, trail: 1 });
        assert_eq!(note(10, 4), Sight { place: Some(1), first: true, trail: 2 });
        assert_eq!(note(3, 9), Sight { place: Some(0), first: false, trail: 2 });
        assert!((history.reads_per_segment(MINUTE * 10, Bucket(7)) - 1.5).abs() < 1e-9);
        // All of it is older than an hour.
        assert!(history.reads_per_segment(MINUTE * 71, Bucket(7)).abs() < 1e-9);
        assert_eq!((history.kept(), history.trail(Bucket(7))), (0, 0));
    }
}

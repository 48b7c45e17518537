//! Regions as `next-use` knows them: a sample of the positions, and who has read how much.
//!
//! A region is ranked by the mean rate at which its segments will be read: 255 segments that are
//! read in an hour are worth as much as one that is read in 14 s. Up to sixteen segments, evenly
//! spread over the region in the order of writing, and the last one stand for all. The last one is
//! usually read last: without it, a region would seem to be read before it was.

use std::time::Duration;

use super::{streams::IDLE, unannounced::Expectation};
use crate::tier::types::{Bucket, Job};

/// Segments that stand for a region.
pub(super) const SAMPLE: usize = 16;

/// A bucket and a trail position in it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position {
    pub bucket: u32,
    pub position: u32,
}

/// Content of a region.
#[derive(Debug)]
pub(super) struct Content {
    sample: [Position; SAMPLE],
    sampled: u8,
    /// The segment written last.
    last: Position,
    /// One in this number of segments is in the sample.
    stride: u32,
    /// Segments stored.
    pub stored: u32,
    /// Segments stored without an expected reader: spent, unknown.
    spent: u32,
    unknown: u32,
    /// Segments without a read by another job than that which brought them in, at most.
    unread: u32,
    first_stored: Duration,
    last_stored: Duration,
    /// Time of the last read.
    pub touched: Duration,
    /// Time of the last ranking.
    pub ranked: Duration,
    /// Reads since then.
    pub reads: u32,
    /// The job that brought in all of it.
    brought_by: Option<Job>,
}

impl Content {
    pub fn new(now: Duration) -> Self {
        Self {
            sample: [Position::default(); SAMPLE],
            sampled: 0,
            last: Position::default(),
            stride: 1,
            stored: 0,
            spent: 0,
            unknown: 0,
            unread: 0,
            first_stored: now,
            last_stored: now,
            touched: now,
            ranked: Duration::ZERO,
            reads: 0,
            brought_by: None,
        }
    }

    /// A segment was stored.
    pub fn add(
        &mut self,
        now: Duration,
        bucket: Bucket,
        position: u32,
        brought_by: Option<Job>,
        expectation: Expectation,
    ) {
        if self.stored.is_multiple_of(self.stride) {
            if usize::from(self.sampled) == SAMPLE {
                // Every other one stays.
                (0..SAMPLE / 2).for_each(|at| self.sample[at] = self.sample[2 * at]);
                self.sampled = u8::try_from(SAMPLE / 2).expect("a small number");
                self.stride *= 2;
            }
            if self.stored.is_multiple_of(self.stride) {
                self.sample[usize::from(self.sampled)] = Position { bucket: bucket.0, position };
                self.sampled += 1;
            }
        }
        self.last = Position { bucket: bucket.0, position };
        if self.stored == 0 {
            self.brought_by = brought_by;
        } else if self.brought_by != brought_by {
            self.brought_by = None;
        }
        self.stored += 1;
        self.unread += 1;
        self.spent += u32::from(expectation == Expectation::Spent);
        self.unknown += u32::from(expectation == Expectation::Unknown);
        (self.last_stored, self.touched) = (now, now);
    }

    /// Whether nothing was stored lately, so that an open region may be evicted.
    pub fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_stored) > IDLE
    }

    /// The segments that stand for it.
    pub fn sample(&self) -> impl ExactSizeIterator<Item = Position> {
        let (sampled, count) = (usize::from(self.sampled), usize::from(self.sampled) + 1);
        let at = move |at| if at < sampled { self.sample[at] } else { self.last };
        (0..count).map(at)
    }

    /// Expectation of most of its segments when they were written.
    pub fn expectation(&self) -> Expectation {
        if self.spent * 2 > self.stored {
            Expectation::Spent
        } else if self.unknown * 2 > self.stored {
            Expectation::Unknown
        } else {
            Expectation::Read
        }
    }

    /// Records a read. If it is one by another job than that which brought in the region, returns
    /// that job and the time since.
    pub fn on_read(&mut self, now: Duration, reader: Option<Job>) -> Option<(Job, Duration)> {
        self.touched = now;
        self.reads += 1;
        let job = self.brought_by.filter(|job| Some(*job) != reader && self.unread > 0)?;
        self.unread -= 1;
        let middle = self.first_stored + self.last_stored.saturating_sub(self.first_stored) / 2;
        Some((job, now.saturating_sub(middle)))
    }

    /// Takes a spent segment that is read again from those that were tried. Returns whether the
    /// region was one of spent segments.
    pub fn take_spent(&mut self) -> bool {
        let is_spent = self.expectation() == Expectation::Spent && self.spent > 0;
        self.spent -= u32::from(is_spent);
        is_spent
    }

    /// The job that brought in segments without a known reader, and the number of those that no
    /// other job read.
    pub fn unread(&self) -> Option<(Job, u32)> {
        let job = self.brought_by.filter(|_| self.expectation() == Expectation::Unknown)?;
        Some((job, self.unread))
    }

    /// Segments of it are gone.
    pub fn remove(&mut self, segments: u32) {
        self.unread = self.unread.saturating_sub(segments);
    }
}

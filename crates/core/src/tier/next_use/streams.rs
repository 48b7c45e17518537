//! Streams: which segments share regions.
//!
//! A region is evicted whole, so its segments should be read, and become useless, at about the same
//! time. Segments that one job brings in of one bucket are: other jobs read them one after the
//! other, as this one does. Two jobs that bring in different parts of a bucket are apart, and so
//! are segments without an expected reader, which leave early. When all streams are in use, a
//! segment joins the stream with the nearest next use.

use std::time::Duration;

use super::unannounced::Expectation;
use crate::tier::{
    STREAMS_MAX,
    types::{Bucket, Job, Resident, Stream},
};

/// One stream for this number of regions, so that open regions take little of a small flash.
const REGIONS_PER_STREAM: u32 = 16;
/// Time without a segment after which a stream may get another bucket, and its open region may be
/// evicted.
pub(super) const IDLE: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy)]
struct Use {
    bucket: Bucket,
    brought_by: Option<Job>,
    expectation: Expectation,
    /// Seconds until the next use of its last segment.
    seconds: f64,
    at: Duration,
}

/// The streams in use.
#[derive(Debug)]
pub(super) struct Streams {
    uses: Vec<Use>,
    max: usize,
}

impl Streams {
    pub fn new(regions: u32) -> Self {
        let max = (regions / REGIONS_PER_STREAM).clamp(1, STREAMS_MAX);
        Self { uses: Vec::new(), max: max as usize }
    }

    /// The stream of a segment that is next used after `seconds`.
    pub fn choose(
        &mut self,
        now: Duration,
        resident: &Resident,
        expectation: Expectation,
        seconds: f64,
    ) -> Stream {
        let Resident { bucket, brought_by, .. } = *resident;
        let own = Use { bucket, brought_by, expectation, seconds: seconds.max(0.0), at: now };
        let is_own = |used: &Use| {
            used.bucket == bucket
                && used.brought_by == brought_by
                && used.expectation == expectation
        };
        let found = self.uses.iter().position(is_own);
        let at = if let Some(at) = found {
            self.uses[at] = own;
            at
        } else if self.uses.len() < self.max {
            self.uses.push(own);
            self.uses.len() - 1
        } else if let Some(at) = self.idle(now) {
            self.uses[at] = own;
            at
        } else {
            self.nearest(&own)
        };
        Stream(u32::try_from(at).expect("at most STREAMS_MAX"))
    }

    /// The stream that was idle longest, if it was idle long enough.
    fn idle(&self, now: Duration) -> Option<usize> {
        let (at, used) = self.uses.iter().enumerate().min_by_key(|(_, used)| used.at)?;
        (now.saturating_sub(used.at) > IDLE).then_some(at)
    }

    fn nearest(&self, own: &Use) -> usize {
        let distance = |used: &Use| {
            let other_kind = if used.expectation == own.expectation { 0.0 } else { 1e3 };
            other_kind + ((used.seconds + 1.0) / (own.seconds + 1.0)).ln().abs()
        };
        let nearest = self
            .uses
            .iter()
            .enumerate()
            .min_by(|(_, one), (_, other)| distance(one).total_cmp(&distance(other)));
        nearest.map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::types::Segment;

    #[test]
    fn buckets_have_streams_of_their_own_while_there_are_any() {
        let mut streams = Streams::new(3 * REGIONS_PER_STREAM);
        let mut choose = |at_s: u64, bucket, expectation, seconds| {
            let (segment, bucket) = (Segment(0), Bucket(bucket));
            let resident = Resident { segment, bucket, length: 1, brought_by: None };
            streams.choose(Duration::from_secs(at_s), &resident, expectation, seconds).0
        };
        assert_eq!(choose(0, 1, Expectation::Read, 10.0), 0);
        assert_eq!(choose(0, 2, Expectation::Read, 1000.0), 1);
        assert_eq!(choose(1, 1, Expectation::Spent, 1e9), 2, "apart from what is read again");
        assert_eq!(choose(2, 1, Expectation::Read, 11.0), 0);
        assert_eq!(choose(3, 3, Expectation::Read, 900.0), 1, "nearest to the second");
        assert_eq!(choose(4, 3, Expectation::Read, 9.0), 0);
        assert_eq!(choose(5, 4, Expectation::Spent, 9.0), 2);
        for at_s in 6..120 {
            assert_eq!(choose(at_s, 1, Expectation::Read, 10.0), 0);
        }
        assert_eq!(choose(120, 9, Expectation::Read, 10.0), 1, "idle since second 0");
    }
}

//! Passes: which ranges count as one read of a segment.
//!
//! Clients read a segment in several ranges: 64 KiB at a time, in parts that are not aligned to
//! segments, or a footer first and the rest later. Popularity counts reads by jobs, so the ranges
//! of one job count as one read, a **pass**. A pass ends when the job has asked again for more than
//! half of the segment's bytes, or for none of them in a minute.
//!
//! A table of fixed size has the latest passes. A pass that was displaced from it counts twice.

use std::time::Duration;

use super::types::{Job, Request};
use crate::util::stable_hash::mix;

/// Longest time between two ranges of a pass.
const GAP: Duration = Duration::from_mins(1);
/// Passes in the table, in sets of [`WAYS`]: 2 MiB.
const SETS: usize = 1 << 14;
const WAYS: usize = 4;
/// Parts of a segment that are distinguished.
const PARTS: u32 = 64;

#[derive(Debug, Clone, Copy, Default)]
struct Pass {
    /// Hash of job and segment; 0 for none.
    key: u64,
    /// Bit per part that was asked for.
    parts: u64,
    /// Bytes that were asked for again.
    again: u32,
    /// Milliseconds of the last range, modulo 2^32.
    at_ms: u32,
}

/// The latest passes.
#[derive(Debug)]
pub(super) struct Passes {
    table: Vec<Pass>,
}

impl Passes {
    pub fn new() -> Self {
        Self { table: vec![Pass::default(); SETS * WAYS] }
    }

    /// Records a range. Returns whether it begins a pass.
    #[inline]
    pub fn on_request(&mut self, now: Duration, request: &Request) -> bool {
        let job = request.job.map_or(u64::MAX, |Job(job)| job);
        let key = mix(mix(job) ^ request.segment.0).max(1);
        let at_ms = u32::try_from(now.as_millis() & u128::from(u32::MAX)).expect("32 bits");
        let gap_ms = u32::try_from(GAP.as_millis()).expect("a minute");
        let set = usize::try_from(mix(key) >> 32).expect("32 bits") % SETS * WAYS;
        let ways = &mut self.table[set..set + WAYS];
        let (parts, part_bytes) = parts_of(request);
        if let Some(pass) = ways.iter_mut().find(|pass| pass.key == key)
            && at_ms.wrapping_sub(pass.at_ms) <= gap_ms
        {
            pass.at_ms = at_ms;
            pass.again += (pass.parts & parts).count_ones() * part_bytes;
            pass.parts |= parts;
            let is_new = u64::from(pass.again) * 2 > u64::from(request.length);
            if is_new {
                (pass.parts, pass.again) = (parts, 0);
            }
            return is_new;
        }
        let age = |pass: &Pass| {
            let taken = pass.key != 0 && pass.key != key;
            if taken { at_ms.wrapping_sub(pass.at_ms) } else { u32::MAX }
        };
        let oldest = (0..WAYS).max_by_key(|way| age(&ways[*way])).expect("there are ways");
        ways[oldest] = Pass { key, parts, again: 0, at_ms };
        true
    }
}

/// The parts that a range covers wholly, and the bytes of a part.
fn parts_of(request: &Request) -> (u64, u32) {
    let part = request.length.div_ceil(PARTS).max(1);
    let end = request.offset.saturating_add(request.bytes);
    let first = request.offset.div_ceil(part).min(PARTS);
    let last = if end >= request.length { request.length.div_ceil(part) } else { end / part };
    let bits_below = |bit: u32| if bit >= 64 { u64::MAX } else { (1_u64 << bit) - 1 };
    (bits_below(last) & !bits_below(first), part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::types::{Bucket, Segment};

    const SEGMENT: u64 = 256 << 10;

    /// A client that reads ranges of one object, 1 ms apart.
    struct Client {
        passes: Passes,
        now: Duration,
        length: u64,
    }

    impl Client {
        fn new(length: u64) -> Self {
            Self { passes: Passes::new(), now: Duration::from_secs(1), length }
        }

        /// Reads a range of the object. Returns the passes that it begins.
        fn read(&mut self, job: u64, range: std::ops::Range<u64>) -> usize {
            self.now += Duration::from_millis(1);
            let range = range.start..range.end.min(self.length);
            let segments = range.start / SEGMENT..range.end.div_ceil(SEGMENT);
            let begins = |index: &u64| {
                let start = index * SEGMENT;
                let length = (self.length - start).min(SEGMENT);
                let from = range.start.max(start) - start;
                let to = range.end.min(start + length) - start;
                let [length, offset, bytes] =
                    [length, from, to - from].map(|size| u32::try_from(size).unwrap());
                let (segment, bucket, job) = (Segment(*index), Bucket(0), Some(Job(job)));
                let request = Request { segment, bucket, job, length, offset, bytes };
                self.passes.on_request(self.now, &request)
            };
            segments.filter(begins).count()
        }

        /// Reads the object in parts of this size. Returns the passes that this begins.
        fn read_in_parts(&mut self, job: u64, part: u64) -> usize {
            let length = self.length;
            let starts = (0..length).step_by(usize::try_from(part).unwrap());
            starts.map(|start| self.read(job, start..(start + part).min(length))).sum()
        }
    }

    #[test]
    fn one_pass_of_any_client_is_one_read_of_each_segment() {
        // 80 segments, the last one short.
        let length = 20_000_000;
        let parts = [
            8 << 20,  // boto3
            5 << 20,  // object_store
            64 << 10, // readers of columns
            1_000_003,
            4096,
            777,
            50 << 20, // s5cmd, whose last range ends beyond the object
        ];
        for part in parts {
            let mut client = Client::new(length);
            let segments = usize::try_from(length.div_ceil(SEGMENT)).unwrap();
            assert_eq!(client.read_in_parts(1, part), segments, "parts of {part}");
            assert_eq!(client.read_in_parts(2, part), segments, "another job");
        }
    }

    /// Parquet and Polars read the end of a file first.
    #[test]
    fn a_footer_before_the_rest_is_the_same_read() {
        for (footer, segments) in [(8, 40), (64 << 10, 40), (100 << 10, 40)] {
            let length = 40 * SEGMENT;
            let mut client = Client::new(length);
            let begun = client.read(1, length - footer..length);
            let rest = client.read_in_parts(1, 1_234_567);
            assert_eq!(begun + rest, segments, "a footer of {footer}");
        }
    }

    #[test]
    fn reading_again_is_another_read() {
        let mut client = Client::new(4 * SEGMENT);
        assert_eq!(client.read_in_parts(1, SEGMENT), 4);
        assert_eq!(client.read_in_parts(1, SEGMENT), 4, "an epoch of a small dataset");
        assert_eq!(client.read_in_parts(1, 64 << 10), 4);
        client.now += Duration::from_secs(61);
        assert_eq!(client.read(1, 0..1000), 1, "after a minute");
        client.now += Duration::from_secs(59);
        assert_eq!(client.read(1, 1000..2000), 0);
    }

    /// Promise 6 (bounded): the table has a fixed size. What was displaced counts as another read.
    #[test]
    fn a_table_that_overflows_forgets_the_oldest() {
        let mut client = Client::new(1 << 40);
        let begun: usize =
            (0..200_000).map(|at| client.read(1, at * SEGMENT..at * SEGMENT + 9)).sum();
        assert_eq!((begun, client.passes.table.len()), (200_000, SETS * WAYS));
        let recent: usize =
            (190_000..200_000).map(|at| client.read(1, at * SEGMENT..at * SEGMENT + 9)).sum();
        assert!(recent < 1000, "{recent} of 10000");
    }
}

//! Unannounced readers: whether segments that no known job will read are worth keeping.
//!
//! A job that was not announced may still read them. Keeping a segment costs a write, so a tenth of
//! the segments kept this way must be read again.
//!
//! - **Spent** segments, which all announced readers have read, are probably not read again. One in
//!   16 is tried, and the others are kept while enough of the tried ones are read again.
//! - **Unknown** segments are kept, unless other segments of the same job were evicted unread
//!   (`follower_lag.rs`). Then one in 64 is tried.

use crate::tier::{follower_lag::FollowerLag, types::Segment};
use crate::util::stable_hash::mix;

/// One in this number of spent segments is always tried.
const SPENT_ONE_IN: u64 = 16;
/// Share of tried segments that must be read again,
const WORTHWHILE_SHARE: f64 = 0.1;
/// once at least this number were tried.
const TRIED_MIN: f64 = 64.0;
/// Number of trials at which all counts are halved, so that old ones count less.
const TRIED_MAX: f64 = 65536.0;
/// One in this number of unknown segments is always tried.
const UNKNOWN_ONE_IN: u64 = 64;

/// Whether a segment has expected readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expectation {
    /// A read is expected.
    Read,
    /// All announced readers have read it.
    Spent,
    /// No job has announced it.
    Unknown,
}

/// Trials of spent segments, and their results.
#[derive(Debug, Default)]
pub(super) struct SpentTrials {
    tried: f64,
    read: f64,
}

impl SpentTrials {
    /// Whether a segment may be written. `brought_by` is the record of the job that brings it in.
    pub fn allows(
        &self,
        expectation: Expectation,
        brought_by: Option<&FollowerLag>,
        segment: Segment,
    ) -> bool {
        let (is_worthwhile, one_in) = match expectation {
            Expectation::Read => return true,
            // An untagged request has no record to go by.
            Expectation::Unknown => {
                (brought_by.is_none_or(FollowerLag::is_worthwhile), UNKNOWN_ONE_IN)
            }
            Expectation::Spent => {
                let enough = self.read >= WORTHWHILE_SHARE * self.tried;
                (self.tried >= TRIED_MIN && enough, SPENT_ONE_IN)
            }
        };
        is_worthwhile || mix(segment.0 ^ 0x5bec).is_multiple_of(one_in)
    }

    /// A spent segment was written.
    pub fn on_tried(&mut self) {
        self.tried += 1.0;
        if self.tried > TRIED_MAX {
            (self.tried, self.read) = (self.tried / 2.0, self.read / 2.0);
        }
    }

    /// A spent segment that was written is read.
    pub fn on_read(&mut self) {
        self.read += 1.0;
    }
}

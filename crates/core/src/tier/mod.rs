//! Which segments a flash tier keeps (Tectonic-Shift, ATC'23, and beyond).
//!
//! Training jobs scan far more than fits, once, and what they read again they read hours later on
//! behalf of another job: a general cache is flooded. But jobs say what they will read. Shift's policies admit
//! buckets by how often they were read lately ([`PolicyKind::Historic`]), by how many jobs have yet to read them ([`PolicyKind::Future`]),
//! or by the larger of both, and leave eviction to LRU or FIFO. Ours, [`PolicyKind::NextUse`], also knows
//! *when*: it keeps what is read soonest.
//!
//! There is one contract, [`Policy`]: requests and facts go in with the time, answers come out. Whether a
//! segment is worth fetching for keeps is decided before the origin is read.
//!
//! **Time** that goes back stands still here, and is counted. **Facts** that cannot be are errors in the caller's
//! hands, change nothing, and are counted. What specifications promise and requests refute is set aside.
//!
//! Start at `words.rs`; then `shift.rs` and `next_use/`.
//!
//! Not here: bytes and regions (`crates/flash`), who may read what (the gateway).

mod contradiction;
mod words;

mod followed;
mod history;
mod jobs;
mod threshold;

mod eligibility;
mod next_use;
mod shelves;
mod shift;

mod kind;

use std::time::Duration;

pub use crate::kinds::PolicyKindError;
pub use contradiction::{Contradiction, JOBS_MAX, STAGES_MAX};
pub use eligibility::{Disks, Eligibility, Table};
pub use history::{History, HistorySettings, Sight};
pub use jobs::JobCounters;
pub use kind::{PolicyKind, Settings};
pub use threshold::{Threshold, WriteSettings};
pub use words::{Answer, Bucket, Changes, Fact, Job, Request, Segment, Spec, Stage};

/// Decides which segments stay.
pub trait Policy {
    /// A segment is wanted: says whether it is there, or is to be kept once it is read, and what changed.
    fn request(&mut self, now: Duration, request: &Request, changes: &mut Changes) -> Answer;

    /// Something is known about jobs.
    fn tell(&mut self, now: Duration, fact: Fact<'_>) -> Result<(), Contradiction>;

    /// Is this segment resident?
    fn contains(&self, segment: Segment) -> bool;

    /// What is resident in memory and on flash, in bytes.
    fn used(&self) -> (u64, u64);

    /// What has happened so far that should not have.
    fn counters(&self) -> Counters;
}

/// What happened that should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// About jobs and their specifications.
    pub jobs: JobCounters,
    /// Times that lay before others.
    pub time_went_back: u64,
    /// Of the history, one in so many segments is counted; 1 until its budget is exhausted.
    pub history_one_in: u64,
    /// How often LRU was let decide for a while, because it would have done better.
    pub overruled: u64,
}

/// Time that does not go back.
#[derive(Debug, Default)]
struct Clock {
    now: Duration,
    went_back: u64,
}

impl Clock {
    #[inline]
    fn at(&mut self, now: Duration) -> Duration {
        if now < self.now {
            self.went_back += 1;
        } else {
            self.now = now;
        }
        self.now
    }
}

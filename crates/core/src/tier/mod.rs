//! Tier: which segments a flash tier keeps (Tectonic-Shift, ATC'23, and beyond).
//!
//! Training jobs scan far more than fits, once. What is read again is read hours later by another
//! job, so scans flood a general cache. But jobs announce what they will read. Shift's policies
//! admit buckets by recent reads ([`PolicyKind::Historic`]), by the number of jobs that have yet to
//! read them ([`PolicyKind::Future`]), or by the larger of both, and leave eviction to LRU or FIFO.
//! forebay's [`PolicyKind::NextUse`] also estimates *when* a segment is read next and keeps the
//! segments with the earliest next use.
//!
//! There is one contract, [`Policy`]: requests and job events go in with the time, answers come
//! out. The decision to keep a segment is made before the origin is read.
//!
//! - **Time** that goes back is replaced by the latest time seen, and counted.
//! - **Invalid events** are returned as errors, change nothing, and are counted.
//! - A **specification** that requests contradict is dropped.
//!
//! Start at `types.rs`; then `shift.rs` and `next_use/`.
//!
//! Not here: bytes and regions (`crates/flash`); authorisation (the gateway).

mod invalid_event;
mod types;

mod admission_threshold;
mod follower_lag;
mod history;
mod jobs;

mod eligibility;
mod next_use;
mod shift;
mod two_tier_lru;

mod kind;

use std::time::Duration;

pub use crate::util::policy_names::PolicyKindError;
pub use admission_threshold::{AdmissionThreshold, WriteSettings};
pub use eligibility::{Disks, Eligibility, Table};
pub use history::{History, HistorySettings, Observation};
pub use invalid_event::{InvalidEvent, JOBS_MAX, STAGES_MAX};
pub use jobs::JobCounters;
pub use kind::{PolicyKind, Settings};
pub use types::{Answer, Bucket, Changes, Job, JobEvent, Request, Segment, Spec, Stage};

/// Decides which segments are resident.
pub trait Policy {
    /// Handles a read: returns whether the segment is resident or will be kept, and fills in
    /// `changes`.
    fn request(&mut self, now: Duration, request: &Request, changes: &mut Changes) -> Answer;

    /// Handles the announcement or the end of a job.
    fn on_event(&mut self, now: Duration, event: JobEvent<'_>) -> Result<(), InvalidEvent>;

    /// Whether a segment is resident.
    fn contains(&self, segment: Segment) -> bool;

    /// Resident bytes in memory and on flash.
    fn used(&self) -> (u64, u64);

    /// Counts of unusual events so far.
    fn counters(&self) -> Counters;
}

/// Counts of unusual events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Jobs and their specifications.
    pub jobs: JobCounters,
    /// Calls whose time was before that of an earlier call.
    pub time_went_back: u64,
    /// The history counts one in this number of segments; 1 until its budget is exhausted.
    pub history_one_in: u64,
    /// Times that LRU took over for a while because it would have hit more often.
    pub lru_takeovers: u64,
}

/// A clock that never goes back.
#[derive(Debug, Default)]
struct Clock {
    now: Duration,
    went_back: u64,
}

impl Clock {
    /// The later of `now` and the latest time seen.
    #[inline]
    fn advance(&mut self, now: Duration) -> Duration {
        if now < self.now {
            self.went_back += 1;
        } else {
            self.now = now;
        }
        self.now
    }
}

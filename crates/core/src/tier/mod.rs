//! Tier: which segments a flash tier keeps (Tectonic-Shift, ATC'23, and beyond).
//!
//! Training jobs scan far more than fits, once. What is read again is read hours later by another
//! job, so scans flood a general cache. But jobs announce what they will read. Shift's policies
//! admit buckets by recent reads ([`PolicyKind::Historic`]), by the number of jobs that have yet to
//! read them ([`PolicyKind::Future`]), or by the larger of both, and leave eviction to LRU or FIFO.
//! forebay's [`PolicyKind::NextUse`] also estimates *when* a segment is read next and keeps the
//! segments with the earliest next use.
//!
//! There is one contract, [`Policy`]. A **driver** (the gateway, the simulator) has the bytes: it
//! owns the index of what is where, fetches, writes and frees regions. The policy decides: which
//! segments are kept, which region is evicted, and which of its segments are written again. The
//! decision to keep a segment is made before the origin is read. The policy learns the result of
//! each decision, so it never counts on bytes that were not stored.
//!
//! The **region** is the unit of eviction, because flash is freed by the region: evicting single
//! segments would leave holes. So the policy knows regions, not segments; what it keeps for each
//! segment is its last read ([`History`]). [`FlashModel`] is the driver of the simulator and of
//! tests.
//!
//! - **Time** that goes back is replaced by the latest time seen, and counted.
//! - **Invalid events** are returned as errors, change nothing, and are counted.
//! - A **specification** that requests contradict is dropped.
//!
//! Start at `types.rs` and [`Policy`]; then `shift.rs` and `next_use/`.
//!
//! Not here: bytes and regions (`crates/flash`); authorisation (the gateway).

mod invalid_event;
mod types;

mod admission_threshold;
mod follower_lag;
mod history;
mod jobs;

mod eligibility;
mod flash_model;
mod memory_queue;
mod next_use;
mod passes;
mod region_queue;
mod region_table;
mod shift;
mod snapshot;

mod kind;

use std::time::Duration;

pub use crate::util::policy_names::PolicyKindError;
pub use admission_threshold::{AdmissionThreshold, WriteSettings};
pub use eligibility::{Disks, Eligibility, Table};
pub use flash_model::{FlashModel, Written};
pub use history::{History, HistorySettings, Observation};
pub use invalid_event::{InvalidEvent, JOBS_MAX, STAGES_MAX};
pub use jobs::JobCounters;
pub use kind::{PolicyKind, SEGMENTS_PER_REGION, Settings};
pub use snapshot::{SnapshotError, sealed_for_tests};
pub use types::{
    Bucket, Decision, Departure, Job, JobEvent, Place, RegionId, Request, Resident, Rewrite,
    Segment, Spec, Stage, Stream,
};

use crate::ByteSize;

/// Most streams that a policy uses at once. Each has an open region, which needs memory.
pub const STREAMS_MAX: u32 = 32;

/// Decides which segments are kept, and which region is evicted.
///
/// One driver calls it, under one lock. No call scans what is resident: work that grows with the
/// flash is done in slices by [`Policy::on_request`] and [`Policy::on_tick`].
///
/// The driver's part:
/// 1. It looks up where a segment is, and calls [`Policy::on_request`].
/// 2. It fetches what is to be kept, and reports each result with [`Policy::on_stored`] or
///    [`Policy::on_not_stored`]. After a segment was stored in memory, it calls
///    [`Policy::leave_memory`] until that returns `None`.
/// 3. A stream whose region is full gets a free one; the full one is reported with
///    [`Policy::on_sealed`]. Without a free region, the driver asks for a [`Policy::victim`], reads
///    the segments that [`Policy::reinsert`] names, frees the region, reports
///    [`Policy::on_freed`], and appends the segments that it has read.
/// 4. It reports what else happens to regions and segments.
pub trait Policy: Send {
    /// Handles a read of a segment that the driver has at `place`.
    fn on_request(&mut self, now: Duration, request: &Request, place: Place) -> Decision;

    /// The next segment to leave memory, while memory is over its limit. It has left the policy's
    /// account of memory when this returns.
    fn leave_memory(&mut self, now: Duration) -> Option<Departure>;

    /// A segment was stored: in memory, or in a region, which is open until
    /// [`Policy::on_sealed`].
    fn on_stored(&mut self, now: Duration, resident: &Resident, place: Place);

    /// A segment that was to be kept was not stored: the origin did not have it (404, 412) or
    /// failed, the client left, or the device was busy.
    fn on_not_stored(&mut self, now: Duration, resident: &Resident);

    /// A region is full, or was closed before it was full.
    fn on_sealed(&mut self, now: Duration, region: RegionId);

    /// The region to evict next: a sealed one, or one that is open and has not received a segment
    /// lately, which the driver closes first. `None` if there is none.
    fn victim(&mut self, now: Duration) -> Option<RegionId>;

    /// Adds the segments of a region to be evicted that are worth another write to `rewrites`,
    /// which is empty. At most three quarters of them, so that every eviction gains space.
    /// Reinsertion costs writes; it is off by default ([`Settings::reinsertion`]).
    fn reinsert(
        &mut self,
        now: Duration,
        region: RegionId,
        residents: &[Resident],
        rewrites: &mut Vec<Rewrite>,
    );

    /// A region was evicted, or its bytes were lost.
    fn on_freed(&mut self, now: Duration, region: RegionId);

    /// Single segments are no longer served: their object has changed, or their bytes were damaged.
    /// The rest of the region stays.
    fn on_invalidated(&mut self, now: Duration, place: Place, residents: &[Resident]);

    /// A sealed region was found on flash after a restart, with these segments. Regions are
    /// reported in the order in which they were written.
    fn on_recovered(&mut self, now: Duration, region: RegionId, residents: &[Resident]);

    /// Time passes. Does a slice of the work that is due; returns whether some is left. The driver
    /// calls it every second, and again, after releasing its lock, while work is left.
    fn on_tick(&mut self, now: Duration) -> bool;

    /// Handles the announcement or the end of a job.
    fn on_event(&mut self, now: Duration, event: JobEvent<'_>) -> Result<(), InvalidEvent>;

    /// What the policy has learned about jobs and reads, for a restart. Looks at the whole history,
    /// so it is for the end of a process.
    fn save(&self) -> Vec<u8>;

    /// Continues with what [`Policy::save`] wrote. Regions are not part of it; they come after it,
    /// by [`Policy::on_recovered`]. On an error nothing changes.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError>;

    /// Bytes of memory that the policy has been told of, and regions that are not free.
    fn used(&self) -> Used;

    /// Counts of unusual events so far.
    fn counters(&self) -> Counters;
}

/// Space in use, as far as the policy was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Bytes in memory.
    pub memory: ByteSize,
    /// Open and sealed regions.
    pub regions: u32,
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
    /// Segments that were to be kept and were not stored.
    pub not_stored: u64,
    /// Reports on a region that the policy does not know, or in an earlier generation; ignored.
    pub unknown_regions: u64,
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

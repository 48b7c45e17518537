//! Admission: which absent segments are kept. Decided before the origin is read.

use std::fmt::Debug;

use forebay_core::gateway::read_plan::SegmentIndex;
use forebay_flash::{
    Appended, EntryKey,
    shard::{Eviction, OldestFirst},
};

use crate::object_request::{JobTag, ObjectName, Principal};

/// One read of one segment.
#[derive(Debug, Clone, Copy)]
pub struct SegmentRead<'a> {
    /// The caller.
    pub principal: &'a Principal,
    /// The object.
    pub object: &'a ObjectName,
    /// The job, if the request names one.
    pub job: Option<&'a JobTag>,
    /// The segment's name on flash.
    pub key: EntryKey,
    /// Its position.
    pub segment: SegmentIndex,
    /// Length of the segment.
    pub length: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Whether it is on flash, in memory or being fetched.
    pub is_resident: bool,
}

/// Decides which segments are kept, and learns the result.
pub trait SegmentAdmission: Debug + Send + Sync {
    /// A segment is read. Returns whether to keep it, if it is absent.
    fn on_read(&self, read: &SegmentRead<'_>) -> bool;

    /// A segment was stored.
    fn on_stored(&self, _key: EntryKey, _place: Appended) {}

    /// A segment that was to be kept was not stored.
    fn on_not_stored(&self, _key: EntryKey) {}

    /// The policy that names the regions to evict, and learns which are sealed and freed.
    fn eviction(&self) -> Box<dyn Eviction> {
        Box::new(OldestFirst)
    }
}

/// Keeps every segment. The engine evicts the oldest region.
#[derive(Debug, Clone, Copy)]
pub struct AdmitAll;

impl SegmentAdmission for AdmitAll {
    fn on_read(&self, _: &SegmentRead<'_>) -> bool {
        true
    }
}

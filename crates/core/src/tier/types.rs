//! Types of the tier: segments, buckets, requests, answers, specifications and job events.

use std::time::Duration;

use crate::{ByteSize, units::ByteRate};

/// One segment (256 KiB) of one version of one object: the unit of caching. The number is a hash or
/// any other unique name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(pub u64);

/// A prefix or table partition, or some columns of one: segments that are read together. The unit
/// of admission (Shift 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u32);

/// One training run, as tagged on requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub u64);

/// A read of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The segment.
    pub segment: Segment,
    /// The bucket that it belongs to.
    pub bucket: Bucket,
    /// The job that reads it, if the request is tagged.
    pub job: Option<Job>,
    /// Length of the segment.
    pub bytes: u32,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Resident in memory.
    HitDram,
    /// Resident on flash.
    HitFlash,
    /// Fetched from the origin and kept.
    Kept,
    /// Fetched from the origin into memory without an admission decision (as `CacheLib` does).
    /// Whether it is written to flash is decided when it leaves memory.
    Filled,
    /// Not kept: the caller reads the origin itself.
    Passed,
}

impl Answer {
    /// Whether the segment was resident.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::HitDram | Self::HitFlash)
    }
}

/// Changes of residency that a request caused. Reused between requests, so that a request allocates
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Segments written to flash, with their lengths. A reinserted segment is written again.
    pub written: Vec<(Segment, u32)>,
    /// Segments that are no longer resident.
    pub dropped: Vec<Segment>,
}

impl Changes {
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.dropped.clear();
    }
}

/// Buckets that a job reads side by side: the columns that it uses of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The buckets, with their sizes.
    pub buckets: Vec<(Bucket, ByteSize)>,
}

/// Specification: what a job, or its scheduler, announces that the job will read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Stages in reading order.
    pub stages: Vec<Stage>,
    /// Expected read rate, used until one has been measured.
    pub rate: Option<ByteRate>,
    /// Start time, if it is known and in the future.
    pub starts: Option<Duration>,
    /// Time without a request after which the started job expires. Default: the policy's lease.
    pub lease: Option<Duration>,
}

/// The announcement or the end of a job.
#[derive(Debug, Clone, Copy)]
pub enum JobEvent<'a> {
    /// A job announces its specification. It replaces an earlier one; reads so far stay recorded.
    Announced {
        /// The job.
        job: Job,
        /// What it will read.
        spec: &'a Spec,
    },
    /// A job has ended.
    Ended {
        /// The job.
        job: Job,
    },
}

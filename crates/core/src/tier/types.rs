//! Types of the tier: segments, regions, requests, decisions, specifications and job events.

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

/// A region of flash while it holds one set of segments: the unit of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId {
    /// Number of the region, below [`Settings::regions`](super::Settings::regions).
    pub index: u32,
    /// Number of this use of the region. A later use has a greater number.
    pub generation: u64,
}

/// Segments that are appended to the same region. The policy sends segments that it expects to
/// leave flash together to one stream. Streams are numbered from 0, below
/// [`STREAMS_MAX`](super::STREAMS_MAX).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

/// A read of a range of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The segment.
    pub segment: Segment,
    /// The bucket that it belongs to.
    pub bucket: Bucket,
    /// The job that reads it, if the request is tagged.
    pub job: Option<Job>,
    /// Length of the segment.
    pub length: u32,
    /// First byte asked for.
    pub offset: u32,
    /// Number of bytes asked for.
    pub bytes: u32,
}

impl Request {
    /// A read of a whole segment.
    pub fn whole(segment: Segment, bucket: Bucket, job: Option<Job>, length: u32) -> Self {
        Self { segment, bucket, job, length, offset: 0, bytes: length }
    }

    /// The segment with its properties, as brought in by this request.
    pub fn resident(&self) -> Resident {
        let Self { segment, bucket, job, length, .. } = *self;
        Resident { segment, bucket, length, brought_by: job }
    }
}

/// Where the driver has a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Absent,
    /// Being fetched for an earlier request; this one waits for it.
    Pending,
    /// In memory.
    Memory,
    /// On flash.
    Flash(RegionId),
}

/// Answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The driver has the segment, or is fetching it.
    Hit,
    /// Fetch the whole segment and keep it in memory.
    Memory,
    /// Fetch the whole segment and append it to this stream.
    Flash(Stream),
    /// Do not keep it: read what is asked for from the origin.
    Pass,
}

impl Decision {
    /// Whether the origin is not read for this request.
    pub fn is_hit(self) -> bool {
        self == Self::Hit
    }

    /// Whether the segment is fetched and kept.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Memory | Self::Flash(_))
    }
}

/// A segment that the driver has, or had before a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// The segment.
    pub segment: Segment,
    /// The bucket that it belongs to.
    pub bucket: Bucket,
    /// Its length.
    pub length: u32,
    /// The job that brought it in; `None` if that is unknown.
    pub brought_by: Option<Job>,
}

/// A segment that leaves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// The segment.
    pub resident: Resident,
    /// The stream to append it to; `None` to drop it.
    pub to: Option<Stream>,
}

/// A segment of a region that is evicted, to be written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    /// The segment.
    pub resident: Resident,
    /// The stream to append it to.
    pub to: Stream,
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

//! The words of the tier, and the facts that its policies are told.

use std::time::Duration;

use crate::{ByteSize, units::ByteRate};

/// One segment (256 KiB) of one version of one object: the unit of caching. The number is a hash, or
/// whatever else names it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(pub u64);

/// A prefix or table partition (or some columns of one): segments that are read together. The unit of
/// admission (Shift 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u32);

/// One training run, as requests are tagged with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub u64);

/// Somebody wants a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which.
    pub segment: Segment,
    /// Where it belongs.
    pub bucket: Bucket,
    /// Who wants it, if the request is tagged.
    pub job: Option<Job>,
    /// How long it is.
    pub bytes: u32,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was in memory.
    HitDram,
    /// It was on flash.
    HitFlash,
    /// It is fetched from the origin and kept.
    Kept,
    /// It is fetched from the origin into memory, but this was decided without asking whether it is worth
    /// it (`CacheLib`'s way): whether it is kept is decided when it leaves memory.
    Filled,
    /// Whoever wants it reads the origin; the tier does nothing.
    Passed,
}

impl Answer {
    /// Was it there?
    pub fn is_hit(self) -> bool {
        matches!(self, Self::HitDram | Self::HitFlash)
    }
}

/// What a request changed. Reused from request to request, so that serving one allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Segments that were written to flash, with their lengths; one that is reinserted is written again.
    pub written: Vec<(Segment, u32)>,
    /// Segments that are resident no longer.
    pub dropped: Vec<Segment>,
}

impl Changes {
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.dropped.clear();
    }
}

/// Buckets that a job reads side by side: the columns it wants of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Which, and how long each is.
    pub buckets: Vec<(Bucket, ByteSize)>,
}

/// What a job says, or its scheduler, about what it will read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What it reads, in its order.
    pub stages: Vec<Stage>,
    /// How fast it expects to read, until that has been measured.
    pub rate: Option<ByteRate>,
    /// When it starts, if that is known and lies ahead.
    pub starts: Option<Duration>,
    /// How long it is believed to live without being heard of, once it has started; the
    /// policy's own lease if it is not said.
    pub lease: Option<Duration>,
}

/// What a policy is told beside requests.
#[derive(Debug, Clone, Copy)]
pub enum Fact<'a> {
    /// A job is announced, or announced anew: what was said before is forgotten, what it read is not.
    Announced {
        /// Which.
        job: Job,
        /// What it will read.
        spec: &'a Spec,
    },
    /// A job has ended.
    Ended {
        /// Which.
        job: Job,
    },
}

//! Invalid events: announcements that cannot be true and ends of unknown jobs.

use std::time::Duration;

use super::types::{Bucket, Job};

/// Most stages and most buckets of a specification. Far above the partitions of any job in Shift's
/// figure 4.
/// An announcement is handled in one call, which must stay short.
pub const STAGES_MAX: usize = 1 << 13;
/// Most jobs that a policy tracks at once.
pub const JOBS_MAX: usize = 1 << 16;

/// An event that is rejected. The policy's state stays unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// The specification is empty.
    #[error("the specification of job {} names no bucket; leave it out", job.0)]
    Empty {
        /// The job.
        job: Job,
    },
    /// The specification names a bucket twice, but a job reads its rows once.
    #[error("the specification of job {} names bucket {} twice; name it once", job.0, bucket.0)]
    Repeated {
        /// The job.
        job: Job,
        /// The bucket.
        bucket: Bucket,
    },
    /// The specification has too many buckets, or its sizes overflow 64 bits.
    #[error(
        "the specification of job {} has more than {STAGES_MAX} buckets or 2^64 bytes; shorten it",
        job.0
    )]
    TooLong {
        /// The job.
        job: Job,
    },
    /// The policy already tracks [`JOBS_MAX`] jobs.
    #[error("{JOBS_MAX} jobs are tracked already; report which have ended")]
    TooManyJobs,
    /// The start time is in the past.
    #[error("job {} cannot start at {starts:?}: it is {now:?} now; leave `starts` out", job.0)]
    StartsInThePast {
        /// The job.
        job: Job,
        /// The announced start.
        starts: Duration,
        /// The current time.
        now: Duration,
    },
    /// The job was never announced or seen, or it has expired.
    #[error("job {} is unknown or has expired; announce it first", job.0)]
    UnknownJob {
        /// The job.
        job: Job,
    },
}

//! Facts that cannot be.

use std::time::Duration;

use super::words::{Bucket, Job};

/// More stages than any job of figure 4 has partitions, by far.
pub const STAGES_MAX: usize = 1 << 16;
/// Of jobs that are known at once.
pub const JOBS_MAX: usize = 1 << 16;

/// A fact that cannot be. What is known stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// It says nothing.
    #[error("the specification of job {} names no bucket; leave it out", job.0)]
    Empty {
        /// Whose.
        job: Job,
    },
    /// A job reads its rows once.
    #[error("the specification of job {} names bucket {} twice; name it once", job.0, bucket.0)]
    Repeated {
        /// Whose.
        job: Job,
        /// What.
        bucket: Bucket,
    },
    /// Nobody can read so much.
    #[error("the specification of job {} has more than {STAGES_MAX} buckets, or more bytes than can be counted", job.0)]
    TooLong {
        /// Whose.
        job: Job,
    },
    /// There is a limit.
    #[error("{JOBS_MAX} jobs are known already; say which have ended")]
    TooManyJobs,
    /// It starts in the past.
    #[error("job {} is said to start at {starts:?}, and it is {now:?} already; leave `starts` out", job.0)]
    StartsInThePast {
        /// Which.
        job: Job,
        /// When it was to start.
        starts: Duration,
        /// What time it is.
        now: Duration,
    },
    /// Never announced and never heard of, or forgotten since.
    #[error("job {} is not known, or was not heard of in time", job.0)]
    UnknownJob {
        /// Which.
        job: Job,
    },
}

//! Facts that cannot be.

use std::time::Duration;

use super::Job;
use crate::{ByteSize, chunking::ChunkOrdinal};

/// A fact that cannot be, given what is known. The state is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Time never goes back.
    #[error("it is {now:?}, and it was {last:?} before; use one clock for all facts")]
    TimeWentBack {
        /// What was said now,
        now: Duration,
        /// and before.
        last: Duration,
    },
    /// Never joined, left, or not heard of in time.
    #[error("job {} is not known, or was not heard of in time; let it join again", job.0)]
    UnknownJob {
        /// Which.
        job: Job,
    },
    /// A job joins once.
    #[error("job {} has joined already; let it leave first", job.0)]
    JoinedTwice {
        /// Which.
        job: Job,
    },
    /// There is a limit.
    #[error("{jobs} jobs read this dataset already; let others read through")]
    TooManyJobs {
        /// How many.
        jobs: usize,
    },
    /// Not a chunk of this dataset.
    #[error("there is no chunk {}: the dataset has {chunks}", chunk.0)]
    UnknownChunk {
        /// Which.
        chunk: ChunkOrdinal,
        /// How many there are.
        chunks: usize,
    },
    /// In one epoch, what is unread only becomes less.
    #[error("job {} cannot have {unread} unread of chunk {}: it had {known} before", job.0, chunk.0)]
    UnreadGrew {
        /// Who says so,
        job: Job,
        /// of what,
        chunk: ChunkOrdinal,
        /// and how much.
        unread: ByteSize,
        /// What it was.
        known: ByteSize,
    },
    /// Only what is open can be referenced.
    #[error("chunk {} is not open to job {}; ask again what is", chunk.0, job.0)]
    NotOpen {
        /// Who wants it,
        job: Job,
        /// and what.
        chunk: ChunkOrdinal,
    },
    /// A release without a reference.
    #[error("job {} has not referenced chunk {}, or it has been evicted since", job.0, chunk.0)]
    NotReferenced {
        /// Who releases,
        job: Job,
        /// and what.
        chunk: ChunkOrdinal,
    },
    /// Nobody ordered this.
    #[error("chunk {} is not being loaded (any more)", chunk.0)]
    NotLoading {
        /// Which.
        chunk: ChunkOrdinal,
    },
    /// What is being loaded only becomes more, up to the whole.
    #[error("{bytes} of chunk {} cannot have arrived: it was {known} before, of {size}", chunk.0)]
    WrongLength {
        /// Which.
        chunk: ChunkOrdinal,
        /// How much is said to have arrived,
        bytes: ByteSize,
        /// had before,
        known: ByteSize,
        /// and can.
        size: ByteSize,
    },
    /// Nobody ordered this.
    #[error("chunk {} is not being evicted", chunk.0)]
    NotEvicting {
        /// Which.
        chunk: ChunkOrdinal,
    },
    /// What is found was not known before.
    #[error("chunk {} is known already", chunk.0)]
    FoundTwice {
        /// Which.
        chunk: ChunkOrdinal,
    },
}

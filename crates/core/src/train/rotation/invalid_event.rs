//! Invalid events: those that contradict the state.

use std::time::Duration;

use super::JobNumber;
use crate::{ByteSize, HalfChunk, dataset::chunking::ChunkOrdinal};

/// An event that contradicts the state, which is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// The time of the event is before that of the last one.
    #[error("event at {now:?} after one at {last:?}; use one clock for all events")]
    TimeWentBack {
        /// Time of this event.
        now: Duration,
        /// Time of the last event.
        last: Duration,
    },
    /// The job never joined, has left, or its lease has ended.
    #[error("job {} is unknown, or its lease has ended; let it join again", job.0)]
    UnknownJob {
        /// The job.
        job: JobNumber,
    },
    /// A job joins once.
    #[error("job {} has joined already; let it leave first", job.0)]
    JoinedTwice {
        /// The job.
        job: JobNumber,
    },
    /// The limit on jobs is reached.
    #[error("{jobs} jobs read this dataset already, the limit; let others read from the origin")]
    TooManyJobs {
        /// The limit.
        jobs: usize,
    },
    /// Not a chunk of this dataset.
    #[error("chunk {} does not exist: the dataset has {chunks}", chunk.0)]
    UnknownChunk {
        /// The chunk.
        chunk: ChunkOrdinal,
        /// Chunks of the dataset.
        chunks: usize,
    },
    /// Not a half-chunk of this dataset.
    #[error("half-chunk {} does not exist: the dataset has {half_chunks}", half_chunk.0)]
    UnknownHalfChunk {
        /// The half-chunk.
        half_chunk: HalfChunk,
        /// Half-chunks of the dataset.
        half_chunks: usize,
    },
    /// As [`Self::UnreadGrew`], for a half-chunk.
    #[error(
        "job {} has {unread} unread of half-chunk {}, but had {known} before",
        job.0, half_chunk.0
    )]
    HalfChunkUnreadGrew {
        /// The job.
        job: JobNumber,
        /// The half-chunk.
        half_chunk: HalfChunk,
        /// Unread bytes of this event.
        unread: ByteSize,
        /// Unread bytes before.
        known: ByteSize,
    },
    /// Within an epoch, unread bytes only decrease.
    #[error("job {} has {unread} unread of chunk {}, but had {known} before", job.0, chunk.0)]
    UnreadGrew {
        /// The job.
        job: JobNumber,
        /// The chunk.
        chunk: ChunkOrdinal,
        /// Unread bytes of this event.
        unread: ByteSize,
        /// Unread bytes before.
        known: ByteSize,
    },
    /// The chunk is not in the job's draw set.
    #[error("chunk {} is not in the draw set of job {}; report again", chunk.0, job.0)]
    NotDrawable {
        /// The job.
        job: JobNumber,
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// The job had not referenced the chunk.
    #[error("job {} has not referenced chunk {}, or the chunk was evicted since", job.0, chunk.0)]
    NotReferenced {
        /// The job.
        job: JobNumber,
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// The chunk is not loading.
    #[error("chunk {} is not being loaded", chunk.0)]
    NotLoading {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// Loaded bytes only increase, up to the size of the chunk.
    #[error("{bytes} of chunk {} cannot have arrived: it was {known} before, of {size}", chunk.0)]
    WrongLength {
        /// The chunk.
        chunk: ChunkOrdinal,
        /// Bytes of this event.
        bytes: ByteSize,
        /// Bytes before.
        known: ByteSize,
        /// Size of the chunk.
        size: ByteSize,
    },
    /// The chunk is not being evicted.
    #[error("chunk {} is not being evicted", chunk.0)]
    NotEvicting {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// A chunk that is found cannot be known already.
    #[error("chunk {} is known already", chunk.0)]
    FoundTwice {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
}

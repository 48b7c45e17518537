//! Errors of a sampler: it cannot be made, or a call is invalid.

use super::{EpochPlanError, recording::RecordingError};
use crate::{DatasetId, HalfChunk};

/// Why a sampler cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// An invalid plan.
    #[error(transparent)]
    Plan(#[from] EpochPlanError),
    /// The item map has no lengths.
    #[error("batches of like length need the length of every item; give lengths")]
    NoLengths,
    /// The state or recording is of another dataset.
    #[error("this is of dataset {found}, not of {expected}; start the epoch again")]
    WrongDataset {
        /// Dataset of the state or recording.
        found: DatasetId,
        /// Dataset that is read.
        expected: DatasetId,
    },
    /// The same blobs, with other items, half-chunks or lengths.
    #[error(
        "this is of the same blobs with other items, half-chunks or lengths; use the digest that \
         it was taken with, and the same lengths, or start the epoch again"
    )]
    OtherMap,
    /// The numbers of a state contradict each other.
    #[error("the state contradicts itself; start the epoch again")]
    Inconsistent,
    /// The state is of a replay, and the recording is missing.
    #[error("the state is of a replay; give the recording as well")]
    NeedsRecording,
    /// The state is not of a replay of this recording.
    #[error("the state is not of a replay of this recording")]
    WrongRecording,
    /// The state of a rank is missing.
    #[error("the state of rank {rank} of {world} is missing; give those of all ranks")]
    MissingRank {
        /// The rank.
        rank: u32,
        /// Ranks that the epoch had.
        world: u32,
    },
    /// A rank has two states.
    #[error("there are two states of rank {rank}; give one of each rank")]
    RankTwice {
        /// The rank.
        rank: u32,
    },
    /// The states are not of one epoch of one job.
    #[error("the states of ranks {first} and {other} are not of the same epoch of one job")]
    Mismatch {
        /// A rank.
        first: u32,
        /// A rank whose state differs.
        other: u32,
    },
    /// The plan has another seed or epoch than the states.
    #[error("the states are of seed {seed}, epoch {epoch}; use the same")]
    WrongEpoch {
        /// Seed of the states.
        seed: u64,
        /// Epoch of the states.
        epoch: u64,
    },
    /// An invalid recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// A call that contradicts the state. It changes nothing, and is counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCall {
    /// Batches are yielded once each, in the order in which they were drawn.
    #[error("batch {number} cannot be yielded: {expected} is next, and {drawn} are in flight")]
    NotNext {
        /// The batch.
        number: u64,
        /// The batch that is next.
        expected: u64,
        /// Batches that are drawn and not yielded.
        drawn: usize,
    },
    /// A half-chunk that the dataset does not have.
    #[error(
        "half-chunk {half_chunk} of {half_chunks} cannot be in a draw set: half-chunks count from 0"
    )]
    NoSuchHalfChunk {
        /// The half-chunk.
        half_chunk: HalfChunk,
        /// Half-chunks of the dataset.
        half_chunks: u32,
    },
    /// Only a rotating half-chunk can be leaving.
    #[error("half-chunk {half_chunk} cannot leave: it does not rotate")]
    NotRotating {
        /// The half-chunk.
        half_chunk: HalfChunk,
    },
    /// A half-chunk is pinned or rotates, and is named once.
    #[error("half-chunk {half_chunk} is named twice in a draw set")]
    NamedTwice {
        /// The half-chunk.
        half_chunk: HalfChunk,
    },
}

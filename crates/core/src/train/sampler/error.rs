//! Why a sampler refuses: to begin, or to believe what it is told.

use super::{PlanError, recording::RecordingError};
use crate::DatasetId;

/// Why there is no such sampler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A plan that cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nobody said which items are alike.
    #[error("batches of like length need the lengths of all items; give the layout those")]
    NoLengths,
    /// A state or recording of other data.
    #[error("this was taken of dataset {found}, not of {expected}; start the epoch anew")]
    OtherDataset {
        /// What it is of.
        found: DatasetId,
        /// What is being read.
        expected: DatasetId,
    },
    /// The same blobs, divided otherwise.
    #[error(
        "this was taken of the same blobs with other items, chunks or lengths; use the digest it was \
         taken with, and the same lengths, or start the epoch anew"
    )]
    OtherLayout,
    /// A state whose numbers cannot all be true.
    #[error("the state contradicts itself; start the epoch anew")]
    Inconsistent,
    /// A state of a replay, without the recording.
    #[error("the state is of a replayed order; give the recording as well")]
    NeedsRecording,
    /// A state of something else than this replay.
    #[error("the state is not of a replay of this recording")]
    OtherRecording,
    /// States of all ranks are needed.
    #[error("the state of rank {rank} of {world} is missing; give those of all ranks")]
    MissingRank {
        /// The rank.
        rank: u32,
        /// How many there were.
        world: u32,
    },
    /// One rank's state is there twice.
    #[error("there are two states of rank {rank}; give one of each rank")]
    RankTwice {
        /// The rank.
        rank: u32,
    },
    /// States that are not of one epoch of one job.
    #[error("the states of ranks {first} and {other} are not of the same epoch of one job")]
    Differ {
        /// A rank.
        first: u32,
        /// Another.
        other: u32,
    },
    /// A plan for another seed or epoch than the states have.
    #[error("the states are of seed {seed}, epoch {epoch}; go on with these")]
    OtherEpoch {
        /// Their seed.
        seed: u64,
        /// Their epoch.
        epoch: u64,
    },
    /// A recording that no sampler made.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// What a caller said that cannot be. Nothing has changed, except that it was counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Batches are yielded once each, in the order in which they were drawn.
    #[error(
        "batch {number} cannot have been yielded: {expected} is next, and {drawn} are on their way"
    )]
    NotNext {
        /// The batch.
        number: u64,
        /// Whose turn it is.
        expected: u64,
        /// How many were drawn and not yielded.
        drawn: usize,
    },
    /// A chunk that the dataset does not have.
    #[error("chunk {chunk} of {chunks} cannot be open: chunks count from 0")]
    NoSuchChunk {
        /// The chunk.
        chunk: u32,
        /// How many there are.
        chunks: u32,
    },
    /// Only what rotates can leave.
    #[error("chunk {chunk} cannot leave: it does not rotate")]
    NotRotating {
        /// The chunk.
        chunk: u32,
    },
    /// A chunk is held or rotates, and is named once.
    #[error("chunk {chunk} cannot be open twice")]
    OpenTwice {
        /// The chunk.
        chunk: u32,
    },
}

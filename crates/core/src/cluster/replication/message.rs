//! Messages between nodes.

use super::{Free, KeepSet, LeaderView, Term};
use crate::{
    DatasetId, HalfChunk,
    train::{
        manager::HalfChunkBytes,
        placement::{DatasetDemand, Share},
    },
};

/// A request between nodes. All of them are idempotent.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Checks that the peer is alive.
    Ping,
    /// Asks for the manager that the peer follows, and for what it holds.
    Query {
        /// The dataset.
        dataset: DatasetId,
    },
    /// Sends the keep-set of a dataset that the sender manages.
    Replicate {
        /// The dataset.
        dataset: DatasetId,
        /// Its keep-set.
        keep_set: KeepSet,
    },
    /// Asks for space for the datasets that the sender manages.
    SpaceRequest {
        /// The newest term of a space leader that the sender knows.
        known: Option<Term>,
        /// All datasets that it manages, with their measured benefit.
        requests: Vec<(DatasetId, DatasetDemand)>,
    },
}

/// The reply to a request between nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The peer is alive.
    Alive,
    /// The manager that the peer follows, and what it holds.
    Follows {
        /// The dataset.
        dataset: DatasetId,
        /// The manager, if the peer follows one.
        leader: Option<LeaderView>,
        /// Half-chunks of which the peer holds blobs.
        found: Vec<HalfChunk>,
    },
    /// The peer has applied the keep-set and freed everything else.
    Applied {
        /// The dataset.
        dataset: DatasetId,
        /// The term applied.
        term: Term,
        /// The version applied.
        version: u64,
        /// Bytes put per half-chunk in this term.
        arrived: Vec<HalfChunkBytes>,
    },
    /// The peer follows a newer term.
    Stale {
        /// The dataset.
        dataset: DatasetId,
        /// The term refused.
        term: Term,
        /// The newer manager.
        leader: LeaderView,
    },
    /// The space for each dataset; datasets without an entry keep their share.
    Shares {
        /// The term of the space leader.
        term: Term,
        /// The share of each dataset, with its reason.
        shares: Vec<(DatasetId, Share)>,
    },
}

/// How a request is answered.
#[derive(Debug, PartialEq)]
pub enum Handling {
    /// At once.
    Reply(Reply),
    /// Once the half-chunks on flash are known: [`super::Replicator::query_reply`].
    Find(DatasetId),
    /// Once everything outside the keep-set is freed: [`super::Replicator::replicate_reply`].
    Free(DatasetId, KeepSet, Free),
}

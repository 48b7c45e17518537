//! The follower: for each dataset, the newest term and its keep-set.
//!
//! A follower decides nothing: it keeps the half-chunks of the keep-set and frees the others. A
//! keep-set of an older term changes nothing and is answered with the newer term. Applying the same
//! keep-set twice has no effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Term;
use crate::{ByteSize, DatasetId, HalfChunk, train::manager::HalfChunkBytes};

/// Datasets that are tracked. Of a dataset that was dropped, everything is kept until its manager
/// replicates again.
const DATASETS_MAX: usize = 1 << 12;

/// The half-chunks of a dataset that nodes keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepSet {
    /// The term of the manager that decided it.
    pub term: Term,
    /// Increases within a term.
    pub version: u64,
    /// Ascending.
    pub kept: Vec<HalfChunk>,
}

/// The manager that a node follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView {
    /// Its term.
    pub term: Term,
    /// Time since its last message.
    pub silent_for: Duration,
}

/// Half-chunks to free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Free {
    /// These half-chunks.
    These(Vec<HalfChunk>),
    /// All half-chunks that are not in the keep-set: the term is new to this node.
    AllOthers,
}

/// The keep-sets that a node follows.
#[derive(Debug, Default)]
pub struct Follower {
    datasets: BTreeMap<DatasetId, Followed>,
    /// Datasets whose keep-sets may have changed since [`Follower::take_changed`].
    changed: BTreeSet<DatasetId>,
}

#[derive(Debug)]
struct Followed {
    keep_set: KeepSet,
    heard_at: Duration,
    /// Bytes put per half-chunk in this term.
    arrived: BTreeMap<HalfChunk, u64>,
}

impl Follower {
    /// Applies a keep-set. Returns what to free, or the newer manager if the keep-set is stale.
    pub fn on_replicate(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        keep_set: &KeepSet,
    ) -> Result<Free, LeaderView> {
        self.changed.insert(dataset);
        let Some(known) = self.datasets.get_mut(&dataset) else {
            self.make_room();
            let arrived = BTreeMap::new();
            self.datasets
                .insert(dataset, Followed { keep_set: keep_set.clone(), heard_at: now, arrived });
            return Ok(Free::AllOthers);
        };
        if (&keep_set.term, keep_set.version) < (&known.keep_set.term, known.keep_set.version) {
            return Err(known.leader(now));
        }
        known.heard_at = now;
        let former = std::mem::replace(&mut known.keep_set, keep_set.clone());
        if former.term != keep_set.term {
            known.arrived.clear();
            return Ok(Free::AllOthers);
        }
        let goes = |half_chunk: &HalfChunk| keep_set.kept.binary_search(half_chunk).is_err();
        Ok(Free::These(former.kept.into_iter().filter(goes).collect()))
    }

    /// Datasets whose keep-sets may have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<DatasetId> {
        std::mem::take(&mut self.changed)
    }

    /// The manager that this node follows.
    pub fn leader(&self, now: Duration, dataset: &DatasetId) -> Option<LeaderView> {
        self.datasets.get(dataset).map(|known| known.leader(now))
    }

    /// The term that this node follows.
    pub fn term(&self, dataset: &DatasetId) -> Option<&Term> {
        self.datasets.get(dataset).map(|known| &known.keep_set.term)
    }

    /// The keep-set of a dataset, if it has a manager.
    pub fn keep_set(&self, dataset: &DatasetId) -> Option<&KeepSet> {
        self.datasets.get(dataset).map(|known| &known.keep_set)
    }

    /// Whether blobs of a half-chunk are kept.
    pub fn keeps(&self, dataset: &DatasetId, half_chunk: HalfChunk) -> bool {
        self.keep_set(dataset)
            .is_none_or(|keep_set| keep_set.kept.binary_search(&half_chunk).is_ok())
    }

    /// The highest term number.
    pub fn number_max(&self) -> u64 {
        self.datasets.values().map(|known| known.keep_set.term.number).max().unwrap_or(0)
    }

    /// `bytes` more of a half-chunk were put here.
    pub fn arrived(&mut self, dataset: &DatasetId, half_chunk: HalfChunk, bytes: ByteSize) {
        if let Some(known) = self.datasets.get_mut(dataset)
            && known.keep_set.kept.binary_search(&half_chunk).is_ok()
        {
            let arrived = known.arrived.entry(half_chunk).or_default();
            *arrived = arrived.saturating_add(bytes.0);
        }
    }

    /// Bytes put per half-chunk in this term.
    pub fn all_arrived(&self, dataset: &DatasetId) -> Vec<HalfChunkBytes> {
        let known = self.datasets.get(dataset);
        let all = known.into_iter().flat_map(|known| &known.arrived);
        all.map(|(half_chunk, bytes)| HalfChunkBytes {
            half_chunk: *half_chunk,
            bytes: ByteSize(*bytes),
        })
        .collect()
    }

    /// Forgets a dataset.
    pub fn forget(&mut self, dataset: &DatasetId) {
        self.datasets.remove(dataset);
        self.changed.insert(*dataset);
    }

    fn make_room(&mut self) {
        if self.datasets.len() >= DATASETS_MAX {
            let longest = self.datasets.iter().min_by_key(|(_, known)| known.heard_at);
            let longest = longest.map(|(dataset, _)| *dataset);
            if let Some(dataset) = longest {
                self.forget(&dataset);
            }
        }
    }
}

impl Followed {
    fn leader(&self, now: Duration) -> LeaderView {
        let term = self.keep_set.term.clone();
        LeaderView { term, silent_for: now.saturating_sub(self.heard_at) }
    }
}

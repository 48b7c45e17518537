//! What a node obeys: of each dataset, the newest term it was told of, and what is kept in it.
//!
//! A node decides nothing: it keeps what has a place, and frees the rest. The word of an older term changes
//! nothing and is answered with the newer one. The same word twice is obeyed twice, to no effect.

use std::{collections::BTreeMap, time::Duration};

use super::Term;
use crate::{ByteSize, DatasetId};

/// Datasets whose managers are remembered. Of one that was forgotten everything is kept until its manager
/// tells again, which is at once if it lives.
const DATASETS_MAX: usize = 1 << 12;

/// What is kept of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Who says so.
    pub term: Term,
    /// Counts up in a term: what was said later counts.
    pub version: u64,
    /// The pieces, in order.
    pub kept: Vec<u32>,
}

/// Whom a node obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Whose word counts.
    pub term: Term,
    /// How long nothing was heard from there.
    pub silent_for: Duration,
}

/// What is to be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Free {
    /// These pieces.
    These(Vec<u32>),
    /// All pieces but those that are kept: what lies here was ordered by somebody else, or by nobody.
    AllOthers,
}

/// What a node obeys.
#[derive(Debug, Default)]
pub struct Obeying {
    datasets: BTreeMap<DatasetId, Obeyed>,
}

#[derive(Debug)]
struct Obeyed {
    places: Places,
    heard_at: Duration,
    /// What has arrived of pieces in this term.
    arrived: BTreeMap<u32, u64>,
}

impl Obeying {
    /// Somebody says what is kept. Returns what is to be freed, or whose word counts instead.
    pub fn told(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        places: &Places,
    ) -> Result<Free, Standing> {
        let Some(known) = self.datasets.get_mut(&dataset) else {
            self.make_room();
            let arrived = BTreeMap::new();
            self.datasets
                .insert(dataset, Obeyed { places: places.clone(), heard_at: now, arrived });
            return Ok(Free::AllOthers);
        };
        if (&places.term, places.version) < (&known.places.term, known.places.version) {
            return Err(known.standing(now));
        }
        known.heard_at = now;
        let former = std::mem::replace(&mut known.places, places.clone());
        if former.term != places.term {
            known.arrived.clear();
            return Ok(Free::AllOthers);
        }
        let goes = |piece: &u32| places.kept.binary_search(piece).is_err();
        Ok(Free::These(former.kept.into_iter().filter(goes).collect()))
    }

    /// Whom this node obeys.
    pub fn standing(&self, now: Duration, dataset: &DatasetId) -> Option<Standing> {
        self.datasets.get(dataset).map(|known| known.standing(now))
    }

    /// Whose word counts.
    pub fn term(&self, dataset: &DatasetId) -> Option<&Term> {
        self.datasets.get(dataset).map(|known| &known.places.term)
    }

    /// What is kept of a dataset, if anybody has said so.
    pub fn places(&self, dataset: &DatasetId) -> Option<&Places> {
        self.datasets.get(dataset).map(|known| &known.places)
    }

    /// Whether what is fetched of a piece is kept.
    pub fn keeps(&self, dataset: &DatasetId, piece: u32) -> bool {
        self.places(dataset).is_none_or(|places| places.kept.binary_search(&piece).is_ok())
    }

    /// The highest number of all terms.
    pub fn number_max(&self) -> u64 {
        self.datasets.values().map(|known| known.places.term.number).max().unwrap_or(0)
    }

    /// So many bytes more of a piece have been put here.
    pub fn arrived(&mut self, dataset: &DatasetId, piece: u32, bytes: ByteSize) {
        if let Some(known) = self.datasets.get_mut(dataset)
            && known.places.kept.binary_search(&piece).is_ok()
        {
            let arrived = known.arrived.entry(piece).or_default();
            *arrived = arrived.saturating_add(bytes.0);
        }
    }

    /// How much has arrived in this term.
    pub fn all_arrived(&self, dataset: &DatasetId) -> Vec<(u32, ByteSize)> {
        let known = self.datasets.get(dataset);
        let all = known.into_iter().flat_map(|known| &known.arrived);
        all.map(|(piece, bytes)| (*piece, ByteSize(*bytes))).collect()
    }

    /// Nobody has said anything of a dataset.
    pub fn forget(&mut self, dataset: &DatasetId) {
        self.datasets.remove(dataset);
    }

    fn make_room(&mut self) {
        if self.datasets.len() >= DATASETS_MAX {
            let longest = self.datasets.iter().min_by_key(|(_, known)| known.heard_at);
            let longest = longest.map(|(dataset, _)| *dataset);
            longest.map(|dataset| self.datasets.remove(&dataset));
        }
    }
}

impl Obeyed {
    fn standing(&self, now: Duration) -> Standing {
        let term = self.places.term.clone();
        Standing { term, silent_for: now.saturating_sub(self.heard_at) }
    }
}

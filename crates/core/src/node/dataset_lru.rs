//! Dataset LRU: which dataset loses a region when a device is full.
//!
//! Managers split the space so that everything kept fits. Two things may still fill a device: blobs
//! that no manager knows (from before a restart, or put by hand), and half-chunks that share
//! regions, which free no space when one of them goes. Then a region of the least recently used
//! dataset is evicted. Datasets in use rank equally.

use std::{collections::BTreeMap, time::Duration};

use crate::DatasetId;

/// A dataset counts as in use for this long after its last use, unless its job has left.
const IN_USE: Duration = Duration::from_mins(1);
/// Datasets that are tracked. The least recently used one is dropped beyond that.
const DATASETS_MAX: usize = 1 << 12;

/// The time of last use per dataset.
#[derive(Debug, Default)]
pub struct DatasetLru {
    uses: BTreeMap<DatasetId, Use>,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    at: Duration,
    has_ended: bool,
}

impl DatasetLru {
    /// A blob of the dataset was read or put.
    pub fn on_use(&mut self, now: Duration, dataset: DatasetId) {
        if self.uses.len() >= DATASETS_MAX && !self.uses.contains_key(&dataset) {
            let first = self.uses.iter().min_by_key(|(_, used)| used.at);
            let first = first.map(|(dataset, _)| *dataset);
            first.map(|dataset| self.uses.remove(&dataset));
        }
        self.uses.insert(dataset, Use { at: now, has_ended: false });
    }

    /// A job of the dataset has left. Other jobs, if any, will use it again.
    pub fn on_leave(&mut self, dataset: &DatasetId) {
        if let Some(used) = self.uses.get_mut(dataset) {
            used.has_ended = true;
        }
    }

    /// The rank of a dataset for eviction, lowest first: its time of last use, or `Duration::MAX`
    /// while it is in use. `None` if it was never used.
    pub fn last_use(&self, now: Duration, dataset: &DatasetId) -> Option<Duration> {
        let Use { at, has_ended } = *self.uses.get(dataset)?;
        let is_in_use = !has_ended && now < at.saturating_add(IN_USE);
        Some(if is_in_use { Duration::MAX } else { at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn dataset(number: u16) -> DatasetId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        DatasetId::from_bytes(bytes)
    }

    #[test]
    fn datasets_are_ranked_by_last_use() {
        let mut lru = DatasetLru::default();
        for (at, number) in [(0, 1), (1, 2), (2, 3), (3, 1)] {
            lru.on_use(s(at), dataset(number));
        }
        let last_use = |lru: &DatasetLru, now, number| lru.last_use(s(now), &dataset(number));
        assert!((1..4).all(|number| last_use(&lru, 9, number) == Some(Duration::MAX)));
        lru.on_leave(&dataset(3));
        assert_eq!(last_use(&lru, 9, 3), Some(s(2)), "its job has left");
        assert_eq!(last_use(&lru, 62, 2), Some(s(1)), "not used for a minute");
        assert_eq!(last_use(&lru, 62, 1), Some(Duration::MAX));
        assert_eq!(last_use(&lru, 62, 4), None, "never");
        lru.on_use(s(10), dataset(3));
        assert_eq!(last_use(&lru, 11, 3), Some(Duration::MAX), "another job uses it");
    }

    /// Promise 6.
    #[test]
    fn the_number_of_tracked_datasets_is_bounded() {
        let mut lru = DatasetLru::default();
        for number in 0..5000 {
            lru.on_use(s(number.into()), dataset(number));
        }
        assert_eq!(lru.uses.len(), DATASETS_MAX);
        assert_eq!(lru.last_use(s(9000), &dataset(4999)), Some(s(4999)));
        assert_eq!(lru.last_use(s(9000), &dataset(0)), None);
    }
}

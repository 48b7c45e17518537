//! Which dataset of a node was used last: what makes room when its device is full all the same.
//!
//! Managers see to it that all that has a place fits. But some of what lies on a device no manager knows (it was
//! there before a restart, or was brought in by hand), and pieces that share their regions free no room when they
//! go. So now and then a region has to, and it is to be one of the dataset that was used longest ago. Those that
//! are in use are all alike.

use std::{collections::BTreeMap, time::Duration};

use crate::DatasetId;

/// A dataset is in use for so long after it was used, unless its job says that it has ended.
const IN_USE: Duration = Duration::from_mins(1);
/// Datasets of which it is remembered. One that was forgotten was not used, as far as anybody knows.
const DATASETS_MAX: usize = 1 << 12;

/// When datasets were used.
#[derive(Debug, Default)]
pub struct Recency {
    used: BTreeMap<DatasetId, Used>,
}

#[derive(Debug, Clone, Copy)]
struct Used {
    at: Duration,
    is_over: bool,
}

impl Recency {
    /// Something of a dataset is read or put.
    pub fn used(&mut self, now: Duration, dataset: DatasetId) {
        if self.used.len() >= DATASETS_MAX && !self.used.contains_key(&dataset) {
            let first = self.used.iter().min_by_key(|(_, used)| used.at);
            let first = first.map(|(dataset, _)| *dataset);
            first.map(|dataset| self.used.remove(&dataset));
        }
        self.used.insert(dataset, Used { at: now, is_over: false });
    }

    /// A job that used a dataset has ended; if there are others, they will use it again.
    pub fn left(&mut self, dataset: &DatasetId) {
        if let Some(used) = self.used.get_mut(dataset) {
            used.is_over = true;
        }
    }

    /// When a dataset was last used: the least goes first. Nothing, if it never was.
    pub fn last_use(&self, now: Duration, dataset: &DatasetId) -> Option<Duration> {
        let Used { at, is_over } = *self.used.get(dataset)?;
        let is_in_use = !is_over && now < at.saturating_add(IN_USE);
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
    fn the_one_that_was_used_longest_ago_goes_first() {
        let mut recency = Recency::default();
        for (at, number) in [(0, 1), (1, 2), (2, 3), (3, 1)] {
            recency.used(s(at), dataset(number));
        }
        let last_use = |recency: &Recency, now, number| recency.last_use(s(now), &dataset(number));
        assert!((1..4).all(|number| last_use(&recency, 9, number) == Some(Duration::MAX)));
        recency.left(&dataset(3));
        assert_eq!(last_use(&recency, 9, 3), Some(s(2)), "its job has ended");
        assert_eq!(last_use(&recency, 62, 2), Some(s(1)), "nobody has used it for a minute");
        assert_eq!(last_use(&recency, 62, 1), Some(Duration::MAX));
        assert_eq!(last_use(&recency, 62, 4), None, "never");
        recency.used(s(10), dataset(3));
        assert_eq!(last_use(&recency, 11, 3), Some(Duration::MAX), "there was another");
    }

    /// Promise 6.
    #[test]
    fn no_more_is_remembered_than_may_be() {
        let mut recency = Recency::default();
        for number in 0..5000 {
            recency.used(s(number.into()), dataset(number));
        }
        assert_eq!(recency.used.len(), DATASETS_MAX);
        assert_eq!(recency.last_use(s(9000), &dataset(4999)), Some(s(4999)));
        assert_eq!(recency.last_use(s(9000), &dataset(0)), None);
    }
}

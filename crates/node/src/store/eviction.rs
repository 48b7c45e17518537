//! Eviction: the region that a full device loses. Of the least recently used dataset, the oldest
//! region.

use std::sync::Arc;

use forebay_core::{DatasetId, node::dataset_lru::DatasetLru};
use forebay_flash::{
    format::RegionId,
    shard::{Candidate, Eviction},
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Makes the eviction policy of a device.
pub type EvictionPolicy = Arc<dyn Fn() -> Box<dyn Eviction> + Send + Sync>;

/// The uses of datasets, shared by all devices.
#[derive(Clone)]
pub(super) struct DatasetUses {
    started: Instant,
    dataset_lru: Arc<Mutex<DatasetLru>>,
}

impl DatasetUses {
    pub fn new() -> Self {
        Self { started: Instant::now(), dataset_lru: Arc::default() }
    }

    /// The policy of each device.
    pub fn policy(&self) -> EvictionPolicy {
        let uses = self.clone();
        Arc::new(move || Box::new(uses.clone()))
    }

    /// A blob of the dataset was read or put.
    pub fn on_use(&self, dataset: DatasetId) {
        self.dataset_lru.lock().on_use(self.started.elapsed(), dataset);
    }

    /// A job of the dataset has left.
    pub fn on_leave(&self, dataset: &DatasetId) {
        self.dataset_lru.lock().on_leave(dataset);
    }
}

impl Eviction for DatasetUses {
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        let (now, dataset_lru) = (self.started.elapsed(), self.dataset_lru.lock());
        let last_use = |group: &[u8]| {
            let dataset = DatasetId::from_bytes(*group.first_chunk()?);
            dataset_lru.last_use(now, &dataset)
        };
        let first = candidates.min_by_key(|region| (last_use(region.group), region.generation));
        first.map(|first| first.region)
    }
}

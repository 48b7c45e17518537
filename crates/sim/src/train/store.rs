//! Store: the resident items under each policy, as jobs see them.

use forebay_core::train::sampler::HalfChunkMap;

use super::{lru::Lru, manager::Manager, policy::Policy, scenario::Setup, time::Nanos};

/// The cache under one policy.
#[derive(Debug)]
pub(super) enum Store {
    /// No item is resident.
    Nothing,
    /// Every item is resident.
    Everything,
    /// The most recently read items are resident.
    Recent(RecentItems),
    /// The chunks that the manager chooses are resident.
    Chunks(Box<Manager>),
}

/// Result of fetching an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// It is now resident.
    Kept,
    /// It was resident already: another job has fetched it as well.
    Duplicate,
    /// It is not kept.
    Uncached,
}

impl Store {
    pub fn new(setup: &Setup, policy: Policy, seed: u64) -> Self {
        match policy {
            Policy::None => Self::Nothing,
            Policy::Hit => Self::Everything,
            Policy::Lru => Self::Recent(RecentItems::new(setup)),
            Policy::Quiver | Policy::QuiverPreload | Policy::Forebay => {
                Self::Chunks(Box::new(Manager::new(setup, policy, seed)))
            }
        }
    }

    /// Layout of a dataset for samplers.
    pub fn layout(&self, setup: &Setup, dataset: usize) -> HalfChunkMap {
        match self {
            Self::Chunks(manager) => manager.layout(dataset),
            _ => setup.datasets[dataset].layout(),
        }
    }

    /// The manager, if the policy has one.
    pub fn manager(&mut self) -> Option<&mut Manager> {
        match self {
            Self::Chunks(manager) => Some(manager),
            _ => None,
        }
    }

    /// Reads an item. Returns whether it is resident.
    pub fn read(&mut self, dataset: usize, item: u32) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Recent(recent) => recent.read(dataset, item),
            Self::Chunks(manager) => manager.datasets[dataset].is_resident(item),
        }
    }

    /// Whether a job is fetching an item under a claim.
    pub fn is_claimed(&self, dataset: usize, item: u32) -> bool {
        match self {
            Self::Chunks(manager) => {
                manager.has_claims() && manager.datasets[dataset].is_in_flight(item)
            }
            _ => false,
        }
    }

    /// Handles an item that has arrived from the origin.
    pub fn on_fetched(&mut self, now: Nanos, dataset: usize, item: u32) -> Fetched {
        match self {
            Self::Nothing => Fetched::Uncached,
            Self::Everything => unreachable!("every item is resident"),
            Self::Recent(recent) => recent.on_fetched(dataset, item),
            Self::Chunks(manager) => manager.datasets[dataset].on_fetched(now, item),
        }
    }

    /// Drops the items of one of `nodes` nodes.
    pub fn lose_node(&mut self, node: u32, nodes: u32) {
        match self {
            Self::Nothing | Self::Everything => {}
            Self::Recent(recent) => recent.lose_node(node, nodes),
            Self::Chunks(manager) => {
                manager.datasets.iter_mut().for_each(|dataset| dataset.lose_node(node, nodes));
            }
        }
    }
}

/// One LRU list over the items of all datasets.
#[derive(Debug)]
pub(super) struct RecentItems {
    lru: Lru,
    /// First item number and item length of each dataset.
    datasets: Vec<(u32, u64)>,
}

impl RecentItems {
    fn new(setup: &Setup) -> Self {
        let narrow = |n: u64| u32::try_from(n).expect("scenarios limit the number of items");
        let mut items = 0;
        let datasets = setup.datasets.iter().map(|dataset| {
            items += dataset.items;
            (narrow(items - dataset.items), dataset.item_bytes)
        });
        let datasets = datasets.collect();
        Self { lru: Lru::new(narrow(items) as usize, setup.capacity.0), datasets }
    }

    fn read(&mut self, dataset: usize, item: u32) -> bool {
        self.lru.read(self.datasets[dataset].0 + item)
    }

    fn on_fetched(&mut self, dataset: usize, item: u32) -> Fetched {
        let (first, bytes) = self.datasets[dataset];
        if self.lru.insert(first + item, bytes) { Fetched::Kept } else { Fetched::Duplicate }
    }

    fn lose_node(&mut self, node: u32, nodes: u32) {
        for item in 0..self.lru.items() {
            if is_on(item, node, nodes) {
                self.lru.remove(item);
            }
        }
    }
}

/// Whether an item is on a node. Items are spread evenly, independently of chunks and samplers.
pub(super) fn is_on(item: u32, node: u32, nodes: u32) -> bool {
    let spread = u64::from(item).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    spread % u64::from(nodes) == u64::from(node)
}

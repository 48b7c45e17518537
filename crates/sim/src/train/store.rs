//! What is resident, under every policy: the one thing that jobs see of a cache.

use forebay_core::sampler::Layout;

use super::{lru::Lru, manager::Manager, policy::Policy, scenario::Setup, time::Nanos};

/// Everything that is kept, and who decides about it.
#[derive(Debug)]
pub(super) enum Store {
    /// Nothing is.
    Nothing,
    /// Everything is.
    Everything,
    /// Whatever was read last is.
    Recent(Recent),
    /// Chunks are, as a manager says.
    Chunks(Box<Manager>),
}

/// What became of an item that was fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// It is resident now.
    Kept,
    /// It was already: somebody else has fetched it as well.
    Duplicate,
    /// It is not kept.
    Outside,
}

impl Store {
    pub fn new(setup: &Setup, policy: Policy, seed: u64) -> Self {
        match policy {
            Policy::None => Self::Nothing,
            Policy::Hit => Self::Everything,
            Policy::Lru => Self::Recent(Recent::new(setup)),
            Policy::Quiver | Policy::Forebay => {
                Self::Chunks(Box::new(Manager::new(setup, policy, seed)))
            }
        }
    }

    /// How samplers see a dataset.
    pub fn layout(&self, setup: &Setup, dataset: usize) -> Layout {
        match self {
            Self::Chunks(manager) => manager.layout(dataset),
            _ => setup.datasets[dataset].layout(),
        }
    }

    /// Who decides about chunks, if anybody does.
    pub fn manager(&mut self) -> Option<&mut Manager> {
        match self {
            Self::Chunks(manager) => Some(manager),
            _ => None,
        }
    }

    /// Reads an item, if it is resident.
    pub fn read(&mut self, dataset: usize, item: u32) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Recent(recent) => recent.read(dataset, item),
            Self::Chunks(manager) => manager.shelves[dataset].is_resident(item),
        }
    }

    /// Whether somebody is fetching an item for all.
    pub fn is_claimed(&self, dataset: usize, item: u32) -> bool {
        match self {
            Self::Chunks(manager) => {
                manager.has_claims() && manager.shelves[dataset].is_in_flight(item)
            }
            _ => false,
        }
    }

    /// An item has come from the origin.
    pub fn fetched(&mut self, now: Nanos, dataset: usize, item: u32) -> Fetched {
        match self {
            Self::Nothing => Fetched::Outside,
            Self::Everything => unreachable!("nothing is ever fetched"),
            Self::Recent(recent) => recent.fetched(dataset, item),
            Self::Chunks(manager) => manager.shelves[dataset].fetched(now, item),
        }
    }

    /// One of `nodes` nodes has lost what it held.
    pub fn lose_node(&mut self, node: u32, nodes: u32) {
        match self {
            Self::Nothing | Self::Everything => {}
            Self::Recent(recent) => recent.lose_node(node, nodes),
            Self::Chunks(manager) => {
                manager.shelves.iter_mut().for_each(|shelf| shelf.lose_node(node, nodes));
            }
        }
    }
}

/// One LRU list over the items of all datasets.
#[derive(Debug)]
pub(super) struct Recent {
    lru: Lru,
    /// Where the items of each dataset begin, and how long they are.
    datasets: Vec<(u32, u64)>,
}

impl Recent {
    fn new(setup: &Setup) -> Self {
        let narrow = |n: u64| u32::try_from(n).expect("scenarios are checked");
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

    fn fetched(&mut self, dataset: usize, item: u32) -> Fetched {
        let (first, bytes) = self.datasets[dataset];
        if self.lru.keep(first + item, bytes) { Fetched::Kept } else { Fetched::Duplicate }
    }

    fn lose_node(&mut self, node: u32, nodes: u32) {
        for item in 0..self.lru.items() {
            if is_on(item, node, nodes) {
                self.lru.drop_item(item);
            }
        }
    }
}

/// Items are spread evenly, in no order that a sampler or a chunk would know.
pub(super) fn is_on(item: u32, node: u32, nodes: u32) -> bool {
    let spread = u64::from(item).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    spread % u64::from(nodes) == u64::from(node)
}

//! The ring: which of several nodes owns a blob, a dataset's manager, or the split of space.
//!
//! Weighted rendezvous hashing: every node has a bid for every key, and the highest bid owns the
//! key. The owner follows from the list of nodes alone, so clients and nodes need to agree on
//! nothing else. A node that is added or removed gains or loses its own keys; no other key moves.
//!
//! A node that is down keeps its keys. Its blobs are read from the origin meanwhile and are found
//! again when it is back. If other nodes took them over, every restart would fetch everything
//! twice. Only work that has to be done all the time, such as managing a dataset, goes to the next
//! node in the key's order.
//!
//! With `isolate_zones` each zone has a ring of its own. A job uses that of its zone, so that
//! nothing crosses the slow links between zones (Quiver 4.9).

mod bid;
mod members;
mod owner_map;
mod seeds;
mod view;

pub use members::{Fingerprint, ListError, Member, NODES_MAX, NodeList, RingMembership, Weight};
pub use owner_map::OwnerMap;
pub use seeds::{Seeds, SeedsError};
pub use view::{RingChange, RingView};

use crate::{Address, DatasetId, NodeName};
use bid::Seed;

/// A ring key: what has an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a task that one node does for all, by the name of the task.
    pub fn named(name: &str) -> Self {
        Self(blake3::derive_key("forebay 2026 ring name", name.as_bytes()))
    }
}

impl From<&Address> for Key {
    fn from(address: &Address) -> Self {
        Self(*address.as_bytes())
    }
}

impl From<&DatasetId> for Key {
    fn from(dataset: &DatasetId) -> Self {
        Self(*dataset.as_bytes())
    }
}

/// One or more nodes that divide all keys among them.
#[derive(Debug, Clone)]
pub struct Ring {
    members: Vec<Member>,
    seeds: Vec<Seed>,
}

impl Ring {
    /// In the order of the list, which is sorted by name.
    fn new(members: Vec<Member>) -> Self {
        assert!(!members.is_empty(), "a list has members");
        let seeds = members.iter().map(|member| Seed::of(&member.name)).collect();
        Self { members, seeds }
    }

    /// All members, sorted by name. Other methods identify a member by its index here.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of a node.
    pub fn index_of(&self, name: &NodeName) -> Option<usize> {
        self.members.binary_search_by(|member| member.name.cmp(name)).ok()
    }

    /// The index of the node that owns a key.
    pub fn owner(&self, key: impl Into<Key>) -> usize {
        if self.members.len() == 1 {
            return 0;
        }
        let key = key.into();
        // Equal bids, which hardly occur, go to the first name.
        let (mut owner, mut highest) = (0, 0.0);
        for index in 0..self.members.len() {
            let bid = self.bid(index, &key);
            if bid > highest {
                (owner, highest) = (index, bid);
            }
        }
        owner
    }

    /// The indices of all nodes, the owner first. If a node cannot be reached, the next one takes
    /// its place.
    pub fn order(&self, key: impl Into<Key>) -> Vec<usize> {
        let key = key.into();
        let mut bids: Vec<(f64, usize)> =
            (0..self.members.len()).map(|index| (self.bid(index, &key), index)).collect();
        bids.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        bids.into_iter().map(|(_, index)| index).collect()
    }

    fn bid(&self, index: usize, key: &Key) -> f64 {
        self.seeds[index].bid(key, self.members[index].weight)
    }
}

#[cfg(test)]
mod tests;

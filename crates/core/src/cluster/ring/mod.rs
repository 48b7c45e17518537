//! The ring: which of several nodes owns a blob, a dataset's manager, or the split of space.
//!
//! Every node is asked, in thought, what it bids for a key; the highest bid wins (weighted rendezvous
//! hashing). Nobody has to agree with anybody but on the list of nodes: whoever knows that, knows the owner
//! of everything. A node that is added or removed takes or leaves its own share, and nothing else moves.
//!
//! A node that is down keeps its share: its blobs are read from the origin meanwhile, and are found again when
//! it is back. Were they given to others, everything would be fetched twice for every restart. Only
//! what has to be done by somebody, such as managing a dataset, goes to the next in order.
//!
//! With zones apart there is a ring for each of them: a job uses that of its zone, so that nothing crosses
//! the slow links between them (Quiver 4.9).

mod contacts;
mod known;
mod list;
mod score;

pub use contacts::{Contacts, ContactsError};
pub use known::{Heard, KnownRing};
pub use list::{Fingerprint, ListError, Member, Membership, NODES_MAX, NodeList, Weight};

use crate::{Address, DatasetId, NodeName};
use score::Seed;

/// What is owned by somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// The owner of this name does what only one may do.
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

/// Some nodes that share the work. There is at least one.
#[derive(Debug, Clone)]
pub struct Ring {
    members: Vec<Member>,
    seeds: Vec<Seed>,
}

impl Ring {
    /// In the order of the list, which is that of the names.
    fn new(members: Vec<Member>) -> Self {
        assert!(!members.is_empty(), "a list has members");
        let seeds = members.iter().map(|member| Seed::of(&member.name)).collect();
        Self { members, seeds }
    }

    /// All of them, by name. Elsewhere they are spoken of by their place here.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The place of a node.
    pub fn place_of(&self, name: &NodeName) -> Option<usize> {
        self.members.binary_search_by(|member| member.name.cmp(name)).ok()
    }

    /// The place of the node that owns a key.
    pub fn owner(&self, key: impl Into<Key>) -> usize {
        if self.members.len() == 1 {
            return 0;
        }
        let key = key.into();
        // Of two that bid alike, which hardly happens, the one whose name comes first.
        let (mut owner, mut highest) = (0, 0.0);
        for place in 0..self.members.len() {
            let bid = self.bid(place, &key);
            if bid > highest {
                (owner, highest) = (place, bid);
            }
        }
        owner
    }

    /// The places of all nodes, the owner first: if it cannot be reached, the next one does what has to be
    /// done.
    pub fn order(&self, key: impl Into<Key>) -> Vec<usize> {
        let key = key.into();
        let mut bids: Vec<(f64, usize)> =
            (0..self.members.len()).map(|place| (self.bid(place, &key), place)).collect();
        bids.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        bids.into_iter().map(|(_, place)| place).collect()
    }

    fn bid(&self, place: usize, key: &Key) -> f64 {
        self.seeds[place].bid(key, self.members[place].weight)
    }
}

#[cfg(test)]
mod tests;

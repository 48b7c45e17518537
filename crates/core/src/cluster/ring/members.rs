//! The list of nodes: validated, sorted by name, and with a fingerprint by which two processes can
//! see whether they have the same list.

use std::{collections::BTreeSet, fmt};

use super::Ring;
use crate::{
    Endpoint, NodeName, Zone,
    ids::{PlainNameError, endpoint::EndpointError},
};

/// Most nodes in a list.
pub const NODES_MAX: usize = 1024;
/// Longest endpoint, in bytes.
const ENDPOINT_SIZE_MAX: usize = 512;
/// Names that the error for a missing name shows.
const NAMES_SHOWN: usize = 16;

/// A member's relative capacity. In thousandths, so that all machines compute with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    const THOUSANDTHS_MAX: u32 = 1_000_000_000;

    /// From thousandths, as in a message or a configuration.
    pub fn from_thousandths(thousandths: u32) -> Result<Self, ListError> {
        if (1..=Self::THOUSANDTHS_MAX).contains(&thousandths) {
            Ok(Self(thousandths))
        } else {
            Err(ListError::Weight { weight: f64::from(thousandths) / 1000.0 })
        }
    }

    /// From a number such as 1 or 2.5.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked before")]
    pub fn new(weight: f64) -> Result<Self, ListError> {
        let thousandths = (weight * 1000.0).round();
        if (1.0..=f64::from(Self::THOUSANDTHS_MAX)).contains(&thousandths) {
            Ok(Self(thousandths as u32))
        } else {
            Err(ListError::Weight { weight })
        }
    }

    /// The weight in thousandths, as it is sent.
    pub fn thousandths(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(1000)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / 1000.0).fmt(f)
    }
}

/// One node of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, which never changes: it determines the keys that the node owns.
    pub name: NodeName,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its relative capacity.
    pub weight: Weight,
    /// The part of the network that it is in.
    pub zone: Option<Zone>,
}

/// Why a list is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ListError {
    /// It is empty.
    #[error("the list has no nodes; name at least one")]
    Empty,
    /// It has more than [`NODES_MAX`] nodes.
    #[error("the list has {0} nodes; {NODES_MAX} are allowed")]
    TooMany(usize),
    /// Two nodes have one name.
    #[error("two nodes are called `{0}`; give each a name of its own")]
    Name(NodeName),
    /// Two names have one endpoint.
    #[error("`{0}` and `{1}` have the same endpoint `{2}`; remove one, or correct its endpoint")]
    SameEndpoint(NodeName, NodeName, Endpoint),
    /// An endpoint is too long for a message.
    #[error("the endpoint of `{0}` is longer than {ENDPOINT_SIZE_MAX} bytes; use a shorter path")]
    EndpointSize(NodeName),
    /// An endpoint is malformed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A weight is out of range.
    #[error("weight {weight} is out of range; use a number from 0.001 to 1000000, such as 1")]
    Weight {
        /// The value.
        weight: f64,
    },
    /// `isolate_zones` is set and a node has no zone.
    #[error(
        "`{0}` has no zone, which `isolate_zones` requires; give every node a `zone`, or set \
         `isolate_zones = false`"
    )]
    NoZone(NodeName),
    /// A node is not in its own list.
    #[error("this node is called `{name}`, which is not in its list; the list has {members}")]
    NotAMember {
        /// Its name.
        name: NodeName,
        /// The names in the list.
        members: String,
    },
    /// A name is malformed.
    #[error(transparent)]
    Plain(#[from] PlainNameError),
}

/// A hash of a list: equal if and only if the lists are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 8]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeList {
    /// Sorted by name.
    members: Vec<Member>,
    isolate_zones: bool,
}

impl NodeList {
    /// Validates a list. The order of `members` makes no difference.
    pub fn new(mut members: Vec<Member>, isolate_zones: bool) -> Result<Self, ListError> {
        if members.is_empty() {
            return Err(ListError::Empty);
        }
        if members.len() > NODES_MAX {
            return Err(ListError::TooMany(members.len()));
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(twins) = members.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(ListError::Name(twins[0].name.clone()));
        }
        let mut endpoints = BTreeSet::new();
        for member in &members {
            if member.endpoint.to_string().len() > ENDPOINT_SIZE_MAX {
                return Err(ListError::EndpointSize(member.name.clone()));
            }
            if !endpoints.insert(&member.endpoint) {
                let same = |other: &&Member| other.endpoint == member.endpoint;
                let first = members.iter().find(same).expect("it was inserted");
                let (first, second) = (first.name.clone(), member.name.clone());
                return Err(ListError::SameEndpoint(first, second, member.endpoint.clone()));
            }
            if isolate_zones && member.zone.is_none() {
                return Err(ListError::NoZone(member.name.clone()));
            }
        }
        Ok(Self { members, isolate_zones })
    }

    /// All members, sorted by name.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether each zone has a ring of its own.
    pub fn isolate_zones(&self) -> bool {
        self.isolate_zones
    }

    /// The member of this name.
    pub fn member(&self, name: &NodeName) -> Option<&Member> {
        let index = self.members.binary_search_by(|member| member.name.cmp(name));
        index.ok().map(|index| &self.members[index])
    }

    /// The ring of this zone, or of all nodes without `isolate_zones`. `None` if no node is in it.
    pub fn ring(&self, zone: Option<&Zone>) -> Option<Ring> {
        let belongs = |member: &&Member| !self.isolate_zones || member.zone.as_ref() == zone;
        let members: Vec<Member> = self.members.iter().filter(belongs).cloned().collect();
        (!members.is_empty()).then(|| Ring::new(members))
    }

    /// The ring that a node is in.
    pub fn ring_of(&self, name: &NodeName) -> Option<Ring> {
        self.ring(self.member(name)?.zone.as_ref())
    }

    /// The fingerprint of the list.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("forebay 2026 ring list");
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(if self.isolate_zones { "apart" } else { "together" });
        for Member { name, endpoint, weight, zone } in &self.members {
            text(name.as_str());
            text(&endpoint.to_string());
            text(zone.as_ref().map_or("", Zone::as_str));
            text(&weight.thousandths().to_string());
        }
        let hash = *hasher.finalize().as_bytes();
        Fingerprint(hash[..8].try_into().expect("eight bytes"))
    }
}

/// A node's own name and its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingMembership {
    name: NodeName,
    list: NodeList,
}

impl RingMembership {
    /// Checks that the node is in the list.
    pub fn new(name: NodeName, list: NodeList) -> Result<Self, ListError> {
        if list.member(&name).is_none() {
            let names: Vec<&str> =
                list.members.iter().take(NAMES_SHOWN).map(|member| member.name.as_str()).collect();
            let more = if list.members.len() > NAMES_SHOWN { ", ..." } else { "" };
            return Err(ListError::NotAMember { name, members: names.join(", ") + more });
        }
        Ok(Self { name, list })
    }

    /// The name of the node.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// All nodes, itself included.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// The ring that it is in.
    pub fn ring(&self) -> Ring {
        self.list.ring_of(&self.name).expect("it is in the list")
    }
}

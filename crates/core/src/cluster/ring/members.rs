//! The list of nodes: checked, in one order, and with a fingerprint, so that two who hold lists can see
//! whether they hold the same.

use std::{collections::BTreeSet, fmt};

use super::Ring;
use crate::{Endpoint, NodeName, Zone, endpoint::EndpointError, names::PlainNameError};

/// No list is longer.
pub const NODES_MAX: usize = 1024;
/// No endpoint is longer, in bytes.
const ENDPOINT_SIZE_MAX: usize = 512;
/// So many names are told to somebody whose own is not among them.
const NAMES_SHOWN: usize = 16;

/// How much of the work a node takes, beside the others. In thousandths, so that all machines mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    const THOUSANDTHS_MAX: u32 = 1_000_000_000;

    /// From what a person or another node says.
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

    /// As it goes over the wire.
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
    /// What it is called, for ever.
    pub name: NodeName,
    /// Where it is found.
    pub endpoint: Endpoint,
    /// How much it takes.
    pub weight: Weight,
    /// Where it stands.
    pub zone: Option<Zone>,
}

/// Why a list cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ListError {
    /// It is empty.
    #[error("the list has no nodes; name at least one")]
    Empty,
    /// Too long.
    #[error("the list has {0} nodes; {NODES_MAX} are allowed")]
    TooMany(usize),
    /// Two nodes of one name.
    #[error("two nodes are called `{0}`; give each a name of its own")]
    Name(NodeName),
    /// Two names for one node.
    #[error("`{0}` and `{1}` have the same endpoint `{2}`; remove one, or correct its endpoint")]
    SameEndpoint(NodeName, NodeName, Endpoint),
    /// An endpoint that is too long to be told.
    #[error("the endpoint of `{0}` is longer than {ENDPOINT_SIZE_MAX} bytes; use a shorter path")]
    EndpointSize(NodeName),
    /// An endpoint that is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A share that makes no sense.
    #[error("a weight of {weight} makes no sense; use a number from 0.001 to 1000000, such as 1")]
    Weight {
        /// What was said.
        weight: f64,
    },
    /// A node without a zone, where zones are apart.
    #[error(
        "`{0}` has no zone, but zones are apart; give every node a `zone`, or set `zones_apart = false`"
    )]
    NoZone(NodeName),
    /// A node that is not in its own list.
    #[error("no node of the list is called `{name}`, as this one is; there are {there}")]
    NotInIt {
        /// What it is called.
        name: NodeName,
        /// Those that are.
        there: String,
    },
    /// A name that cannot be one.
    #[error(transparent)]
    Plain(#[from] PlainNameError),
}

/// What two lists have in common if and only if they are the same.
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

/// All nodes there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeList {
    /// By name.
    members: Vec<Member>,
    zones_apart: bool,
}

impl NodeList {
    /// Checks a list; in which order it comes makes no difference.
    pub fn new(mut members: Vec<Member>, zones_apart: bool) -> Result<Self, ListError> {
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
            if zones_apart && member.zone.is_none() {
                return Err(ListError::NoZone(member.name.clone()));
            }
        }
        Ok(Self { members, zones_apart })
    }

    /// All of them, by name.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether each zone has a ring of its own.
    pub fn zones_apart(&self) -> bool {
        self.zones_apart
    }

    /// The node of that name.
    pub fn member(&self, name: &NodeName) -> Option<&Member> {
        let place = self.members.binary_search_by(|member| member.name.cmp(name));
        place.ok().map(|place| &self.members[place])
    }

    /// The ring of this zone, or of all nodes if zones are not apart. Nothing, if no node is there.
    pub fn ring(&self, zone: Option<&Zone>) -> Option<Ring> {
        let belongs = |member: &&Member| !self.zones_apart || member.zone.as_ref() == zone;
        let members: Vec<Member> = self.members.iter().filter(belongs).cloned().collect();
        (!members.is_empty()).then(|| Ring::new(members))
    }

    /// The ring that a node is in.
    pub fn ring_of(&self, name: &NodeName) -> Option<Ring> {
        self.ring(self.member(name)?.zone.as_ref())
    }

    /// Same list, same fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("forebay 2026 ring list");
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(if self.zones_apart { "apart" } else { "together" });
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

/// Who a node is, and among whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    name: NodeName,
    list: NodeList,
}

impl Membership {
    /// Checks that the node is in the list.
    pub fn new(name: NodeName, list: NodeList) -> Result<Self, ListError> {
        if list.member(&name).is_none() {
            let names: Vec<&str> =
                list.members.iter().take(NAMES_SHOWN).map(|member| member.name.as_str()).collect();
            let more = if list.members.len() > NAMES_SHOWN { ", ..." } else { "" };
            return Err(ListError::NotInIt { name, there: names.join(", ") + more });
        }
        Ok(Self { name, list })
    }

    /// What the node is called.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// Itself and the others.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// The ring that it is in.
    pub fn ring(&self) -> Ring {
        self.list.ring_of(&self.name).expect("it is in the list")
    }
}

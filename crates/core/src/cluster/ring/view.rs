//! Ring view: the list that a client uses, and the node that it came from.
//!
//! Lists are files that operators copy, and one copy may be older than another. A client that took
//! the list of whichever node it reached last would look for the same blob in different places. So
//! the first list stays in use until the node that it came from reports another. A different list
//! on any other node is reported and not used.

use super::{Fingerprint, NodeList, RingMembership};
use crate::NodeName;

/// The list in use and its source.
#[derive(Debug, Clone)]
pub struct RingView {
    list: NodeList,
    fingerprint: Fingerprint,
    /// The node that sent it; `None` for a list from a file.
    from: Option<NodeName>,
}

/// The effect of a node's membership on a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingChange {
    /// The node has the list in use.
    Unchanged,
    /// The source of the list has another one, which is in use from now on.
    Updated,
    /// Another node has a different list, with this fingerprint. The list in use stays.
    Conflict(Fingerprint),
    /// The endpoint belongs to another node than expected. It must not be used.
    WrongNode,
}

impl RingView {
    /// A list from this node, or from a file.
    pub fn new(list: NodeList, from: Option<NodeName>) -> Self {
        Self { fingerprint: list.fingerprint(), list, from }
    }

    /// The list in use.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Takes the membership that the node expected as `expected` has sent; `None` if it has no
    /// list.
    pub fn on_membership(
        &mut self,
        expected: &NodeName,
        membership: Option<&RingMembership>,
    ) -> RingChange {
        let Some(membership) = membership.filter(|membership| membership.name() == expected) else {
            return RingChange::WrongNode;
        };
        let fingerprint = membership.list().fingerprint();
        if fingerprint == self.fingerprint {
            return RingChange::Unchanged;
        }
        if self.from.as_ref() != Some(expected) {
            return RingChange::Conflict(fingerprint);
        }
        (self.list, self.fingerprint) = (membership.list().clone(), fingerprint);
        RingChange::Updated
    }
}

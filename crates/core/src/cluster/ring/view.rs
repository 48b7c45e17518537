//! The ring as somebody outside knows it: learnt from one node, and doubted by the others.
//!
//! Lists are files that people copy, and one copy may be older than another. Whoever asks every node anew which
//! list holds would look for a blob now here and now there. So the list that was learnt first holds until the
//! very node that it was learnt from says otherwise; that others differ is noticed and told.

use super::{Fingerprint, Membership, NodeList};
use crate::NodeName;

/// What somebody knows.
#[derive(Debug, Clone)]
pub struct KnownRing {
    list: NodeList,
    fingerprint: Fingerprint,
    /// Who said so; nobody, if it was read from a file.
    from: Option<NodeName>,
}

/// What to make of a node's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is the one that was meant, and has the same list.
    Same,
    /// The one from which the list was learnt has another now: this is it from now on.
    Changed,
    /// It has another list than the one that holds: its fingerprint.
    Differs(Fingerprint),
    /// It is not the node that should be there. It is not asked for anything.
    Wrong,
}

impl KnownRing {
    /// Learnt from this node, or from a file.
    pub fn new(list: NodeList, from: Option<NodeName>) -> Self {
        Self { fingerprint: list.fingerprint(), list, from }
    }

    /// The list that holds.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The node that was looked for as `expected` says who it is, and among whom; or that it knows of no
    /// others.
    pub fn heard(&mut self, expected: &NodeName, says: Option<&Membership>) -> Heard {
        let Some(says) = says.filter(|says| says.name() == expected) else { return Heard::Wrong };
        let fingerprint = says.list().fingerprint();
        if fingerprint == self.fingerprint {
            return Heard::Same;
        }
        if self.from.as_ref() != Some(expected) {
            return Heard::Differs(fingerprint);
        }
        (self.list, self.fingerprint) = (says.list().clone(), fingerprint);
        Heard::Changed
    }
}

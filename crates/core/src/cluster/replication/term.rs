//! Terms: which manager of a dataset is the newest.

use std::fmt;

use crate::NodeName;

/// A period in which one node manages a dataset. The higher number is the newer term; of equal
/// numbers the names decide, so that all nodes decide alike. The manager's incarnation is part of
/// the term: a restarted node has forgotten the versions that it sent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// Increases with every takeover.
    pub number: u64,
    /// The managing node.
    pub manager: NodeName,
    /// A random number that the manager chose when it started.
    pub incarnation: u64,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of node {}", self.number, self.manager)
    }
}

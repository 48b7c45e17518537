//! Terms: whose word about a dataset counts.

use std::fmt;

use crate::NodeName;

/// A time in which one node manages a dataset. Of two terms the higher number is the newer; should two nodes
/// have chosen the same number at once, their names decide, so that everybody decides alike. The life of the
/// node is part of it: a node that was started again has forgotten what it said in its terms before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// Counts up.
    pub number: u64,
    /// Who manages.
    pub manager: NodeName,
    /// In which of its lives: a random number.
    pub life: u64,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of node {}", self.number, self.manager)
    }
}

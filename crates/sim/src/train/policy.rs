//! The policies that a scenario can run under.

use std::{fmt, str::FromStr};

use serde::Serialize;

/// What stands between jobs and the origin, and who decides what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Nothing: every item comes from the origin.
    None,
    /// A general cache: the least recently used item goes first, and jobs keep to their order.
    Lru,
    /// Everything is there from the beginning: the least that storage can cost.
    Hit,
    /// Quiver as published: Algorithm 1, two rotating chunks, the greedy rule.
    Quiver,
    /// Ours: claims, held chunks, rotation by need, a knapsack on the GPU time saved.
    Forebay,
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{name}`; there are {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct PolicyError {
    name: String,
}

impl Policy {
    /// All of them, from the least to the most.
    pub const ALL: [Self; 5] = [Self::None, Self::Lru, Self::Hit, Self::Quiver, Self::Forebay];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lru => "lru",
            Self::Hit => "hit",
            Self::Quiver => "quiver",
            Self::Forebay => "forebay",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or_else(|| PolicyError { name: text.to_owned() })
    }
}

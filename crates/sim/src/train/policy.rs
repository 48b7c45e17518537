//! Policies of training scenarios.

use std::{fmt, str::FromStr};

use serde::Serialize;

/// The cache between jobs and the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// No cache: every item comes from the origin.
    None,
    /// A general cache that evicts the least recently used item; jobs keep to their order.
    Lru,
    /// Everything is cached from the start: the fastest that storage can be.
    Hit,
    /// Quiver as published: Algorithm 1, two rotating chunks, the greedy rule.
    Quiver,
    /// Quiver with the preload of its section 5.1: idle links fetch the chunk that is being loaded
    /// before jobs turn to it, and no item is fetched twice.
    QuiverPreload,
    /// forebay: claims, pinned chunks, rotation by need, a knapsack on the GPU time saved.
    Forebay,
}

/// An unknown policy name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{name}`; there are {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct PolicyError {
    name: String,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Lru, Self::Hit, Self::Quiver, Self::QuiverPreload, Self::Forebay];

    /// Whether a manager decides which chunks are cached.
    pub(super) fn is_chunked(self) -> bool {
        matches!(self, Self::Quiver | Self::QuiverPreload | Self::Forebay)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lru => "lru",
            Self::Hit => "hit",
            Self::Quiver => "quiver",
            Self::QuiverPreload => "quiver-preload",
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

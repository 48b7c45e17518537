//! Eviction policies: the choice of the region that makes room. The engine takes one from its
//! caller.

use crate::format::{Generation, RegionId};

/// A region that may be evicted.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The region.
    pub region: RegionId,
    /// Its generation; a later one is greater.
    pub generation: Generation,
    /// The name of its group.
    pub group: &'a [u8],
    /// The lifetime class of its group.
    pub class: u8,
    /// Number of its entries.
    pub entries: u64,
    /// Payload bytes of its entries.
    pub bytes: u64,
    /// Bytes of a region.
    pub size: u64,
}

/// An eviction policy.
pub trait Eviction: Send {
    /// Chooses one of the candidates. With `None`, the append fails for lack of space.
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId>;
}

/// Evicts the region that was begun first.
#[derive(Debug, Default)]
pub struct OldestFirst;

impl Eviction for OldestFirst {
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        candidates.min_by_key(|candidate| candidate.generation).map(|candidate| candidate.region)
    }
}

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
}

/// A region in one generation: the same entries for as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionRef {
    /// The region.
    pub region: RegionId,
    /// Its generation.
    pub generation: Generation,
}

/// An eviction policy. The shard calls it under its lock, so it calls no shard.
pub trait Eviction: Send {
    /// Names the region to evict, without a look at the others. [`Eviction::victim`] is asked if
    /// it names none, or one that may not be evicted now.
    fn named_victim(&mut self) -> Option<RegionRef> {
        None
    }

    /// A region is sealed: it can be evicted from now on. Not called for what recovery finds.
    fn on_sealed(&mut self, _region: RegionRef) {}

    /// A region was evicted, or is lost, or its group was freed: its entries are not found any
    /// more.
    fn on_freed(&mut self, _region: RegionRef) {}

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

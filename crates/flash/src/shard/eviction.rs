//! What goes when there is no room: an order that somebody hands in, region by region.

use crate::layout::{Generation, RegionId};

/// A region that may go.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Which.
    pub region: RegionId,
    /// Its life; a greater one began later.
    pub generation: Generation,
    /// The name of its group.
    pub group: &'a [u8],
    /// The lifetime class of its group.
    pub class: u8,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// Decides which region goes.
pub trait Eviction: Send {
    /// Picks one of the candidates, or none: then nothing is written.
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId>;
}

/// The region that was begun first goes first.
#[derive(Debug, Default)]
pub struct OldestFirst;

impl Eviction for OldestFirst {
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        candidates.min_by_key(|candidate| candidate.generation).map(|candidate| candidate.region)
    }
}

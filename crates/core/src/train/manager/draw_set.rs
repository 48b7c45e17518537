//! What a job is told to draw from, and what its sampler makes of that.

use crate::{benefit::Mode, chunking::ChunkOrdinal};

/// How a piece stands in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Nothing of it is kept.
    #[default]
    None,
    /// It is kept for a while.
    Rotating,
    /// It is kept for good.
    Held,
}

/// The pieces that a job draws from, by how. What they mean is said at [`crate::rotation::Open`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Open {
    /// Those that stay for good.
    pub held: Vec<ChunkOrdinal>,
    /// Those to draw from, as one.
    pub first: Vec<ChunkOrdinal>,
    /// Those to go on with, one after the other.
    pub then: Vec<Vec<ChunkOrdinal>>,
}

/// What a sampler is told before it draws a batch: its `open` and its `leaving`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Directions {
    /// Pieces that stay for good.
    pub held: Vec<ChunkOrdinal>,
    /// Pieces that are there for a while.
    pub rotating: Vec<ChunkOrdinal>,
    /// The one that is read before the others.
    pub leaving: Option<ChunkOrdinal>,
}

impl Open {
    /// All pieces that are there for a while.
    pub fn rotating(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.first.iter().chain(self.then.iter().flatten()).copied()
    }

    /// What to draw a batch from, given what is unread: the first as one, and when they are running out,
    /// the others as well, but the first before them.
    pub fn directions(&self, batch: u64, unread: impl Fn(ChunkOrdinal) -> u64) -> Directions {
        let mut rotating = self.first.clone();
        let mut left: u64 = rotating.iter().map(|piece| unread(*piece)).sum();
        let is_running_out = left < batch;
        let leaving = rotating.iter().copied().find(|piece| unread(*piece) > 0);
        for pieces in &self.then {
            if left >= batch {
                break;
            }
            left += pieces.iter().map(|piece| unread(*piece)).sum::<u64>();
            rotating.extend(pieces);
        }
        let leaving = leaving.filter(|_| is_running_out);
        Directions { held: self.held.clone(), rotating, leaving }
    }
}

/// Where a mini-batch comes from, given the places of its items' pieces and whether all of them are
/// resident; `None` if that is not one place, so that its time tells nothing.
pub fn mode(places: impl IntoIterator<Item = Place>, all_resident: bool) -> Option<Mode> {
    let (mut is_kept, mut is_rotating) = (false, false);
    for place in places {
        is_kept |= place != Place::None;
        is_rotating |= place == Place::Rotating;
    }
    match (is_kept, is_rotating) {
        (false, _) => Some(Mode::Miss),
        (true, true) => Some(Mode::Rotating),
        (true, false) => all_resident.then_some(Mode::Hit),
    }
}

//! Which chunks batches are drawn from.

use super::Contradiction;
use crate::chunking::ChunkOrdinal;

/// How a chunk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Cached for good.
    Held,
    /// Cached for a while, or on its way.
    Rotating,
    /// Not open.
    Outside,
}

/// The chunks by how they stand.
#[derive(Debug, Clone)]
pub(super) struct Open {
    standing: Vec<Standing>,
    pub(super) held: Vec<u32>,
    /// The rotating chunk that makes room for the next.
    pub(super) leaving: Option<u32>,
    /// All other rotating ones.
    pub(super) rotating: Vec<u32>,
    pub(super) outside: Vec<u32>,
}

impl Open {
    /// Everything is open, as far as anyone knows.
    pub(super) fn all(chunks: u32) -> Self {
        let (held, rotating, outside) = (Vec::new(), (0..chunks).collect(), Vec::new());
        let standing = vec![Standing::Rotating; chunks as usize];
        Self { standing, held, leaving: None, rotating, outside }
    }

    pub(super) fn new(
        chunks: u32,
        held: &[ChunkOrdinal],
        rotating: &[ChunkOrdinal],
    ) -> Result<Self, Contradiction> {
        let mut standing = vec![Standing::Outside; chunks as usize];
        let named = held.iter().map(|chunk| (chunk, Standing::Held));
        for (chunk, as_what) in
            named.chain(rotating.iter().map(|chunk| (chunk, Standing::Rotating)))
        {
            match standing.get_mut(chunk.0 as usize) {
                None => return Err(Contradiction::NoSuchChunk { chunk: chunk.0, chunks }),
                Some(known) if *known == Standing::Outside => *known = as_what,
                Some(_) => return Err(Contradiction::OpenTwice { chunk: chunk.0 }),
            }
        }
        let those = |wanted: Standing| {
            let all = (0..).zip(&standing);
            all.filter(|(_, standing)| **standing == wanted).map(|(chunk, _)| chunk).collect()
        };
        let (held, rotating) = (those(Standing::Held), those(Standing::Rotating));
        Ok(Self { held, leaving: None, rotating, outside: those(Standing::Outside), standing })
    }

    /// This one makes room next, or none does.
    pub(super) fn leave(&mut self, chunk: Option<ChunkOrdinal>) -> Result<(), Contradiction> {
        let rotates = |chunk: u32| self.standing.get(chunk as usize) == Some(&Standing::Rotating);
        if let Some(ChunkOrdinal(chunk)) = chunk
            && !rotates(chunk)
        {
            return Err(Contradiction::NotRotating { chunk });
        }
        self.rotating.extend(self.leaving);
        self.leaving = chunk.map(|chunk| chunk.0);
        self.rotating.retain(|other| Some(*other) != self.leaving);
        self.rotating.sort_unstable();
        Ok(())
    }

    /// Whether any chunk rotates.
    pub(super) fn rotates(&self) -> bool {
        self.leaving.is_some() || !self.rotating.is_empty()
    }

    pub(super) fn standing(&self, chunk: u32) -> Standing {
        self.standing[chunk as usize]
    }
}

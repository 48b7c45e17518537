//! The draw set of a batch: which half-chunks it is drawn from, and how.

use super::InvalidCall;
use crate::HalfChunk;

/// Half-chunks that the next batches are drawn from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchDrawSet {
    /// Half-chunks that stay in the cache.
    pub pinned: Vec<HalfChunk>,
    /// Half-chunks that rotate: loaded, or loading.
    pub rotating: Vec<HalfChunk>,
    /// The one of `rotating` that makes room for the next: it is read faster than the others.
    /// Without it, all rotating half-chunks are exhausted at about the same time.
    pub leaving: Option<HalfChunk>,
}

/// How the sampler draws from a half-chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawClass {
    Pinned,
    Rotating,
    /// Not in the draw set.
    Uncached,
}

/// A checked [`BatchDrawSet`]: the half-chunks of the dataset by class.
#[derive(Debug, Clone)]
pub(super) struct DrawSet {
    classes: Vec<DrawClass>,
    pub(super) pinned: Vec<u32>,
    /// The rotating half-chunk that makes room for the next.
    pub(super) leaving: Option<u32>,
    /// All other rotating half-chunks.
    pub(super) rotating: Vec<u32>,
    pub(super) uncached: Vec<u32>,
}

impl DrawSet {
    /// All half-chunks rotate: the draw set of a job that has no answer from a manager.
    pub(super) fn all(half_chunks: u32) -> Self {
        let (pinned, rotating, uncached) = (Vec::new(), (0..half_chunks).collect(), Vec::new());
        let classes = vec![DrawClass::Rotating; half_chunks as usize];
        Self { classes, pinned, leaving: None, rotating, uncached }
    }

    pub(super) fn new(half_chunks: u32, draw_set: &BatchDrawSet) -> Result<Self, InvalidCall> {
        let mut classes = vec![DrawClass::Uncached; half_chunks as usize];
        let pinned = draw_set.pinned.iter().map(|half_chunk| (*half_chunk, DrawClass::Pinned));
        let rotating =
            draw_set.rotating.iter().map(|half_chunk| (*half_chunk, DrawClass::Rotating));
        for (half_chunk, class) in pinned.chain(rotating) {
            match classes.get_mut(half_chunk.index()) {
                None => return Err(InvalidCall::NoSuchHalfChunk { half_chunk, half_chunks }),
                Some(known) if *known == DrawClass::Uncached => *known = class,
                Some(_) => return Err(InvalidCall::NamedTwice { half_chunk }),
            }
        }
        if let Some(half_chunk) = draw_set.leaving
            && classes.get(half_chunk.index()) != Some(&DrawClass::Rotating)
        {
            return Err(InvalidCall::NotRotating { half_chunk });
        }
        let leaving = draw_set.leaving.map(|half_chunk| half_chunk.0);
        let of_class = |wanted: DrawClass| -> Vec<u32> {
            let all = (0..).zip(&classes).filter(|(_, class)| **class == wanted);
            all.map(|(half_chunk, _)| half_chunk).collect()
        };
        let mut rotating = of_class(DrawClass::Rotating);
        rotating.retain(|half_chunk| Some(*half_chunk) != leaving);
        let (pinned, uncached) = (of_class(DrawClass::Pinned), of_class(DrawClass::Uncached));
        Ok(Self { classes, pinned, leaving, rotating, uncached })
    }

    /// Whether any half-chunk rotates.
    pub(super) fn rotates(&self) -> bool {
        self.leaving.is_some() || !self.rotating.is_empty()
    }

    pub(super) fn class(&self, half_chunk: u32) -> DrawClass {
        self.classes[half_chunk as usize]
    }
}

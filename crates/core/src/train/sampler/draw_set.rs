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

/// Where the items of a batch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawSourceKind {
    Pinned,
    Leaving,
    Rotating,
    Uncached,
}

impl DrawSourceKind {
    /// All of them, in the order in which a batch is drawn.
    pub(super) const ALL: [Self; 4] = [Self::Pinned, Self::Leaving, Self::Rotating, Self::Uncached];
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
    /// Whether a manager has named the draw set. Without one nothing may be cached.
    pub(super) is_managed: bool,
}

impl DrawSet {
    /// All half-chunks rotate: the draw set of a job that has no answer from a manager.
    pub(super) fn all(half_chunks: u32) -> Self {
        let (pinned, rotating, uncached) = (Vec::new(), (0..half_chunks).collect(), Vec::new());
        let classes = vec![DrawClass::Rotating; half_chunks as usize];
        Self { classes, pinned, leaving: None, rotating, uncached, is_managed: false }
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
        Ok(Self { classes, pinned, leaving, rotating, uncached, is_managed: true })
    }

    /// Whether any half-chunk rotates.
    pub(super) fn rotates(&self) -> bool {
        self.leaving.is_some() || !self.rotating.is_empty()
    }

    /// The half-chunks of a source.
    pub(super) fn of(&self, kind: DrawSourceKind) -> &[u32] {
        match kind {
            DrawSourceKind::Pinned => &self.pinned,
            DrawSourceKind::Leaving => self.leaving.as_slice(),
            DrawSourceKind::Rotating => &self.rotating,
            DrawSourceKind::Uncached => &self.uncached,
        }
    }

    /// The source of a half-chunk.
    pub(super) fn kind(&self, half_chunk: u32) -> DrawSourceKind {
        match self.class(half_chunk) {
            DrawClass::Pinned => DrawSourceKind::Pinned,
            DrawClass::Rotating if self.leaving == Some(half_chunk) => DrawSourceKind::Leaving,
            DrawClass::Rotating => DrawSourceKind::Rotating,
            DrawClass::Uncached => DrawSourceKind::Uncached,
        }
    }

    pub(super) fn class(&self, half_chunk: u32) -> DrawClass {
        self.classes[half_chunk as usize]
    }
}

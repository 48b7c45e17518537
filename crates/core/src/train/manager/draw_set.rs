//! The draw set of a job: the half-chunks that its manager lets it draw from.

use crate::{
    HalfChunk,
    train::{benefit::Mode, sampler::BatchDrawSet},
};

/// How the cache treats a half-chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheClass {
    /// Nothing of it is kept.
    #[default]
    Uncached,
    /// It stays until its readers are done.
    Rotating,
    /// It stays.
    Pinned,
}

/// The half-chunks that a job draws from. [`crate::train::rotation::ChunkDrawSet`] has the rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrawSet {
    /// Half-chunks that stay in the cache.
    pub pinned: Vec<HalfChunk>,
    /// Rotating half-chunks to draw from now, as one.
    pub first: Vec<HalfChunk>,
    /// Rotating half-chunks to go on with, one group after the other.
    pub then: Vec<Vec<HalfChunk>>,
}

impl DrawSet {
    /// All rotating half-chunks.
    pub fn rotating(&self) -> impl Iterator<Item = HalfChunk> {
        self.first.iter().chain(self.then.iter().flatten()).copied()
    }

    /// The draw set of the next batch. `unread` is the number of items that the job has yet to draw
    /// of a half-chunk. While `first` has a whole batch, it is drawn from alone. When it runs
    /// short, groups of `then` are added, and what is left of `first` is leaving.
    pub fn for_batch(&self, batch: u64, unread: impl Fn(HalfChunk) -> u64) -> BatchDrawSet {
        let mut rotating = self.first.clone();
        let mut left: u64 = rotating.iter().map(|half_chunk| unread(*half_chunk)).sum();
        let is_running_out = left < batch;
        let leaving = rotating.iter().copied().find(|half_chunk| unread(*half_chunk) > 0);
        for half_chunks in &self.then {
            if left >= batch {
                break;
            }
            left += half_chunks.iter().map(|half_chunk| unread(*half_chunk)).sum::<u64>();
            rotating.extend(half_chunks);
        }
        let leaving = leaving.filter(|_| is_running_out);
        BatchDrawSet { pinned: self.pinned.clone(), rotating, leaving }
    }
}

/// The mode of a mini-batch, given the classes of its items' half-chunks and whether all items are
/// resident. `None` if the items come from several places, so that the time of the batch says
/// nothing.
pub fn batch_mode(
    classes: impl IntoIterator<Item = CacheClass>,
    all_resident: bool,
) -> Option<Mode> {
    let (mut is_kept, mut is_rotating) = (false, false);
    for class in classes {
        is_kept |= class != CacheClass::Uncached;
        is_rotating |= class == CacheClass::Rotating;
    }
    match (is_kept, is_rotating) {
        (false, _) => Some(Mode::Miss),
        (true, true) => Some(Mode::Rotating),
        (true, false) => all_resident.then_some(Mode::Hit),
    }
}

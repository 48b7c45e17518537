//! Drawing a batch (Algorithm 1 of Quiver): of many candidates, resident ones go first.
//!
//! A batch has several sources. **Pinned** half-chunks are resident all epoch, so their items are
//! due in proportion to everything that is unread. Drawn first, they would make the beginning of
//! every epoch the same. **Rotating** half-chunks are resident for a while and get the rest. When
//! they have too little unread, pinned ones complete the batch, and then **uncached** ones: a batch
//! never waits. If nothing rotates, uncached half-chunks get their own proportion. So a job alone
//! has as many hits as its cache holds of the dataset, evenly spread, and no order has more.
//!
//! Drawn evenly, two rotating half-chunks would be exhausted at the same time, and the next could
//! not be loaded before. So one may be **leaving**: it gets two draws of three. When it is
//! exhausted, the other has two thirds left, which is the time for the next to arrive.
//!
//! From each source, candidates come in a random order that merges the orders of its half-chunks,
//! in proportion to what is unread in each. Resident candidates are taken. If the window has too
//! few, the first of the others complete the number. Candidates that are not taken stay pending.
//!
//! If items lie in packs, what is missing comes from a window of packs (`pack_window.rs`): uncached
//! half-chunks, all of them as long as no manager has named a draw set, and items of the draw set
//! that complete a batch because too few are resident.
//!
//! Batches of like length consist of runs instead of items. Of the next runs of a random
//! half-chunk, the one with the most resident items is taken, and completed by the runs that are
//! nearest in length.

use super::{
    draw_set::{DrawSet, DrawSourceKind},
    pending::{Candidate, DrawOrder, Pending},
    plan::EpochPlan,
    random::Random,
    weighted_merge::WeightedMerge,
};
use crate::ItemOrdinal;

/// Draws from rotating half-chunks that come from the leaving one: 2 of 3.
const LEAVING_DRAWS: u32 = 2;
const LEAVING_OF: u32 = 3;

/// An item that was drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick {
    pub(super) item: u32,
    pub(super) half_chunk: u32,
    /// Its position among the rank's items of that half-chunk.
    pub(super) position: u32,
}

/// Drawn items, by source.
#[derive(Debug, Default)]
pub(super) struct Picks {
    pub(super) resident: Vec<Pick>,
    pub(super) claimed: Vec<Pick>,
    pub(super) uncached: Vec<Pick>,
    /// Number of items from pinned half-chunks.
    pub(super) pinned: u32,
}

/// Items that a rank has yet to draw, by source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    pub(super) pinned: u32,
    leaving: u32,
    rotating: u32,
    uncached: u32,
}

impl Unread {
    pub(super) fn new(pending: &[Pending], draw_set: &DrawSet) -> Self {
        let sum = |half_chunks: &[u32]| {
            half_chunks.iter().map(|half_chunk| pending[*half_chunk as usize].unread()).sum()
        };
        Self {
            pinned: sum(&draw_set.pinned),
            leaving: sum(draw_set.leaving.as_slice()),
            rotating: sum(&draw_set.rotating),
            uncached: sum(&draw_set.uncached),
        }
    }

    pub(super) fn total(self) -> u32 {
        self.pinned + self.rotating_all() + self.uncached
    }

    /// Items of the draw set.
    pub(super) fn drawable(self) -> u32 {
        self.pinned + self.rotating_all()
    }

    /// Items of rotating half-chunks, the leaving one included.
    fn rotating_all(self) -> u32 {
        self.leaving + self.rotating
    }

    /// Items of a batch from pinned, leaving, other rotating, and uncached half-chunks.
    fn quotas(self, plan: &EpochPlan, draw_set: &DrawSet, random: &mut Random) -> [u32; 4] {
        let batch = plan.batch.min(self.total());
        let due = match self.pinned {
            0 => 0,
            pinned if pinned == self.total() => batch,
            _ if plan.like_length => {
                let pinned = random.below(self.total()) < self.pinned;
                if pinned { batch.min(self.pinned) } else { 0 }
            }
            _ => self.pinned_due(batch, random),
        };
        let mut rest = batch - due;
        let mut give = |available: u32| {
            let given = rest.min(available);
            rest -= given;
            given
        };
        let rotating_all = give(self.rotating_all());
        let spare = if draw_set.rotates() { give(self.pinned - due) } else { 0 };
        let uncached = give(self.uncached);
        // Only with runs of like length can all other sources fall short.
        let pinned = due + spare + rest;
        assert!(pinned <= self.pinned, "a batch of {batch} exceeds what is unread: {self:?}");
        let leaving = self.leaving_due(rotating_all, plan, random);
        [pinned, leaving, rotating_all - leaving, uncached]
    }

    /// Of `rotating_all` items from rotating half-chunks, those from the leaving one.
    fn leaving_due(self, rotating_all: u32, plan: &EpochPlan, random: &mut Random) -> u32 {
        if self.leaving == 0 {
            return 0;
        }
        let mut is_leaving = || random.below(LEAVING_OF) < LEAVING_DRAWS;
        let due = if plan.like_length {
            if is_leaving() { rotating_all } else { 0 }
        } else {
            (0..rotating_all).map(|_| u32::from(is_leaving())).sum()
        };
        due.clamp(rotating_all.saturating_sub(self.rotating), self.leaving.min(rotating_all))
    }

    /// The number of pinned items among `batch` items drawn from everything unread.
    fn pinned_due(self, batch: u32, random: &mut Random) -> u32 {
        let (mut pinned, mut all) = (self.pinned, self.total());
        for _ in 0..batch {
            pinned -= u32::from(random.below(all) < pinned);
            all -= 1;
        }
        self.pinned - pinned
    }
}

/// Draws a batch. At least one item is unread. For like lengths, items with near numbers in
/// `similar` are similar. `open` opens the pack orders of those half-chunks of a source that are
/// drawn from now, enough for a number of items; `None` without packs. `scratch` saves allocations.
#[expect(clippy::too_many_arguments, reason = "parts of one draw state, borrowed separately")]
pub(super) fn draw(
    plan: &EpochPlan,
    draw_set: &DrawSet,
    open: Option<&impl Fn(DrawSourceKind, u32, &mut [Pending]) -> Vec<u32>>,
    pending: &mut [Pending],
    random: &mut Random,
    similar: &[u32],
    scratch: &mut Scratch,
    resident: impl Fn(ItemOrdinal) -> bool,
) -> Picks {
    let unread = Unread::new(pending, draw_set);
    let quotas = unread.quotas(plan, draw_set, random);
    let mut picks = Picks { pinned: quotas[0], ..Picks::default() };
    picks.resident.reserve(plan.batch.min(unread.total()) as usize);
    let resident = |item: u32| resident(ItemOrdinal::new(item.into()));
    for (kind, quota) in DrawSourceKind::ALL.into_iter().zip(quotas) {
        if quota == 0 {
            continue;
        }
        let half_chunks = draw_set.of(kind);
        let is_uncached = kind == DrawSourceKind::Uncached;
        let missing = if is_uncached { &mut picks.uncached } else { &mut picks.claimed };
        let hits = &mut picks.resident;
        let order = DrawOrder::Random;
        let mut source = DrawSource { plan, half_chunks, order, pending, random, similar, scratch };
        match open {
            _ if plan.like_length => source.runs(quota, &resident, hits, missing),
            None => {
                let left = source.residents(quota, &resident, hits);
                source.complete(left, missing);
            }
            Some(open) => {
                // Resident items of a draw set come at random from all packs.
                let is_cached = !is_uncached && draw_set.is_managed;
                let left = if is_cached { source.residents(quota, &resident, hits) } else { quota };
                let opened = open(kind, left, source.pending);
                let order = DrawOrder::Packs;
                let mut source = DrawSource { half_chunks: &opened, order, ..source };
                let left = source.residents(left, &resident, hits);
                source.complete(left, missing);
            }
        }
        for half_chunk in half_chunks {
            pending[*half_chunk as usize].end_draw();
        }
    }
    picks
}

/// Memory that draws reuse.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    merge: WeightedMerge,
    missing: Vec<(u32, Candidate)>,
}

/// Half-chunks of one class.
struct DrawSource<'a> {
    plan: &'a EpochPlan,
    half_chunks: &'a [u32],
    order: DrawOrder,
    pending: &'a mut [Pending],
    random: &'a mut Random,
    similar: &'a [u32],
    scratch: &'a mut Scratch,
}

impl DrawSource<'_> {
    fn take(&mut self, half_chunk: u32, candidate: Candidate) -> Pick {
        self.pending[half_chunk as usize].take(candidate);
        Pick { item: candidate.item, half_chunk, position: candidate.position }
    }

    fn fill_merge(&mut self) {
        let Self { half_chunks, pending, .. } = self;
        self.scratch
            .merge
            .fill(half_chunks.iter().map(|half_chunk| pending[*half_chunk as usize].unread()));
    }

    /// Draws at most `quota` resident items one by one. The source has at least as many items.
    /// Returns the number of items that it lacks.
    fn residents(
        &mut self,
        quota: u32,
        resident: &impl Fn(u32) -> bool,
        hits: &mut Vec<Pick>,
    ) -> u32 {
        self.scratch.missing.clear();
        if quota == 0 {
            return 0;
        }
        self.fill_merge();
        let share = u64::from(self.plan.candidates()) * u64::from(quota);
        let look = share.div_ceil(self.plan.batch.into()).min(self.scratch.merge.left().into());
        let mut found = 0;
        for _ in 0..look {
            let half_chunk = self.half_chunks[self.scratch.merge.draw(self.random)];
            let candidate = self.pending[half_chunk as usize].look(self.order);
            let candidate = candidate.expect("the merge counts them");
            if resident(candidate.item) {
                hits.push(self.take(half_chunk, candidate));
                found += 1;
                if found == quota {
                    return 0;
                }
            } else if self.scratch.missing.len() < quota as usize {
                self.scratch.missing.push((half_chunk, candidate));
            }
        }
        quota - found
    }

    /// Draws `count` items of those that [`Self::residents`] has passed over.
    fn complete(&mut self, count: u32, misses: &mut Vec<Pick>) {
        for at in 0..count as usize {
            let (half_chunk, candidate) = self.scratch.missing[at];
            misses.push(self.take(half_chunk, candidate));
        }
    }

    /// Draws `quota` items in runs of neighbours.
    fn runs(
        &mut self,
        quota: u32,
        resident: &impl Fn(u32) -> bool,
        hits: &mut Vec<Pick>,
        misses: &mut Vec<Pick>,
    ) {
        let mut left = quota as usize;
        let mut near = None;
        while left > 0 {
            self.fill_merge();
            let half_chunk = self.half_chunks[self.scratch.merge.draw(self.random)];
            let run = self.best_run(half_chunk, near, resident);
            near = near.or(run.first().map(|candidate| self.similar[candidate.item as usize]));
            for candidate in run.into_iter().take(left) {
                let picks = if resident(candidate.item) { &mut *hits } else { &mut *misses };
                picks.push(self.take(half_chunk, candidate));
                left -= 1;
            }
            self.pending[half_chunk as usize].end_draw();
        }
    }

    /// Of the half-chunk's next runs, the longest with the most resident items; or the one nearest
    /// to `near`, a number of similarity.
    fn best_run(
        &mut self,
        half_chunk: u32,
        near: Option<u32>,
        resident: &impl Fn(u32) -> bool,
    ) -> Vec<Candidate> {
        let pending = &mut self.pending[half_chunk as usize];
        let mut runs: Vec<Vec<Candidate>> = Vec::new();
        let mut number = None;
        let runs_max = (self.plan.candidates() / self.plan.batch) as usize;
        while let Some(candidate) = pending.look(self.order) {
            let own_source = candidate.position / self.plan.batch;
            if number.replace(own_source) != Some(own_source) {
                if runs.len() == runs_max {
                    break;
                }
                runs.push(Vec::new());
            }
            runs.last_mut().expect("just pushed").push(candidate);
        }
        let worth = |run: &Vec<Candidate>| {
            if let Some(near) = near {
                return (u32::MAX - near.abs_diff(self.similar[run[0].item as usize])) as usize;
            }
            let hits = run.iter().filter(|candidate| resident(candidate.item)).count();
            run.len() * (self.plan.batch as usize + 1) + hits
        };
        // Of equals the first, which was passed over longest.
        runs.into_iter().rev().max_by_key(worth).expect("the merge found some")
    }
}

//! The draw state: what a rank has yet to draw of each half-chunk.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Batch, DrawCounts, EpochPlan, ItemSource, PinnedShare,
    draw::{self, Picks, Scratch, Unread},
    draw_set::DrawSet,
    in_flight::DrawnBatch,
    pending::Pending,
    random::{Purpose, Random},
    rank_shares::RankShare,
    run_set::RunSet,
    state::Progress,
};
use crate::ItemOrdinal;

#[derive(Debug, Clone)]
pub(super) struct DrawState {
    /// How often the epoch was resharded, and what was left of each half-chunk then.
    stage: u32,
    base: Option<Vec<RunSet>>,
    /// The rank's share, by half-chunk.
    pending: Vec<Pending>,
    padding: Option<u32>,
    /// A number for each item, near for similar ones; empty without like lengths.
    similar: Arc<[u32]>,
    scratch: Scratch,
}

impl DrawState {
    pub(super) fn new(
        stage: u32,
        base: Option<Vec<RunSet>>,
        share: RankShare,
        similar: Arc<[u32]>,
    ) -> Self {
        let pending = share.half_chunks.into_iter().map(Pending::new).collect();
        Self { stage, base, pending, padding: share.padding, similar, scratch: Scratch::default() }
    }

    pub(super) fn stage(&self) -> u32 {
        self.stage
    }

    /// Items that are left to draw, by half-chunk.
    pub(super) fn unread(&self) -> Vec<u32> {
        self.pending.iter().map(Pending::unread).collect()
    }

    pub(super) fn unread_of(&self, half_chunk: u32) -> u64 {
        self.pending.get(half_chunk as usize).map_or(0, |half_chunk| half_chunk.unread().into())
    }

    /// Items of a half-chunk that are left to draw.
    pub(super) fn items_of(&self, half_chunk: u32) -> impl Iterator<Item = u32> {
        self.pending.get(half_chunk as usize).into_iter().flat_map(Pending::items)
    }

    pub(super) fn left(&self) -> u64 {
        self.pending.iter().map(|half_chunk| u64::from(half_chunk.unread())).sum()
    }

    /// Keeps only what a state has as unread. `None` if the state belongs to another share.
    pub(super) fn resume(&mut self, unread: &[RunSet]) -> Option<()> {
        if unread.len() != self.pending.len() {
            return None;
        }
        self.pending.iter_mut().zip(unread).try_for_each(|(pending, unread)| pending.resume(unread))
    }

    /// What was yielded: everything that was drawn and is not in flight.
    pub(super) fn progress(&self, drawn_batches: &VecDeque<DrawnBatch>) -> Progress {
        let mut drawn = vec![Vec::new(); self.pending.len()];
        for pick in drawn_batches.iter().flat_map(|batch| &batch.picks) {
            drawn[pick.half_chunk as usize].push(pick.position);
        }
        let unread = self.pending.iter().zip(&mut drawn);
        let unread = unread.map(|(pending, drawn)| pending.unread_with(drawn)).collect();
        Progress::Drawn { base: self.base.clone(), unread }
    }

    pub(super) fn draw(
        &mut self,
        plan: &EpochPlan,
        draw_set: &DrawSet,
        number: u64,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> (Batch, DrawnBatch) {
        let key = [plan.seed, plan.epoch, self.stage.into(), plan.rank.into(), number];
        let mut random = Random::keyed(Purpose::Batch, &key);
        let unread = Unread::new(&self.pending, draw_set);
        let Self { pending, similar, scratch, .. } = self;
        let picks = draw::draw(plan, draw_set, pending, &mut random, similar, scratch, resident);
        let Picks { mut resident, claimed, uncached, pinned } = picks;
        let mut batch = Batch::new(number, plan.batch.min(unread.total() + 1) as usize);
        let sources = [ItemSource::Resident, ItemSource::Claimed, ItemSource::Uncached];
        for (picks, source) in [&resident, &claimed, &uncached].into_iter().zip(sources) {
            for pick in picks {
                batch.push(pick.item, source);
            }
        }
        // The last batch: ranks with one item less repeat one here.
        if unread.total() < plan.batch
            && let Some(item) = self.padding
        {
            batch.push(item, ItemSource::Padding);
        }
        resident.extend(claimed);
        resident.extend(uncached);
        let pinned =
            PinnedShare { drawn: pinned, unread: unread.pinned, unread_total: unread.total() };
        let counts = DrawCounts::of(&batch);
        (batch, DrawnBatch { picks: resident, counts, pinned })
    }

    /// From each half-chunk of the draw set in proportion.
    pub(super) fn upcoming(&mut self, draw_set: &DrawSet, count: usize) -> Vec<ItemOrdinal> {
        let unread = Unread::new(&self.pending, draw_set);
        let total = unread.drawable().max(1) as usize;
        let mut items = Vec::new();
        for half_chunk in draw_set.leaving.iter().chain(&draw_set.rotating).chain(&draw_set.pinned)
        {
            let pending = &mut self.pending[*half_chunk as usize];
            let share = count.saturating_mul(pending.unread() as usize).div_ceil(total);
            items.extend(pending.announce(share).map(|item| ItemOrdinal::new(item.into())));
        }
        items
    }
}

//! The draw state: what a rank has yet to draw of each half-chunk.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Batch, DrawCounts, EpochPlan, ItemSource, PinnedShare,
    draw::{self, Picks, Scratch, Unread},
    draw_set::{DrawSet, DrawSourceKind},
    half_chunk_map::Packs,
    in_flight::DrawnBatch,
    pack_window::{PackOrder, WindowShape},
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
    /// How items that may not be cached are drawn; `None` without packs.
    window: Option<PackWindow>,
    scratch: Scratch,
}

/// The window of packs from which items that may not be cached are drawn.
#[derive(Debug, Clone)]
pub(super) struct PackWindow {
    /// The pack of each item.
    packs: Arc<[u32]>,
    shape: WindowShape,
    /// The order in which half-chunks are drawn from, if not all are at a time.
    half_chunks: Vec<u32>,
}

impl PackWindow {
    pub(super) fn new(packs: &Packs, plan: &EpochPlan, half_chunks: u32) -> Self {
        let mut order: Vec<u32> = (0..half_chunks).collect();
        Random::keyed(Purpose::Packs, &[plan.seed, plan.epoch]).shuffle(&mut order);
        let shape = WindowShape::new(plan.pack_window, half_chunks);
        Self { packs: Arc::clone(&packs.of_items), shape, half_chunks: order }
    }

    /// Of the half-chunks of a source, those that are drawn from now. They have at least `quota`
    /// unread items, if all have.
    fn open(
        &self,
        draw_set: &DrawSet,
        kind: DrawSourceKind,
        quota: u32,
        pending: &[Pending],
    ) -> Vec<u32> {
        let mut unread = 0;
        let mut open = Vec::new();
        for half_chunk in self.half_chunks.iter().filter(|own| draw_set.kind(**own) == kind) {
            if open.len() >= self.shape.half_chunks as usize && unread >= quota {
                break;
            }
            let left = pending[*half_chunk as usize].unread();
            if left > 0 {
                unread += left;
                open.push(*half_chunk);
            }
        }
        open
    }
}

impl DrawState {
    pub(super) fn new(
        stage: u32,
        base: Option<Vec<RunSet>>,
        share: RankShare,
        similar: Arc<[u32]>,
        window: Option<PackWindow>,
    ) -> Self {
        let pending = share.half_chunks.into_iter().map(Pending::new).collect();
        let (padding, scratch) = (share.padding, Scratch::default());
        Self { stage, base, pending, padding, similar, window, scratch }
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
        let Self { stage, pending, similar, window, scratch, .. } = self;
        let open = window.as_ref().map(|window| {
            |kind: DrawSourceKind, quota: u32, pending: &mut [Pending]| {
                let open = window.open(draw_set, kind, quota, pending);
                make_pack_orders(window, plan, *stage, &open, pending);
                open
            }
        });
        let picks = draw::draw(
            plan,
            draw_set,
            open.as_ref(),
            pending,
            &mut random,
            similar,
            scratch,
            resident,
        );
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

    /// From each half-chunk of the draw set in proportion, and from the window of packs.
    pub(super) fn upcoming(
        &mut self,
        plan: &EpochPlan,
        draw_set: &DrawSet,
        count: usize,
    ) -> Vec<ItemOrdinal> {
        let mut items = Vec::new();
        if let Some(window) = &self.window {
            let is_managed = draw_set.is_managed;
            let kind = if is_managed { DrawSourceKind::Uncached } else { DrawSourceKind::Rotating };
            let open = window.open(draw_set, kind, plan.batch, &self.pending);
            make_pack_orders(window, plan, self.stage, &open, &mut self.pending);
            for half_chunk in open {
                items.extend(self.pending[half_chunk as usize].announce_packs());
            }
        }
        if draw_set.is_managed || self.window.is_none() {
            let unread = Unread::new(&self.pending, draw_set);
            let total = unread.drawable().max(1) as usize;
            let half_chunks = draw_set.leaving.iter().chain(&draw_set.rotating);
            for half_chunk in half_chunks.chain(&draw_set.pinned) {
                let pending = &mut self.pending[*half_chunk as usize];
                let share = count.saturating_mul(pending.unread() as usize).div_ceil(total);
                items.extend(pending.announce(share));
            }
        }
        items.into_iter().map(|item| ItemOrdinal::new(item.into())).collect()
    }
}

/// Makes the pack orders of half-chunks that are drawn from a window for the first time.
fn make_pack_orders(
    window: &PackWindow,
    plan: &EpochPlan,
    stage: u32,
    half_chunks: &[u32],
    pending: &mut [Pending],
) {
    for half_chunk in half_chunks {
        let pending = &mut pending[*half_chunk as usize];
        if !pending.has_pack_order() {
            let key = [plan.seed, plan.epoch, stage.into(), plan.rank.into(), (*half_chunk).into()];
            let mut random = Random::keyed(Purpose::Packs, &key);
            let pack_of = |item: u32| window.packs[item as usize];
            let width = window.shape.width;
            pending.set_pack_order(|items| PackOrder::new(items, pack_of, width, &mut random));
        }
    }
}

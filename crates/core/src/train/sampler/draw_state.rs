//! The part of a sampler that draws: what is pending of each chunk, and what is told of it.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Batch, Counts, HeldShare, Plan, Source,
    deal::Share,
    draw::{self, Picks, Scratch, Unread},
    ledger::InFlight,
    open::Open,
    pending::Pending,
    random::{Purpose, Random},
    runs::Runs,
    state::Progress,
};
use crate::ItemOrdinal;

#[derive(Debug, Clone)]
pub(super) struct Drawing {
    /// How often the epoch was dealt anew, and what was left of each chunk then.
    stage: u32,
    base: Option<Vec<Runs>>,
    /// The rank's share, by chunk.
    pending: Vec<Pending>,
    padding: Option<u32>,
    /// A number for each item, near for those that are alike; none if nobody asks.
    alike: Arc<[u32]>,
    scratch: Scratch,
}

impl Drawing {
    pub(super) fn new(
        stage: u32,
        base: Option<Vec<Runs>>,
        share: Share,
        alike: Arc<[u32]>,
    ) -> Self {
        let pending = share.chunks.into_iter().map(Pending::new).collect();
        Self { stage, base, pending, padding: share.padding, alike, scratch: Scratch::default() }
    }

    pub(super) fn stage(&self) -> u32 {
        self.stage
    }

    /// What is left to draw of each chunk.
    pub(super) fn unread(&self) -> Vec<u32> {
        self.pending.iter().map(Pending::unread).collect()
    }

    pub(super) fn unread_of(&self, chunk: u32) -> u64 {
        self.pending.get(chunk as usize).map_or(0, |chunk| chunk.unread().into())
    }

    /// What is left to draw.
    pub(super) fn items_of(&self, chunk: u32) -> impl Iterator<Item = u32> {
        self.pending.get(chunk as usize).into_iter().flat_map(Pending::items)
    }

    pub(super) fn left(&self) -> u64 {
        self.pending.iter().map(|chunk| u64::from(chunk.unread())).sum()
    }

    /// Leaves only what a state says is unread. `None` if the state is of another share.
    pub(super) fn resume(&mut self, unread: &[Runs]) -> Option<()> {
        if unread.len() != self.pending.len() {
            return None;
        }
        self.pending.iter_mut().zip(unread).try_for_each(|(pending, unread)| pending.resume(unread))
    }

    /// What was yielded: everything that was drawn but is not on its way.
    pub(super) fn progress(&self, in_flight: &VecDeque<InFlight>) -> Progress {
        let mut drawn = vec![Vec::new(); self.pending.len()];
        for pick in in_flight.iter().flat_map(|batch| &batch.picks) {
            drawn[pick.chunk as usize].push(pick.place);
        }
        let unread = self.pending.iter().zip(&mut drawn);
        let unread = unread.map(|(pending, drawn)| pending.unread_with(drawn)).collect();
        Progress::Drawn { base: self.base.clone(), unread }
    }

    pub(super) fn draw(
        &mut self,
        plan: &Plan,
        open: &Open,
        number: u64,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> (Batch, InFlight) {
        let key = [plan.seed, plan.epoch, self.stage.into(), plan.rank.into(), number];
        let mut random = Random::keyed(Purpose::Batch, &key);
        let unread = Unread::new(&self.pending, open);
        let Self { pending, alike, scratch, .. } = self;
        let picks = draw::draw(plan, open, pending, &mut random, alike, scratch, resident);
        let Picks { mut resident, claimed, outside, held } = picks;
        let mut batch = Batch::new(number, plan.batch.min(unread.total() + 1) as usize);
        let sources = [Source::Resident, Source::Claimed, Source::Outside];
        for (picks, source) in [&resident, &claimed, &outside].into_iter().zip(sources) {
            for pick in picks {
                batch.push(pick.item, source);
            }
        }
        // The last batch, and ranks that have an item less repeat one there.
        if unread.total() < plan.batch
            && let Some(item) = self.padding
        {
            batch.push(item, Source::Padding);
        }
        resident.extend(claimed);
        resident.extend(outside);
        let held = HeldShare { drawn: held, unread: unread.held, unread_total: unread.total() };
        let counts = Counts::of(&batch);
        (batch, InFlight { picks: resident, counts, held })
    }

    /// From each open chunk in proportion.
    pub(super) fn upcoming(&mut self, open: &Open, count: usize) -> Vec<ItemOrdinal> {
        let unread = Unread::new(&self.pending, open);
        let total = unread.open().max(1) as usize;
        let mut items = Vec::new();
        for chunk in open.leaving.iter().chain(&open.rotating).chain(&open.held) {
            let pending = &mut self.pending[*chunk as usize];
            let share = count.saturating_mul(pending.unread() as usize).div_ceil(total);
            items.extend(pending.tell(share).map(|item| ItemOrdinal::new(item.into())));
        }
        items
    }
}

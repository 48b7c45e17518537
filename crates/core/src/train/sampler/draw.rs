//! One batch, by Algorithm 1 of the paper: of many candidates those that are resident go first.
//!
//! A batch has several sources. **Held** chunks are there all epoch, so their items are due in proportion to
//! all that is unread, open or not: drawn first, they would make the beginning of every epoch the same.
//! **Rotating** chunks are there for a while and get the rest. When they have too little unread, the held
//! ones complete the batch, and then whatever is **outside**; a batch never waits. With nothing rotating
//! at all, what is not held is read through in its own proportion: a job alone is given as many hits as
//! its cache holds of the dataset, evenly, and no order could give it more.
//!
//! Drawn evenly, two rotating chunks would be exhausted at the same time, and the next could not come before
//! that. So one may be **leaving**: it is given two draws of three, and when it is exhausted the other has two
//! thirds to go, time for the next to arrive.
//!
//! From each source candidates are looked at in a random order that merges those of its chunks, in
//! proportion to what is unread in each. Resident ones are taken as they come; if the window has too few,
//! the first of the others complete the number. What was passed over stays pending.
//!
//! Batches of like length are made of runs instead of items: of the next runs of a random chunk the one
//! with the most resident items, completed by the runs that are nearest in length.

use super::{
    open::Open,
    pending::{Candidate, Pending},
    plan::Plan,
    random::Random,
    urn::Urn,
};
use crate::ItemOrdinal;

/// How many draws, of how many from rotating chunks, come from the one that is leaving.
const LEAVING: u32 = 2;
const LEAVING_OF: u32 = 3;

/// An item that was drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick {
    pub(super) item: u32,
    pub(super) chunk: u32,
    /// Its place among the rank's items of that chunk.
    pub(super) place: u32,
}

/// What was drawn, by where it comes from.
#[derive(Debug, Default)]
pub(super) struct Picks {
    pub(super) resident: Vec<Pick>,
    pub(super) claimed: Vec<Pick>,
    pub(super) outside: Vec<Pick>,
    /// How many are of held chunks.
    pub(super) held: u32,
}

/// How much a rank has yet to draw, by where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    pub(super) held: u32,
    leaving: u32,
    rotating: u32,
    outside: u32,
}

impl Unread {
    pub(super) fn new(pending: &[Pending], open: &Open) -> Self {
        let sum =
            |chunks: &[u32]| chunks.iter().map(|chunk| pending[*chunk as usize].unread()).sum();
        Self {
            held: sum(&open.held),
            leaving: sum(open.leaving.as_slice()),
            rotating: sum(&open.rotating),
            outside: sum(&open.outside),
        }
    }

    pub(super) fn total(self) -> u32 {
        self.held + self.turning() + self.outside
    }

    /// What is open.
    pub(super) fn open(self) -> u32 {
        self.held + self.turning()
    }

    /// What is there for a while.
    fn turning(self) -> u32 {
        self.leaving + self.rotating
    }

    /// How many of a batch come from held, leaving, rotating and other chunks.
    fn quotas(self, plan: &Plan, open: &Open, random: &mut Random) -> [u32; 4] {
        let batch = plan.batch.min(self.total());
        let due = match self.held {
            0 => 0,
            held if held == self.total() => batch,
            _ if plan.like_length => {
                let held = random.below(self.total()) < self.held;
                if held { batch.min(self.held) } else { 0 }
            }
            _ => self.held_due(batch, random),
        };
        let mut rest = batch - due;
        let mut give = |available: u32| {
            let given = rest.min(available);
            rest -= given;
            given
        };
        let turning = give(self.turning());
        let spare = if open.rotates() { give(self.held - due) } else { 0 };
        let outside = give(self.outside);
        // Only runs of like length can be short of all the others.
        let held = due + spare + rest;
        assert!(held <= self.held, "a batch of {batch} is more than there is: {self:?}");
        let leaving = self.leaving_due(turning, plan, random);
        [held, leaving, turning - leaving, outside]
    }

    /// How many of so many from rotating chunks come from the one that is leaving.
    fn leaving_due(self, turning: u32, plan: &Plan, random: &mut Random) -> u32 {
        if self.leaving == 0 {
            return 0;
        }
        let mut lucky = || random.below(LEAVING_OF) < LEAVING;
        let due = if plan.like_length {
            if lucky() { turning } else { 0 }
        } else {
            (0..turning).map(|_| u32::from(lucky())).sum()
        };
        due.clamp(turning.saturating_sub(self.rotating), self.leaving.min(turning))
    }

    /// As many as there would be among `batch` items drawn from all that are unread.
    fn held_due(self, batch: u32, random: &mut Random) -> u32 {
        let (mut held, mut all) = (self.held, self.total());
        for _ in 0..batch {
            held -= u32::from(random.below(all) < held);
            all -= 1;
        }
        self.held - held
    }
}

/// Draws a batch from what is unread, of which there is some. For like lengths, items are alike whose
/// numbers in `alike` are near. `scratch` is only for speed.
pub(super) fn draw(
    plan: &Plan,
    open: &Open,
    pending: &mut [Pending],
    random: &mut Random,
    alike: &[u32],
    scratch: &mut Scratch,
    resident: impl Fn(ItemOrdinal) -> bool,
) -> Picks {
    let unread = Unread::new(pending, open);
    let quotas = unread.quotas(plan, open, random);
    let mut picks = Picks { held: quotas[0], ..Picks::default() };
    picks.resident.reserve(plan.batch.min(unread.total()) as usize);
    let resident = |item: u32| resident(ItemOrdinal::new(item.into()));
    let sources: [&[u32]; 4] = [&open.held, open.leaving.as_slice(), &open.rotating, &open.outside];
    for (at, (chunks, quota)) in sources.into_iter().zip(quotas).enumerate() {
        if quota == 0 {
            continue;
        }
        let missing = if at == 3 { &mut picks.outside } else { &mut picks.claimed };
        let mut source = Source { plan, chunks, pending, random, alike, scratch };
        if plan.like_length {
            source.runs(quota, &resident, &mut picks.resident, missing);
        } else {
            source.items(quota, &resident, &mut picks.resident, missing);
        }
        for chunk in chunks {
            pending[*chunk as usize].settle();
        }
    }
    picks
}

/// Memory that one draw leaves to the next.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    urn: Urn,
    missing: Vec<(u32, Candidate)>,
}

/// Chunks that stand alike.
struct Source<'a> {
    plan: &'a Plan,
    chunks: &'a [u32],
    pending: &'a mut [Pending],
    random: &'a mut Random,
    alike: &'a [u32],
    scratch: &'a mut Scratch,
}

impl Source<'_> {
    fn take(&mut self, chunk: u32, candidate: Candidate) -> Pick {
        self.pending[chunk as usize].take(candidate);
        Pick { item: candidate.item, chunk, place: candidate.place }
    }

    fn fill_urn(&mut self) {
        let Self { chunks, pending, .. } = self;
        self.scratch.urn.fill(chunks.iter().map(|chunk| pending[*chunk as usize].unread()));
    }

    /// Draws `quota` items one by one; the source has as many.
    fn items(
        &mut self,
        quota: u32,
        resident: &impl Fn(u32) -> bool,
        hits: &mut Vec<Pick>,
        misses: &mut Vec<Pick>,
    ) {
        self.fill_urn();
        self.scratch.missing.clear();
        let share = u64::from(self.plan.look()) * u64::from(quota);
        let look = share.div_ceil(self.plan.batch.into()).min(self.scratch.urn.left().into());
        let mut found = 0;
        for _ in 0..look {
            let chunk = self.chunks[self.scratch.urn.draw(self.random)];
            let candidate = self.pending[chunk as usize].look().expect("the urn counts them");
            if resident(candidate.item) {
                hits.push(self.take(chunk, candidate));
                found += 1;
                if found == quota {
                    return;
                }
            } else if self.scratch.missing.len() < quota as usize {
                self.scratch.missing.push((chunk, candidate));
            }
        }
        for at in 0..(quota - found) as usize {
            let (chunk, candidate) = self.scratch.missing[at];
            misses.push(self.take(chunk, candidate));
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
            self.fill_urn();
            let chunk = self.chunks[self.scratch.urn.draw(self.random)];
            let run = self.best_run(chunk, near, resident);
            near = near.or(run.first().map(|candidate| self.alike[candidate.item as usize]));
            for candidate in run.into_iter().take(left) {
                let picks = if resident(candidate.item) { &mut *hits } else { &mut *misses };
                picks.push(self.take(chunk, candidate));
                left -= 1;
            }
            self.pending[chunk as usize].settle();
        }
    }

    /// Of the chunk's next runs the longest with the most resident items, or else the one that lies
    /// nearest to `near`, a number that items have.
    fn best_run(
        &mut self,
        chunk: u32,
        near: Option<u32>,
        resident: &impl Fn(u32) -> bool,
    ) -> Vec<Candidate> {
        let pending = &mut self.pending[chunk as usize];
        let mut runs: Vec<Vec<Candidate>> = Vec::new();
        let mut number = None;
        let runs_max = (self.plan.look() / self.plan.batch) as usize;
        while let Some(candidate) = pending.look() {
            let its = candidate.place / self.plan.batch;
            if number.replace(its) != Some(its) {
                if runs.len() == runs_max {
                    break;
                }
                runs.push(Vec::new());
            }
            runs.last_mut().expect("just pushed").push(candidate);
        }
        let worth = |run: &Vec<Candidate>| {
            if let Some(near) = near {
                return (u32::MAX - near.abs_diff(self.alike[run[0].item as usize])) as usize;
            }
            let hits = run.iter().filter(|candidate| resident(candidate.item)).count();
            run.len() * (self.plan.batch as usize + 1) + hits
        };
        // The first of the best: what was passed over longest.
        runs.into_iter().rev().max_by_key(worth).expect("the urn found some")
    }
}

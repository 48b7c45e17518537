//! Our rule: the split of the space that saves most GPU time, and no move that does not pay.
//!
//! Each dataset takes one of its choices; the sum of what they save is to be as large as possible within
//! the space. That is a knapsack with a few hundred choices in all, so it is solved exactly: dataset by
//! dataset, the **frontier** of all sums that no other sum beats with less space. Should a frontier grow
//! beyond a bound, sums that take nearly the same space are no longer told apart; what comes out fits all
//! the same.
//!
//! Space is not moved for nothing: what is placed anew saves nothing until it has been loaded, and that
//! is subtracted; and a split that is hardly better than the present one is not taken at all.

use std::time::Duration;

use super::{Choice, Dataset, ROTATING, Share, idle::leave_the_rest};
use crate::{ByteSize, units::ByteRate};

/// Sums that are told apart: 160 kB for each dataset.
const FRONTIER_MAX: usize = 4096;
/// Sizes of one dataset that are told apart.
const CHOICES_MAX: u32 = 64;

/// How placement weighs moves.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long the present jobs are expected to go on: a move has to pay within that time.
    pub horizon: Duration,
    /// How fast chunks are loaded.
    pub load_rate: ByteRate,
    /// How much more another split has to save, as a share of what is saved now.
    pub margin: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon: Duration::from_hours(1),
            load_rate: ByteRate(ByteSize::mib(256)),
            margin: 0.05,
        }
    }
}

/// Splits space between datasets.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    settings: Settings,
}

impl Placement {
    /// Placement that weighs moves like this.
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// What each dataset gets, given what it has now.
    pub fn split(&self, space: ByteSize, datasets: &[Dataset]) -> Vec<Share> {
        let best = self.best(space, datasets);
        let present: Vec<Choice> = datasets.iter().map(Dataset::present_of_jobs).collect();
        let fits = total(datasets, &present) <= u128::from(space.0);
        let worth = |choices: &[Choice]| -> f64 {
            datasets.iter().zip(choices).map(|(dataset, choice)| self.worth(dataset, *choice)).sum()
        };
        let stays = fits && worth(&best) <= worth(&present) * (1.0 + self.settings.margin);
        let mut choices = if stays { present } else { best };
        leave_the_rest(space, datasets, &mut choices);
        datasets.iter().zip(choices).map(|(dataset, choice)| dataset.share(choice, space)).collect()
    }

    /// The GPUs that a choice saves, on average over the horizon: none until it is loaded.
    fn worth(&self, dataset: &Dataset, choice: Choice) -> f64 {
        let placed = dataset.space(dataset.present()).0;
        let missing = dataset.space(choice).0.saturating_sub(placed) as f64;
        let load_s = missing / self.settings.load_rate.0.0.max(1) as f64;
        let horizon_s = self.settings.horizon.as_secs_f64();
        let loaded = if load_s < horizon_s { 1.0 - load_s / horizon_s } else { 0.0 };
        // The part that is there already goes on saving meanwhile.
        let kept = dataset.gpus_saved(choice).min(dataset.gpus_saved(dataset.present()));
        kept + (dataset.gpus_saved(choice) - kept) * loaded
    }

    fn best(&self, space: ByteSize, datasets: &[Dataset]) -> Vec<Choice> {
        let mut layers: Vec<Vec<Sum>> = Vec::new();
        let mut frontier = vec![Sum { space: 0, worth: 0.0, from: 0, choice: Choice::Nothing }];
        for dataset in datasets {
            let mut with = Vec::new();
            for choice in choices(space, dataset) {
                let (size, worth) = (dataset.space(choice).0, self.worth(dataset, choice));
                let sums = frontier.iter().enumerate().map_while(|(from, sum)| {
                    let taken = sum.space.checked_add(size).filter(|taken| *taken <= space.0)?;
                    Some(Sum { space: taken, worth: sum.worth + worth, from, choice })
                });
                with = unbeaten(with, sums, space);
            }
            layers.push(std::mem::replace(&mut frontier, with));
        }
        // Back from the best sum to the choices that made it. A frontier ends with its best.
        let mut chosen = Vec::with_capacity(datasets.len());
        let mut at = frontier.len() - 1;
        for layer in layers.iter().rev() {
            chosen.push(frontier[at].choice);
            at = frontier[at].from;
            frontier.clone_from(layer);
        }
        chosen.reverse();
        chosen
    }
}

/// What some datasets save together, with the space that it takes.
#[derive(Debug, Clone, Copy)]
struct Sum {
    space: u64,
    worth: f64,
    /// The sum without the last dataset, and what that one gets.
    from: usize,
    choice: Choice,
}

/// Of two lists by space, those sums that save more than every other that takes no more space.
fn unbeaten(old: Vec<Sum>, new: impl IntoIterator<Item = Sum>, space: ByteSize) -> Vec<Sum> {
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    let mut sums: Vec<Sum> = Vec::new();
    loop {
        let is_old_first = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => old.space <= new.space,
            (old, _) => old.is_some(),
        };
        let Some(sum) = (if is_old_first { old.next() } else { new.next() }) else { break };
        match sums.last_mut() {
            Some(last) if sum.worth <= last.worth => {}
            Some(last) if sum.space == last.space => *last = sum,
            _ => sums.push(sum),
        }
    }
    if sums.len() > FRONTIER_MAX {
        // One of each step of space, the best; it is the last.
        let step = space.0 / FRONTIER_MAX as u64 + 1;
        sums.reverse();
        sums.dedup_by_key(|sum| sum.space / step);
        sums.reverse();
    }
    sums
}

/// What a dataset can get. Two chunks fit, or all do; else it may have halves.
fn choices(space: ByteSize, dataset: &Dataset) -> Vec<Choice> {
    let mut choices = vec![Choice::Nothing];
    if dataset.jobs.is_empty() || dataset.chunks == 0 {
        return choices;
    }
    let least = ROTATING.min(dataset.chunks);
    if dataset.space(Choice::Chunks(least)) > space && dataset.jobs.len() >= 2 {
        choices.push(Choice::Halves);
        return choices;
    }
    // One job alone may as well hold a single chunk.
    let first = if dataset.jobs.len() >= 2 { least } else { 1 };
    let step = (dataset.chunks / CHOICES_MAX).max(1) as usize;
    let mut chunks: Vec<u32> = (first..dataset.chunks).step_by(step).collect();
    chunks.push(dataset.chunks);
    if let Choice::Chunks(placed) = dataset.present() {
        chunks.push(placed.max(first));
    }
    chunks.sort_unstable();
    chunks.dedup();
    choices.extend(chunks.into_iter().map(Choice::Chunks));
    choices
}

impl Dataset {
    /// What it may have now, as far as there is so much of it.
    pub(super) fn present(&self) -> Choice {
        match self.placed {
            Choice::Chunks(placed) if placed.min(self.chunks) == 0 => Choice::Nothing,
            Choice::Chunks(placed) => Choice::Chunks(placed.min(self.chunks)),
            placed => placed,
        }
    }

    /// The same, if somebody gains from it.
    fn present_of_jobs(&self) -> Choice {
        if self.jobs.is_empty() { Choice::Nothing } else { self.present() }
    }
}

fn total(datasets: &[Dataset], choices: &[Choice]) -> u128 {
    let spaces = datasets.iter().zip(choices).map(|(dataset, choice)| dataset.space(*choice));
    spaces.map(|space| u128::from(space.0)).sum()
}

//! Our rule: the split of the space that saves most GPU time, without moves that do not pay.
//!
//! Each dataset gets one of its possible allocations. The sum of what they save is maximised within
//! the space. That is a knapsack with a few hundred allocations in all, so it is solved exactly:
//! dataset by dataset, the **frontier** of all sums that no other sum beats with less space. If a
//! frontier exceeds a bound, sums of nearly the same space are merged; the result still fits. With
//! many datasets the bounds are lower, so that a split always takes some milliseconds.
//!
//! Space is not moved for nothing. A new allocation saves nothing until it is loaded, which is
//! subtracted. And a split that is hardly better than the current one is not taken.

use std::time::Duration;

use super::{Allocation, DatasetDemand, ROTATING, Share, idle::give_rest_to_idle};
use crate::{ByteSize, units::ByteRate};

/// Sums of a frontier at most: 160 kB for each dataset.
const FRONTIER_MAX: u64 = 4096;
/// Sums of a frontier that are always allowed.
const FRONTIER_MIN: u64 = 64;
/// Allocations of one dataset at most.
const ALLOCATIONS_MAX: u64 = 64;
/// Allocations of one dataset that are always tried.
const ALLOCATIONS_MIN: u64 = 4;
/// Sums of a split at most: datasets times allocations times sums of a frontier.
const SUMS_MAX: u64 = 1 << 21;
/// Sums of a frontier per allocation of a dataset, with many datasets.
const FRONTIER_PER_ALLOCATION: u64 = 32;

/// Bounds that follow from the number of datasets.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    allocations: u32,
    frontier: usize,
}

impl Bounds {
    fn new(datasets: usize) -> Self {
        let sums = SUMS_MAX / datasets.max(1) as u64;
        let allocations =
            (sums / FRONTIER_PER_ALLOCATION).isqrt().clamp(ALLOCATIONS_MIN, ALLOCATIONS_MAX);
        let frontier = (sums / allocations).clamp(FRONTIER_MIN, FRONTIER_MAX);
        Self {
            allocations: u32::try_from(allocations).expect("small"),
            frontier: usize::try_from(frontier).expect("small"),
        }
    }
}

/// How placement weighs moves.
#[derive(Debug, Clone, Copy)]
pub struct PlacementSettings {
    /// Time that the current jobs are expected to run: a move has to pay within it.
    pub horizon: Duration,
    /// Rate at which chunks are loaded.
    pub load_rate: ByteRate,
    /// Additional saving that another split needs, as a share of the current saving.
    pub margin: f64,
}

impl Default for PlacementSettings {
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
    settings: PlacementSettings,
}

impl Placement {
    /// A placement with these settings.
    pub fn new(settings: PlacementSettings) -> Self {
        Self { settings }
    }

    /// The share of each dataset, given its current allocation.
    pub fn split(&self, space: ByteSize, datasets: &[DatasetDemand]) -> Vec<Share> {
        let best = self.best(space, datasets);
        let current: Vec<Allocation> =
            datasets.iter().map(DatasetDemand::current_if_read).collect();
        let fits = total(datasets, &current) <= u128::from(space.0);
        let worth = |allocations: &[Allocation]| -> f64 {
            datasets
                .iter()
                .zip(allocations)
                .map(|(dataset, allocation)| self.worth(dataset, *allocation))
                .sum()
        };
        let stays = fits && worth(&best) <= worth(&current) * (1.0 + self.settings.margin);
        let mut allocations = if stays { current } else { best };
        give_rest_to_idle(space, datasets, &mut allocations);
        datasets
            .iter()
            .zip(allocations)
            .map(|(dataset, allocation)| dataset.share(allocation, space))
            .collect()
    }

    /// GPUs that an allocation saves, on average over the horizon: none until it is loaded.
    fn worth(&self, dataset: &DatasetDemand, allocation: Allocation) -> f64 {
        let allocated = dataset.space(dataset.current()).0;
        let missing = dataset.space(allocation).0.saturating_sub(allocated) as f64;
        let load_s = missing / self.settings.load_rate.0.0.max(1) as f64;
        let horizon_s = self.settings.horizon.as_secs_f64();
        let loaded = if load_s < horizon_s { 1.0 - load_s / horizon_s } else { 0.0 };
        // The part that is present goes on saving meanwhile.
        let saved_before =
            dataset.gpus_saved(allocation).min(dataset.gpus_saved(dataset.current()));
        saved_before + (dataset.gpus_saved(allocation) - saved_before) * loaded
    }

    fn best(&self, space: ByteSize, datasets: &[DatasetDemand]) -> Vec<Allocation> {
        let bounds = Bounds::new(datasets.len());
        let mut layers: Vec<Vec<PartialSum>> = Vec::new();
        let mut frontier =
            vec![PartialSum { space: 0, worth: 0.0, from: 0, allocation: Allocation::Nothing }];
        for dataset in datasets {
            let mut with = Vec::new();
            for allocation in allocations(space, dataset, bounds.allocations) {
                let (size, worth) = (dataset.space(allocation).0, self.worth(dataset, allocation));
                let sums = frontier.iter().enumerate().map_while(|(from, sum)| {
                    let taken = sum.space.checked_add(size).filter(|taken| *taken <= space.0)?;
                    Some(PartialSum { space: taken, worth: sum.worth + worth, from, allocation })
                });
                with = frontier_of(with, sums, space, bounds.frontier);
            }
            layers.push(std::mem::replace(&mut frontier, with));
        }
        // From the best sum back to the allocations that made it. A frontier ends with its best
        // sum.
        let mut chosen = Vec::with_capacity(datasets.len());
        let mut at = frontier.len() - 1;
        for layer in layers.iter().rev() {
            chosen.push(frontier[at].allocation);
            at = frontier[at].from;
            frontier.clone_from(layer);
        }
        chosen.reverse();
        chosen
    }
}

/// What some datasets save together, and the space that it takes.
#[derive(Debug, Clone, Copy)]
struct PartialSum {
    space: u64,
    worth: f64,
    /// Index of the sum without the last dataset, and the allocation of that dataset.
    from: usize,
    allocation: Allocation,
}

/// Merges two lists sorted by space, and keeps the sums that save more than every other sum of no
/// more space.
fn frontier_of(
    old: Vec<PartialSum>,
    new: impl IntoIterator<Item = PartialSum>,
    space: ByteSize,
    frontier_max: usize,
) -> Vec<PartialSum> {
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    let mut sums: Vec<PartialSum> = Vec::new();
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
    if sums.len() > frontier_max {
        // Of each step of space the best sum, which is the last.
        let step = space.0 / frontier_max as u64 + 1;
        sums.reverse();
        sums.dedup_by_key(|sum| sum.space / step);
        sums.reverse();
    }
    sums
}

/// Possible allocations of a dataset. It gets halves only if two chunks do not fit.
fn allocations(space: ByteSize, dataset: &DatasetDemand, count_max: u32) -> Vec<Allocation> {
    let mut allocations = vec![Allocation::Nothing];
    if dataset.jobs.is_empty() || dataset.chunks == 0 {
        return allocations;
    }
    let space_min = ROTATING.min(dataset.chunks);
    if dataset.space(Allocation::Chunks(space_min)) > space && dataset.jobs.len() >= 2 {
        allocations.push(Allocation::Halves);
        return allocations;
    }
    // A job alone can use a single chunk.
    let first = if dataset.jobs.len() >= 2 { space_min } else { 1 };
    let step = (dataset.chunks / count_max).max(1) as usize;
    let mut chunks: Vec<u32> = (first..dataset.chunks).step_by(step).collect();
    chunks.push(dataset.chunks);
    if let Allocation::Chunks(allocated) = dataset.current() {
        chunks.push(allocated.max(first));
    }
    chunks.sort_unstable();
    chunks.dedup();
    allocations.extend(chunks.into_iter().map(Allocation::Chunks));
    allocations
}

impl DatasetDemand {
    /// The current allocation, limited to the chunks of the dataset.
    pub(super) fn current(&self) -> Allocation {
        match self.allocated {
            Allocation::Chunks(allocated) if allocated.min(self.chunks) == 0 => Allocation::Nothing,
            Allocation::Chunks(allocated) => Allocation::Chunks(allocated.min(self.chunks)),
            allocated => allocated,
        }
    }

    /// The current allocation, if a job gains from the dataset.
    fn current_if_read(&self) -> Allocation {
        if self.jobs.is_empty() { Allocation::Nothing } else { self.current() }
    }
}

fn total(datasets: &[DatasetDemand], allocations: &[Allocation]) -> u128 {
    let spaces =
        datasets.iter().zip(allocations).map(|(dataset, allocation)| dataset.space(*allocation));
    spaces.map(|space| u128::from(space.0)).sum()
}

//! Quiver's rule, as printed (5.3): the highest ratio of benefit to cost first.
//!
//! The benefit of a dataset is the sum of `n·t_miss/t_hit` over its jobs, where `t_hit` is the time
//! under the allocation in question: that of hits for the whole dataset, that of co-operative
//! misses for two chunks. Allocations are taken in the order of their ratio, if they fit. The whole
//! dataset replaces its two chunks.

use super::{Allocation, DatasetDemand, ModeTimes, ROTATING, Share, idle::give_rest_to_idle};
use crate::ByteSize;

/// Splits space between datasets by Quiver's rule.
pub fn greedy(space: ByteSize, datasets: &[DatasetDemand]) -> Vec<Share> {
    let mut candidates: Vec<(f64, usize, Allocation)> = Vec::new();
    for (index, dataset) in datasets.iter().enumerate() {
        for chunks in [ROTATING.min(dataset.chunks), dataset.chunks] {
            let allocation = Allocation::Chunks(chunks);
            let cost = dataset.space(allocation).0 as f64;
            candidates.push((benefit(dataset, chunks == dataset.chunks) / cost, index, allocation));
        }
    }
    candidates.retain(|(ratio, ..)| ratio.is_finite() && *ratio > 0.0);
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut allocations = vec![Allocation::Nothing; datasets.len()];
    let mut free = space;
    for (_, index, allocation) in candidates {
        let dataset = &datasets[index];
        let before = dataset.space(allocations[index]);
        if allocation > allocations[index] && dataset.space(allocation).0 - before.0 <= free.0 {
            free = ByteSize(free.0 - (dataset.space(allocation).0 - before.0));
            allocations[index] = allocation;
        }
    }
    give_rest_to_idle(space, datasets, &mut allocations);
    datasets
        .iter()
        .zip(allocations)
        .map(|(dataset, allocation)| dataset.share(allocation, space))
        .collect()
}

fn benefit(dataset: &DatasetDemand, is_whole: bool) -> f64 {
    let gains = dataset.jobs.iter().map(|job| {
        let times = job.times.unwrap_or(ModeTimes::UNKNOWN);
        let cached = if is_whole { times.hit } else { times.rotating };
        f64::from(job.gpus) * times.miss / cached
    });
    gains.sum()
}

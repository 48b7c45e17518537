//! Bounds: the speed that no policy can exceed with a given cache, except `hit`, which has all data
//! cached.
//!
//! While a job reads an epoch, the jobs of the dataset together must fetch everything that is not
//! cached at least once. A mini-batch takes at least as long as its computation. So with a share c
//! of a dataset cached, an epoch takes at least (1 - c) of its bytes divided by the rate of all its
//! jobs' links to the origin. The space is split optimally between datasets.

use std::time::Duration;

use super::{outcome::Outcome, scenario::Setup};

/// Steps in which the space is split. Every dataset gets one step for free, so that the result is
/// not below the optimal split.
const STEPS: usize = 400;

/// Shortest mini-batch of each job in seconds, if these shares of the datasets are cached.
fn batch_seconds(setup: &Setup, cached: &dyn Fn(usize) -> f64) -> Vec<f64> {
    let origin = setup.origin.bandwidth.0.0;
    let links = |dataset: usize| -> f64 {
        let readers = setup.jobs.iter().filter(|job| job.dataset == dataset);
        let limits = readers.map(|job| job.origin_limit(setup));
        limits.fold(0, u64::saturating_add).min(origin) as f64
    };
    let seconds = setup.jobs.iter().map(|job| {
        let dataset = &setup.datasets[job.dataset];
        let fetched = dataset.size().0 as f64 * (1.0 - cached(job.dataset)).max(0.0);
        let batches = dataset.items.div_ceil(job.batch.into()) as f64;
        let slowest: Duration = job.compute.max(job.transform / job.workers);
        (fetched / links(job.dataset) / batches).max(slowest.as_secs_f64())
    });
    seconds.collect()
}

/// Highest mean speed-up over a run of the same setup, over all jobs that computed anything there;
/// `None` if none did.
pub fn speed_up(setup: &Setup, baseline: &Outcome) -> Option<f64> {
    let counted = baseline.jobs.iter().filter(|job| job.batch_seconds.is_some()).count();
    let step = setup.capacity.0 as f64 / STEPS as f64;
    let mut best = vec![0.0_f64; STEPS + 1];
    for (index, dataset) in setup.datasets.iter().enumerate() {
        // Gains of the jobs of this dataset, by number of steps.
        let gains: Vec<f64> = (0..=STEPS)
            .map(|steps| {
                let share = (steps + 1) as f64 * step / dataset.size().0 as f64;
                let seconds = batch_seconds(setup, &|_| share.min(1.0));
                let jobs = setup.jobs.iter().zip(&baseline.jobs).zip(seconds);
                let of_dataset = jobs.filter(|((job, _), _)| job.dataset == index);
                of_dataset
                    .filter_map(|((_, base), seconds)| Some(base.batch_seconds? / seconds))
                    .sum()
            })
            .collect();
        let with = |steps: usize| {
            let gained = (0..=steps).map(|own| gains[own] + best[steps - own]);
            gained.fold(0.0, f64::max)
        };
        best = (0..=STEPS).map(with).collect();
    }
    (counted > 0).then(|| best[STEPS] / counted as f64)
}

/// Shortest mini-batch in seconds, on average over the jobs of a setup with one dataset.
pub fn mean_batch_seconds(setup: &Setup) -> f64 {
    let share = |dataset: usize| setup.capacity.0 as f64 / setup.datasets[dataset].size().0 as f64;
    let seconds = batch_seconds(setup, &share);
    seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
}

//! The paper's rule, as printed (Quiver 5.3): the highest ratio of benefit to cost first.
//!
//! The benefit of a dataset is the sum of `n·t_miss/t_hit` over its jobs, where `t_hit` is the time under the
//! choice in question: that of hits for the whole dataset, that of co-operative misses for two chunks.
//! Choices are taken in the order of their ratio, if they fit; the whole of a dataset takes the place of
//! its two chunks.

use super::{Choice, Dataset, ROTATING, Share, Times, idle::leave_the_rest};
use crate::ByteSize;

/// Splits space between datasets by the paper's rule.
pub fn greedy(space: ByteSize, datasets: &[Dataset]) -> Vec<Share> {
    let mut wishes: Vec<(f64, usize, Choice)> = Vec::new();
    for (index, dataset) in datasets.iter().enumerate() {
        for chunks in [ROTATING.min(dataset.chunks), dataset.chunks] {
            let choice = Choice::Chunks(chunks);
            let cost = dataset.space(choice).0 as f64;
            wishes.push((benefit(dataset, chunks == dataset.chunks) / cost, index, choice));
        }
    }
    wishes.retain(|(ratio, ..)| ratio.is_finite() && *ratio > 0.0);
    wishes.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut choices = vec![Choice::Nothing; datasets.len()];
    let mut free = space;
    for (_, index, choice) in wishes {
        let dataset = &datasets[index];
        let had = dataset.space(choices[index]);
        if choice > choices[index] && dataset.space(choice).0 - had.0 <= free.0 {
            free = ByteSize(free.0 - (dataset.space(choice).0 - had.0));
            choices[index] = choice;
        }
    }
    leave_the_rest(space, datasets, &mut choices);
    datasets.iter().zip(choices).map(|(dataset, choice)| dataset.share(choice, space)).collect()
}

fn benefit(dataset: &Dataset, is_whole: bool) -> f64 {
    let gains = dataset.jobs.iter().map(|job| {
        let times = job.times.unwrap_or(Times::UNKNOWN);
        let cached = if is_whole { times.hit } else { times.rotating };
        f64::from(job.gpus) * times.miss / cached
    });
    gains.sum()
}

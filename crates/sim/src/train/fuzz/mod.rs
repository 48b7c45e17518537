//! Scenario fuzzer: forebay against the other policies in random worlds.
//!
//! For every world the **regret** of forebay is measured against the best of the other policies,
//! by two figures: the share of GPU time that is busy, and the cost of a busy GPU second (GPU time
//! plus origin bytes at a price). A seed changes an outcome by chance. So a world in which forebay
//! seems worse is run again with other seeds, and the spread over seeds is subtracted.
//!
//! Not here: what a world looks like (`generator.rs`), tables and pages (the command line).

mod generator;
mod plot;
#[cfg(test)]
mod tests;

pub use generator::World;
pub use plot::distribution;

use serde::Serialize;

use super::{Outcome, Policy, Scenario, simulate};

/// Price of origin bytes: GPU seconds per byte. Ten GPU seconds for a gigabyte are 5.6 USD a
/// terabyte at 2 USD a GPU hour. That is between the requests of S3 in one region (0.4 USD a
/// terabyte of 1 MB objects) and transfers between regions (20 USD).
pub const PRICE: f64 = 10e-9;
/// The policies that forebay is compared with.
pub const OTHERS: [Policy; 4] = [Policy::None, Policy::Lru, Policy::Quiver, Policy::QuiverPreload];
/// Runs with other seeds, in worlds where forebay seems worse.
const RESEEDS: u64 = 2;
/// Difference from which a world is run again.
const SUSPECT: f64 = 0.01;

/// The figures of one policy in a world.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// The policy.
    pub policy: Policy,
    /// Share of the GPU time of all jobs that was busy.
    pub busy: f64,
    /// GPU seconds spent on a busy GPU second, with origin bytes at their price.
    pub cost: f64,
    /// Bytes from the origin.
    pub origin_bytes: u64,
}

impl Figures {
    /// The figures of an outcome.
    pub fn new(outcome: &Outcome) -> Self {
        let sum = |of: &dyn Fn(&super::JobOutcome) -> f64| -> f64 {
            outcome.jobs.iter().map(|job| f64::from(job.gpus) * of(job)).sum()
        };
        let seconds = sum(&|job| job.seconds).max(1e-9);
        let busy_s = sum(&|job| job.gpu_busy * job.seconds).max(1e-9);
        Self {
            policy: outcome.policy,
            busy: busy_s / seconds,
            cost: (seconds + outcome.origin_bytes as f64 * PRICE) / busy_s,
            origin_bytes: outcome.origin_bytes,
        }
    }
}

/// A ratio of forebay's figure to the best of the others, and the noise of seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// forebay divided by the best of the others.
    pub value: f64,
    /// Spread of the ratio over seeds; 0 if the world was run once.
    pub noise: f64,
    /// The best of the others.
    pub best: Policy,
}

impl Ratio {
    /// The ratio, moved towards 1 by the noise.
    pub fn beyond_noise(&self) -> f64 {
        if self.value < 1.0 {
            (self.value + self.noise).min(1.0)
        } else {
            (self.value - self.noise).max(1.0)
        }
    }
}

/// Result of one world.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorldResult {
    /// Name of the world.
    pub name: String,
    /// Busy GPU time: higher is better.
    pub busy: Ratio,
    /// Cost of a busy GPU second: lower is better.
    pub cost: Ratio,
    /// Figures of all policies with the first seed, forebay last.
    pub figures: Vec<Figures>,
}

impl World {
    /// The world as a scenario.
    pub fn scenario(&self) -> Scenario {
        Scenario::parse(&self.text, &format!("{}.toml", self.name), &self.name)
            .unwrap_or_else(|error| panic!("a generated world is valid: {error}"))
    }

    /// Compares forebay with the other policies.
    pub fn compare(&self) -> WorldResult {
        let scenario = self.scenario();
        let run = |policy, seed| {
            let outcome = simulate(&scenario, &scenario.setups[0], policy, seed, &mut |_| {});
            Figures::new(&outcome)
        };
        let mut figures: Vec<Figures> = OTHERS.map(|policy| run(policy, 0)).to_vec();
        let busiest = figures.iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
        let cheapest = figures.iter().min_by(|a, b| a.cost.total_cmp(&b.cost));
        let (busiest, cheapest) = (*busiest.expect("policies"), *cheapest.expect("policies"));
        let ours = run(Policy::Forebay, 0);
        figures.push(ours);
        let is_suspect = ours.busy < busiest.busy * (1.0 - SUSPECT)
            || ours.cost > cheapest.cost * (1.0 + SUSPECT);
        let (mut busy, mut cost) =
            (vec![ours.busy / busiest.busy], vec![ours.cost / cheapest.cost]);
        for seed in 1..=if is_suspect { RESEEDS } else { 0 } {
            let ours = run(Policy::Forebay, seed);
            let busiest = run(busiest.policy, seed);
            let cheapest = if cheapest.policy == busiest.policy {
                busiest
            } else {
                run(cheapest.policy, seed)
            };
            busy.push(ours.busy / busiest.busy);
            cost.push(ours.cost / cheapest.cost);
        }
        WorldResult {
            name: self.name.clone(),
            busy: ratio(&busy, busiest.policy),
            cost: ratio(&cost, cheapest.policy),
            figures,
        }
    }
}

/// The mean ratio over seeds, with half the spread between them as noise.
fn ratio(values: &[f64], best: Policy) -> Ratio {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let value = values.iter().sum::<f64>() / values.len() as f64;
    Ratio { value, noise: (high - low) / 2.0, best }
}

/// A distribution of ratios beyond noise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// Share of worlds in which the target is met.
    pub met: f64,
    /// The worst 5 %, 1 % and the worst of all begin here.
    pub worst_5_percent: f64,
    /// The worst 1 %.
    pub worst_1_percent: f64,
    /// The worst world.
    pub worst: f64,
    /// Mean over all worlds.
    pub mean: f64,
}

/// Results of many worlds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FuzzReport {
    /// Seed of the worlds.
    pub seed: u64,
    /// Busy GPU time; the target is 0.98.
    pub busy: Distribution,
    /// Cost of a busy GPU second; the target is 1.02.
    pub cost: Distribution,
    /// All worlds, those with the most regret first.
    pub worlds: Vec<WorldResult>,
}

impl FuzzReport {
    /// Sorts the results by regret, and summarises them.
    pub fn new(seed: u64, mut worlds: Vec<WorldResult>) -> Self {
        worlds.sort_by(|a, b| b.regret().total_cmp(&a.regret()).then(a.name.cmp(&b.name)));
        let of = |ratio: &dyn Fn(&WorldResult) -> Ratio| -> Vec<f64> {
            worlds.iter().map(|world| ratio(world).beyond_noise()).collect()
        };
        let (mut busy, mut cost) = (of(&|world| world.busy), of(&|world| world.cost));
        busy.sort_by(f64::total_cmp);
        cost.sort_by(|a, b| b.total_cmp(a));
        Self {
            seed,
            busy: distribution_of(&busy, |ratio| ratio >= 0.98),
            cost: distribution_of(&cost, |ratio| ratio <= 1.02),
            worlds,
        }
    }
}

impl WorldResult {
    /// What forebay loses against the best of the others: the larger of the two shares.
    pub fn regret(&self) -> f64 {
        (1.0 - self.busy.beyond_noise()).max(1.0 - 1.0 / self.cost.beyond_noise())
    }
}

/// Summary of ratios, the worst first.
fn distribution_of(ratios: &[f64], is_met: impl Fn(f64) -> bool) -> Distribution {
    let at = |share: usize| ratios.get(ratios.len() * share / 100).copied().unwrap_or(1.0);
    let count = ratios.len().max(1) as f64;
    Distribution {
        met: ratios.iter().filter(|ratio| is_met(**ratio)).count() as f64 / count,
        worst_5_percent: at(5),
        worst_1_percent: at(1),
        worst: at(0),
        mean: ratios.iter().sum::<f64>() / count,
    }
}

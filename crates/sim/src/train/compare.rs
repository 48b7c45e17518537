//! The same scenario under several policies.

use serde::Serialize;

use super::{bounds, outcome::Outcome, policy::Policy, scenario::Scenario};

/// Every variant of a scenario under every policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario.
    pub scenario: String,
    /// The policies, the one to compare with first.
    pub policies: Vec<Policy>,
    /// All runs: policies within variants.
    pub runs: Vec<Outcome>,
    /// How fast the jobs of each run were beside the first policy; nothing where nothing was counted.
    pub speed_ups: Vec<Option<f64>>,
    /// What no policy but `hit` can beat.
    pub bounds: Vec<Bound>,
}

/// What no policy but `hit`, which has all data cached, can beat in one variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// The variant.
    pub variant: Option<String>,
    /// How fast the jobs could be beside the first policy; nothing if they did nothing there.
    pub speed_up: Option<f64>,
}

impl Comparison {
    /// Of these runs of a scenario: all its setups in order, each under all policies in order.
    pub fn new(scenario: &Scenario, policies: Vec<Policy>, runs: Vec<Outcome>) -> Self {
        let firsts = scenario.setups.iter().zip(runs.chunks(policies.len().max(1)));
        let bounds = firsts.map(|(setup, runs)| Bound {
            variant: setup.variant.clone(),
            speed_up: bounds::speed_up(setup, &runs[0]),
        });
        let bounds = bounds.collect();
        let variants = runs.chunks(policies.len().max(1));
        let speed_ups =
            variants.flat_map(|runs| runs.iter().map(|run| run.speed_up(&runs[0]))).collect();
        Self { scenario: scenario.name.clone(), policies, bounds, runs, speed_ups }
    }

    /// The variants, in order.
    pub fn variants(&self) -> Vec<Option<String>> {
        let mut variants = Vec::new();
        for run in &self.runs {
            if !variants.contains(&run.variant) {
                variants.push(run.variant.clone());
            }
        }
        variants
    }

    /// The runs of a variant in the order of the policies, each with how fast it was beside the first.
    pub fn of_variant(
        &self,
        variant: &Option<String>,
    ) -> impl Iterator<Item = (&Outcome, Option<f64>)> {
        let runs = self.runs.iter().zip(self.speed_ups.iter().copied());
        runs.filter(move |(run, _)| run.variant == *variant)
    }

    /// What no policy but `hit` can beat in a variant.
    pub fn bound(&self, variant: &Option<String>) -> Option<f64> {
        self.bounds.iter().find(|bound| bound.variant == *variant)?.speed_up
    }
}

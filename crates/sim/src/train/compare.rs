//! Comparison of policies on a scenario.

use serde::Serialize;

use super::{bounds, outcome::Outcome, policy::Policy, scenario::Scenario};

/// Every variant of a scenario under every policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the scenario.
    pub scenario: String,
    /// The policies; the first is the baseline.
    pub policies: Vec<Policy>,
    /// All runs: variants, and policies within a variant.
    pub runs: Vec<Outcome>,
    /// Speed-up of each run over the baseline; `None` if nothing was counted.
    pub speed_ups: Vec<Option<f64>>,
    /// Bound of each variant.
    pub bounds: Vec<Bound>,
}

/// Speed-up that no policy can exceed in one variant, except `hit`, which has all data cached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// Name of the variant.
    pub variant: Option<String>,
    /// Speed-up over the baseline; `None` if no job computed anything there.
    pub speed_up: Option<f64>,
}

impl Comparison {
    /// Compares runs of all setups in order, each under all policies in order.
    pub fn new(scenario: &Scenario, policies: Vec<Policy>, runs: Vec<Outcome>) -> Self {
        let setups = scenario.setups.iter().zip(runs.chunks(policies.len().max(1)));
        let bounds = setups.map(|(setup, runs)| Bound {
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

    /// The runs of a variant in the order of the policies, with their speed-ups.
    pub fn of_variant(
        &self,
        variant: &Option<String>,
    ) -> impl Iterator<Item = (&Outcome, Option<f64>)> {
        let runs = self.runs.iter().zip(self.speed_ups.iter().copied());
        runs.filter(move |(run, _)| run.variant == *variant)
    }

    /// Bound of a variant.
    pub fn bound(&self, variant: &Option<String>) -> Option<f64> {
        self.bounds.iter().find(|bound| bound.variant == *variant)?.speed_up
    }
}

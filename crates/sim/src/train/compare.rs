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
    /// What no policy can beat.
    pub bounds: Vec<Bound>,
}

/// What no policy can beat in one variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// The variant.
    pub variant: Option<String>,
    /// How fast the jobs could be beside the first policy.
    pub speed_up: f64,
}

impl Comparison {
    /// Of these runs of a scenario: all its setups in order, each under all policies in order.
    pub fn new(scenario: &Scenario, policies: Vec<Policy>, runs: Vec<Outcome>) -> Self {
        let firsts = scenario.setups.iter().zip(runs.chunks(policies.len().max(1)));
        let bounds = firsts.map(|(setup, runs)| Bound {
            variant: setup.variant.clone(),
            speed_up: bounds::speed_up(setup, &runs[0]),
        });
        Self { scenario: scenario.name.clone(), policies, bounds: bounds.collect(), runs }
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

    /// The runs of a variant, in the order of the policies.
    pub fn of_variant(&self, variant: &Option<String>) -> impl Iterator<Item = &Outcome> {
        self.runs.iter().filter(move |run| run.variant == *variant)
    }

    /// How fast a variant's jobs are under each policy, beside the first.
    pub fn speed_ups(&self, variant: &Option<String>) -> Vec<f64> {
        let first = self.of_variant(variant).next();
        let speed = |run: &Outcome| first.map_or(1.0, |first| run.speed_up(first));
        self.of_variant(variant).map(speed).collect()
    }
}

//! `forebay sim` for scenarios of the kind `tier`: the reads that a flash tier absorbs.

use std::time::Instant;

use forebay_core::{ByteSize, tier::PolicyKind};
use forebay_sim::tier::{Outcome, Scenario, Setup, optimum, simulate};

use crate::output;

/// Simulates every variant under every policy.
pub fn simulate_all(scenario: &Scenario, policies: &[PolicyKind]) -> Vec<Outcome> {
    let started = Instant::now();
    let runs = scenario.setups.iter().flat_map(|setup| simulate_setup(scenario, setup, policies));
    let outcomes: Vec<Outcome> = runs.collect();
    let requests: u64 = outcomes.iter().map(|outcome| outcome.requests).sum();
    let (millions, took) = (requests as f64 / 1e6, started.elapsed().as_secs_f64());
    let rate = millions / took;
    output::aside(&format!("{millions:.1} million requests in {took:.1} s, {rate:.1} million/s"));
    outcomes
}

/// Simulates one variant under every policy, with a progress bar.
pub fn simulate_setup(scenario: &Scenario, setup: &Setup, policies: &[PolicyKind]) -> Vec<Outcome> {
    let best = optimum(setup);
    let one = |policy: &PolicyKind| {
        let variant = setup.variant.as_ref().map_or(String::new(), |name| format!(" {name}"));
        let bar = output::share_bar(&format!("{}{variant} {policy}", scenario.name));
        let outcome = simulate(scenario, setup, *policy, best, &mut |share| {
            output::set_share(&bar, share);
        });
        bar.finish_and_clear();
        outcome
    };
    policies.iter().map(one).collect()
}

/// A block of text per variant, with a row per policy and one for the optimum.
pub fn table(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let mut blocks = Vec::new();
    for setup in &scenario.setups {
        let runs: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| outcome.variant == setup.variant).collect();
        let Some(first) = runs.first() else { continue };
        let mut rows: Vec<Vec<String>> = runs.iter().map(|run| row(run)).collect();
        let mut best = vec![String::new(); rows[0].len()];
        "-- optimum".clone_into(&mut best[0]);
        best[1] = ByteSize(first.optimum_bytes).rounded();
        best[2] = percent(1.0);
        best[3] = percent(first.optimum_bytes as f64 / first.read_bytes.max(1) as f64);
        rows.push(best);
        let variant = setup.variant.as_ref().map_or(String::new(), |name| format!(", {name}"));
        let title = format!(
            "{}{variant}, seed {}: {:.0} s simulated, {} segments read, {}",
            scenario.name,
            first.seed,
            first.seconds,
            first.requests,
            ByteSize(first.read_bytes).rounded(),
        );
        let header =
            ["POLICY", "ABSORBED", "OF OPTIMUM", "HITS", "FILLED", "WRITTEN", "WRITES", "PEAK"];
        let mut text = format!("{title}\n{}", output::table(&header, &rows));
        for run in runs {
            let events = run.events.iter().map(|(name, count)| format!("{name} {count}"));
            let events = events.collect::<Vec<_>>().join(", ");
            if !events.is_empty() {
                text.push_str(&format!("{}: {events}\n", run.policy));
            }
        }
        blocks.push(text);
    }
    blocks.join("\n")
}

fn row(run: &Outcome) -> Vec<String> {
    vec![
        run.policy.to_string(),
        ByteSize(run.absorbed()).rounded(),
        percent(run.of_optimum()),
        percent(run.hit_rate()),
        ByteSize(run.fill_bytes).rounded(),
        ByteSize(run.written_bytes).rounded(),
        rate(run.write_rate()),
        rate(run.write_rate_max),
    ]
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.0} MB/s", bytes_per_second / 1e6)
}

//! Pictures of a simulation: chunks over time, stages of mini-batches, speed-ups side by side.

use super::{
    compare::Comparison,
    outcome::{Outcome, StageTimes},
};
use crate::svg::{Anchor, GAP, LEFT, PANEL, Panel, RIGHT, Svg, TOP, WIDTH, colour, short};

const READ: &str = "#7b9fd4";
const TRANSFORM: &str = "#e3c16f";
const COMPUTE: &str = "#5f9e6e";

/// Everything that runs of one scenario have to show, one below the other.
pub fn runs(outcomes: &[Outcome]) -> String {
    let panels: usize = outcomes.iter().map(|outcome| 1 + chunked_datasets(outcome).len()).sum();
    let charts = outcomes.iter().filter(|outcome| !outcome.stages.is_empty()).count();
    let height = TOP + (panels + charts) as f64 * (PANEL + GAP);
    let scenario = outcomes.first().map_or("", |outcome| &*outcome.scenario);
    let mut svg = Svg::new(WIDTH, height, scenario);
    let mut top = TOP + 10.0;
    for outcome in outcomes {
        progress(&mut svg, top, outcome);
        top += PANEL + GAP;
        for dataset in chunked_datasets(outcome) {
            residency(&mut svg, top, outcome, dataset);
            top += PANEL + GAP;
        }
        if !outcome.stages.is_empty() {
            stages(&mut svg, top, outcome);
            top += PANEL + GAP;
        }
    }
    svg.finish()
}

/// Only the stages of mini-batches.
pub fn stages_alone(outcome: &Outcome) -> String {
    let mut svg = Svg::new(WIDTH, TOP + PANEL + GAP, &outcome.scenario);
    stages(&mut svg, TOP + 10.0, outcome);
    svg.finish()
}

/// The datasets of which chunks came and went.
fn chunked_datasets(outcome: &Outcome) -> Vec<&str> {
    let names = outcome.datasets.iter().map(|dataset| &*dataset.name);
    names.filter(|name| outcome.residency.iter().any(|chunk| chunk.dataset == *name)).collect()
}

fn named(outcome: &Outcome) -> String {
    let variant = outcome.variant.as_ref().map_or(String::new(), |name| format!("{name}, "));
    format!("{variant}{}", outcome.policy)
}

/// Mini-batches of all jobs together, over time.
fn progress(svg: &mut Svg, top: f64, outcome: &Outcome) {
    let sums = outcome.progress.batches.iter().scan(0, |sum, batches| {
        *sum += batches;
        Some(*sum)
    });
    let sums: Vec<u64> = [0].into_iter().chain(sums).collect();
    let step = outcome.progress.step_seconds;
    let x_max = (step * (sums.len() - 1) as f64).max(1.0);
    let y_max = sums.last().map_or(1.0, |last| (*last as f64).max(1.0));
    let panel = Panel { top, x_max, y_max };
    let title = format!("{}: mini-batches of all jobs together", named(outcome));
    panel.axes(svg, &title, "seconds", "mini-batches");
    let point = |(at, sum): (usize, &u64)| (panel.x(step * at as f64), panel.y(*sum as f64));
    svg.curve(sums.iter().enumerate().map(point), COMPUTE);
}

/// When which chunk was resident: a line for each stay, as in Quiver's figure 7 but lying.
fn residency(svg: &mut Svg, top: f64, outcome: &Outcome, dataset: &str) {
    let stays = || outcome.residency.iter().filter(|stay| stay.dataset == dataset);
    let chunks = f64::from(stays().map(|stay| stay.chunk + 1).max().unwrap_or(1));
    let panel = Panel { top, x_max: outcome.seconds.max(1.0), y_max: chunks };
    let title = format!("{}: chunks of {dataset} in the cache", named(outcome));
    panel.axes(svg, &title, "seconds", "chunk");
    for stay in stays() {
        let (from, to) = (panel.x(stay.from_seconds), panel.x(stay.to_seconds));
        let y = panel.y(f64::from(stay.chunk) + 0.75);
        let size = ((to - from).max(0.5), PANEL / chunks * 0.5);
        svg.bar((from, y), size, &colour(stay.chunk as usize, 10));
    }
}

/// Where mini-batches spent their time, as in Quiver's figures 4 and 5.
fn stages(svg: &mut Svg, top: f64, outcome: &Outcome) {
    let rows = &outcome.stages;
    let start = rows.iter().map(|row| row.read_from).fold(f64::MAX, f64::min);
    let end = rows.iter().map(|row| row.compute_to).fold(start, f64::max);
    let panel = Panel { top, x_max: (end - start).max(1e-3), y_max: rows.len() as f64 };
    let job = outcome.jobs.first().map_or("", |job| &*job.name);
    let title = format!("{}: {} mini-batches of {job}", named(outcome), rows.len());
    panel.axes(svg, &title, "seconds", "mini-batch");
    for (place, name, fill) in
        [(0.0, "read", READ), (60.0, "transform", TRANSFORM), (150.0, "GPU", COMPUTE)]
    {
        svg.coloured_label((WIDTH - 250.0 + place, top - 10.0), Anchor::Start, fill, name);
    }
    let height = PANEL / rows.len() as f64 * 0.7;
    for (index, row) in rows.iter().enumerate() {
        let y = panel.y(index as f64 + 0.85);
        for (from, to, fill) in spans(row) {
            let (from, to) = (panel.x(from - start), panel.x(to - start));
            svg.bar((from, y), ((to - from).max(0.5), height), fill);
        }
    }
}

fn spans(row: &StageTimes) -> [(f64, f64, &'static str); 3] {
    [
        (row.read_from, row.transform_from, READ),
        (row.transform_from, row.ready_from, TRANSFORM),
        (row.compute_from, row.compute_to, COMPUTE),
    ]
}

/// Speed-ups over the first policy, side by side, as in Quiver's figure 6.
pub fn comparison(comparison: &Comparison) -> String {
    let variants = comparison.variants();
    let policies = &comparison.policies;
    let title = format!("{}: speed, {} = 1", comparison.scenario, policies[0]);
    let mut svg = Svg::new(WIDTH, TOP + PANEL + GAP, &title);
    let rates: Vec<Vec<f64>> =
        variants.iter().map(|variant| comparison.speed_ups(variant)).collect();
    let top = rates.iter().flatten().copied().fold(1.0, f64::max);
    let panel = Panel { top: TOP + 10.0, x_max: variants.len() as f64, y_max: top };
    for step in 0..=4 {
        let rate = top * f64::from(step) / 4.0;
        svg.line((LEFT, panel.y(rate)), (WIDTH - RIGHT, panel.y(rate)), "#ddd");
        svg.label((LEFT - 6.0, panel.y(rate) + 4.0), Anchor::End, &short(rate));
    }
    let width = (WIDTH - LEFT - RIGHT) / variants.len() as f64 / (policies.len() + 1) as f64;
    for (place, (variant, rates)) in variants.iter().zip(&rates).enumerate() {
        let left = panel.x(place as f64) + width / 2.0;
        for (index, rate) in rates.iter().enumerate() {
            let x = left + width * index as f64;
            let y = panel.y(*rate);
            let size = (width * 0.9, panel.y(0.0) - y);
            svg.bar((x, y), size, &colour(index, policies.len()));
            svg.label((x + width * 0.45, y - 4.0), Anchor::Middle, &format!("{rate:.2}"));
        }
        let middle = left + width * policies.len() as f64 / 2.0;
        let name = variant.as_deref().unwrap_or("all jobs");
        svg.label((middle, panel.y(0.0) + 18.0), Anchor::Middle, name);
    }
    for (index, policy) in policies.iter().enumerate() {
        let at = (LEFT + 100.0 * index as f64, panel.y(0.0) + 42.0);
        svg.coloured_label(at, Anchor::Start, &colour(index, policies.len()), policy.name());
    }
    svg.finish()
}

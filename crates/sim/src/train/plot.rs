//! Pictures of a simulation: chunks over time, stages of mini-batches, speed-ups.

use super::{
    compare::Comparison,
    outcome::{Outcome, StageTimes},
};
use crate::svg::{Anchor, GAP, LEFT, PANEL, Panel, RIGHT, Svg, TOP, WIDTH, colour, policy_colours};

const READ: &str = "#7b9fd4";
const TRANSFORM: &str = "#e3c16f";
const COMPUTE: &str = "#5f9e6e";
const FAULT: &str = "#b03030";
const BOUND: &str = "#333333";
/// Most faults with a label; more would overlap.
const NAMED_FAULTS: usize = 10;

/// Draws a line for each fault.
fn faults(panel: &Panel, svg: &mut Svg, outcome: &Outcome) {
    for fault in outcome.faults.iter().filter(|fault| fault.seconds <= panel.x_max) {
        let x = panel.x(fault.seconds);
        svg.dashed((x, panel.top), (x, panel.top + PANEL), FAULT);
    }
}

/// Labels the lines of the first faults.
fn name_faults(panel: &Panel, svg: &mut Svg, outcome: &Outcome) {
    let within = outcome.faults.iter().filter(|fault| fault.seconds <= panel.x_max);
    for (at, fault) in within.take(NAMED_FAULTS).enumerate() {
        let x = panel.x(fault.seconds);
        let is_left = x < (LEFT + WIDTH - RIGHT) / 2.0;
        let (x, anchor) = if is_left { (x + 4.0, Anchor::Start) } else { (x - 4.0, Anchor::End) };
        let y = panel.top + 14.0 * (at + 1) as f64;
        svg.coloured_label((x, y), anchor, FAULT, &fault.text);
    }
}

/// All panels of the runs of a scenario, one below the other.
pub fn runs(outcomes: &[Outcome]) -> String {
    let charts = outcomes.iter().filter(|outcome| !outcome.stages.is_empty()).count();
    let panels = outcomes.iter().map(panels_over_time).sum::<usize>() + charts;
    let scenario = outcomes.first().map_or("", |outcome| &*outcome.scenario);
    let mut svg = Svg::new(WIDTH, TOP + panels as f64 * (PANEL + GAP), scenario);
    let mut top = TOP + 10.0;
    for outcome in outcomes {
        top = draw_over_time(&mut svg, top, outcome);
        if !outcome.stages.is_empty() {
            stages(&mut svg, top, outcome);
            top += PANEL + GAP;
        }
    }
    svg.finish()
}

/// Panels over time: mini-batches, and residency of chunks.
pub fn over_time(outcome: &Outcome) -> String {
    let height = TOP + panels_over_time(outcome) as f64 * (PANEL + GAP);
    let mut svg = Svg::new(WIDTH, height, &outcome.scenario);
    draw_over_time(&mut svg, TOP + 10.0, outcome);
    svg.finish()
}

/// Panel of the stages of mini-batches.
pub fn stages_alone(outcome: &Outcome) -> String {
    let mut svg = Svg::new(WIDTH, TOP + PANEL + GAP, &outcome.scenario);
    stages(&mut svg, TOP + 10.0, outcome);
    svg.finish()
}

fn panels_over_time(outcome: &Outcome) -> usize {
    1 + chunked_datasets(outcome).len()
}

/// Draws the panels over time. Returns the top of the next panel.
fn draw_over_time(svg: &mut Svg, mut top: f64, outcome: &Outcome) -> f64 {
    progress(svg, top, outcome);
    top += PANEL + GAP;
    for dataset in chunked_datasets(outcome) {
        residency(svg, top, outcome, dataset);
        top += PANEL + GAP;
    }
    top
}

/// Datasets with residency records.
fn chunked_datasets(outcome: &Outcome) -> Vec<&str> {
    let names = outcome.datasets.iter().map(|dataset| &*dataset.name);
    names.filter(|name| outcome.residency.iter().any(|chunk| chunk.dataset == *name)).collect()
}

fn title(outcome: &Outcome) -> String {
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
    let y_max = sums.last().map_or(1.0, |last| (*last as f64).max(1.0));
    let x_max = if outcome.seconds > 0.0 { outcome.seconds } else { 1.0 };
    let panel = Panel { top, x_max, y_max };
    panel.axes(
        svg,
        &format!("{}: mini-batches of all jobs, cumulative", title(outcome)),
        "seconds",
        1.0,
    );
    let point = |(at, sum): (usize, &u64)| {
        // The last step ends with the simulation.
        (panel.x((step * at as f64).min(x_max)), panel.y(*sum as f64))
    };
    svg.curve(sums.iter().enumerate().map(point), COMPUTE);
    faults(&panel, svg, outcome);
    name_faults(&panel, svg, outcome);
}

/// Residency of chunks: a bar for each stay, as in Quiver's figure 7 with the axes swapped.
fn residency(svg: &mut Svg, top: f64, outcome: &Outcome, dataset: &str) {
    let stays = || outcome.residency.iter().filter(|stay| stay.dataset == dataset);
    let chunks = f64::from(stays().map(|stay| stay.chunk + 1).max().unwrap_or(1));
    let panel = Panel { top, x_max: outcome.seconds.max(1e-3), y_max: chunks };
    panel.axes(
        svg,
        &format!("{}: chunks of {dataset} in the cache, by number", title(outcome)),
        "seconds",
        1.0,
    );
    for stay in stays() {
        draw_stay(svg, &panel, stay.chunk, (stay.from_seconds, stay.to_seconds), 1.0);
    }
    faults(&panel, svg, outcome);
}

/// Draws the residency of a chunk, or of a share of it. Chunks are numbered upwards.
pub fn draw_stay(svg: &mut Svg, panel: &Panel, chunk: u32, (from, to): (f64, f64), share: f64) {
    let (from, to) = (panel.x(from), panel.x(to));
    let y = panel.y(f64::from(chunk) + 0.75);
    let size = ((to - from).max(0.5), PANEL / panel.y_max * 0.5);
    let fill = colour(chunk as usize, 10);
    if share < 1.0 {
        svg.pale_bar((from, y), size, &fill, share);
    } else {
        svg.bar((from, y), size, &fill);
    }
}

/// Stages of mini-batches, as in Quiver's figures 4 and 5.
fn stages(svg: &mut Svg, top: f64, outcome: &Outcome) {
    let rows = &outcome.stages;
    let start = rows.iter().map(|row| row.read_from).fold(f64::MAX, f64::min);
    let end = rows.iter().map(|row| row.compute_to).fold(start, f64::max);
    let panel = Panel { top, x_max: (end - start).max(1e-3), y_max: rows.len() as f64 };
    let job = outcome.jobs.first().map_or("", |job| &*job.name);
    panel.axes(
        svg,
        &format!("{}: {} mini-batches of {job}", title(outcome), rows.len()),
        "seconds",
        1.0,
    );
    let stages = [("read", READ), ("transform", TRANSFORM), ("GPU", COMPUTE)];
    svg.legend((WIDTH - RIGHT - 270.0, top - 10.0), stages.into_iter());
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

/// Speed-ups over the first policy, as in Quiver's figure 6, with the bound.
pub fn comparison(comparison: &Comparison) -> String {
    let variants = comparison.variants();
    let policies = &comparison.policies;
    let title = format!("{}: speed, {} = 1", comparison.scenario, policies[0]);
    let mut svg = Svg::new(WIDTH, TOP + PANEL + GAP, &title);
    let speeds = comparison.speed_ups.iter().flatten();
    let bounds = variants.iter().filter_map(|variant| comparison.bound(variant));
    let highest = speeds.copied().chain(bounds).fold(1.0, f64::max);
    let panel = Panel { top: TOP + 10.0, x_max: variants.len() as f64, y_max: highest };
    panel.heights(&mut svg, 0.0);
    let colours = policy_colours(policies.iter().map(|policy| policy.name()));
    let width = (WIDTH - LEFT - RIGHT) / variants.len() as f64 / (policies.len() + 1) as f64;
    for (column, variant) in variants.iter().enumerate() {
        let left = panel.x(column as f64) + width / 2.0;
        for (index, (_, speed)) in comparison.of_variant(variant).enumerate() {
            let x = left + width * index as f64;
            let y = panel.y(speed.unwrap_or(0.0));
            svg.bar((x, y), (width * 0.9, panel.y(0.0) - y), &colours[index]);
            let shown = speed.map_or("–".to_owned(), |speed| format!("{speed:.2}"));
            svg.label((x + width * 0.45, y - 4.0), Anchor::Middle, &shown);
        }
        let right = left + width * policies.len() as f64;
        if let Some(bound) = comparison.bound(variant) {
            svg.dashed((left, panel.y(bound)), (right, panel.y(bound)), BOUND);
        }
        let name = variant.as_deref().unwrap_or("all jobs");
        svg.label((f64::midpoint(left, right), panel.y(0.0) + 18.0), Anchor::Middle, name);
    }
    let y = panel.y(0.0) + 46.0;
    let entries = policies.iter().zip(&colours);
    let entries = entries.map(|(policy, fill)| (policy.name(), &**fill));
    let (left, y) = svg.legend((LEFT, y), entries);
    svg.dashed((left, y - 4.0), (left + 24.0, y - 4.0), BOUND);
    svg.label((left + 30.0, y), Anchor::Start, "bound");
    svg.finish()
}

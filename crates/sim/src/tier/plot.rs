//! Pictures of absorbed bytes over time.

use super::outcome::Outcome;
use crate::svg::{Anchor, GAP, PANEL, Panel, Svg, TOP, WIDTH, colour};

/// A panel per variant and a curve per policy; `line` is a reference rate with its name.
pub fn over_time(outcomes: &[Outcome], line: Option<(f64, &str)>) -> String {
    let mut variants: Vec<&Option<String>> = outcomes.iter().map(|run| &run.variant).collect();
    variants.dedup();
    let scenario = outcomes.first().map_or("", |outcome| &*outcome.scenario);
    let height = TOP + variants.len() as f64 * (PANEL + GAP);
    let mut svg = Svg::new(WIDTH, height, scenario);
    for (row, variant) in variants.iter().enumerate() {
        let runs: Vec<&Outcome> = outcomes.iter().filter(|run| run.variant == **variant).collect();
        let rate = |run: &Outcome, bytes: u64| bytes as f64 / run.step_seconds / 1e9;
        let highest =
            runs.iter().flat_map(|run| run.absorbed_over_time.iter().map(|b| rate(run, *b)));
        let highest = highest.fold(line.map_or(0.0, |(line, _)| line / 1e9), f64::max).max(0.001);
        let longest = runs.iter().map(|run| run.seconds / 3600.0).fold(0.001, f64::max);
        let top = TOP + 10.0 + row as f64 * (PANEL + GAP);
        let panel = Panel { top, x_max: longest, y_max: highest };
        let title = variant.as_ref().map_or("absorbed", |variant| variant);
        panel.axes(&mut svg, &format!("{title}, GB/s"), "hours", 0.0);
        for (index, run) in runs.iter().enumerate() {
            let fill = colour(index, runs.len());
            let points = run.absorbed_over_time.iter().enumerate().map(|(step, bytes)| {
                let hours = step as f64 * run.step_seconds / 3600.0;
                (panel.x(hours), panel.y(rate(run, *bytes)))
            });
            svg.curve(points, &fill);
            let at = (WIDTH - 100.0 * (runs.len() - index) as f64, top - 10.0);
            svg.coloured_label(at, Anchor::Start, &fill, run.policy.name());
        }
        if let Some((rate, name)) = line {
            let y = panel.y(rate / 1e9);
            svg.dashed((panel.x(0.0), y), (panel.x(longest), y), "black");
            svg.label((panel.x(longest), y - 4.0), Anchor::End, name);
        }
    }
    svg.finish()
}

//! Pictures of absorbed bytes over time.

use super::outcome::Outcome;
use crate::svg::{Anchor, LEFT, PANEL, Panel, Svg, TOP, WIDTH, is_ours, policy_colours};

/// Space below each panel: the axis, and three rows of legend.
const GAP: f64 = 110.0;

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
        let colours = policy_colours(runs.iter().map(|run| run.policy.name()));
        // Ours last, above the others.
        let mut drawn: Vec<(&&Outcome, &String)> = runs.iter().zip(&colours).collect();
        drawn.sort_by_key(|(run, _)| is_ours(run.policy.name()));
        for (run, fill) in drawn {
            let points = run.absorbed_over_time.iter().enumerate().map(|(step, bytes)| {
                let hours = step as f64 * run.step_seconds / 3600.0;
                (panel.x(hours), panel.y(rate(run, *bytes)))
            });
            if is_ours(run.policy.name()) {
                svg.bold_curve(points, fill);
            } else {
                svg.curve(points, fill);
            }
        }
        let entries = runs.iter().zip(&colours);
        let entries = entries.map(|(run, fill)| (run.policy.name(), &**fill));
        svg.legend((LEFT, top + PANEL + 54.0), entries);
        if let Some((rate, name)) = line {
            let y = panel.y(rate / 1e9);
            svg.dashed((panel.x(0.0), y), (panel.x(longest), y), "black");
            svg.label((panel.x(longest), y - 4.0), Anchor::End, name);
        }
    }
    svg.finish()
}

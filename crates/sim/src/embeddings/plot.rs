//! Picture of perfect hits over cache size.

use super::report::Report;
use crate::svg::{Anchor, Svg, is_ours, policy_colours, short, ticks};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

impl Report {
    /// SVG with one line per policy. Sizes are in even steps from the smallest; the infinite cache
    /// is dashed.
    pub fn svg(&self) -> String {
        let mut shares = self.shares();
        shares.sort_by(|one, other| one.share().total_cmp(&other.share()));
        let policies = self.policies();
        let highest = self.rows.iter().map(|row| row.single.perfect_rate());
        let highest =
            highest.chain(self.bounds.iter().map(|bounds| bounds.infinite.perfect_rate()));
        let top = highest.fold(0.01, f64::max);
        let steps = (shares.len().max(2) - 1) as f64;
        let x = |index: usize| LEFT + (WIDTH - LEFT - RIGHT) * index as f64 / steps;
        let y = |rate: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / top;

        let kind = if self.synthetic { " (synthetic)" } else { "" };
        let mut svg = Svg::new(WIDTH, HEIGHT, &format!("Perfect hits, {}{kind}", self.trace));
        for percent in ticks(top * 100.0, 0.0) {
            let at = y(percent / 100.0);
            svg.line((LEFT, at), (WIDTH - RIGHT, at), "#ddd");
            svg.label((LEFT - 6.0, at + 4.0), Anchor::End, &format!("{} %", short(percent)));
        }
        for (index, share) in shares.iter().enumerate() {
            let at = (x(index), HEIGHT - BOTTOM + 18.0);
            svg.label(at, Anchor::Middle, &share.to_string());
        }
        let below = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0);
        svg.label(below, Anchor::Middle, "cache, share of the working set");
        if let Some(bounds) = self.bounds.first() {
            let rate = bounds.infinite.perfect_rate();
            svg.dashed((LEFT, y(rate)), (WIDTH - RIGHT, y(rate)), "#888");
        }
        let colours = policy_colours(policies.iter().map(|policy| policy.name()));
        let mut drawn: Vec<_> = policies.iter().zip(&colours).enumerate().collect();
        // Ours last, above the others.
        drawn.sort_by_key(|(_, (policy, _))| is_ours(policy.name()));
        for (index, (policy, colour)) in drawn {
            let points = shares.iter().enumerate().filter_map(|(step, share)| {
                let row = self.row(*policy, *share)?;
                Some((x(step), y(row.single.perfect_rate())))
            });
            let points: Vec<(f64, f64)> = points.collect();
            if is_ours(policy.name()) {
                svg.bold_curve(points.iter().copied(), colour);
            } else {
                svg.curve(points.iter().copied(), colour);
            }
            for point in points {
                svg.dot(point, colour);
            }
            let at = (WIDTH - RIGHT + 20.0, TOP + 16.0 * index as f64);
            svg.coloured_label(at, Anchor::Start, colour, policy.name());
        }
        svg.finish()
    }
}

//! Picture of the regret: both ratios over all worlds, each sorted, the worst world first.

use super::{FuzzReport, Ratio, WorldResult};
use crate::svg::{GAP, PANEL, Panel, Svg, TOP, WIDTH, colour};

/// Highest ratio that is drawn; larger ones are cut.
const RATIO_MAX: f64 = 2.0;

/// Sorted ratios of busy GPU time and of cost.
pub fn distribution(report: &FuzzReport) -> String {
    let mut svg = Svg::new(WIDTH, TOP + 2.0 * (PANEL + GAP), "regret in random worlds");
    let ratios = |of: fn(&WorldResult) -> Ratio| -> Vec<f64> {
        let mut all: Vec<f64> =
            report.worlds.iter().map(|world| of(world).value.clamp(0.0, RATIO_MAX)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let busy = ratios(|world| world.busy);
    let mut cost = ratios(|world| world.cost);
    cost.reverse();
    for (at, (title, ratios)) in
        [("busy GPU time, forebay ÷ best", busy), ("cost, forebay ÷ best", cost)]
            .into_iter()
            .enumerate()
    {
        let top = TOP + 10.0 + at as f64 * (PANEL + GAP);
        let panel = Panel { top, x_max: ratios.len().max(1) as f64, y_max: RATIO_MAX };
        panel.axes(&mut svg, title, "worlds, the worst first", 0.5);
        svg.dashed((panel.x(0.0), panel.y(1.0)), (panel.x(panel.x_max), panel.y(1.0)), "#333333");
        let points =
            ratios.iter().enumerate().map(|(x, ratio)| (panel.x(x as f64), panel.y(*ratio)));
        svg.curve(points, &colour(at, 2));
    }
    svg.finish()
}

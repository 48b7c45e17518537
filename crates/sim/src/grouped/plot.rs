//! Perfect hits over cache size, as a picture that any browser shows.
//!
//! Written by hand: a dozen lines and labels need no drawing library.

use std::fmt::Write as _;

use super::report::Report;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

impl Report {
    /// The picture, as SVG: one line per policy, sizes in even steps, the infinite cache dashed.
    pub fn svg(&self) -> String {
        let shares = self.shares();
        let policies = self.policies();
        let highest = self.rows.iter().map(|row| row.single.perfect_rate());
        let highest =
            highest.chain(self.bounds.iter().map(|bounds| bounds.infinite.perfect_rate()));
        let top = highest.fold(0.01, f64::max);
        let steps = (shares.len().max(2) - 1) as f64;
        let x = |index: usize| LEFT + (WIDTH - LEFT - RIGHT) * index as f64 / steps;
        let y = |rate: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / top;

        let kind = if self.synthetic { " (synthetic)" } else { "" };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Perfect hits, {}{kind}</text>\n",
            escape(&self.trace)
        );
        for step in 0..=4 {
            let rate = top * f64::from(step) / 4.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\" dy=\"4\">{3:.1} %</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y(rate),
                rate * 100.0
            );
        }
        for (index, share) in shares.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{share}</text>",
                x(index),
                HEIGHT - BOTTOM + 18.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">cache, share of the working set</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0
        );
        if let Some(bounds) = self.bounds.first() {
            let rate = bounds.infinite.perfect_rate();
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#888\" stroke-dasharray=\"5 4\"/>",
                WIDTH - RIGHT,
                y(rate)
            );
        }
        for (index, policy) in policies.iter().enumerate() {
            let colour = format!("hsl({}, 70%, 42%)", index * 360 / policies.len().max(1));
            let points: Vec<String> = shares
                .iter()
                .enumerate()
                .filter_map(|(place, share)| {
                    let row = self.row(*policy, *share)?;
                    Some(format!("{:.1},{:.1}", x(place), y(row.single.perfect_rate())))
                })
                .collect();
            let label_y = TOP + 16.0 * index as f64;
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>\
                 <text x=\"{:.1}\" y=\"{label_y:.1}\" fill=\"{colour}\">{}</text>",
                points.join(" "),
                WIDTH - RIGHT + 20.0,
                policy.name()
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

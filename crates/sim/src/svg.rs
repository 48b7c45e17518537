//! SVG pictures. They need lines, bars and labels only, so there is no drawing library.

use std::fmt::{self, Write as _};

/// Width of a picture.
pub const WIDTH: f64 = 860.0;
/// Left margin of panels.
pub const LEFT: f64 = 70.0;
/// Right margin of panels.
pub const RIGHT: f64 = 30.0;
/// Space above the first panel.
pub const TOP: f64 = 50.0;
/// Height of a panel.
pub const PANEL: f64 = 300.0;
/// Space below each panel.
pub const GAP: f64 = 70.0;

/// A picture under construction. Lengths are in pixels, from the upper left corner.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

/// Alignment of a label relative to its position.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// The text starts there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

impl Svg {
    /// A white picture with a title.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"60\" y=\"22\" font-size=\"15\">{}</text>\n",
            escape(title)
        );
        Self { text }
    }

    /// Draws a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws a dashed line.
    pub fn dashed(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" \
             stroke-dasharray=\"5 4\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws text in black.
    pub fn label(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.coloured_label(at, anchor, "black", text);
    }

    /// Draws text in a colour.
    pub fn coloured_label(&mut self, at: (f64, f64), anchor: Anchor, fill: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{}</text>",
            at.0,
            at.1,
            escape(text)
        ));
    }

    /// Draws a filled rectangle.
    pub fn bar(&mut self, at: (f64, f64), size: (f64, f64), fill: &str) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            at.0, at.1, size.0, size.1
        ));
    }

    /// Draws a filled rectangle with an opacity from 0 (invisible) to 1.
    pub fn pale_bar(&mut self, at: (f64, f64), size: (f64, f64), fill: &str, opacity: f64) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
             fill-opacity=\"{opacity:.2}\"/>",
            at.0, at.1, size.0, size.1
        ));
    }

    /// Draws a line through points.
    pub fn curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        self.polyline(points, stroke, "");
    }

    /// Draws a dashed line through points.
    pub fn dashed_curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        self.polyline(points, stroke, " stroke-dasharray=\"5 4\"");
    }

    fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str, more: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" \
             stroke-width=\"1.6\"{more}/>",
            points.join(" ")
        ));
    }

    /// Draws a dot.
    pub fn dot(&mut self, at: (f64, f64), fill: &str) {
        self.add(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{fill}\"/>",
            at.0, at.1
        ));
    }

    /// Draws a row of coloured squares with names, `step` apart.
    pub fn legend<'a>(
        &mut self,
        (left, y): (f64, f64),
        step: f64,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        for (index, (name, fill)) in entries.enumerate() {
            let x = left + step * index as f64;
            self.bar((x, y - 10.0), (10.0, 10.0), fill);
            self.label((x + 15.0, y), Anchor::Start, name);
        }
    }

    /// The content of the file.
    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{element}");
    }
}

/// Colour `index` of `of` distinct ones, as `#rrggbb`, which every SVG viewer supports.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
pub fn colour(index: usize, of: usize) -> String {
    const SATURATION: f64 = 0.7;
    const LIGHTNESS: f64 = 0.42;
    let hue = (index % of.max(1)) as f64 * 12.0 / of.max(1) as f64;
    let channel = |offset: f64| {
        let angle = (offset + hue) % 12.0;
        let slope = (angle - 3.0).min(9.0 - angle).clamp(-1.0, 1.0);
        let share = LIGHTNESS - SATURATION * LIGHTNESS.min(1.0 - LIGHTNESS) * slope;
        (share * 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Most ticks of an axis.
const STEPS_MAX: f64 = 6.0;
const GRID: &str = "#dddddd";

/// A part of the picture with its own axes, which begin at 0.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    /// Upper edge.
    pub top: f64,
    /// Value at the right edge.
    pub x_max: f64,
    /// Value at the upper edge.
    pub y_max: f64,
}

impl Panel {
    /// Horizontal position of a value.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max
    }

    /// Vertical position of a value.
    pub fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - value / self.y_max)
    }

    /// Draws both axes; `step_min` is the smallest step of the vertical one.
    pub fn axes(&self, svg: &mut Svg, title: &str, x_unit: &str, step_min: f64) {
        self.heights(svg, step_min);
        self.frame(svg, title, x_unit);
    }

    /// Draws the title and the horizontal axis, for panels whose rows have names.
    pub fn frame(&self, svg: &mut Svg, title: &str, x_unit: &str) {
        svg.label((LEFT, self.top - 10.0), Anchor::Start, title);
        svg.line((LEFT, self.y(0.0)), (WIDTH - RIGHT, self.y(0.0)), GRID);
        for x in ticks(self.x_max, 0.0) {
            svg.label((self.x(x), self.top + PANEL + 16.0), Anchor::Middle, &short(x));
        }
        let below = ((LEFT + WIDTH - RIGHT) / 2.0, self.top + PANEL + 34.0);
        svg.label(below, Anchor::Middle, x_unit);
    }

    /// Draws the lines and figures of the vertical axis.
    pub fn heights(&self, svg: &mut Svg, step_min: f64) {
        for y in ticks(self.y_max, step_min) {
            svg.line((LEFT, self.y(y)), (WIDTH - RIGHT, self.y(y)), GRID);
            svg.label((LEFT - 6.0, self.y(y) + 4.0), Anchor::End, &short(y));
        }
    }
}

/// Round figures from 0 to the end of an axis.
fn ticks(max: f64, step_min: f64) -> impl Iterator<Item = f64> {
    let least = (max / STEPS_MAX).max(1e-6);
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(least).max(step_min);
    (0..).map(move |at| step * f64::from(at)).take_while(move |tick| *tick <= max * 1.001)
}

/// A short text for a figure of any size.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
        v if v >= 10.0 => format!("{v:.0}"),
        v => {
            let text = format!("{v:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_spread_over_the_hue_circle() {
        let three: Vec<String> = (0..3).map(|index| colour(index, 3)).collect();
        assert_eq!(three, ["#b62020", "#20b620", "#2020b6"]);
        assert_eq!(colour(7, 5), colour(2, 5));
    }

    #[test]
    fn ticks_are_round_and_few() {
        let shown = |max, step_min| ticks(max, step_min).map(short).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(2.48, 0.0), "0 0.5 1 1.5 2");
        assert_eq!(shown(1800.0, 0.0), "0 500 1000 1500");
        assert_eq!(shown(7.0, 0.0), "0 2 4 6");
        assert_eq!(shown(3.0, 1.0), "0 1 2 3", "chunks are whole");
        assert_eq!(shown(123_456.0, 1.0), "0 50k 100k");
        assert_eq!(shown(0.05, 0.0), "0 0.01 0.02 0.03 0.04 0.05");
    }
}

//! Pictures that any browser shows, written by hand: a few lines and labels need no drawing library.

use std::fmt::{self, Write as _};

/// How wide a picture is.
pub const WIDTH: f64 = 860.0;
/// Where its panels begin,
pub const LEFT: f64 = 70.0;
/// and how far from its edge they end.
pub const RIGHT: f64 = 30.0;
/// What is above the first panel.
pub const TOP: f64 = 50.0;
/// How high a panel is.
pub const PANEL: f64 = 300.0;
/// What is below each.
pub const GAP: f64 = 70.0;

/// A picture in the making. Lengths are in pixels, from the upper left corner.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

/// Where a label's text stands, seen from its place.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// To the right of it.
    Start,
    /// On both sides.
    Middle,
    /// To the left.
    End,
}

impl Svg {
    /// A white sheet with a title.
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

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A broken line.
    pub fn dashed(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" \
             stroke-dasharray=\"5 4\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Words in black,
    pub fn label(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.coloured_label(at, anchor, "black", text);
    }

    /// or in a colour.
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

    /// A filled rectangle.
    pub fn bar(&mut self, at: (f64, f64), size: (f64, f64), fill: &str) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            at.0, at.1, size.0, size.1
        ));
    }

    /// The same, paler the less opaque it is: 1 is as above, 0 is nothing.
    pub fn pale_bar(&mut self, at: (f64, f64), size: (f64, f64), fill: &str, opacity: f64) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
             fill-opacity=\"{opacity:.2}\"/>",
            at.0, at.1, size.0, size.1
        ));
    }

    /// A line through these points.
    pub fn curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        self.polyline(points, stroke, "");
    }

    /// A broken line through these points.
    pub fn dashed_curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        self.polyline(points, stroke, " stroke-dasharray=\"5 4\"");
    }

    fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str, more: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.6\"{more}/>",
            points.join(" ")
        ));
    }

    /// A dot.
    pub fn dot(&mut self, at: (f64, f64), fill: &str) {
        self.add(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{fill}\"/>",
            at.0, at.1
        ));
    }

    /// A coloured square and a word for each, so far from each other.
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

    /// The whole file.
    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{element}");
    }
}

/// Colours that can be told apart, so many of them, as every viewer of SVG knows them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
pub fn colour(index: usize, of: usize) -> String {
    const SATURATION: f64 = 0.7;
    const LIGHTNESS: f64 = 0.42;
    let hue = (index % of.max(1)) as f64 * 12.0 / of.max(1) as f64;
    let channel = |offset: f64| {
        let place = (offset + hue) % 12.0;
        let slope = (place - 3.0).min(9.0 - place).clamp(-1.0, 1.0);
        let share = LIGHTNESS - SATURATION * LIGHTNESS.min(1.0 - LIGHTNESS) * slope;
        (share * 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// An axis has at most so many steps.
const STEPS_MAX: f64 = 6.0;
const GRID: &str = "#dddddd";

/// A part of the picture with axes of its own.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    /// Where it begins.
    pub top: f64,
    /// The value at its right edge,
    pub x_max: f64,
    /// and at its upper one; both axes begin with nought.
    pub y_max: f64,
}

impl Panel {
    /// Where a value is from left to right,
    pub fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max
    }

    /// and from top to bottom.
    pub fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - value / self.y_max)
    }

    /// Time to the right, in this unit, and whatever the title counts upwards, in steps of at least this.
    pub fn axes(&self, svg: &mut Svg, title: &str, x_unit: &str, step_min: f64) {
        self.heights(svg, step_min);
        self.frame(svg, title, x_unit);
    }

    /// The same without the axis that goes up: its rows have names.
    pub fn frame(&self, svg: &mut Svg, title: &str, x_unit: &str) {
        svg.label((LEFT, self.top - 10.0), Anchor::Start, title);
        svg.line((LEFT, self.y(0.0)), (WIDTH - RIGHT, self.y(0.0)), GRID);
        for x in ticks(self.x_max, 0.0) {
            svg.label((self.x(x), self.top + PANEL + 16.0), Anchor::Middle, &short(x));
        }
        let below = ((LEFT + WIDTH - RIGHT) / 2.0, self.top + PANEL + 34.0);
        svg.label(below, Anchor::Middle, x_unit);
    }

    /// Lines and figures of the axis that goes up.
    pub fn heights(&self, svg: &mut Svg, step_min: f64) {
        for y in ticks(self.y_max, step_min) {
            svg.line((LEFT, self.y(y)), (WIDTH - RIGHT, self.y(y)), GRID);
            svg.label((LEFT - 6.0, self.y(y) + 4.0), Anchor::End, &short(y));
        }
    }
}

/// Round figures from nought to the end of an axis.
fn ticks(max: f64, step_min: f64) -> impl Iterator<Item = f64> {
    let least = (max / STEPS_MAX).max(1e-6);
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(least).max(step_min);
    (0..).map(move |at| step * f64::from(at)).take_while(move |tick| *tick <= max * 1.001)
}

/// A figure beside an axis: short, whatever its size.
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
    fn colours_go_round_the_wheel() {
        let three: Vec<String> = (0..3).map(|index| colour(index, 3)).collect();
        assert_eq!(three, ["#b62020", "#20b620", "#2020b6"]);
        assert_eq!(colour(7, 5), colour(2, 5));
    }

    #[test]
    fn ticks_are_round_and_few() {
        let told = |max, step_min| ticks(max, step_min).map(short).collect::<Vec<_>>().join(" ");
        assert_eq!(told(2.48, 0.0), "0 0.5 1 1.5 2");
        assert_eq!(told(1800.0, 0.0), "0 500 1000 1500");
        assert_eq!(told(7.0, 0.0), "0 2 4 6");
        assert_eq!(told(3.0, 1.0), "0 1 2 3", "there is no half chunk");
        assert_eq!(told(123_456.0, 1.0), "0 50k 100k");
        assert_eq!(told(0.05, 0.0), "0 0.01 0.02 0.03 0.04 0.05");
    }
}

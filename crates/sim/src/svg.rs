//! Pictures that any browser shows, written by hand: a few lines and labels need no drawing library.

use std::fmt::{self, Write as _};

pub(crate) const WIDTH: f64 = 860.0;
pub(crate) const LEFT: f64 = 70.0;
pub(crate) const RIGHT: f64 = 30.0;
pub(crate) const TOP: f64 = 50.0;
pub(crate) const PANEL: f64 = 300.0;
pub(crate) const GAP: f64 = 70.0;

/// A picture in the making. Lengths are in pixels, from the upper left corner.
pub(crate) struct Svg {
    text: String,
}

/// Where a label's text stands, seen from its place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
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

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    pub fn dashed(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" \
             stroke-dasharray=\"5 4\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    pub fn label(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.coloured_label(at, anchor, "black", text);
    }

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

    pub fn bar(&mut self, at: (f64, f64), size: (f64, f64), fill: &str) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            at.0, at.1, size.0, size.1
        ));
    }

    pub fn curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.6\"/>",
            points.join(" ")
        ));
    }

    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{element}");
    }
}

/// Colours that can be told apart, so many of them.
pub(crate) fn colour(index: usize, of: usize) -> String {
    format!("hsl({}, 70%, 42%)", index * 360 / of.max(1))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A part of the picture with axes of its own.
pub(crate) struct Panel {
    pub top: f64,
    pub x_max: f64,
    pub y_max: f64,
}

impl Panel {
    pub fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max
    }

    pub fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - value / self.y_max)
    }

    pub fn axes(&self, svg: &mut Svg, title: &str, x_unit: &str, y_unit: &str) {
        svg.label((LEFT, self.top - 10.0), Anchor::Start, title);
        // Few things are counted one by one, or by fives.
        let y_steps = match self.y_max {
            few if few <= 10.0 && few.fract() == 0.0 => few,
            some if some <= 50.0 && some % 5.0 == 0.0 => some / 5.0,
            _ => 4.0,
        };
        let mut step = 0.0;
        while step <= y_steps {
            let y = self.y_max * step / y_steps;
            svg.line((LEFT, self.y(y)), (WIDTH - RIGHT, self.y(y)), "#ddd");
            svg.label((LEFT - 6.0, self.y(y) + 4.0), Anchor::End, &short(y));
            step += 1.0;
        }
        for step in 0..=4 {
            let x = self.x_max * f64::from(step) / 4.0;
            svg.label((self.x(x), self.top + PANEL + 16.0), Anchor::Middle, &short(x));
        }
        let below = ((LEFT + WIDTH - RIGHT) / 2.0, self.top + PANEL + 34.0);
        svg.label(below, Anchor::Middle, x_unit);
        svg.label((LEFT - 60.0, self.top - 24.0), Anchor::Start, y_unit);
    }
}

/// A figure beside an axis: short, whatever its size.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
        v if v >= 100.0 || v.fract() == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

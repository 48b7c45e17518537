//! Pictures that any browser shows, written by hand: a few lines and labels need no drawing library.

use std::fmt::{self, Write as _};

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

/// Colours that can be told apart, so many of them, as every viewer of SVG knows them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
pub(crate) fn colour(index: usize, of: usize) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_round_the_wheel() {
        let three: Vec<String> = (0..3).map(|index| colour(index, 3)).collect();
        assert_eq!(three, ["#b62020", "#20b620", "#2020b6"]);
        assert_eq!(colour(7, 5), colour(2, 5));
    }
}

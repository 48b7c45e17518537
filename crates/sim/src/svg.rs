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

    /// Draws a line through points, thicker than the others.
    pub fn bold_curve(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        self.polyline(points, stroke, " stroke-width=\"3\"");
    }

    fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str, more: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let width = if more.contains("stroke-width") { "" } else { " stroke-width=\"1.6\"" };
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\"{width}{more}/>",
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

    /// Draws coloured squares with names, in rows that end before the right margin. Returns where a
    /// further entry would be.
    pub fn legend<'a>(
        &mut self,
        (left, y): (f64, f64),
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> (f64, f64) {
        let (mut x, mut y) = (left, y);
        for (name, fill) in entries {
            let width = SQUARE + 5.0 + LETTER * name.chars().count() as f64 + 14.0;
            if x > left && x + width > WIDTH - RIGHT {
                (x, y) = (left, y + LEGEND_ROW);
            }
            self.bar((x, y - SQUARE), (SQUARE, SQUARE), fill);
            self.label((x + SQUARE + 5.0, y), Anchor::Start, name);
            x += width;
        }
        (x, y)
    }

    /// The content of the file.
    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{element}");
    }
}

/// Side of a legend's squares, mean width of a letter, and height of a legend's row.
const SQUARE: f64 = 10.0;
const LETTER: f64 = 6.8;
const LEGEND_ROW: f64 = 16.0;

/// forebay's own policies, which pictures of many highlight.
const OURS: [&str; 3] = ["forebay", "next-use", "group"];
/// Colour of a highlighted policy.
const HIGHLIGHT: &str = "#d62728";
/// Policies from which on the others are muted.
const MANY: usize = 5;

/// Whether a policy is forebay's own.
pub fn is_ours(policy: &str) -> bool {
    OURS.contains(&policy)
}

/// The colour of each policy: distinct ones. Among many, forebay's own is highlighted and the
/// others are muted.
pub fn policy_colours<'a>(policies: impl Iterator<Item = &'a str>) -> Vec<String> {
    let policies: Vec<&str> = policies.collect();
    let is_highlighted = policies.len() >= MANY && policies.iter().any(|name| is_ours(name));
    let colour_of = |(index, name): (usize, &&str)| match (is_highlighted, is_ours(name)) {
        (true, true) => HIGHLIGHT.to_owned(),
        (true, false) => hued(index, policies.len(), Tone { saturation: 0.35, lightness: 0.62 }),
        (false, _) => colour(index, policies.len()),
    };
    policies.iter().enumerate().map(colour_of).collect()
}

/// Colour `index` of `of` distinct ones, as `#rrggbb`, which every SVG viewer supports.
pub fn colour(index: usize, of: usize) -> String {
    hued(index, of, Tone { saturation: 0.7, lightness: 0.42 })
}

/// What colours of different hues have in common.
#[derive(Debug, Clone, Copy)]
struct Tone {
    saturation: f64,
    lightness: f64,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
fn hued(index: usize, of: usize, Tone { saturation, lightness }: Tone) -> String {
    let hue = (index % of.max(1)) as f64 * 12.0 / of.max(1) as f64;
    let channel = |offset: f64| {
        let angle = (offset + hue) % 12.0;
        let slope = (angle - 3.0).min(9.0 - angle).clamp(-1.0, 1.0);
        let share = lightness - saturation * lightness.min(1.0 - lightness) * slope;
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
pub fn ticks(max: f64, step_min: f64) -> impl Iterator<Item = f64> {
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

    /// Where the entries of a legend begin.
    fn places(names: &[&str]) -> Vec<(f64, f64)> {
        let mut svg = Svg::new(WIDTH, 100.0, "");
        svg.legend((LEFT, 50.0), names.iter().map(|name| (*name, "red")));
        let labels = svg.text.lines().filter(|line| line.contains("text-anchor"));
        let number = |line: &str, key: &str| -> f64 {
            let rest = line.split_once(key).unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        labels.map(|line| (number(line, "x=\""), number(line, "y=\""))).collect()
    }

    #[test]
    fn the_entries_of_a_legend_neither_overlap_nor_leave_the_picture() {
        let names: Vec<String> = (1..30).map(|length| "x".repeat(length % 17 + 1)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let places = places(&names);
        let end = |at: usize| places[at].0 + LETTER * names[at].len() as f64;
        assert_eq!(places.len(), names.len());
        for at in 0..names.len() {
            assert!(places[at].0 >= LEFT && end(at) <= WIDTH - RIGHT, "{:?}", places[at]);
            if let Some(next) = places.get(at + 1) {
                let is_below = next.1 >= places[at].1 + 12.0;
                assert!(is_below || next.0 - SQUARE > end(at), "{next:?} after {:?}", places[at]);
            }
        }
    }

    #[test]
    fn policies_have_distinct_colours_and_ours_stands_out_among_many() {
        let few = policy_colours(["lru", "quiver", "forebay"].into_iter());
        assert_eq!(few, [colour(0, 3), colour(1, 3), colour(2, 3)]);
        let many = ["fifo", "lru", "arc", "slru", "tiny", "next-use"];
        let colours = policy_colours(many.into_iter());
        assert_eq!(colours[5], HIGHLIGHT);
        let distinct: std::collections::BTreeSet<&String> = colours.iter().collect();
        assert_eq!(distinct.len(), many.len());
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

//! The result of `forebay demo streams`: as a table, JSON or a plot.

use forebay_core::ByteSize;
use forebay_sim::svg::{GAP, LEFT, PANEL, Panel, Svg, TOP, WIDTH};
use serde::Serialize;

use super::way::{Pass, Step, Way};
use crate::output;

/// Colours of the ways, safe for colour-blind readers.
const COLOURS: [&str; Way::ALL.len()] = ["#d55e00", "#0072b2", "#009e73"];

/// The result of the demo.
#[derive(Debug, Serialize)]
pub struct StreamsReport {
    pub data_bytes: u64,
    pub memory_bytes: u64,
    /// Whether the processes had a memory limit.
    pub is_limited: bool,
    pub ways: Vec<WayReport>,
}

/// The passes of one way.
#[derive(Debug, Serialize)]
pub struct WayReport {
    pub way: Way,
    pub passes: Vec<Pass>,
    #[serde(skip)]
    pub steps: Vec<Step>,
}

impl WayReport {
    pub fn new(way: Way) -> Self {
        Self { way, passes: Vec::new(), steps: Vec::new() }
    }

    fn total(&self, of: impl Fn(&Pass) -> f64) -> f64 {
        self.passes.iter().map(of).sum()
    }

    fn seconds(&self) -> f64 {
        self.total(|pass| pass.seconds)
    }

    /// The row of a table. `-` where the way has not begun.
    fn row(&self, passes: u64) -> Vec<String> {
        let Some(last) = self.passes.last() else {
            let none = std::iter::repeat_n("-".to_owned(), HEADER.len() - 1);
            return std::iter::once(self.way.name().to_owned()).chain(none).collect();
        };
        let seconds = self.seconds();
        let bytes = self.passes.iter().map(|pass| pass.bytes).sum::<u64>() as f64;
        vec![
            self.way.name().to_owned(),
            format!("{}/{passes}", self.passes.len()),
            format!("{seconds:.1} s"),
            format!("{:.2} GB/s", bytes / seconds / 1e9),
            format!("{:.0} %", 100.0 * self.total(|pass| pass.waiting_seconds) / seconds),
            format!("{:.1} s", self.total(|pass| pass.cpu_seconds)),
            format!("{:.4}", last.distance),
        ]
    }
}

const HEADER: [&str; 7] = ["READ AS", "PASSES", "TIME", "SPEED", "WAITING", "CPU", "DISTANCE"];

/// The ways so far, as a table.
pub fn table(ways: &[WayReport], passes: u64) -> String {
    let rows: Vec<_> = ways.iter().map(|way| way.row(passes)).collect();
    output::table(&HEADER, &rows)
}

impl StreamsReport {
    pub fn to_text(&self, passes: u64) -> String {
        let of = |way: Way| {
            let found = self.ways.iter().find(|report| report.way == way);
            found.map_or(f64::NAN, WayReport::seconds)
        };
        let stream = of(Way::Stream);
        let limit = if self.is_limited {
            format!("{} of memory, including the page cache", ByteSize(self.memory_bytes))
        } else {
            "an empty page cache before each pass, but no memory limit".to_owned()
        };
        format!(
            "k-means over {}, with {limit}. All ways found the same centres.\n\n{}\n\
             The stream takes {:.2} of the time of the buffered file, {:.2} of that of the mapped \
             one.\nWAITING is the share of the time in which the computation waited for data. The \
             stream\nverifies every byte.\n",
            ByteSize(self.data_bytes),
            table(&self.ways, passes),
            stream / of(Way::Buffered),
            stream / of(Way::Mmap),
        )
    }

    /// Passes over time, one line per way.
    pub fn plot(&self, passes: u64) -> String {
        let title = format!(
            "k-means over {} with {} of memory",
            ByteSize(self.data_bytes),
            ByteSize(self.memory_bytes)
        );
        let mut svg = Svg::new(WIDTH, TOP + PANEL + GAP + 40.0, &title);
        let x_max = self.ways.iter().map(WayReport::seconds).fold(1e-3, f64::max);
        let panel = Panel { top: TOP + 30.0, x_max, y_max: passes.max(1) as f64 };
        panel.axes(&mut svg, "passes over the points", "seconds", 1.0);
        for (way, colour) in self.ways.iter().zip(COLOURS) {
            let points = way.steps.iter().map(|step| (step.seconds, step.passes));
            let points = std::iter::once((0.0, 0.0)).chain(points);
            svg.curve(points.map(|(x, y)| (panel.x(x), panel.y(y))), colour);
        }
        let names = Way::ALL.map(Way::name).into_iter().zip(COLOURS);
        svg.legend((LEFT, panel.top - 32.0), names);
        svg.finish()
    }
}

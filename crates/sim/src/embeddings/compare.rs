//! Many traces at once: on each, how does our policy do beside the best of the others?

use std::fmt::Write as _;

use forebay_core::embedding::PolicyKind;
use serde::Serialize;

use super::{report::Report, run::CacheShare};

/// The policy that is judged.
const OURS: PolicyKind = PolicyKind::Group;
/// What it shall have of the best other's perfect hits, on every trace and at every size.
const TARGET: f64 = 0.98;
/// Where nobody has one perfect hit in so many requests, a handful of them decides, and there is nothing to compare.
const REQUESTS_PER_HIT_MAX: u64 = 1000;

/// Our policy and the best other, on one trace at one size.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The size.
    pub share: CacheShare,
    /// Requests that count.
    pub requests: u64,
    /// Our perfect hits.
    pub ours: u64,
    /// The most perfect hits of the others.
    pub others: u64,
    /// Who has them.
    pub best_other: PolicyKind,
}

impl Cell {
    /// Ours ÷ the best other's, unless nobody has any to speak of.
    pub fn ratio(&self) -> Option<f64> {
        let some = self.ours.max(self.others) * REQUESTS_PER_HIT_MAX >= self.requests;
        (some && self.requests > 0).then(|| self.ours as f64 / self.others.max(1) as f64)
    }
}

/// One trace.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The trace.
    pub trace: String,
    /// Was it looked at only to report?
    pub held_out: bool,
    /// A cell for each size.
    pub cells: Vec<Cell>,
}

/// Our policy beside the best other, trace by trace.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Comparison {
    /// The traces, in their order.
    pub lines: Vec<Line>,
}

impl Comparison {
    /// Adds a trace; `false` if the report has not both our policy and another one.
    pub fn add(&mut self, report: &Report, held_out: bool) -> bool {
        let cell = |share: CacheShare| {
            let ours = report.row(OURS, share)?.single;
            let others = report.rows.iter().filter(|row| row.policy != OURS && row.share == share);
            // The first of equals.
            let best = others.rev().max_by_key(|row| row.single.perfect)?;
            Some(Cell {
                share,
                requests: ours.requests,
                ours: ours.perfect,
                others: best.single.perfect,
                best_other: best.policy,
            })
        };
        let cells: Option<Vec<Cell>> = report.shares().into_iter().map(cell).collect();
        let line = cells.map(|cells| Line { trace: report.trace.clone(), held_out, cells });
        let added = line.is_some();
        self.lines.extend(line);
        added
    }

    /// A table: traces down, sizes across; and what is missed, of those tuned on and of those held out.
    pub fn text(&self) -> String {
        let mut text = format!(
            "perfect hits, {OURS} ÷ the best other; below {TARGET} is marked *, and where nobody has one in {REQUESTS_PER_HIT_MAX}, there is nothing to compare\n"
        );
        let _ = write!(text, "{:<32}", "TRACE");
        for cell in self.lines.first().map_or(&[][..], |line| &line.cells) {
            let _ = write!(text, "{:>28}", cell.share);
        }
        text.push('\n');
        for line in &self.lines {
            let name = format!("{}{}", line.trace, if line.held_out { " (held out)" } else { "" });
            let _ = write!(text, "{name:<32}");
            for cell in &line.cells {
                let shown = cell.ratio().map_or_else(
                    || "-".to_owned(),
                    |ratio| {
                        let mark = if ratio < TARGET { "*" } else { "" };
                        format!("{mark}{ratio:.3} ({})", cell.best_other)
                    },
                );
                let _ = write!(text, "{shown:>28}");
            }
            text.push('\n');
        }
        for (name, held_out) in [("tuned on", false), ("held out", true)] {
            let lines = self.lines.iter().filter(|line| line.held_out == held_out);
            let ratios: Vec<f64> =
                lines.flat_map(|line| &line.cells).filter_map(Cell::ratio).collect();
            if !ratios.is_empty() {
                let missed = ratios.iter().filter(|ratio| **ratio < TARGET).count();
                let short: f64 = ratios.iter().map(|ratio| (1.0 - ratio).max(0.0)).sum();
                let _ = writeln!(
                    text,
                    "{name}: {missed} of {} cells below {TARGET}, {:.2} points short of the best on average",
                    ratios.len(),
                    short / ratios.len() as f64 * 100.0
                );
            }
        }
        text
    }
}

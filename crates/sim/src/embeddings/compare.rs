//! Comparison of the policy `group` with the best other policy on many traces.

use std::fmt::Write as _;

use forebay_core::embeddings::PolicyKind;
use serde::Serialize;

use super::{report::Report, run::CacheShare};

/// The compared policy.
const OURS: PolicyKind = PolicyKind::Group;
/// Target ratio to the best other's perfect hits, on every trace and at every size.
const TARGET: f64 = 0.98;
/// With fewer than one perfect hit in this number of requests a ratio is chance, and is left out.
const REQUESTS_PER_HIT_MAX: u64 = 1000;

/// `group` and the best other policy, on one trace at one size.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Cache size.
    pub share: CacheShare,
    /// Counted requests.
    pub requests: u64,
    /// Perfect hits of `group`.
    pub ours: u64,
    /// Perfect hits of the best other policy.
    pub others: u64,
    /// The best other policy.
    pub best_other: PolicyKind,
}

impl Cell {
    /// Ratio to the best other policy, if there are enough perfect hits.
    pub fn ratio(&self) -> Option<f64> {
        let enough = self.ours.max(self.others) * REQUESTS_PER_HIT_MAX >= self.requests;
        (enough && self.requests > 0).then(|| self.ours as f64 / self.others.max(1) as f64)
    }
}

/// Comparison on one trace.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Name of the trace.
    pub trace: String,
    /// Whether the trace is held out.
    pub held_out: bool,
    /// A cell per size.
    pub cells: Vec<Cell>,
}

/// Comparisons on several traces.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Comparison {
    /// A line per trace.
    pub lines: Vec<Line>,
}

impl Comparison {
    /// Adds a trace. Returns `false` if the report lacks `group` or another policy.
    pub fn add(&mut self, report: &Report, held_out: bool) -> bool {
        let cell = |share: CacheShare| {
            let ours = report.row(OURS, share)?.single;
            let others = report.rows.iter().filter(|row| row.policy != OURS && row.share == share);
            // Of equals, the first.
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

    /// Table with a line per trace and a column per size, and the number of cells below the target
    /// for tuning and held-out traces.
    pub fn text(&self) -> String {
        let mut text = format!(
            "perfect hits, {OURS} ÷ the best other policy; * marks ratios below {TARGET}; - means \
             fewer than one perfect hit in {REQUESTS_PER_HIT_MAX} requests\n"
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
                let shortfall: f64 = ratios.iter().map(|ratio| (1.0 - ratio).max(0.0)).sum();
                let _ = writeln!(
                    text,
                    "{name}: {missed} of {} cells below {TARGET}, {:.2} points below the best on \
                     average",
                    ratios.len(),
                    shortfall / ratios.len() as f64 * 100.0
                );
            }
        }
        text
    }
}

//! Results for people and for scripts.

use std::fmt::Write as _;

use forebay_core::embedding::PolicyKind;
use serde::Serialize;

use super::{
    bounds::Bounds,
    run::{CacheShare, Tally},
    trace::Trace,
};

/// One policy at one size.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which policy.
    pub policy: PolicyKind,
    /// The cache size as a share.
    pub share: CacheShare,
    /// The same in rows.
    pub capacity_rows: u64,
    /// One pass, the first fifth not counted.
    pub single: Tally,
    /// A second pass over the same trace, all of it counted.
    pub replay: Option<Tally>,
    /// What a decision took, on this machine, in this run.
    pub nanos_per_key: f64,
}

/// What a simulation found out.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: String,
    /// Was it generated?
    pub synthetic: bool,
    /// Its tables, requests, keys, and different keys.
    pub tables: usize,
    /// How many requests it has.
    pub requests: usize,
    /// How many keys they have together.
    pub keys: usize,
    /// How many different ones: the working set.
    pub working_set_rows: u64,
    /// Every policy at every size.
    pub rows: Vec<Row>,
    /// Bounds at every size, if asked for.
    pub bounds: Vec<Bounds>,
}

impl Report {
    pub(super) fn new(trace: &Trace, rows: Vec<Row>, bounds: Vec<Bounds>) -> Self {
        Self {
            trace: trace.name().to_owned(),
            synthetic: trace.synthetic(),
            tables: trace.tables().len(),
            requests: trace.len(),
            keys: trace.key_count(),
            working_set_rows: trace.rows(),
            rows,
            bounds,
        }
    }

    /// The row of a policy at a size.
    pub fn row(&self, policy: PolicyKind, share: CacheShare) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy && row.share == share)
    }

    /// The sizes, in their order.
    pub fn shares(&self) -> Vec<CacheShare> {
        let mut shares: Vec<CacheShare> = Vec::new();
        for row in &self.rows {
            if !shares.contains(&row.share) {
                shares.push(row.share);
            }
        }
        shares
    }

    /// The policies, in their order.
    pub fn policies(&self) -> Vec<PolicyKind> {
        let mut policies = Vec::new();
        for row in &self.rows {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        policies
    }

    /// A table: policies down, sizes across; perfect and individual hits in percent.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let kind = if self.synthetic { " (SYNTHETIC)" } else { "" };
        let _ = writeln!(
            text,
            "{}{kind}: {} requests, {} keys in {} tables, working set {} rows",
            self.trace, self.requests, self.keys, self.tables, self.working_set_rows
        );
        self.section(&mut text, "perfect hits / individual hits, %, single pass", |row| {
            Some(row.single)
        });
        if self.rows.iter().any(|row| row.replay.is_some()) {
            self.section(&mut text, "the same, replayed after the whole trace as warm-up", |row| {
                row.replay
            });
        }
        if !self.bounds.is_empty() {
            self.bounds_section(&mut text);
        }
        text
    }

    fn section(&self, text: &mut String, title: &str, tally: impl Fn(&Row) -> Option<Tally>) {
        let shares = self.shares();
        let _ = write!(text, "\n{title}\n{:<20}", "POLICY");
        for share in &shares {
            let _ = write!(text, "{share:>16}");
        }
        text.push('\n');
        for policy in self.policies() {
            let _ = write!(text, "{:<20}", policy.name());
            for share in &shares {
                let cell =
                    self.row(policy, *share).and_then(&tally).map_or_else(String::new, percent);
                let _ = write!(text, "{cell:>16}");
            }
            text.push('\n');
        }
    }

    fn bounds_section(&self, text: &mut String) {
        let mut line = |name: &str, cell: &dyn Fn(&Bounds) -> String| {
            let _ = write!(text, "{name:<20}");
            for bounds in &self.bounds {
                let _ = write!(text, "{:>16}", cell(bounds));
            }
            text.push('\n');
        };
        line("-- infinite", &|bounds| percent(bounds.infinite));
        line("-- table Belady", &|bounds| {
            let rate = bounds.table_belady_perfect as f64 / bounds.infinite.requests.max(1) as f64;
            format!("{:.2}", rate * 100.0)
        });
        line("-- static", &|bounds| percent(bounds.fixed));
    }
}

fn percent(tally: Tally) -> String {
    format!("{:.2} / {:.2}", tally.perfect_rate() * 100.0, tally.hit_rate() * 100.0)
}

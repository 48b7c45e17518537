//! Reports: results as text and as JSON.

use std::fmt::Write as _;

use forebay_core::embeddings::PolicyKind;
use serde::Serialize;

use super::{
    bounds::Bounds,
    run::{CacheShare, Tally},
    trace::Trace,
};

/// Result of one policy at one size.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: PolicyKind,
    /// Cache size as a share.
    pub share: CacheShare,
    /// Cache size in rows.
    pub capacity_rows: u64,
    /// One pass without the first fifth.
    pub single: Tally,
    /// A second pass over the same trace, all of it counted.
    pub replay: Option<Tally>,
    /// One pass with some keys known one request early.
    pub prefetch: Option<Prefetched>,
    /// Bundles that the policy has learned in one pass.
    pub bundles: Vec<Bundle>,
    /// Time per decision, on this machine in this run.
    pub nanos_per_key: f64,
}

/// Hits when some keys are known one request early.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Prefetched {
    /// With their rows prefetched.
    pub known: Tally,
    /// With implied rows prefetched as well.
    pub bundles: Tally,
}

/// A dependency: the key of one table determines that of another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bundle {
    /// The determining table.
    pub from: String,
    /// The determined table.
    pub to: String,
    /// Share of requests in which the key is the expected one.
    pub confidence: f64,
}

/// Results of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the trace.
    pub trace: String,
    /// Whether the trace was generated.
    pub synthetic: bool,
    /// Number of tables.
    pub tables: usize,
    /// Number of requests.
    pub requests: usize,
    /// Number of keys of all requests.
    pub keys: usize,
    /// Distinct rows: the working set.
    pub working_set_rows: u64,
    /// A row per policy and size.
    pub rows: Vec<Row>,
    /// Bounds at every size, if requested.
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

    /// Row of a policy and a size.
    pub fn row(&self, policy: PolicyKind, share: CacheShare) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy && row.share == share)
    }

    /// The sizes in order of appearance.
    pub fn shares(&self) -> Vec<CacheShare> {
        let mut shares: Vec<CacheShare> = Vec::new();
        for row in &self.rows {
            if !shares.contains(&row.share) {
                shares.push(row.share);
            }
        }
        shares
    }

    /// The policies in order of appearance.
    pub fn policies(&self) -> Vec<PolicyKind> {
        let mut policies = Vec::new();
        for row in &self.rows {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        policies
    }

    /// Table of perfect and individual hits in percent: a line per policy, a column per size.
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
        // Bounds are for the single pass.
        if !self.bounds.is_empty() {
            self.bounds_section(&mut text);
        }
        if self.rows.iter().any(|row| row.replay.is_some()) {
            self.section(
                &mut text,
                "second pass, after the whole trace as warm-up (replayed)",
                |row| row.replay,
            );
        }
        if self.rows.iter().any(|row| row.prefetch.is_some()) {
            self.section(&mut text, "single pass, known keys fetched one request ahead", |row| {
                row.prefetch.map(|prefetch| prefetch.known)
            });
            self.section(
                &mut text,
                "single pass, known keys and the keys that they imply fetched ahead",
                |row| row.prefetch.map(|prefetch| prefetch.bundles),
            );
        }
        text
    }

    /// Bundles that each policy has learned, one chain per line.
    pub fn bundles_text(&self) -> String {
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| !row.bundles.is_empty()) {
            let _ = writeln!(text, "\nbundles learned by {} at {}", row.policy, row.share);
            for chain in chains(&row.bundles) {
                let _ = writeln!(text, "{chain}");
            }
        }
        if text.is_empty() {
            text.push_str(
                "\nno bundles: no table's key determines another's, or no policy here learns \
                 them\n",
            );
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

/// Chains of dependencies, each dependency once, with the lowest confidence of the chain.
fn chains(bundles: &[Bundle]) -> Vec<String> {
    let mut left: Vec<&Bundle> = bundles.iter().collect();
    let mut chains = Vec::new();
    while let Some(first) = left.iter().position(|bundle| left.iter().all(|b| b.to != bundle.from))
    {
        let mut at = left.remove(first);
        let (mut chain, mut confidence) = (format!("{} -> {}", at.from, at.to), at.confidence);
        while let Some(next) = left.iter().position(|bundle| bundle.from == at.to) {
            at = left.remove(next);
            let _ = write!(chain, " -> {}", at.to);
            confidence = confidence.min(at.confidence);
        }
        chains.push(format!("{chain} ({:.1} %)", confidence * 100.0));
    }
    // What is left forms cycles.
    let cycle = |bundle: &&Bundle| {
        format!("{} -> {} ({:.1} %)", bundle.from, bundle.to, bundle.confidence * 100.0)
    };
    chains.extend(left.iter().map(cycle));
    chains
}

fn percent(tally: Tally) -> String {
    format!("{:.2} / {:.2}", tally.perfect_rate() * 100.0, tally.hit_rate() * 100.0)
}

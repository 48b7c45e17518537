//! What was aimed at, beside the worst that was seen of it.

use std::fmt::Write as _;

use forebay_core::tier::PolicyKind;

use super::outcome::{Outcome, ratio};
use crate::Section;

/// Runs of one setup, as they were seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub runs: Vec<Outcome>,
    /// What may be written in a second; `CacheLib`'s policies and an unlimited LRU do not keep to it.
    pub limit: Option<f64>,
}

/// A figure, and where it was seen.
type Found = Option<(f64, String)>;

impl Seen {
    fn of(&self, policy: PolicyKind) -> Option<&Outcome> {
        self.runs.iter().find(|run| run.policy == policy)
    }

    fn ours(&self) -> Option<&Outcome> {
        self.of(PolicyKind::NextUse)
    }

    fn is(&self, scenarios: &[&str], variant: &str) -> bool {
        let first = self.runs.first();
        first.is_some_and(|run| {
            let this = run.variant.as_deref().unwrap_or("");
            scenarios.contains(&&*run.scenario) && this.starts_with(variant)
        })
    }

    /// The best of the others that keep to the limit.
    fn best_other(&self) -> Option<&Outcome> {
        let kept = |run: &&Outcome| {
            let over = self.limit.is_some_and(|limit| run.write_rate() > 1.02 * limit);
            run.policy != PolicyKind::NextUse && !over
        };
        self.runs.iter().filter(kept).max_by_key(|run| run.absorbed())
    }
}

fn name(run: &Outcome) -> String {
    let variant = run.variant.as_ref().map_or(String::new(), |variant| format!(" {variant}"));
    format!("{}{variant}", run.scenario)
}

/// The smallest of these figures, each with the run that it is of.
fn least<'a>(figures: impl Iterator<Item = (f64, &'a Outcome)>) -> Found {
    let least = figures.min_by(|(one, _), (other, _)| one.total_cmp(other));
    least.map(|(figure, run)| (figure, name(run)))
}

/// Writes the table.
pub(super) fn table(section: &mut Section, seen: &[Seen]) {
    const PAPERS: [&str; 3] = ["shift-synchronized", "shift-pipelined", "shift-sequential"];
    const FALSE: [&str; 1] = ["shift-false"];
    let shares = |scenarios: &'static [&'static str], variant: &'static str| {
        let of = seen.iter().filter(move |seen| seen.is(scenarios, variant));
        least(of.filter_map(|seen| seen.ours().map(|run| (run.of_optimum(), run))))
    };
    let beside_best = |limited: bool| {
        let of = seen.iter().filter(|seen| !seen.is(&FALSE, "") && seen.limit.is_some() == limited);
        least(of.filter_map(|seen| {
            let (ours, other) = (seen.ours()?, seen.best_other()?);
            Some((ratio(ours.absorbed() as f64, other.absorbed() as f64), ours))
        }))
    };
    let beside_lru = least(seen.iter().filter(|seen| seen.is(&FALSE, "")).filter_map(|seen| {
        let (ours, lru) = (seen.ours()?, seen.of(PolicyKind::Lru)?);
        Some((ratio(ours.absorbed() as f64, lru.absorbed() as f64), ours))
    }));
    let writes = least(seen.iter().filter(|seen| seen.limit.is_none()).filter_map(|seen| {
        let (ours, lru) = (seen.ours()?, seen.of(PolicyKind::Lru)?);
        Some((-ratio(ours.written_bytes as f64, lru.written_bytes as f64), ours))
    }));
    let of_limit = least(seen.iter().filter_map(|seen| {
        let ours = seen.ours()?;
        Some((-ratio(ours.write_rate(), seen.limit?), ours))
    }));
    section.text.push_str(
        "### Targets\n\n\
         next-use, in all runs of this page with several policies (reinsertion is not among them): the worst that was seen. Under a write limit others count if they keep to it. \"Within 2 %\" of a limit is read as not beyond it; that all of it is used is not reached, as figure 9 says. With false specifications LRU may be ahead by a tenth.\n\n\
         | | target | worst | where | |\n|---|---|---|---|---|\n",
    );
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let times = |factor: f64| format!("{factor:.3}");
    let mut row = |what: &str, target: f64, found: Found, show: &dyn Fn(f64) -> String| {
        let Some((figure, at)) = found else { return };
        // The least of negative figures is the most.
        let verdict = if figure >= target { "met" } else { "**missed**" };
        let bound = if target < 0.0 { "≤" } else { "≥" };
        let (target, figure) = (show(target.abs()), show(figure.abs()));
        let _ = writeln!(
            section.text,
            "| {what} | {bound} {target} | {figure} | {} | {verdict} |",
            at.trim_start_matches("shift-")
        );
    };
    row("of the optimum, order shared, rates ±20 % too", 0.95, shares(&PAPERS, ""), &percent);
    row("of the optimum, window 10 %", 0.8, shares(&["shift-shuffled"], "window-10"), &percent);
    row("absorbed, beside the best other, specifications true", 1.0, beside_best(false), &times);
    row("absorbed, beside LRU, all specifications false", 0.9, beside_lru, &times);
    row("flash writes, beside LRU", -0.4, writes, &times);
    row("absorbed under a write limit, beside the best other", 1.0, beside_best(true), &times);
    row("written, of the limit: not beyond it", -1.02, of_limit, &times);
    section.text.push('\n');
}

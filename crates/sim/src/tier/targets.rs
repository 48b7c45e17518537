//! Targets: each target beside the worst result of all runs.

use std::fmt::Write as _;

use forebay_core::tier::PolicyKind;

use super::outcome::{Outcome, ratio};
use crate::Section;

/// Runs of one setup.
#[derive(Debug)]
pub(super) struct SetupRuns {
    pub runs: Vec<Outcome>,
    /// Write limit in bytes per second. `CacheLib`'s policies and an unlimited LRU do not keep to
    /// it.
    pub limit: Option<f64>,
}

/// A figure and the name of its run.
type Found = Option<(f64, String)>;

impl SetupRuns {
    fn of(&self, policy: PolicyKind) -> Option<&Outcome> {
        self.runs.iter().find(|run| run.policy == policy)
    }

    fn ours(&self) -> Option<&Outcome> {
        self.of(PolicyKind::NextUse)
    }

    fn matches(&self, scenarios: &[&str], variant: &str) -> bool {
        let first = self.runs.first();
        first.is_some_and(|run| {
            let this = run.variant.as_deref().unwrap_or("");
            scenarios.contains(&&*run.scenario) && this.starts_with(variant)
        })
    }

    /// The other policy that absorbs most while it keeps to the limit.
    fn best_other(&self) -> Option<&Outcome> {
        let keeps_to_limit = |run: &&Outcome| {
            let over = self.limit.is_some_and(|limit| run.write_rate() > 1.02 * limit);
            run.policy != PolicyKind::NextUse && !over
        };
        self.runs.iter().filter(keeps_to_limit).max_by_key(|run| run.absorbed())
    }
}

fn name(run: &Outcome) -> String {
    let variant = run.variant.as_ref().map_or(String::new(), |variant| format!(" {variant}"));
    format!("{}{variant}", run.scenario)
}

/// The smallest figure, with the name of its run.
fn least<'a>(figures: impl Iterator<Item = (f64, &'a Outcome)>) -> Found {
    let least = figures.min_by(|(one, _), (other, _)| one.total_cmp(other));
    least.map(|(figure, run)| (figure, name(run)))
}

/// Writes the table of targets.
pub(super) fn table(section: &mut Section, setups: &[SetupRuns]) {
    const PAPERS: [&str; 3] = ["shift-synchronized", "shift-pipelined", "shift-sequential"];
    const FALSE_SPECS: [&str; 1] = ["shift-false"];
    let shares = |scenarios: &'static [&'static str], variant: &'static str| {
        let of = setups.iter().filter(move |setup| setup.matches(scenarios, variant));
        least(of.filter_map(|setup| setup.ours().map(|run| (run.of_optimum(), run))))
    };
    let relative_to_best = |limited: bool| {
        let of = setups
            .iter()
            .filter(|setup| !setup.matches(&FALSE_SPECS, "") && setup.limit.is_some() == limited);
        least(of.filter_map(|setup| {
            let (ours, other) = (setup.ours()?, setup.best_other()?);
            Some((ratio(ours.absorbed() as f64, other.absorbed() as f64), ours))
        }))
    };
    let relative_to_lru =
        least(setups.iter().filter(|setup| setup.matches(&FALSE_SPECS, "")).filter_map(|setup| {
            let (ours, lru) = (setup.ours()?, setup.of(PolicyKind::Lru)?);
            Some((ratio(ours.absorbed() as f64, lru.absorbed() as f64), ours))
        }));
    let writes = least(setups.iter().filter(|setup| setup.limit.is_none()).filter_map(|setup| {
        let (ours, lru) = (setup.ours()?, setup.of(PolicyKind::Lru)?);
        Some((-ratio(ours.written_bytes as f64, lru.written_bytes as f64), ours))
    }));
    let of_limit = least(setups.iter().filter_map(|setup| {
        let ours = setup.ours()?;
        Some((-ratio(ours.write_rate(), setup.limit?), ours))
    }));
    section.text.push_str(
        "### Targets\n\n\
         The worst result of next-use in all runs of this page with several policies, reinsertion \
         excepted. Under a write limit, other policies count if they keep to it. \"Within 2 %\" of \
         a limit is read as not beyond it; the limit is not used up everywhere (figure 9). With \
         false specifications LRU may be ahead by a tenth.\n\n\
         | | target | worst | where | |\n|---|---|---|---|---|\n",
    );
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let times = |factor: f64| format!("{factor:.3}");
    let mut row = |what: &str, target: f64, found: Found, show: &dyn Fn(f64) -> String| {
        let Some((figure, at)) = found else { return };
        // Upper bounds are negated, so that the worst is the smallest.
        let verdict = if figure >= target { "met" } else { "**missed**" };
        let bound = if target < 0.0 { "≤" } else { "≥" };
        let (target, figure) = (show(target.abs()), show(figure.abs()));
        let _ = writeln!(
            section.text,
            "| {what} | {bound} {target} | {figure} | {} | {verdict} |",
            at.trim_start_matches("shift-")
        );
    };
    row(
        "share of the optimum, shared order, with and without rates ±20 %",
        0.95,
        shares(&PAPERS, ""),
        &percent,
    );
    row(
        "share of the optimum, shuffle window 10 %",
        0.8,
        shares(&["shift-shuffled"], "window-10"),
        &percent,
    );
    row(
        "absorbed, relative to the best other policy, true specifications",
        1.0,
        relative_to_best(false),
        &times,
    );
    row("absorbed, relative to LRU, all specifications false", 0.9, relative_to_lru, &times);
    row("flash writes, relative to LRU", -0.4, writes, &times);
    row(
        "absorbed under a write limit, relative to the best other policy",
        1.0,
        relative_to_best(true),
        &times,
    );
    row("write rate, relative to the limit", -1.02, of_limit, &times);
    section.text.push('\n');
}

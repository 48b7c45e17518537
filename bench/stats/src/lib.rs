//! Statistics of benchmarks: paired comparisons on noisy machines.
//!
//! The same raw read varies by a factor of two within minutes, so absolute figures and single
//! ratios mean little. A comparison runs both sides in adjacent pairs, many times, and reports the
//! median of the pairs' ratios with a bootstrap interval. Where the interval straddles the target,
//! the verdict is "not resolved". [`load`] generates load of many small concurrent operations.

pub mod load;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Pairs of a full run.
pub const PAIRS: usize = 15;
/// Pairs of a quick run.
pub const PAIRS_QUICK: usize = 5;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;
/// Fraction of the resampled medians that the interval contains.
const CONFIDENCE: f64 = 0.95;

/// Target of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At least this; larger is better.
    AtLeast(f64),
    /// At most this; smaller is better.
    AtMost(f64),
    /// No target.
    Open,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval meets the target.
    Met,
    /// The whole interval misses the target.
    Missed,
    /// The interval straddles the target.
    #[serde(rename = "not resolved")]
    NotResolved,
    /// There is no target.
    Measured,
}

/// One line of a benchmark's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Name of the measurement.
    pub row: String,
    /// Unit of both medians.
    pub unit: String,
    /// forebay's median.
    pub ours: f64,
    /// Name of the peer.
    pub against: String,
    /// The peer's median.
    pub theirs: f64,
    /// Median of the pairs' ratios, ours ÷ theirs.
    pub ratio: f64,
    /// Lower end of the interval of the ratio.
    pub low: f64,
    /// Upper end of the interval of the ratio.
    pub high: f64,
    /// Target of the ratio.
    pub target: String,
    /// Whether the target is met.
    pub verdict: Verdict,
}

/// Runs both sides in adjacent pairs, alternating which side goes first, and compares them.
pub fn compare<E>(
    row: &str,
    unit: &str,
    against: &str,
    target: Target,
    pairs: usize,
    mut ours: impl FnMut() -> Result<f64, E>,
    mut theirs: impl FnMut() -> Result<f64, E>,
) -> Result<Row, E> {
    let mut measured = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        measured.push(if pair % 2 == 0 {
            let ours = ours()?;
            (ours, theirs()?)
        } else {
            let theirs = theirs()?;
            (ours()?, theirs)
        });
    }
    Ok(evaluate(row, unit, against, target, &measured))
}

/// Compares pairs that were measured elsewhere.
pub fn evaluate(row: &str, unit: &str, against: &str, target: Target, pairs: &[(f64, f64)]) -> Row {
    assert!(!pairs.is_empty(), "a comparison needs a pair");
    let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
    let (low, high) = bootstrap(&ratios);
    let verdict = match target {
        Target::AtLeast(wanted) => verdict(low >= wanted, high < wanted),
        Target::AtMost(wanted) => verdict(high <= wanted, low > wanted),
        Target::Open => Verdict::Measured,
    };
    Row {
        row: row.to_owned(),
        unit: unit.to_owned(),
        ours: median(pairs.iter().map(|pair| pair.0).collect()),
        against: against.to_owned(),
        theirs: median(pairs.iter().map(|pair| pair.1).collect()),
        ratio: median(ratios),
        low,
        high,
        target: match target {
            Target::AtLeast(wanted) => format!(">= {wanted}"),
            Target::AtMost(wanted) => format!("<= {wanted}"),
            Target::Open => "-".to_owned(),
        },
        verdict,
    }
}

fn verdict(met: bool, missed: bool) -> Verdict {
    match (met, missed) {
        (true, _) => Verdict::Met,
        (_, true) => Verdict::Missed,
        _ => Verdict::NotResolved,
    }
}

/// The median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// The bootstrap interval of the median, deterministic for the same pairs.
fn bootstrap(ratios: &[f64]) -> (f64, f64) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| median((0..ratios.len()).map(|_| ratios[random.usize(0..ratios.len())]).collect()))
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small index")]
    let cut = (RESAMPLES as f64 * (1.0 - CONFIDENCE) / 2.0) as usize;
    (medians[cut], medians[RESAMPLES - 1 - cut])
}

/// The rows as a text table.
pub fn table(rows: &[Row]) -> String {
    let name = |row: &Row| format!("{} / {}", row.row, row.against);
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0);
    let mut text = format!(
        "{:<width$} {:>9} {:>9} {:<9} {:>6} {:>13}  {:<7} VERDICT\n",
        "ROW", "OURS", "THEIRS", "UNIT", "RATIO", "INTERVAL", "TARGET"
    );
    for row in rows {
        let interval = format!("{:.2} .. {:.2}", row.low, row.high);
        let verdict = match row.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotResolved => "not resolved",
            Verdict::Measured => "measured",
        };
        let _ = writeln!(
            text,
            "{:<width$} {:>9.3} {:>9.3} {:<9} {:>6.2} {interval:>13}  {:<7} {verdict}",
            name(row),
            row.ours,
            row.theirs,
            row.unit,
            row.ratio,
            row.target
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: Target, pairs: &[(f64, f64)]) -> Row {
        evaluate("x", "GB/s", "y", target, pairs)
    }

    #[test]
    fn a_clear_difference_is_resolved_and_an_unclear_one_is_not() {
        let clear: Vec<_> = (0..15).map(|i| (2.0 + f64::from(i % 3) * 0.1, 1.0)).collect();
        assert_eq!(row(Target::AtLeast(1.5), &clear).verdict, Verdict::Met);
        assert_eq!(row(Target::AtLeast(3.0), &clear).verdict, Verdict::Missed);
        assert_eq!(row(Target::AtMost(3.0), &clear).verdict, Verdict::Met);
        let noisy: Vec<_> = (0..15).map(|i| (f64::from(i % 5) + 0.5, 2.5)).collect();
        assert_eq!(row(Target::AtLeast(1.0), &noisy).verdict, Verdict::NotResolved);
    }

    #[test]
    fn drift_on_both_sides_cancels_out() {
        let drifting: Vec<_> = (1..=15).map(|i| (1.2 * f64::from(i), f64::from(i))).collect();
        let row = row(Target::AtLeast(1.1), &drifting);
        assert!((row.ratio - 1.2).abs() < 1e-9 && row.verdict == Verdict::Met);
    }

    #[test]
    fn both_sides_alternate_at_going_first() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            order.borrow_mut().push(name);
            Ok::<_, ()>(1.0)
        };
        compare("x", "s", "y", Target::AtLeast(0.0), 4, || side('o'), || side('t')).unwrap();
        assert_eq!(order.into_inner(), "ottootto");
    }

    #[test]
    fn rows_have_the_documented_keys() {
        let json = serde_json::to_value(row(Target::AtLeast(1.0), &[(1.0, 1.0)])).unwrap();
        let mut keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected = [
            "against", "high", "low", "ours", "ratio", "row", "target", "theirs", "unit", "verdict",
        ];
        assert_eq!(keys, expected);
    }
}

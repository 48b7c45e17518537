//! Tables on real files, judged by a model that has every row in memory.
//!
//! Everything follows from a seed: `SEED=n` replays one, `SEEDS=n` runs so many.

#![expect(clippy::float_cmp, reason = "rows are copied, or sums of few small numbers")]

mod concurrent;
mod files;
mod lookups;
mod model;
mod prefetch;

/// The seeds of one test.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

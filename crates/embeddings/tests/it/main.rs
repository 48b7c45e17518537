//! Integration tests: tables on real files, compared with a model that has every row in memory.
//!
//! Every test is seeded: `SEED=n` replays one seed, `SEEDS=n` runs `n` of them.

#![expect(clippy::float_cmp, reason = "rows are copied, or sums of few small numbers")]

mod concurrent;
mod files;
mod lookups;
mod model;
mod prefetch;
mod quantised;

/// The seeds of one test, `count` by default.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

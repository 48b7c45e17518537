//! The core's state machines, driven from outside as the simulator and the daemon drive them.
//!
//! Everything follows from a seed: `SEED=n` replays one, `SEEDS=n` runs so many.

use std::ops::Range;

mod benefit;
mod council;
mod manager;
mod managers;
mod placement;
mod presence;
mod rotation;
mod tier;

/// Which seeds to run.
#[expect(clippy::disallowed_methods, reason = "a test may be told which seeds to run")]
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

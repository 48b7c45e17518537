//! The state machines of `core`, driven from outside as the simulator and the node drive them.
//!
//! Everything follows from a seed: `SEED=n` replays one, `SEEDS=n` runs the first n.

use std::ops::Range;

mod benefit;
mod manager;
mod managers;
mod placement;
mod presence;
mod ranks;
mod replication;
mod rotation;
mod tier;

/// The seeds to run.
#[expect(clippy::disallowed_methods, reason = "the seeds of a test can be set")]
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

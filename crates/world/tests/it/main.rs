//! Worlds from seeds: promises 1 to 7 with everything that can go wrong, and repeatable runs.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use forebay_world::{Scale, run};

/// Worlds of an ordinary run.
const WORLDS: u64 = 500;

/// The seeds to run: `SEED` alone, or the first `SEEDS`.
fn seeds() -> (u64, u64) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, number("SEEDS").unwrap_or(WORLDS)),
    }
}

/// Promises 1 to 7, in worlds of three or four nodes.
#[test]
fn no_world_violates_a_promise() {
    let (first, end) = seeds();
    let next = AtomicU64::new(first);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<String> = thread::scope(|scope| {
        let worker = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if seed >= end {
                    return failed;
                }
                if let Some(violation) = run(seed, Scale::Ordinary, false).violation {
                    failed.push(format!("seed {seed}: {violation}"));
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert!(failed.is_empty(), "{} worlds failed:\n{}", failed.len(), failed.join("\n"));
}

/// The same in worlds of some thousand items, whose jobs outlast most faults.
#[test]
fn no_large_world_violates_a_promise() {
    for seed in 0..10 {
        let outcome = run(seed, Scale::Large, false);
        assert_eq!(outcome.violation, None, "seed {seed}");
        assert!(outcome.messages > 1000, "seed {seed} sends {} messages", outcome.messages);
    }
}

/// A failing seed is worth nothing if it does not fail again.
#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..24 {
        let (first, second) = (run(seed, Scale::Ordinary, true), run(seed, Scale::Ordinary, true));
        let differs = first.kept.iter().zip(&second.kept).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let from = at.saturating_sub(5);
            panic!(
                "seed {seed} differs at event {at}:\n{}\n  or\n{}",
                first.kept[from..=at].join("\n"),
                second.kept[at]
            );
        }
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert!(first.operations > 50, "seed {seed} reads {} items", first.operations);
    }
}

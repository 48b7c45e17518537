//! A small seeded run of the fuzzer, for invariants only: regret is a figure, not a test.

use super::World;
use crate::train::{Policy, simulate};

/// Random worlds under every policy. Promise 2 (exactly once) is asserted by every job, promise 6
/// (capacity) by every split; here counts add up, and residency never exceeds the capacity.
#[test]
fn random_worlds_keep_the_invariants() {
    for number in 0..12 {
        let world = World::new(99, number);
        let scenario = world.scenario();
        for policy in Policy::ALL {
            let outcome = simulate(&scenario, &scenario.setups[0], policy, 1, &mut |_| {});
            let reads = outcome.reads();
            assert_eq!(reads.items, reads.hits + reads.waited + reads.misses, "{}", world.name);
            assert!(outcome.jobs.iter().all(|job| job.gpu_busy <= 1.0 + 1e-9), "{}", world.name);
            let of_datasets: u64 = outcome.datasets.iter().map(|one| one.origin_bytes).sum();
            assert_eq!(outcome.origin_bytes, of_datasets, "{} {policy}", world.name);
        }
    }
    let result = World::new(99, 0).compare();
    assert_eq!(result, World::new(99, 0).compare(), "a seed determines the result");
}

//! Jobs that join late, lag, stop, die, leave and change speed; a budget that changes; a slow
//! origin. The world audits every order, and every live job finishes.

use std::time::Duration;

use forebay_core::train::rotation::RotationPolicy;

use super::world::{JobPlan, World, WorldPlan};
use crate::seeds;

fn plan(seed: u64) -> WorldPlan {
    let mut rng = fastrand::Rng::with_seed(seed);
    let chunks = rng.u32(1..9);
    let chunk_items = rng.u32(1..17);
    let span = u64::from(chunks * chunk_items);
    let pace = |rng: &mut fastrand::Rng| match rng.u32(0..6) {
        0 => 0.0,
        1 => 0.05,
        _ => 0.2 + 3.0 * rng.f64(),
    };
    let job = |rng: &mut fastrand::Rng| {
        let mut paces = vec![(0, 0.2 + 3.0 * rng.f64())];
        for _ in 0..rng.u32(0..4) {
            paces.push((rng.u64(0..=4 * span), pace(rng)));
        }
        paces.sort_by_key(|(from, _)| *from);
        // In the end all jobs go on.
        paces.push((4 * span + 2, 1.0 + rng.f64()));
        JobPlan {
            arrives: rng.u64(1..span + 2),
            paces,
            epochs: rng.u64(1..4),
            dies: (rng.u32(0..4) == 0).then(|| rng.u64(1..3 * span + 2)),
        }
    };
    let jobs = (0..rng.u32(1..7)).map(|_| job(&mut rng)).collect();
    let mut budgets = vec![(0, rng.u32(0..=chunks))];
    for _ in 0..rng.u32(0..3) {
        budgets.push((rng.u64(1..4 * span + 2), rng.u32(0..=chunks + 1)));
    }
    budgets.sort_by_key(|(from, _)| *from);
    let policy = match rng.u32(0..3) {
        0 => RotationPolicy::Quiver { deadline: Duration::from_secs(rng.u64(0..40)) },
        _ => RotationPolicy::Demand,
    };
    WorldPlan {
        policy,
        chunks,
        chunk_items,
        budgets,
        origin: 0.5 + 8.0 * rng.f64(),
        report_every: rng.u64(1..6),
        evict_steps: rng.u64(0..5),
        jobs,
    }
}

/// Promises 2, 5 and 6, as far as rotation can keep them: every item once, no job is blocked
/// forever, never more chunks than the budget.
#[test]
fn every_live_job_finishes_whatever_happens() {
    for seed in seeds(3000) {
        let plan = plan(seed);
        let mut world = World::new(plan, seed);
        // All items one after the other through the slowest origin, and the time until all jobs go
        // on.
        let items: u64 = world.items_left();
        let span = u64::from(world.plan.chunks * world.plan.chunk_items);
        let steps_max = 5 * span + 100 + 10 * items;
        while !world.is_over() {
            world.step();
            assert!(world.step < steps_max, "seed {seed}: {world:?}");
        }
        assert_eq!(world.rotation.counters().invalid_events, 0);
        let resident = world.rotation.occupied().count();
        assert!(resident <= world.plan.chunks as usize);
    }
}

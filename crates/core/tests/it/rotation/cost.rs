//! The cost of rotation at the origin, per turn of the fastest job: our targets, and Quiver's
//! rotation for comparison. Loads, fetches by jobs and uncached reads all count.

use std::time::Duration;

use forebay_core::train::rotation::RotationPolicy;

use super::world::{JobPlan, World, WorldPlan};
use crate::seeds;

const CHUNK_ITEMS: u32 = 48;
const FASTEST: f64 = 4.0;
/// The time of the fastest job for a chunk; the paper does not state the deadline.
const QUIVER: RotationPolicy = RotationPolicy::Quiver { deadline: Duration::from_secs(12) };

#[derive(Debug, Clone)]
struct Case {
    chunks: u32,
    budget: u32,
    /// Time to load a chunk, in units of the time that the fastest job takes for one.
    load: f64,
    paces: Vec<f64>,
}

impl Case {
    fn random(seed: u64, is_equal: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chunks = rng.u32(5..31);
        let mut paces: Vec<f64> = (0..rng.usize(2..9))
            .map(|_| FASTEST / (1.0 + if is_equal { 0.0 } else { 3.0 * rng.f64() }))
            .collect();
        paces[0] = FASTEST;
        Self { chunks, budget: rng.u32(2..=(chunks / 2).max(2)), load: 0.1 + rng.f64(), paces }
    }

    /// Origin items per turn of the fastest job, as a share of what is not pinned.
    fn cost(&self, policy: RotationPolicy, seed: u64) -> f64 {
        let (warm, turns) = (3, 7);
        let mut rng = fastrand::Rng::with_seed(seed);
        let period = f64::from(CHUNK_ITEMS) / FASTEST;
        let turn = u64::from(self.chunks * CHUNK_ITEMS) / 4;
        let job = |pace: &f64| JobPlan::steady(1 + rng.u64(0..turn), *pace);
        let plan = WorldPlan {
            policy,
            chunks: self.chunks,
            chunk_items: CHUNK_ITEMS,
            budgets: vec![(0, self.budget)],
            origin: f64::from(CHUNK_ITEMS) / (period * self.load),
            report_every: 1 + seed % 3,
            evict_steps: 0,
            jobs: self.paces.iter().map(job).collect(),
        };
        let mut world = World::new(plan, seed);
        while world.turns(0).len() < turns {
            world.step();
        }
        let items = world.turns(0)[turns - 1] - world.turns(0)[warm - 1];
        let pinned = if policy == RotationPolicy::Demand { self.budget - 2 } else { 0 };
        let not_pinned = f64::from((self.chunks - pinned) * CHUNK_ITEMS);
        items as f64 / (turns - warm) as f64 / not_pinned
    }
}

/// Jobs of equal rates share nearly all fetches, wherever in their epochs they begin: at most 1.02
/// of what is not pinned in 99 of 100 worlds, 1.1 in every one, and less than 1 on average. Of the
/// 1,815 worlds of 121 seeds eight miss 1.02, at worst 1.056; the mean is 0.922.
#[test]
#[expect(clippy::print_stdout, reason = "the figures are the point of this test")]
fn equal_jobs_share_one_turn() {
    let (mut costs, mut worst) = (Vec::new(), String::new());
    for (chunks, budget) in [(10, 2), (10, 5), (20, 6)] {
        for (jobs, load) in [(2, 0.3), (3, 0.5), (4, 0.3), (4, 0.8), (4, 1.2)] {
            let case = Case { chunks, budget, load, paces: vec![FASTEST; jobs] };
            for seed in seeds(8) {
                let cost = case.cost(RotationPolicy::Demand, seed);
                assert!(cost <= 1.1, "{cost:.3}: {case:?}, seed {seed}");
                if costs.iter().all(|other| *other < cost) {
                    worst = format!("{cost:.3}: {case:?}, seed {seed}");
                }
                costs.push(cost);
            }
        }
    }
    let missed = costs.iter().filter(|cost| **cost > 1.02).count();
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    println!("mean {mean:.3}, {missed} of {} over 1.02, worst {worst}", costs.len());
    // One seed says nothing about a share.
    if costs.len() >= 100 {
        let is_met = missed * 100 <= costs.len() && mean < 1.0;
        assert!(is_met, "{missed} missed, mean {mean:.3}, worst {worst}");
    }
}

/// At most 1.15 for jobs up to four times apart.
#[test]
fn slower_jobs_ride_along() {
    for (chunks, budget) in [(10, 2), (10, 5), (20, 6)] {
        for slower in [1.05, 1.2, 1.4, 1.7, 2.0, 2.5, 3.3, 4.0] {
            let paces = vec![FASTEST, FASTEST / slower];
            let case = Case { chunks, budget, load: 0.5, paces };
            for seed in seeds(2) {
                let cost = case.cost(RotationPolicy::Demand, seed);
                assert!(cost <= 1.15, "{cost:.3}: {case:?}, seed {seed}");
            }
        }
    }
}

/// Random datasets, budgets, load times, arrivals and two to eight jobs. Nearly all cases meet the
/// targets, and the others miss them by little; Quiver's rotation meets them rarely. Of 300 seeds,
/// with equal jobs and then up to four times apart: ours 0.953 on average, 15 missed, at worst
/// 1.065; 0.917, 5 missed, at worst 1.277. Quiver's, of 120: 1.133, 99 missed; 1.290, 79 missed.
/// The lower bound is what is in no slot, two chunks less than what is not pinned. The more jobs
/// there are, the less often all of them profit from that.
#[test]
#[expect(clippy::print_stdout, reason = "the figures are the point of this test")]
fn at_random_the_targets_are_nearly_always_met() {
    for (is_equal, target, mean_max, worst_max) in [(true, 1.02, 1.0, 1.1), (false, 1.15, 1.0, 1.4)]
    {
        let costs = |policy| -> Vec<f64> {
            seeds(40).map(|seed| Case::random(seed, is_equal).cost(policy, seed)).collect()
        };
        let mean = |costs: &[f64]| costs.iter().sum::<f64>() / costs.len() as f64;
        let missed = |costs: &[f64]| costs.iter().filter(|cost| **cost > target).count();
        let (ours, quivers) = (costs(RotationPolicy::Demand), costs(QUIVER));
        let worst = ours.iter().copied().fold(0.0, f64::max);
        let figures = format!(
            "equal: {is_equal}; ours: mean {:.3}, worst {worst:.3}, {} of {} missed {target}; \
             Quiver's: mean {:.3}, {} missed",
            mean(&ours),
            missed(&ours),
            ours.len(),
            mean(&quivers),
            missed(&quivers),
        );
        println!("{figures}");
        assert!(worst <= worst_max, "{figures}");
        // A single seed, as `SEED=n` runs it, says nothing about a share or a mean.
        if ours.len() < 20 {
            continue;
        }
        assert!(missed(&ours) * 10 <= ours.len() && mean(&ours) <= mean_max, "{figures}");
        assert!(missed(&quivers) * 2 >= quivers.len() && mean(&quivers) > mean(&ours), "{figures}");
    }
}

/// One job with a cache of c fetches at most 1.02 of the rest in an epoch, which no order
/// beats.
#[test]
fn one_job_alone_reaches_the_bound() {
    for budget in [1, 2, 5, 9, 10] {
        let plan = WorldPlan {
            policy: RotationPolicy::Demand,
            chunks: 10,
            chunk_items: CHUNK_ITEMS,
            budgets: vec![(0, budget)],
            origin: 20.0,
            report_every: 1,
            evict_steps: 0,
            jobs: vec![JobPlan::steady(1, FASTEST)],
        };
        let mut world = World::new(plan, 1);
        while world.turns(0).len() < 5 {
            world.step();
        }
        let turns = world.turns(0);
        let bound = u64::from((10 - budget) * CHUNK_ITEMS);
        assert_eq!(turns[0], u64::from(10 * CHUNK_ITEMS), "filling it costs nothing more");
        assert!((turns[4] - turns[1]) * 100 <= 3 * bound * 102, "{budget} of ten: {turns:?}");
    }
}

//! Placement compared with brute force and with Quiver's rule, and its reluctance to move.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    train::placement::{
        Allocation, DatasetDemand, JobDemand, ModeTimes, Placement, PlacementSettings, Share,
        greedy,
    },
    units::ByteRate,
};

use crate::seeds;

fn job(rng: &mut fastrand::Rng) -> JobDemand {
    let hit = 0.1 + rng.f64();
    let rotating = hit * (1.0 + rng.f64());
    let miss = if rng.bool() { hit * (1.0 + 4.0 * rng.f64()) } else { hit * 1.01 };
    let times = Some(ModeTimes { hit, rotating: rotating.min(miss), miss });
    JobDemand { name: format!("j{}", rng.u32(..)), gpus: rng.u32(1..9), times }
}

fn dataset(rng: &mut fastrand::Rng, chunks_max: u32) -> DatasetDemand {
    let jobs = (0..rng.usize(0..4)).map(|_| job(rng)).collect();
    let chunks = rng.u32(1..=chunks_max);
    DatasetDemand::even(chunks, ByteSize(rng.u64(1..50)), jobs)
}

/// Loading costs nothing, and the smallest gain is worth a move.
fn eager() -> Placement {
    let load_rate = ByteRate(ByteSize(u64::MAX));
    Placement::new(PlacementSettings { load_rate, margin: 0.0, ..PlacementSettings::default() })
}

fn saved(shares: &[Share]) -> f64 {
    shares.iter().map(|share| share.gpus_saved).sum()
}

fn used(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.space.0).sum()
}

/// The most that any allocation of whole chunks can save.
fn brute_force(space: u64, datasets: &[DatasetDemand]) -> f64 {
    let Some((dataset, rest)) = datasets.split_first() else { return 0.0 };
    let allocations = (0..=dataset.chunks)
        .map(|chunks| if chunks == 0 { Allocation::Nothing } else { Allocation::Chunks(chunks) });
    allocations
        .filter_map(|allocation| {
            let left = space.checked_sub(dataset.space(allocation).0)?;
            // One chunk cannot rotate, so that it is no allocation for several jobs.
            let is_one = allocation == Allocation::Chunks(1) && dataset.chunks > 1;
            let is_choice = !(is_one && dataset.jobs.len() >= 2);
            is_choice.then(|| dataset.gpus_saved(allocation) + brute_force(left, rest))
        })
        .fold(0.0, f64::max)
}

#[test]
fn no_split_saves_more_and_the_greedy_rule_never_does() {
    for seed in seeds(3000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let datasets: Vec<DatasetDemand> =
            (0..rng.usize(1..5)).map(|_| dataset(&mut rng, 6)).collect();
        // Two chunks of each fit, so that halves are no allocation.
        let least = datasets.iter().map(|dataset| 2 * dataset.chunk_size.0).max().unwrap();
        let space = ByteSize(least + rng.u64(0..300));
        let ours = eager().split(space, &datasets);
        let best = brute_force(space.0, &datasets);
        assert!((saved(&ours) - best).abs() < 1e-9, "seed {seed}: {} of {best}", saved(&ours));
        assert!(used(&ours) <= space.0, "seed {seed}: promise 6");
        let theirs = greedy(space, &datasets);
        assert!(used(&theirs) <= space.0, "seed {seed}: promise 6");
        assert!(saved(&theirs) <= best + 1e-9, "seed {seed}: the greedy rule saved more");
    }
}

/// Promise 6: time and memory are bounded for any number of datasets. The result still fits, and is
/// hardly worse than what a greedy rule on the same measure finds.
#[test]
fn many_datasets_are_split_in_bounded_steps() {
    for seed in seeds(5) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut datasets: Vec<DatasetDemand> = (0..100).map(|_| dataset(&mut rng, 200)).collect();
        for dataset in &mut datasets {
            let chunk_size = ByteSize(rng.u64(1_000_000_000..20_000_000_000));
            *dataset =
                DatasetDemand::even(dataset.chunks, chunk_size, std::mem::take(&mut dataset.jobs));
        }
        let all: u64 = datasets.iter().map(|d| d.chunk_size.0 * u64::from(d.chunks)).sum();
        let space = ByteSize(all / 5);
        let ours = eager().split(space, &datasets);
        assert!(used(&ours) <= space.0);
        assert!(saved(&ours) >= saved(&greedy(space, &datasets)), "seed {seed}");
    }
}

/// Of ten chunks of 10 bytes, `chunks_present` are present, and no job has read them for `seconds`.
fn idle(chunks_present: u32, seconds: u64) -> DatasetDemand {
    let (allocated, idle_for) = (Allocation::Chunks(chunks_present), Duration::from_secs(seconds));
    DatasetDemand {
        allocated,
        chunks_present,
        idle_for,
        ..DatasetDemand::even(10, ByteSize(10), Vec::new())
    }
}

/// "What is cached stays until others need the room": the least recently used goes first, chunk by
/// chunk.
#[test]
fn idle_datasets_keep_their_space_until_others_need_it() {
    let times = Some(ModeTimes { hit: 1.0, rotating: 1.5, miss: 3.0 });
    let job = JobDemand { name: "a".to_owned(), gpus: 4, times };
    let busy = DatasetDemand::even(10, ByteSize(10), vec![job]);
    let datasets = [idle(10, 300), busy, idle(10, 100), idle(4, 200)];
    for rule in [greedy, |space, datasets: &[DatasetDemand]| eager().split(space, datasets)] {
        let split = |space| -> Vec<u32> {
            let chunks = |share: &Share| match share.allocation {
                Allocation::Chunks(chunks) => chunks,
                _ => 0,
            };
            rule(ByteSize(space), &datasets).iter().map(chunks).collect()
        };
        assert_eq!(split(340), [10, 10, 10, 4], "there is room for all");
        assert_eq!(split(339), [9, 10, 10, 4], "and for nearly all");
        assert_eq!(split(240), [0, 10, 10, 4]);
        assert_eq!(split(220), [0, 10, 10, 2]);
        assert_eq!(split(150), [0, 10, 5, 0]);
        assert_eq!(split(100), [0, 10, 0, 0], "datasets with gaining jobs come first");
    }
}

/// Space that a dataset had and does not fill stays its own until another dataset has something to
/// keep there.
#[test]
fn space_that_is_not_filled_is_given_last() {
    let half_full = DatasetDemand { allocated: Allocation::Chunks(10), ..idle(5, 100) };
    let datasets = [half_full, idle(10, 200)];
    let split = |space| -> Vec<Allocation> {
        let shares = Placement::default().split(ByteSize(space), &datasets);
        shares.iter().map(|share| share.allocation).collect()
    };
    assert_eq!(split(200), [Allocation::Chunks(10), Allocation::Chunks(10)]);
    assert_eq!(split(150), [Allocation::Chunks(5), Allocation::Chunks(10)]);
    assert_eq!(split(140), [Allocation::Chunks(5), Allocation::Chunks(9)]);
}

/// In all cases, datasets that no job reads cost the others nothing, and fit.
#[test]
fn idle_datasets_cost_the_others_nothing() {
    for seed in seeds(1000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut datasets: Vec<DatasetDemand> =
            (0..rng.usize(1..6)).map(|_| dataset(&mut rng, 12)).collect();
        for dataset in &mut datasets {
            dataset.allocated = match rng.u32(0..4) {
                0 => Allocation::Halves,
                _ => Allocation::Chunks(rng.u32(0..14)),
            };
            (dataset.chunks_present, dataset.idle_for) =
                (rng.u32(0..14), Duration::from_secs(rng.u64(0..9)));
            // Another node may report impossible sizes.
            dataset.total.0 = if rng.u8(0..9) == 0 { rng.u64(..2000) } else { dataset.total.0 };
        }
        let space = ByteSize(rng.u64(0..1000));
        for placement in [eager(), Placement::default()] {
            let shares = placement.split(space, &datasets);
            assert!(used(&shares) <= space.0, "seed {seed}: promise 6");
            let (read, alone): (Vec<Share>, Vec<DatasetDemand>) = shares
                .into_iter()
                .zip(&datasets)
                .filter(|(_, dataset)| !dataset.jobs.is_empty())
                .map(|(share, dataset)| (share, dataset.clone()))
                .unzip();
            assert_eq!(read, placement.split(space, &alone), "seed {seed}");
        }
    }
}

#[test]
fn below_two_chunks_halves_rotate() {
    let times = Some(ModeTimes { hit: 1.0, rotating: 1.5, miss: 3.0 });
    let job = |name: &str| JobDemand { name: name.to_owned(), gpus: 4, times };
    let jobs = vec![job("a"), job("b")];
    let dataset = DatasetDemand::even(10, ByteSize(10), jobs);
    let allocation =
        |space| eager().split(ByteSize(space), std::slice::from_ref(&dataset))[0].allocation;
    assert_eq!(allocation(9), Allocation::Nothing);
    assert_eq!(allocation(19), Allocation::Halves);
    assert_eq!(allocation(20), Allocation::Chunks(2));
    assert_eq!(allocation(55), Allocation::Chunks(5));
    assert_eq!(allocation(100), Allocation::Chunks(10));
}

/// Halves may differ in size, and chunks, too: an allocation never takes more than is reserved for
/// it, and the whole dataset takes its own size.
#[test]
fn space_is_enough_for_the_largest() {
    let even = DatasetDemand::even(10, ByteSize(10), Vec::new());
    let uneven = DatasetDemand { half_size: ByteSize(6), total: ByteSize(93), ..even };
    let space = |allocation| uneven.space(allocation).0;
    assert_eq!(space(Allocation::Halves), 12, "two of the larger halves");
    assert_eq!((space(Allocation::Chunks(4)), space(Allocation::Chunks(10))), (40, 93));
}

/// A compute-bound job saves nothing by any cache; Quiver's sum rewards it all the same.
#[test]
fn a_compute_bound_job_gets_nothing_from_us() {
    let dataset = |gpus, miss| {
        let times = Some(ModeTimes { hit: 1.0, rotating: 1.0, miss });
        let job = |name: &str| JobDemand { name: name.to_owned(), gpus, times };
        DatasetDemand::even(10, ByteSize(10), vec![job("a"), job("b")])
    };
    let datasets = [dataset(8, 1.0), dataset(2, 3.0)];
    let allocations =
        |shares: Vec<Share>| shares.iter().map(|share| share.allocation).collect::<Vec<_>>();
    let space = ByteSize(20);
    assert_eq!(allocations(greedy(space, &datasets)), [Allocation::Chunks(2), Allocation::Nothing]);
    assert_eq!(
        allocations(eager().split(space, &datasets)),
        [Allocation::Nothing, Allocation::Chunks(2)]
    );
}

/// Table 3's jobs in 100 GB: Quiver's rule lets all three datasets rotate (section 7.6).
#[test]
fn greed_lets_all_three_datasets_rotate_in_100_gb() {
    let dataset = |chunks, hit: f64, rotating: f64, miss: f64| {
        let times = Some(ModeTimes { hit, rotating, miss });
        let jobs = (0..4).map(|n| JobDemand { name: n.to_string(), gpus: 4, times }).collect();
        DatasetDemand::even(chunks, ByteSize::gb(15), jobs)
    };
    let datasets = [
        dataset(11, 646.0, 1064.0, 2505.0),
        dataset(36, 1274.0, 1817.0, 2874.0),
        dataset(6, 1234.0, 1265.0, 1614.0),
    ];
    let shares = greedy(ByteSize::gb(100), &datasets);
    assert!(shares.iter().all(|share| share.allocation == Allocation::Chunks(2)));
    assert!(saved(&eager().split(ByteSize::gb(100), &datasets)) >= saved(&shares));
}

#[test]
fn space_moves_only_if_that_pays() {
    let dataset = |allocated, miss| {
        let times = Some(ModeTimes { hit: 1.0, rotating: 1.0, miss });
        let jobs = vec![JobDemand { name: "a".to_owned(), gpus: 4, times }];
        DatasetDemand {
            allocated: Allocation::Chunks(allocated),
            ..DatasetDemand::even(10, ByteSize::gb(1), jobs)
        }
    };
    let space = ByteSize::gb(10);
    let chunks = |placement: &Placement, datasets: &[DatasetDemand]| -> Vec<Allocation> {
        placement.split(space, datasets).iter().map(|share| share.allocation).collect()
    };
    let (stays, moves) = (
        [Allocation::Chunks(10), Allocation::Nothing],
        [Allocation::Nothing, Allocation::Chunks(10)],
    );
    let reluctant = Placement::default();
    assert_eq!(chunks(&reluctant, &[dataset(10, 3.0), dataset(0, 3.1)]), stays, "hardly better");
    assert_eq!(chunks(&eager(), &[dataset(10, 3.0), dataset(0, 3.1)]), moves);
    assert_eq!(chunks(&reluctant, &[dataset(10, 1.5), dataset(0, 3.1)]), moves, "much better");
    let slow = Placement::new(PlacementSettings {
        horizon: Duration::from_mins(1),
        load_rate: ByteRate(ByteSize::mib(16)),
        ..PlacementSettings::default()
    });
    assert_eq!(chunks(&slow, &[dataset(10, 1.5), dataset(0, 3.1)]), stays, "loaded too late");
    let less = reluctant.split(ByteSize::gb(5), &[dataset(10, 3.0)]);
    assert_eq!(less[0].allocation, Allocation::Chunks(5), "what does not fit does not stay");
}

/// Impossible times count as no gain, and do not distort the split.
#[test]
fn impossible_times_are_no_gain() {
    for times in [
        ModeTimes { hit: f64::NAN, rotating: 1.0, miss: 1.0 },
        ModeTimes { hit: 1.0, rotating: 1.0, miss: 0.0 },
        ModeTimes { hit: 1.0, rotating: 1.0, miss: f64::NAN },
        ModeTimes { hit: f64::INFINITY, rotating: f64::INFINITY, miss: 1.0 },
    ] {
        let jobs = vec![JobDemand { name: "a".to_owned(), gpus: u32::MAX, times: Some(times) }];
        let dataset = DatasetDemand {
            allocated: Allocation::Chunks(9),
            ..DatasetDemand::even(3, ByteSize(u64::MAX), jobs)
        };
        for shares in [
            Placement::default().split(ByteSize(100), std::slice::from_ref(&dataset)),
            greedy(ByteSize(100), std::slice::from_ref(&dataset)),
        ] {
            assert_eq!((shares[0].allocation, shares[0].gpus_saved), (Allocation::Nothing, 0.0));
        }
    }
}

/// What any split of the space can save at most, even one of parts of chunks: the best increments
/// per byte first.
fn upper_bound(space: u64, datasets: &[DatasetDemand]) -> f64 {
    let mut increments: Vec<(f64, u64)> = Vec::new();
    for dataset in datasets {
        let point = |chunks: u32| {
            let allocation =
                if chunks == 0 { Allocation::Nothing } else { Allocation::Chunks(chunks) };
            (dataset.space(allocation).0, dataset.gpus_saved(allocation))
        };
        let mut at = 0;
        while at < dataset.chunks {
            let (from_space, from_saved) = point(at);
            // The upper hull: the next point with the steepest rise.
            let rise = |chunks: u32| {
                let (space, saved) = point(chunks);
                (saved - from_saved) / (space - from_space).max(1) as f64
            };
            let steepest = |a: &u32, b: &u32| rise(*a).total_cmp(&rise(*b));
            let next = (at + 1..=dataset.chunks).max_by(steepest).expect("not the end");
            increments.push((rise(next), point(next).0 - from_space));
            at = next;
        }
    }
    increments.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut left, mut saved) = (space, 0.0);
    for (rise, size) in increments.into_iter().filter(|(rise, _)| *rise > 0.0) {
        saved += rise * size.min(left) as f64;
        left -= size.min(left);
    }
    saved
}

/// Promise 5: a split of the most datasets is bounded in time, and still nearly the best.
#[test]
fn a_split_of_a_thousand_datasets_is_nearly_optimal() {
    for seed in seeds(3) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let datasets: Vec<DatasetDemand> = (0..1024).map(|_| dataset(&mut rng, 12)).collect();
        let total: u64 = datasets.iter().map(|dataset| dataset.total.0).sum();
        for space in [total / 20, total / 5, total / 2] {
            let shares = eager().split(ByteSize(space), &datasets);
            assert!(used(&shares) <= space);
            let (ours, bound) = (saved(&shares), upper_bound(space, &datasets));
            assert!(ours >= 0.9 * bound, "{ours:.1} of {bound:.1} in {space}, seed {seed}");
        }
    }
}

//! Placement against brute force, against the paper's rule, and against its own restlessness.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    placement::{Choice, Dataset, Job, Placement, Settings, Share, Times, greedy},
    units::ByteRate,
};

use crate::seeds;

fn job(rng: &mut fastrand::Rng) -> Job {
    let hit = 0.1 + rng.f64();
    let rotating = hit * (1.0 + rng.f64());
    let miss = if rng.bool() { hit * (1.0 + 4.0 * rng.f64()) } else { hit * 1.01 };
    let times = Some(Times { hit, rotating: rotating.min(miss), miss });
    Job { name: format!("j{}", rng.u32(..)), gpus: rng.u32(1..9), times }
}

fn dataset(rng: &mut fastrand::Rng, chunks_max: u32) -> Dataset {
    let jobs = (0..rng.usize(0..4)).map(|_| job(rng)).collect();
    let chunks = rng.u32(1..=chunks_max);
    Dataset::even(chunks, ByteSize(rng.u64(1..50)), jobs)
}

/// Loading costs nothing, and the smallest gain is worth a move.
fn restless() -> Placement {
    let load_rate = ByteRate(ByteSize(u64::MAX));
    Placement::new(Settings { load_rate, margin: 0.0, ..Settings::default() })
}

fn saved(shares: &[Share]) -> f64 {
    shares.iter().map(|share| share.gpus_saved).sum()
}

fn used(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.space.0).sum()
}

/// The best that any choice of whole chunks can save.
fn brute_force(space: u64, datasets: &[Dataset]) -> f64 {
    let Some((dataset, rest)) = datasets.split_first() else { return 0.0 };
    let choices = (0..=dataset.chunks)
        .map(|chunks| if chunks == 0 { Choice::Nothing } else { Choice::Chunks(chunks) });
    choices
        .filter_map(|choice| {
            let left = space.checked_sub(dataset.space(choice).0)?;
            // One chunk cannot rotate, so that it is no choice for several jobs.
            let is_one = choice == Choice::Chunks(1) && dataset.chunks > 1;
            let is_choice = !(is_one && dataset.jobs.len() >= 2);
            is_choice.then(|| dataset.gpus_saved(choice) + brute_force(left, rest))
        })
        .fold(0.0, f64::max)
}

#[test]
fn no_split_saves_more_and_greed_never_does() {
    for seed in seeds(3000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let datasets: Vec<Dataset> = (0..rng.usize(1..5)).map(|_| dataset(&mut rng, 6)).collect();
        // Two chunks of each fit, so that halves are no choice.
        let least = datasets.iter().map(|dataset| 2 * dataset.chunk_size.0).max().unwrap();
        let space = ByteSize(least + rng.u64(0..300));
        let ours = restless().split(space, &datasets);
        let best = brute_force(space.0, &datasets);
        assert!((saved(&ours) - best).abs() < 1e-9, "seed {seed}: {} of {best}", saved(&ours));
        assert!(used(&ours) <= space.0, "seed {seed}: promise 6");
        let theirs = greedy(space, &datasets);
        assert!(used(&theirs) <= space.0, "seed {seed}: promise 6");
        assert!(saved(&theirs) <= best + 1e-9, "seed {seed}: greed saved more");
    }
}

/// Promise 6: time and memory are bounded, however many datasets there are; and what comes out still fits
/// and is hardly worse than what greed on the same measure finds.
#[test]
fn many_datasets_are_split_in_bounded_steps() {
    for seed in seeds(5) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut datasets: Vec<Dataset> = (0..100).map(|_| dataset(&mut rng, 200)).collect();
        for dataset in &mut datasets {
            let chunk_size = ByteSize(rng.u64(1_000_000_000..20_000_000_000));
            *dataset = Dataset::even(dataset.chunks, chunk_size, std::mem::take(&mut dataset.jobs));
        }
        let all: u64 = datasets.iter().map(|d| d.chunk_size.0 * u64::from(d.chunks)).sum();
        let space = ByteSize(all / 5);
        let ours = restless().split(space, &datasets);
        assert!(used(&ours) <= space.0);
        assert!(saved(&ours) >= saved(&greedy(space, &datasets)), "seed {seed}");
    }
}

/// Of ten chunks of 10 bytes, so many are there, and nobody has read them for so long.
fn idle(here: u32, seconds: u64) -> Dataset {
    let (placed, idle_for) = (Choice::Chunks(here), Duration::from_secs(seconds));
    Dataset { placed, here, idle_for, ..Dataset::even(10, ByteSize(10), Vec::new()) }
}

/// "What is cached stays until others need the room": the least recently used goes first, chunk by chunk.
#[test]
fn what_nobody_reads_stays_until_others_need_the_room() {
    let times = Some(Times { hit: 1.0, rotating: 1.5, miss: 3.0 });
    let job = Job { name: "a".to_owned(), gpus: 4, times };
    let busy = Dataset::even(10, ByteSize(10), vec![job]);
    let datasets = [idle(10, 300), busy, idle(10, 100), idle(4, 200)];
    for rule in [greedy, |space, datasets: &[Dataset]| restless().split(space, datasets)] {
        let split = |space| -> Vec<u32> {
            let chunks = |share: &Share| match share.choice {
                Choice::Chunks(chunks) => chunks,
                _ => 0,
            };
            rule(ByteSize(space), &datasets).iter().map(chunks).collect()
        };
        assert_eq!(split(340), [10, 10, 10, 4], "there is room for all");
        assert_eq!(split(339), [9, 10, 10, 4], "and for nearly all");
        assert_eq!(split(240), [0, 10, 10, 4]);
        assert_eq!(split(220), [0, 10, 10, 2]);
        assert_eq!(split(150), [0, 10, 5, 0]);
        assert_eq!(split(100), [0, 10, 0, 0], "whoever gains from it comes first");
    }
}

/// Room that a dataset had and does not fill is its own for as long as nobody else has something to keep there.
#[test]
fn room_that_is_not_filled_comes_last() {
    let half_full = Dataset { placed: Choice::Chunks(10), ..idle(5, 100) };
    let datasets = [half_full, idle(10, 200)];
    let split = |space| -> Vec<Choice> {
        let shares = Placement::default().split(ByteSize(space), &datasets);
        shares.iter().map(|share| share.choice).collect()
    };
    assert_eq!(split(200), [Choice::Chunks(10), Choice::Chunks(10)]);
    assert_eq!(split(150), [Choice::Chunks(5), Choice::Chunks(10)]);
    assert_eq!(split(140), [Choice::Chunks(5), Choice::Chunks(9)]);
}

/// Whatever there is: those that nobody reads cost the others nothing, and fit.
#[test]
fn what_nobody_reads_costs_nobody_anything() {
    for seed in seeds(1000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut datasets: Vec<Dataset> =
            (0..rng.usize(1..6)).map(|_| dataset(&mut rng, 12)).collect();
        for dataset in &mut datasets {
            dataset.placed = match rng.u32(0..4) {
                0 => Choice::Halves,
                _ => Choice::Chunks(rng.u32(0..14)),
            };
            (dataset.here, dataset.idle_for) = (rng.u32(0..14), Duration::from_secs(rng.u64(0..9)));
            // Another node may say what cannot be.
            dataset.total.0 = if rng.u8(0..9) == 0 { rng.u64(..2000) } else { dataset.total.0 };
        }
        let space = ByteSize(rng.u64(0..1000));
        for placement in [restless(), Placement::default()] {
            let shares = placement.split(space, &datasets);
            assert!(used(&shares) <= space.0, "seed {seed}: promise 6");
            let (read, alone): (Vec<Share>, Vec<Dataset>) = shares
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
    let times = Some(Times { hit: 1.0, rotating: 1.5, miss: 3.0 });
    let job = |name: &str| Job { name: name.to_owned(), gpus: 4, times };
    let jobs = vec![job("a"), job("b")];
    let dataset = Dataset::even(10, ByteSize(10), jobs);
    let choice =
        |space| restless().split(ByteSize(space), std::slice::from_ref(&dataset))[0].choice;
    assert_eq!(choice(9), Choice::Nothing);
    assert_eq!(choice(19), Choice::Halves);
    assert_eq!(choice(20), Choice::Chunks(2));
    assert_eq!(choice(55), Choice::Chunks(5));
    assert_eq!(choice(100), Choice::Chunks(10));
}

/// Halves may differ, and so may chunks: what a choice takes is never more than is set aside for it, and all of
/// a dataset takes what the dataset does.
#[test]
fn space_is_enough_for_the_largest() {
    let even = Dataset::even(10, ByteSize(10), Vec::new());
    let uneven = Dataset { half_size: ByteSize(6), total: ByteSize(93), ..even };
    let space = |choice| uneven.space(choice).0;
    assert_eq!(space(Choice::Halves), 12, "two of the larger halves");
    assert_eq!((space(Choice::Chunks(4)), space(Choice::Chunks(10))), (40, 93));
}

/// A compute-bound job saves nothing by any cache; the paper's sum rewards it all the same.
#[test]
fn a_compute_bound_job_gets_nothing_from_us() {
    let dataset = |gpus, miss| {
        let times = Some(Times { hit: 1.0, rotating: 1.0, miss });
        let job = |name: &str| Job { name: name.to_owned(), gpus, times };
        Dataset::even(10, ByteSize(10), vec![job("a"), job("b")])
    };
    let datasets = [dataset(8, 1.0), dataset(2, 3.0)];
    let choices = |shares: Vec<Share>| shares.iter().map(|share| share.choice).collect::<Vec<_>>();
    let space = ByteSize(20);
    assert_eq!(choices(greedy(space, &datasets)), [Choice::Chunks(2), Choice::Nothing]);
    assert_eq!(choices(restless().split(space, &datasets)), [Choice::Nothing, Choice::Chunks(2)]);
}

/// Table 3's jobs in 100 GB: the paper's rule lets all three datasets rotate (section 7.6).
#[test]
fn greed_lets_all_three_datasets_rotate_in_100_gb() {
    let dataset = |chunks, hit: f64, rotating: f64, miss: f64| {
        let times = Some(Times { hit, rotating, miss });
        let jobs = (0..4).map(|n| Job { name: n.to_string(), gpus: 4, times }).collect();
        Dataset::even(chunks, ByteSize::gb(15), jobs)
    };
    let datasets = [
        dataset(11, 646.0, 1064.0, 2505.0),
        dataset(36, 1274.0, 1817.0, 2874.0),
        dataset(6, 1234.0, 1265.0, 1614.0),
    ];
    let shares = greedy(ByteSize::gb(100), &datasets);
    assert!(shares.iter().all(|share| share.choice == Choice::Chunks(2)));
    assert!(saved(&restless().split(ByteSize::gb(100), &datasets)) >= saved(&shares));
}

#[test]
fn space_moves_only_if_that_pays() {
    let dataset = |placed, miss| {
        let times = Some(Times { hit: 1.0, rotating: 1.0, miss });
        let jobs = vec![Job { name: "a".to_owned(), gpus: 4, times }];
        Dataset { placed: Choice::Chunks(placed), ..Dataset::even(10, ByteSize::gb(1), jobs) }
    };
    let space = ByteSize::gb(10);
    let chunks = |placement: &Placement, datasets: &[Dataset]| -> Vec<Choice> {
        placement.split(space, datasets).iter().map(|share| share.choice).collect()
    };
    let (stays, moves) =
        ([Choice::Chunks(10), Choice::Nothing], [Choice::Nothing, Choice::Chunks(10)]);
    let patient = Placement::default();
    assert_eq!(chunks(&patient, &[dataset(10, 3.0), dataset(0, 3.1)]), stays, "hardly better");
    assert_eq!(chunks(&restless(), &[dataset(10, 3.0), dataset(0, 3.1)]), moves);
    assert_eq!(chunks(&patient, &[dataset(10, 1.5), dataset(0, 3.1)]), moves, "much better");
    let slow = Placement::new(Settings {
        horizon: Duration::from_mins(1),
        load_rate: ByteRate(ByteSize::mib(16)),
        ..Settings::default()
    });
    assert_eq!(chunks(&slow, &[dataset(10, 1.5), dataset(0, 3.1)]), stays, "loaded too late");
    let less = patient.split(ByteSize::gb(5), &[dataset(10, 3.0)]);
    assert_eq!(less[0].choice, Choice::Chunks(5), "what does not fit does not stay");
}

/// Times that make no sense are no gain, and split nothing wrongly.
#[test]
fn nonsense_is_no_gain() {
    for times in [
        Times { hit: f64::NAN, rotating: 1.0, miss: 1.0 },
        Times { hit: 1.0, rotating: 1.0, miss: 0.0 },
        Times { hit: 1.0, rotating: 1.0, miss: f64::NAN },
        Times { hit: f64::INFINITY, rotating: f64::INFINITY, miss: 1.0 },
    ] {
        let jobs = vec![Job { name: "a".to_owned(), gpus: u32::MAX, times: Some(times) }];
        let dataset =
            Dataset { placed: Choice::Chunks(9), ..Dataset::even(3, ByteSize(u64::MAX), jobs) };
        for shares in [
            Placement::default().split(ByteSize(100), std::slice::from_ref(&dataset)),
            greedy(ByteSize(100), std::slice::from_ref(&dataset)),
        ] {
            assert_eq!((shares[0].choice, shares[0].gpus_saved), (Choice::Nothing, 0.0));
        }
    }
}

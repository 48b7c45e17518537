//! The policy `next-use`.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Bucket, Decision, PolicyKind, Spec, Stage},
    units::ByteRate,
};

use super::{SEGMENT, World, settings, spec};

pub fn world(flash: u32) -> World {
    World::new(PolicyKind::NextUse, &settings(0, flash))
}

/// Adds a rate of 100 segments per second, which is that of a world with one reader.
pub fn rated(spec: Spec) -> Spec {
    Spec { rate: Some(ByteRate(ByteSize(100 * u64::from(SEGMENT)))), ..spec }
}

/// Two jobs, one behind the other by more than fits. What fits is kept until it was read, and
/// nothing else is written.
#[test]
fn kept_segments_stay_until_they_are_read() {
    let mut world = world(100);
    world.announce(1, &rated(spec(&[1], 1000)));
    world.announce(2, &rated(spec(&[1], 1000)));
    let mut hits = 0;
    for step in 0..1400 {
        if step < 1000 {
            world.read(1, 1, step);
        }
        if step >= 400 {
            hits += u64::from(world.read(2, 1, step - 400).is_hit());
        }
    }
    // 100 segments fit, and 400 lie between the two jobs: a quarter is the optimum.
    assert!(hits >= 230, "{hits} of 1000");
    assert!(world.written <= 330, "{} writes", world.written);
}

/// LRU would keep what was read last, which here has the latest next use.
#[test]
fn segments_with_the_earliest_next_use_stay() {
    let mut world = world(100);
    world.announce(1, &rated(spec(&[1, 2], 100)));
    // A queued job reads bucket 2 first, then bucket 1.
    let queued = Spec { starts: Some(Duration::from_secs(5)), ..rated(spec(&[2, 1], 100)) };
    world.announce(2, &queued);
    world.scan(1, 1, 0..100);
    world.scan(1, 2, 0..100);
    world.now = Duration::from_secs(5);
    assert!(world.scan(2, 2, 0..100) >= 95, "bucket 2 is read first and has replaced bucket 1");
    assert!(world.scan(2, 1, 0..100) <= 5);
}

#[test]
fn spent_segments_make_room() {
    let mut world = world(100);
    for job in [1, 2] {
        world.announce(job, &spec(&[1], 100));
    }
    world.scan(1, 1, 0..100);
    assert_eq!(world.scan(2, 1, 0..100), 100);
    // All of it is spent. The bucket of two other jobs is kept at once.
    for job in [3, 4] {
        world.announce(job, &spec(&[2], 100));
    }
    world.scan(3, 2, 0..100);
    assert_eq!(world.scan(4, 2, 0..100), 100);
}

#[test]
fn a_scan_without_a_second_reader_is_not_admitted() {
    let mut world = world(100);
    for job in [1, 2] {
        world.announce(job, &spec(&[1], 100));
    }
    world.announce(3, &spec(&[2], 1000));
    world.scan(1, 1, 0..100);
    world.scan(3, 2, 0..1000);
    assert_eq!(world.read(3, 2, 1000), Decision::Pass);
    assert_eq!(world.scan(2, 1, 0..100), 100);
}

/// One job reads all columns of a partition, another job some of them. Only those are kept.
#[test]
fn columns_without_a_second_reader_are_not_kept() {
    let mut world = world(100);
    let size = ByteSize(100 * u64::from(SEGMENT));
    let stage =
        |buckets: &[u32]| Stage { buckets: buckets.iter().map(|b| (Bucket(*b), size)).collect() };
    world.announce(1, &Spec { stages: vec![stage(&[1, 2, 3])], ..spec(&[], 0) });
    world.announce(2, &Spec { stages: vec![stage(&[2])], ..spec(&[], 0) });
    for number in 0..100 {
        for column in [1, 2, 3] {
            world.read(1, column, number);
        }
    }
    assert_eq!(world.scan(2, 2, 0..100), 100);
}

/// An unannounced job is expected to continue a bucket that it has begun.
#[test]
fn a_job_is_expected_to_continue_a_bucket() {
    let mut world = world(100);
    let mut hits = 0;
    for step in 0..2000 {
        world.read(1, 1, step);
        if step >= 60 {
            hits += u64::from(world.read(2, 1, step - 60).is_hit());
        }
        world.read(3, 2, step); // a scan, unannounced like the others
        world.read(4, 3, step);
    }
    // Under LRU a segment stays for 100 others, which is less than the lag of 60 steps.
    assert!(hits >= 1800, "{hits} of 1940");
}

/// Without announcements: a job with a follower, and a scan without one. Segments of the scan are
/// soon not written any more. Segments of the job are, from the first one of every bucket.
#[test]
fn a_job_that_was_followed_is_expected_to_be_followed() {
    let mut world = world(300);
    let (mut hits, mut scanned) = (0, 0);
    for step in 0..12_000_u64 {
        let at = |step: u64| (u32::try_from(step / 1000).unwrap(), step % 1000);
        let (bucket, number) = at(step);
        world.read(1, bucket, number);
        if step >= 60 {
            let (bucket, number) = at(step - 60);
            hits += u64::from(world.read(2, bucket, number).is_hit());
        }
        let before = world.written;
        world.read(3, 100 + bucket, number);
        scanned += world.written - before;
    }
    assert!(hits >= 11_000, "{hits} of 11940");
    assert!(scanned <= 1500, "{scanned} of 12000 that are not read again");
}

/// As above with a late follower: nothing is kept for it before it comes.
#[test]
fn nothing_is_kept_for_a_follower_that_comes_too_late() {
    let mut world = world(100);
    for step in 0..5000 {
        world.read(1, 1, step);
    }
    assert!(world.written <= 300, "{} of 5000", world.written);
    // But one in 64 is tried, and an unannounced reader hits those once it is tracked.
    world.scan(2, 1, 0..1000);
    let hits = world.scan(2, 1, 1000..5000);
    assert!((30..100).contains(&hits), "{hits} of the 62 that were tried");
}

/// Under a full shuffle, segments with more expected readers stay.
#[test]
fn under_a_full_shuffle_segments_with_more_readers_stay() {
    let mut world = world(200);
    let mut random = fastrand::Rng::with_seed(9);
    let orders: Vec<Vec<u64>> = (0..3)
        .map(|_| {
            let mut order: Vec<u64> = (0..1000).collect();
            random.shuffle(&mut order);
            order
        })
        .collect();
    let run = |world: &mut World| {
        let mut hits = 0;
        for step in 0..1000 {
            for (job, order) in orders.iter().enumerate() {
                hits += u64::from(world.read(job as u64, 1, order[step]).is_hit());
            }
        }
        hits
    };
    for job in 0..3 {
        world.announce(job, &spec(&[1], 1000));
    }
    let ours = run(&mut world);
    let lru = run(&mut World::new(PolicyKind::Lru, &settings(0, 200)));
    assert!(ours >= lru * 5 / 4, "{ours} hits against LRU's {lru}");
}

#[test]
fn nothing_is_kept_for_a_job_that_ended() {
    let mut world = world(100);
    for job in [1, 2] {
        world.announce(job, &spec(&[1], 100));
    }
    world.scan(1, 1, 0..100);
    world.end(2);
    for job in [3, 4] {
        world.announce(job, &spec(&[2], 100));
    }
    world.scan(3, 2, 0..100);
    assert_eq!(world.scan(4, 2, 0..100), 100, "its segments were replaced");
}

/// Under a write limit, segments with two expected readers are written rather than those with one.
#[test]
fn limited_writes_go_to_segments_with_most_readers() {
    let mut settings = settings(0, 1_000_000);
    settings.writes.limit = Some("50kB/s".parse().unwrap());
    let mut world = World::new(PolicyKind::NextUse, &settings);
    for job in [1, 2, 3] {
        world.announce(job, &spec(&[1], 300_000));
    }
    for job in [4, 5] {
        world.announce(job, &spec(&[2], 300_000));
    }
    // An hour and a half of reading, to get past the initial burst. The order is random, so that
    // neither job is always first when writes are allowed again.
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..300_000 {
        let mut both = [(1, 1), (4, 2)];
        random.shuffle(&mut both);
        for (job, bucket) in both {
            world.read(job, bucket, number);
        }
    }
    let kept = [1, 2].map(|bucket| world.kept(bucket, 290_000..300_000));
    assert!(kept[0] > 8000 && kept[1] < 1000, "{kept:?}");
}

/// "Within 10 % of LRU when specifications are false", for random specifications.
#[test]
fn false_specifications_cost_little() {
    for seed in crate::seeds(8) {
        let mut random = fastrand::Rng::with_seed(seed);
        let announced: Vec<Vec<u32>> = (0..6)
            .map(|_| {
                let mut buckets: Vec<u32> = (0..12).collect();
                random.shuffle(&mut buckets);
                buckets.truncate(random.usize(1..6));
                buckets
            })
            .collect();
        // Pairs of jobs read the same bucket, 200 segments apart: the best case of LRU.
        let run = |kind: PolicyKind| {
            let mut world = World::new(kind, &settings(0, 2000));
            for (job, buckets) in announced.iter().enumerate() {
                world.announce(job as u64, &spec(buckets, 20_000));
            }
            let mut hits = 0;
            for step in 0..40_000_u64 {
                for pair in 0..3_u32 {
                    let job = u64::from(2 * pair);
                    let bucket = 3 * pair + u32::try_from(step / 20_000).unwrap();
                    hits += u64::from(world.read(job, bucket, step % 20_000).is_hit());
                    if step % 20_000 >= 200 {
                        hits +=
                            u64::from(world.read(job + 1, bucket, step % 20_000 - 200).is_hit());
                    }
                }
            }
            hits
        };
        let (lru, ours) = (run(PolicyKind::Lru), run(PolicyKind::NextUse));
        assert!(ours * 10 >= lru * 9, "seed {seed}: {ours} hits against LRU's {lru}");
    }
}

/// Jobs that are announced and never start are not refuted by reads. The segments that they would
/// read first stay, while all other segments are read again soon by untagged requests, until the
/// shadow shows that LRU is better.
#[test]
fn lru_decides_while_it_is_better() {
    let run = |kind: PolicyKind| {
        let mut world = World::new(kind, &settings(0, 200));
        for phantom in 10..14 {
            world.announce(phantom, &spec(&[7], 100_000));
        }
        let mut hits = 0;
        for step in 50..60_000 {
            for number in [step, step - 50] {
                world.now += Duration::from_millis(10);
                let request =
                    forebay_core::tier::Request { job: None, ..super::request(0, 7, number) };
                hits += u64::from(world.request(&request).is_hit());
            }
        }
        (hits, world.policy.counters().lru_takeovers)
    };
    let ((lru, _), (ours, lru_takeovers)) = (run(PolicyKind::Lru), run(PolicyKind::NextUse));
    assert!(
        lru_takeovers > 0 && ours * 10 >= lru * 8,
        "{ours} hits against LRU's {lru}; {lru_takeovers}"
    );
}

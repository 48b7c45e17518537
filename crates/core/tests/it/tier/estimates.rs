//! Estimates of `next-use`: from start times, rates, columns read side by side, and reading order.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Bucket, Spec, Stage},
};

use super::{
    SEGMENT, World,
    next_use::{rated, world},
    spec,
};

/// An unannounced job that reads segments before the others.
const LEADER: u64 = 99;

/// The leader reads two buckets. Returns the number of segments kept of each.
fn led(world: &mut World, buckets: [u32; 2], segments: u64) -> [u64; 2] {
    for bucket in buckets {
        world.scan(LEADER, bucket, 0..segments);
    }
    buckets.map(|bucket| world.kept(bucket, 0..segments))
}

/// All of a bucket in random order.
fn shuffled(random: &mut fastrand::Rng, segments: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..segments).collect();
    random.shuffle(&mut order);
    order
}

/// The bucket of the job that starts first is kept, whichever bucket is read first. A job without a
/// start time is expected in half an hour.
#[test]
fn a_queued_job_is_not_expected_before_it_starts() {
    let first_kept = |starts: [Option<u64>; 2]| {
        let mut world = world(100);
        for (job, starts) in [1, 2].into_iter().zip(starts) {
            let starts = starts.map(Duration::from_mins);
            let bucket = u32::try_from(job).unwrap();
            world.announce(job, &Spec { starts, ..rated(spec(&[bucket], 100)) });
        }
        let [first, second] = led(&mut world, [1, 2], 100);
        assert!(first.max(second) >= 95, "{starts:?}: {first} of one and {second} of the other");
        first > second
    };
    assert!(first_kept([Some(20), Some(90)]) && !first_kept([Some(90), Some(20)]));
    assert!(first_kept([None, Some(90)]) && !first_kept([None, Some(20)]));
}

/// The measured rate follows changes: one of two jobs is faster for a minute, then the other. Both
/// have read the same amount.
#[test]
fn a_job_that_slows_down_is_not_expected_sooner() {
    let mut world = world(100);
    for (job, buckets) in [(1, [11, 1]), (2, [12, 2])] {
        world.announce(job, &spec(&buckets, 10_000));
    }
    let mut numbers = [0; 2];
    for second in 0..120 {
        for at in [0, 1] {
            let job = at as u64 + 1;
            let reads = if (second < 60) == (job == 1) { 20 } else { 2 };
            world.scan(job, 10 + u32::try_from(job).unwrap(), numbers[at]..numbers[at] + reads);
            numbers[at] += reads;
        }
        world.now = Duration::from_secs(second + 1);
    }
    assert_eq!(numbers[0], numbers[1]);
    let [slow, fast] = led(&mut world, [1, 2], 100);
    assert!(slow <= 5 && fast >= 95, "{slow} for the slow job, {fast} for the fast job");
}

/// A bucket that is a tenth of its stage is read at a tenth of the job's rate.
#[test]
fn a_column_among_many_is_read_slowly() {
    let mut world = world(100);
    let size = ByteSize(100 * u64::from(SEGMENT));
    let columns = |columns: Vec<u32>| {
        let stage = Stage { buckets: columns.into_iter().map(|it| (Bucket(it), size)).collect() };
        let starts = Some(Duration::from_secs(2));
        Spec { stages: vec![stage], starts, ..rated(spec(&[], 0)) }
    };
    world.announce(1, &columns([1].into_iter().chain(11..20).collect()));
    world.announce(2, &columns(vec![2]));
    let [among_ten, alone] = led(&mut world, [1, 2], 100);
    assert!((5..=15).contains(&among_ten) && alone >= 85, "{among_ten} and {alone}");
}

/// A job that shuffles fully reads the beginning of its next bucket no sooner than the end: on
/// average after half of it. The beginning of a bucket that another job reads in order is kept
/// instead.
#[test]
fn a_job_that_shuffles_does_not_begin_at_the_beginning() {
    let mut world = world(50);
    world.announce(1, &spec(&[10, 1], 1000));
    world.announce(2, &spec(&[10, 2], 1000));
    world.scan(LEADER, 10, 0..1000);
    let order = shuffled(&mut fastrand::Rng::with_seed(1), 1000);
    for (number, shuffled) in (0..).zip(order) {
        world.read(1, 10, shuffled);
        world.read(2, 10, number);
    }
    let [shuffled, in_order] = led(&mut world, [1, 2], 100);
    assert!(shuffled <= 2 && in_order >= 48, "{shuffled} and {in_order}");
}

/// Two jobs that shuffle come twice as soon as one, which is sooner than one job with two thirds as
/// much left.
#[test]
fn readers_that_shuffle_add_up() {
    let mut world = world(100);
    let sizes = [(1, 1000), (2, 850)];
    // Makes a trail, against which the order of the others is measured.
    for (bucket, segments) in sizes {
        world.scan(LEADER - 1, bucket, 0..segments);
    }
    world.end(LEADER - 1);
    let mut random = fastrand::Rng::with_seed(6);
    let [one, two] = sizes;
    let readers = [(1, one), (2, one), (3, two)].map(|(job, (bucket, segments))| {
        world.announce(job, &spec(&[bucket], segments));
        (job, bucket, shuffled(&mut random, segments))
    });
    for step in 0..500 {
        for (job, bucket, order) in &readers {
            world.read(*job, *bucket, order[step]);
        }
    }
    for number in 0..1000 {
        for (bucket, _) in sizes.iter().filter(|(_, segments)| number < *segments) {
            world.read(LEADER, *bucket, number);
        }
    }
    let [two_readers, one_reader] = sizes.map(|(bucket, segments)| world.kept(bucket, 0..segments));
    assert!(two_readers >= 90 && one_reader <= 10, "{two_readers} and {one_reader}");
}

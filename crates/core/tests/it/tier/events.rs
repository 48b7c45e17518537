//! Invalid events, and requests that contradict specifications.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Bucket, InvalidEvent, JOBS_MAX, Job, JobEvent, PolicyKind, STAGES_MAX, Spec, Stage},
};

use super::{World, request, settings, spec};

fn world() -> World {
    World::new(PolicyKind::NextUse, &settings(0, 100))
}

fn announce(world: &mut World, job: u64, spec: &Spec) -> Result<(), InvalidEvent> {
    world.policy.on_event(world.now, JobEvent::Announced { job: Job(job), spec })
}

#[test]
fn invalid_events_change_nothing_and_are_counted() {
    let mut world = world();
    world.now = Duration::from_secs(10);
    let job = Job(1);
    let empty = Spec { stages: vec![Stage { buckets: Vec::new() }], ..spec(&[], 0) };
    assert_eq!(announce(&mut world, 1, &empty), Err(InvalidEvent::Empty { job }));
    let twice = InvalidEvent::Repeated { job, bucket: Bucket(3) };
    assert_eq!(announce(&mut world, 1, &spec(&[3, 4, 3], 9)), Err(twice));
    let side_by_side = vec![(Bucket(3), ByteSize(1)), (Bucket(3), ByteSize(1))];
    let columns = Spec { stages: vec![Stage { buckets: side_by_side }], ..spec(&[], 0) };
    assert_eq!(announce(&mut world, 1, &columns), Err(twice));
    let starts = Duration::from_secs(9);
    let late = Spec { starts: Some(starts), ..spec(&[1], 9) };
    let past = InvalidEvent::StartsInThePast { job, starts, now: world.now };
    assert_eq!(announce(&mut world, 1, &late), Err(past));
    let endless: Vec<(Bucket, ByteSize)> =
        (0..3).map(|bucket| (Bucket(bucket), ByteSize(u64::MAX / 2))).collect();
    let endless = Spec { stages: vec![Stage { buckets: endless }], ..spec(&[], 0) };
    assert_eq!(announce(&mut world, 1, &endless), Err(InvalidEvent::TooLong { job }));
    let many: Vec<u32> = (0..=u32::try_from(STAGES_MAX).unwrap()).collect();
    assert_eq!(announce(&mut world, 1, &spec(&many, 1)), Err(InvalidEvent::TooLong { job }));
    let unknown = world.policy.on_event(world.now, JobEvent::Ended { job });
    assert_eq!(unknown, Err(InvalidEvent::UnknownJob { job }), "it was never added");
    assert_eq!(world.policy.counters().jobs.invalid_events, 7);
}

#[test]
fn the_number_of_jobs_is_limited() {
    let mut world = world();
    for job in 0..JOBS_MAX as u64 {
        // One bucket each, because a bucket has at most 64 readers.
        announce(&mut world, job, &spec(&[u32::try_from(job).unwrap()], 1)).unwrap();
    }
    let job = JOBS_MAX as u64;
    assert_eq!(announce(&mut world, job, &spec(&[1], 1)), Err(InvalidEvent::TooManyJobs));
    assert!(announce(&mut world, 5, &spec(&[1], 1)).is_ok(), "a tracked job may announce again");
    world.read(job, 1, 0);
    assert_eq!(
        world.policy.counters().jobs.inferred,
        0,
        "an unknown job is served but not tracked"
    );
}

/// "Specifications that name unknown buckets, contradict what is read, repeat or expire."
#[test]
fn a_specification_that_reads_refute_is_dropped() {
    let mut world = world();
    world.announce(1, &spec(&[7], 1000));
    world.announce(2, &spec(&[7], 1000));
    // Job 1 reads another bucket; job 2 follows its specification.
    world.scan(1, 8, 0..500);
    world.scan(2, 7, 0..500);
    let counters = world.policy.counters().jobs;
    assert_eq!((counters.refuted, counters.inferred), (1, 0));
    assert!((60..=70).contains(&counters.unannounced_reads), "then it is dropped: {counters:?}");
    // The job may announce again.
    world.announce(1, &spec(&[8], 1000));
    world.scan(1, 8, 500..900);
    assert_eq!(world.policy.counters().jobs.refuted, 1);
}

#[test]
fn a_few_reads_outside_the_specification_refute_nothing() {
    let mut world = world();
    world.announce(1, &spec(&[7], 5000));
    for number in 0..4000 {
        world.read(1, 7, number);
        if number % 20 == 0 {
            world.read(1, 99, number); // a manifest, an index
        }
    }
    let counters = world.policy.counters().jobs;
    assert_eq!((counters.unannounced_reads, counters.refuted), (200, 0));
}

#[test]
fn jobs_without_requests_expire() {
    let mut world = world();
    let lease = Some(Duration::from_mins(1));
    world.announce(1, &Spec { lease, ..spec(&[7], 1000) });
    world.announce(2, &spec(&[7], 1000));
    world.read(1, 7, 0);
    world.read(2, 7, 0);
    world.now += Duration::from_secs(70);
    world.read(3, 9, 0);
    assert_eq!(world.policy.counters().jobs.expired, 1, "the job with the short lease");
    world.now += Duration::from_hours(1);
    world.read(3, 9, 1);
    assert_eq!(world.policy.counters().jobs.expired, 3, "all jobs: no requests for an hour");
    world.read(1, 7, 1);
    assert_eq!(world.policy.counters().jobs.inferred, 3, "a job that returns is unknown");
}

#[test]
fn requests_without_a_tag_and_times_that_go_back_are_counted() {
    let mut world = world();
    world.read(1, 1, 1);
    let untagged = forebay_core::tier::Request { job: None, ..request(1, 1, 1) };
    let before = world.now.saturating_sub(Duration::from_millis(5));
    world.now = before;
    assert!(world.request(&untagged).is_hit());
    let counters = world.policy.counters();
    assert_eq!((counters.jobs.untagged, counters.time_went_back), (1, 1));
}

/// 200 jobs, one after the other: reader bits are recycled, and then stand for the new job.
#[test]
fn reader_bits_are_recycled() {
    let mut world = World::new(PolicyKind::NextUse, &settings(0, 50));
    world.announce(0, &spec(&[1], 50));
    for job in 0..200 {
        world.announce(job + 1, &spec(&[1], 50));
        let hits = world.scan(job, 1, 0..50);
        assert_eq!(hits, if job == 0 { 0 } else { 50 }, "job {job}");
        // The next job has yet to read all of it, even if its bit belonged to another job before. A
        // bucket with a much later next use does not replace it.
        if job % 50 == 30 {
            let late = Spec { starts: Some(world.now + Duration::from_hours(9)), ..spec(&[3], 50) };
            world.announce(1000 + job, &late);
            world.scan(999, 3, 0..50);
        }
        world.end(job);
    }
    assert_eq!(world.policy.counters().jobs.untracked, 0);
    // Of 100 jobs at once, those beyond 64 are served but not tracked.
    for job in 300..400 {
        world.announce(job, &spec(&[2], 50));
    }
    assert_eq!(world.policy.counters().jobs.untracked, 100 - 64);
}

/// A live job that has not read a bucket for longer than the lease frees its reader bit.
#[test]
fn readers_that_left_a_bucket_free_their_bits() {
    let mut world = world();
    let read_own = |world: &mut World, number: u64| {
        for job in 0..64 {
            world.read(job, 100 + u32::try_from(job).unwrap(), number);
        }
    };
    for job in 0..64 {
        world.read(job, 1, job);
    }
    for minute in 0..12 {
        world.now += Duration::from_mins(1);
        read_own(&mut world, minute);
    }
    for job in 64..128 {
        world.read(job, 1, job);
    }
    let counters = world.policy.counters().jobs;
    assert_eq!((counters.untracked, counters.expired), (0, 0));
}

/// Promise 6 (bounded): every request has a new bucket, for hours.
#[test]
fn buckets_without_readers_are_dropped() {
    for kind in [PolicyKind::NextUse, PolicyKind::Hybrid] {
        let mut settings = settings(0, 100);
        settings.history.segments_max = 1000;
        let mut world = World::new(kind, &settings);
        for bucket in 0..50_000 {
            let mut request = request(u64::from(bucket) % 3, bucket, 0);
            request.job = request.job.filter(|_| bucket % 2 == 0);
            world.now += Duration::from_millis(500);
            world.request(&request);
        }
        assert!(world.policy.counters().history_one_in > 1, "{kind}");
    }
}

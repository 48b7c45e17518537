//! Shift's policies and their baselines, as the paper describes them.

use std::time::Duration;

use forebay_core::tier::{Bucket, Decision, PolicyKind};

use super::{World, settings, spec};

fn world(kind: PolicyKind) -> World {
    World::new(kind, &settings(0, 100))
}

#[test]
fn a_hit_renews_a_segment_under_lru_but_not_under_fifo() {
    let kept = |kind| {
        let mut world = world(kind);
        world.scan(1, 1, 0..100);
        world.read(1, 1, 0);
        world.read(1, 1, 100);
        world.read(1, 1, 0).is_hit()
    };
    assert!(kept(PolicyKind::Lru));
    assert!(!kept(PolicyKind::Fifo));
}

/// "*Future* … immediately cache[s] … without rejecting initial reads waiting for the Request
/// History Window to populate."
#[test]
fn historic_waits_for_a_second_reader_and_future_does_not() {
    for (kind, first) in
        [(PolicyKind::Historic, false), (PolicyKind::Future, true), (PolicyKind::Hybrid, true)]
    {
        let mut world = world(kind);
        world.announce(1, &spec(&[1], 50));
        world.announce(2, &spec(&[1], 50));
        // Both have begun, because only started jobs count.
        world.read(2, 1, 49);
        world.read(1, 1, 48);
        world.now += Duration::from_secs(11);
        assert_eq!(world.read(1, 1, 0).is_kept(), first, "{kind}");
        // A bucket that only one job reads is never admitted.
        world.announce(3, &spec(&[2], 50));
        world.scan(3, 2, 0..40);
        assert_eq!(world.read(3, 2, 40), Decision::Pass, "{kind}");
        // Read twice within the window, then refreshed: now the history has seen it, too.
        world.scan(1, 1, 0..40);
        world.scan(2, 1, 0..40);
        world.now += Duration::from_secs(11);
        assert!(world.read(1, 1, 41).is_kept(), "{kind}");
    }
}

/// "Discounting any jobs that have finished reading the bucket."
#[test]
fn a_job_that_has_finished_a_bucket_does_not_count() {
    let mut world = world(PolicyKind::Future);
    for job in [1, 2] {
        world.announce(job, &spec(&[1], 50));
        world.read(job, 1, 0);
    }
    assert!(world.read(1, 1, 1).is_kept());
    world.scan(1, 1, 2..50);
    world.now += Duration::from_secs(11);
    assert_eq!(world.read(2, 1, 60), Decision::Pass, "one reader is left");
}

#[test]
fn expert_admits_listed_buckets() {
    let mut settings = settings(0, 100);
    settings.expert.insert(Bucket(5));
    let mut world = World::new(PolicyKind::Expert, &settings);
    assert!(world.read(1, 5, 0).is_kept());
    assert_eq!(world.read(1, 6, 0), Decision::Pass);
}

/// `CacheLib` fetches before it decides: a rejected segment costs an origin read.
#[test]
fn reject_first_keeps_a_segment_the_second_time() {
    let mut world = World::new(PolicyKind::RejectFirst, &settings(1, 100));
    assert!(world.read(1, 1, 0).is_kept());
    assert!(world.read(1, 1, 1).is_kept());
    assert!(world.read(1, 1, 0).is_kept(), "it left memory and was not written");
    assert!(world.read(1, 1, 2).is_kept());
    assert!(world.read(1, 1, 0).is_hit(), "it was written the second time");
}

#[test]
fn dynamic_random_keeps_to_the_write_limit() {
    let mut settings = settings(1, 100);
    // 100 segments per second are offered; 10 may be written.
    settings.writes.limit = Some("10kB/s".parse().unwrap());
    let mut world = World::new(PolicyKind::DynamicRandom, &settings);
    world.scan(1, 1, 0..6000);
    let before = world.written;
    world.scan(1, 1, 6000..16_000);
    let written = world.written - before;
    assert!((900..1100).contains(&written), "{written} in 100 s");
}

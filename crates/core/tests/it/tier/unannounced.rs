//! Segments that no known job will read, under `next-use`.

use std::time::Duration;

use forebay_core::tier::PolicyKind;

use super::{World, next_use::world, settings, spec};

/// A spent segment is admitted only into free space. It does not replace an unknown segment,
/// however old that is.
#[test]
fn a_spent_segment_replaces_nothing() {
    let mut world = world(100);
    world.announce(2, &spec(&[2], 1000));
    world.scan(1, 1, 0..100);
    world.scan(2, 2, 0..1000);
    assert_eq!((world.kept(1, 0..100), world.kept(2, 0..1000)), (100, 0));
}

/// The same for a segment that becomes spent in memory: it does not move to flash, even if several
/// jobs have read its bucket lately.
#[test]
fn a_segment_spent_in_memory_replaces_nothing_on_flash() {
    let mut world = World::new(PolicyKind::NextUse, &settings(50, 50));
    world.scan(1, 1, 0..100);
    for job in [2, 3] {
        world.announce(job, &spec(&[2], 50));
    }
    world.scan(2, 2, 0..50);
    assert_eq!(world.scan(3, 2, 0..50), 50);
    world.now += Duration::from_secs(10);
    world.scan(4, 4, 0..50);
    // One of bucket 1 left memory at the moment at which the oldest on flash was written.
    assert_eq!((world.kept(1, 50..100), world.kept(2, 0..50), world.kept(4, 0..50)), (49, 0, 50));
}

/// One in 16 spent segments is tried. The others are kept while a tenth of the tried ones is read
/// again.
#[test]
fn spent_segments_are_kept_while_trials_pay_off() {
    let mut world = world(20_000);
    world.announce(1, &spec(&[1, 2], 5000));
    world.scan(1, 1, 0..2000);
    let tried = world.kept(1, 0..2000);
    assert!((90..160).contains(&tried), "{tried} of 2000");
    // An unannounced job reads the bucket.
    let paid = world.scan(2, 1, 0..2000);
    assert_eq!(paid, tried);
    world.scan(1, 2, 0..5000);
    let kept = world.kept(2, 0..5000);
    let pays = 10 * paid - tried;
    assert!((pays..pays + 350).contains(&kept), "{kept} where {paid} pay for {pays} more");
}

/// Repeated reads in memory are no trial: on flash, one in 16 spent segments is tried and no more.
#[test]
fn repeated_reads_in_memory_do_not_count_as_trials() {
    let mut world = World::new(PolicyKind::NextUse, &settings(500, 20_000));
    world.announce(1, &spec(&[1, 2], 5000));
    world.scan(1, 1, 0..500);
    assert_eq!(world.scan(2, 1, 0..500), 500);
    world.scan(1, 2, 0..5000);
    assert!((250..400).contains(&world.written), "{} of 5000", world.written);
}

/// A job is judged by its own segments, not by those of a job that has ended.
#[test]
fn a_job_is_judged_by_its_own_segments() {
    let mut world = world(100);
    world.scan(1, 1, 0..100);
    world.end(1);
    // All of them are evicted unread.
    world.scan(2, 2, 0..100);
    assert_eq!((world.kept(1, 0..100), world.kept(2, 0..100)), (0, 100));
}

//! Regions: what shares one, and which is evicted.

use std::time::Duration;

use forebay_core::tier::{PolicyKind, Spec};

use super::{World, next_use::rated, spec, with_regions};

/// A region whose segments were all read is evicted before one that has yet to be read, whatever
/// their age.
#[test]
fn a_region_that_was_read_is_evicted_first() {
    let mut world = World::new(PolicyKind::NextUse, &with_regions(0, 21, 10));
    let starts = |seconds| Some(Duration::from_secs(seconds));
    world.announce(1, &rated(spec(&[2, 1], 100)));
    world.announce(2, &Spec { starts: starts(3), ..rated(spec(&[1], 100)) });
    // Bucket 2 is written first and read last.
    world.announce(3, &Spec { starts: starts(500), ..rated(spec(&[2], 100)) });
    world.scan(1, 2, 0..100);
    world.scan(1, 1, 0..100);
    assert_eq!(world.scan(2, 1, 0..100), 100);
    world.announce(4, &rated(spec(&[3], 100)));
    world.announce(5, &Spec { starts: starts(20), ..rated(spec(&[3], 100)) });
    world.scan(4, 3, 0..100);
    assert!(world.kept(1, 0..100) <= 10 && world.kept(2, 0..100) == 100);
    assert_eq!(world.scan(5, 3, 0..100), 100);
}

/// Two jobs write side by side. Each bucket gets regions of its own, so one that is spent leaves
/// without the other.
#[test]
fn buckets_that_are_written_side_by_side_do_not_share_regions() {
    let mut world = World::new(PolicyKind::NextUse, &with_regions(0, 64, 10));
    for (job, bucket) in [(1, 1), (2, 2), (3, 1)] {
        world.announce(job, &rated(spec(&[bucket], 200)));
    }
    let late = Spec { starts: Some(Duration::from_mins(10)), ..rated(spec(&[2], 200)) };
    world.announce(4, &late);
    for number in 0..200 {
        world.read(1, 1, number);
        world.read(2, 2, number);
    }
    for (_, residents) in world.flash.regions() {
        assert!(residents.iter().all(|resident| resident.bucket == residents[0].bucket));
    }
    assert_eq!(world.kept(1, 0..200) + world.kept(2, 0..200), 400);
}

/// The cost of regions where one job follows another: little, because a region leaves as soon as it
/// was read.
#[test]
fn regions_cost_little_where_the_order_is_shared() {
    let hits = |segments: u64| {
        let regions = u32::try_from(1000 / segments).unwrap();
        let mut world = World::new(PolicyKind::NextUse, &with_regions(0, regions, segments));
        for job in [1, 2] {
            world.announce(job, &rated(spec(&[1], 10_000)));
        }
        let mut hits = 0;
        for step in 0..14_000 {
            if step < 10_000 {
                world.read(1, 1, step);
            }
            if step >= 4000 {
                hits += u64::from(world.read(2, 1, step - 4000).is_hit());
            }
        }
        hits
    };
    let (single, regions) = (hits(1), hits(20));
    // 1,000 segments fit, and 4,000 lie between the two jobs: a quarter is the optimum.
    assert!(single >= 2400 && regions >= 2350, "{single} and {regions}");
}

/// "Reinsertion … potentially avoiding a cache miss": popular segments of a region that is evicted
/// are written again.
#[test]
fn reinsertion_writes_popular_segments_again() {
    let run = |reinsertion| {
        let mut settings = with_regions(0, 20, 10);
        settings.reinsertion = reinsertion;
        let mut world = World::new(PolicyKind::Future, &settings);
        for job in [1, 2, 3] {
            world.announce(job, &spec(&[1], 500));
            world.read(job, 1, 499);
        }
        for job in [4, 5] {
            world.announce(job, &spec(&[2], 500));
            world.read(job, 2, 499);
        }
        // Side by side, so that regions hold both.
        for number in 0..200 {
            world.read(4, 2, number);
            if number < 50 {
                world.read(1, 1, number);
            }
        }
        (world.kept(1, 0..50), world.written)
    };
    let ((without, few), (with, many)) = (run(false), run(true));
    assert!(without < 30 && with == 50, "{without} {with}");
    assert!(many > few, "reinsertion costs writes: {few} {many}");
}

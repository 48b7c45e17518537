//! What our own policy makes of segments that no known job will read.

use std::time::Duration;

use forebay_core::tier::{Fact, Job, PolicyKind};

use super::{World, next_use::world, settings, spec};

/// "What every announced reader has read is **spent**: it […] comes in only where there is room": not where something lies that
/// nobody has announced, however long ago that was read.
#[test]
fn what_is_spent_takes_nobodys_place() {
    let mut world = world(100);
    world.announce(2, &spec(&[2], 1000));
    world.scan(1, 1, 0..100);
    world.scan(2, 2, 0..1000);
    assert_eq!((world.kept(1, 0..100), world.kept(2, 0..1000)), (100, 0));
}

/// The same, where all have read it while it was in memory: it does not go on to flash, not even if several have read its bucket lately.
#[test]
fn what_is_spent_in_memory_takes_nobodys_place_on_flash() {
    let mut world = World::new(PolicyKind::NextUse.build(&settings(50, 50)));
    world.scan(1, 1, 0..100);
    for job in [2, 3] {
        world.announce(job, &spec(&[2], 50));
    }
    world.scan(2, 2, 0..50);
    assert_eq!(world.scan(3, 2, 0..50), 50);
    world.now += Duration::from_secs(10);
    world.scan(4, 4, 0..50);
    assert_eq!((world.kept(1, 50..100), world.kept(2, 0..50), world.kept(4, 0..50)), (50, 0, 50));
}

/// "A sixteenth is tried, and all the others follow while enough of what was tried is read again": a tenth.
#[test]
fn what_is_spent_is_tried_and_kept_while_that_pays() {
    let mut world = world(20_000);
    world.announce(1, &spec(&[1, 2], 5000));
    world.scan(1, 1, 0..2000);
    let tried = world.kept(1, 0..2000);
    assert!((90..160).contains(&tried), "{tried} of 2000");
    // Somebody comes whom nobody has announced.
    let paid = world.scan(2, 1, 0..2000);
    assert_eq!(paid, tried);
    world.scan(1, 2, 0..5000);
    let kept = world.kept(2, 0..5000);
    let pays = 10 * paid - tried;
    assert!((pays..pays + 350).contains(&kept), "{kept} where {paid} pay for {pays} more");
}

/// What is read again while it is in memory says nothing about flash: a sixteenth of what is spent is tried there, and no more.
#[test]
fn what_is_read_again_in_memory_was_not_tried() {
    let mut world = World::new(PolicyKind::NextUse.build(&settings(500, 20_000)));
    world.announce(1, &spec(&[1, 2], 5000));
    world.scan(1, 1, 0..500);
    assert_eq!(world.scan(2, 1, 0..500), 500);
    world.scan(1, 2, 0..5000);
    assert!((250..400).contains(&world.written), "{} of 5000", world.written);
}

/// A job is judged by what became of its own segments, not by those of one that has ended.
#[test]
fn nobody_answers_for_the_segments_of_another() {
    let mut world = world(100);
    world.scan(1, 1, 0..100);
    world.policy.tell(world.now, Fact::Ended { job: Job(1) }).unwrap();
    // All of them make room unread.
    world.scan(2, 2, 0..100);
    assert_eq!((world.kept(1, 0..100), world.kept(2, 0..100)), (0, 100));
}

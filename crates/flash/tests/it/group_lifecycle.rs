//! The lives of groups and regions.

use std::time::Duration;

use forebay_flash::shard::{Answer, Hold, Life, Name, Refusal, Request, Settings};

use crate::world::{World, content, key, settings};

fn fill(
    world: &mut World,
    name: &str,
    keys: std::ops::Range<u64>,
) -> forebay_flash::index::GroupId {
    let group = world.group(name, false);
    for number in keys {
        world.append(group, Name::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    group
}

fn free(group: forebay_flash::index::GroupId, patience: Duration) -> Request {
    Request::Free { group, patience }
}

/// Promise 6: capacity is never exceeded; the region that was begun first goes first, whole.
#[test]
fn the_oldest_region_goes_when_there_is_no_room() {
    let mut world = World::new(1, 4, settings());
    fill(&mut world, "a", 0..60);
    let left: Vec<u64> = (0..60).filter(|n| world.bytes(Name::Key(key(*n))).is_some()).collect();
    assert!(left.len() >= 27 && left.windows(2).all(|pair| pair[1] == pair[0] + 1), "{left:?}");
    assert_eq!(*left.last().unwrap(), 59);
    let counters = world.shard.counters();
    assert_eq!(counters.entries, left.len() as u64);
    assert!(counters.regions_evicted >= 2);
    let ratio = counters.device_bytes_written as f64 / counters.inserted_bytes as f64;
    assert!(ratio < 1.02, "{ratio}");
}

/// What was forgotten or written again does not count, not even after a restart, and a region in which nothing is
/// found any more is free.
#[test]
fn what_is_not_found_takes_no_room() {
    let mut world = World::new(1, 8, settings());
    let group = fill(&mut world, "a", 0..40);
    world.ask(Request::Flush).unwrap();
    let there = |world: &mut World| {
        (0..40).filter(|number| world.bytes(Name::Key(key(*number))).is_some()).count() as u64
    };
    let (before, all) = (world.shard.counters(), there(&mut world));
    assert_eq!((before.entries, before.bytes), (all, all * 100_000));
    // Some of each region, and all of the first.
    let first = (0..40).step_by(4).chain(0..10);
    for number in first {
        world.ask(Request::Forget { key: key(number) }).unwrap();
        world.ask(Request::Forget { key: key(number) }).unwrap();
    }
    world.settle();
    let (after, left) = (world.shard.counters(), there(&mut world));
    assert_eq!((left, after.entries), (23, 23));
    let bytes = 23 * 100_000;
    assert!((bytes - 17 * 64..=bytes).contains(&after.bytes), "{} of {bytes}", after.bytes);
    assert_eq!(after.regions_free, before.regions_free + 1);
    assert_eq!(after.regions_evicted, 0);
    for number in 20..40 {
        world.append(group, Name::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    world.ask(Request::Flush).unwrap();
    let count = there(&mut world);
    assert_eq!(world.shard.counters().entries, count);
    // What was forgotten may be back; nothing counts twice.
    let mut world = world.crashed();
    let count = there(&mut world);
    let counters = world.shard.counters();
    assert!(count >= 23 && counters.entries == count, "{} of {count}", counters.entries);
    assert!(counters.bytes <= count * 100_000);
}

#[test]
fn what_is_pinned_or_leased_stays() {
    for hold in [Hold::Pin, Hold::Lease] {
        let mut world = World::new(1, 4, settings());
        let held = fill(&mut world, "held", 0..9);
        world.ask(Request::Seal { group: held }).unwrap();
        world.ask(Request::Hold { group: held, hold }).unwrap();
        fill(&mut world, "others", 100..160);
        assert!((0..9).all(|number| world.bytes(Name::Key(key(number))).is_some()));
        world.ask(Request::LetGo { group: held, hold }).unwrap();
        fill(&mut world, "others", 200..260);
        assert!((0..9).all(|number| world.bytes(Name::Key(key(number))).is_none()));
    }
}

#[test]
fn a_full_device_on_which_everything_is_pinned_takes_no_more() {
    let mut world = World::new(1, 4, settings());
    let group = world.group("a", false);
    world.ask(Request::Hold { group, hold: Hold::Pin }).unwrap();
    let mut taken = 0;
    let refusal = loop {
        match world.append(group, Name::Key(key(taken)), &content(taken, 100_000)) {
            Ok(_) => taken += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Refusal::NoSpace);
    assert!((0..taken).all(|number| world.bytes(Name::Key(key(number))).is_some()));
    assert_eq!(world.ask(free(group, Duration::ZERO)).unwrap_err(), Refusal::Pinned);
}

/// Filling, sealed, marked (no new readers), draining (leases, forced deadline), freed.
#[test]
fn a_group_is_marked_drained_and_freed() {
    let mut world = World::new(1, 8, settings());
    let group = fill(&mut world, "a", 0..20);
    world.ask(Request::Hold { group, hold: Hold::Lease }).unwrap();
    world.ask(Request::Seal { group }).unwrap();
    let late = world.append(group, Name::Key(key(50)), &content(50, 10));
    assert_eq!(late.unwrap_err(), Refusal::Closed);
    world.ask(Request::Mark { group }).unwrap();
    let lease = Request::Hold { group, hold: Hold::Lease };
    assert_eq!(world.ask(lease).unwrap_err(), Refusal::Closed);
    assert!(world.bytes(Name::Key(key(1))).is_none(), "no new readers");
    let leased = Request::Read { name: Name::Key(key(1)), range: None, leased: true };
    assert!(matches!(world.ask(leased), Ok(Answer::Read(Some(_)))), "the old ones go on");

    let freeing = world.begin(free(group, Duration::from_secs(9)));
    world.settle();
    assert!(!world.answers.contains_key(&freeing), "a lease is held");
    world.ask(Request::LetGo { group, hold: Hold::Lease }).unwrap();
    assert!(matches!(world.wait_for(freeing), Ok(Answer::Done)));
    world.settle();
    assert_eq!(world.shard.counters().regions_free, 8);
    assert_eq!(world.ask(Request::Seal { group }).unwrap_err(), Refusal::Gone);

    let group = fill(&mut world, "b", 0..20);
    world.ask(Request::Hold { group, hold: Hold::Lease }).unwrap();
    world.ask(free(group, Duration::from_secs(9))).unwrap();
    assert_eq!(world.now, Duration::from_secs(9), "no lease lasts for ever");
}

/// Promise 6: what is remembered is bounded, however many names there ever were.
#[test]
fn groups_without_anything_are_forgotten() {
    let mut world = World::new(1, 4, settings());
    let full = fill(&mut world, "full", 0..5);
    let held = world.group("held", false);
    world.ask(Request::Hold { group: held, hold: Hold::Pin }).unwrap();
    let empty = world.group("empty", false);
    for number in 0..10_000 {
        world.group(&format!("name {number}"), number % 2 == 0);
    }
    let Ok(Answer::Groups(groups)) = world.ask(Request::Groups) else { panic!("a list") };
    assert!(groups.len() < 5000, "{}", groups.len());
    for group in [full, held] {
        world.append(group, Name::Key(key(100)), &content(100, 10)).unwrap();
    }
    let gone = world.append(empty, Name::Key(key(101)), &content(101, 10));
    assert_eq!(gone.unwrap_err(), Refusal::Gone);
    let again = world.group("empty", false);
    world.append(again, Name::Key(key(101)), &content(101, 10)).unwrap();
    assert!((0..5).all(|number| world.bytes(Name::Key(key(number))).is_some()));
}

#[test]
fn groups_and_their_entries_can_be_listed() {
    let mut world = World::new(1, 8, settings());
    fill(&mut world, "a", 0..25);
    let dense = world.group("d", true);
    for ordinal in [3, 1, 2] {
        world.append(dense, Name::Ordinal(dense, ordinal), &content(ordinal, 100)).unwrap();
    }
    world.ask(Request::Seal { group: dense }).unwrap();
    let Ok(Answer::Groups(groups)) = world.ask(Request::Groups) else { panic!("a list") };
    let facts: Vec<_> =
        groups.iter().map(|g| (g.name.as_slice(), g.entries, g.bytes, g.life)).collect();
    assert_eq!(
        facts,
        [(&b"a"[..], 25, 2_500_000, Life::Filling), (&b"d"[..], 3, 300, Life::Sealed)]
    );
    let Ok(Answer::Entries(entries)) = world.ask(Request::Entries { group: groups[0].id }) else {
        panic!("a list")
    };
    assert!(entries.iter().map(|entry| entry.key).eq((0..25).map(|number| key(number).0)));
    let Ok(Answer::Entries(entries)) = world.ask(Request::Entries { group: dense }) else {
        panic!("a list")
    };
    assert!(entries.iter().all(|entry| entry.length == 100) && entries.len() == 3);
}

/// More groups than staging buffers, more than may be filling: all is still there.
#[test]
fn many_groups_are_filled_side_by_side() {
    let mut world = World::new(3, 40, settings());
    for round in 0..6 {
        for group in 0..6_u64 {
            let id = world.group(&format!("group {group}"), false);
            let number = round * 100 + group;
            world.append(id, Name::Key(key(number)), &content(number, 9000)).unwrap();
        }
    }
    for round in 0..6 {
        for group in 0..6 {
            let number = round * 100 + group;
            assert_eq!(world.bytes(Name::Key(key(number))).unwrap(), content(number, 9000));
        }
    }
}

/// Damage is found without anybody asking, and a region in which there is much of it is not used.
#[test]
fn the_scrubber_finds_damage_and_the_region_is_set_aside() {
    let rate = forebay_core::units::ByteRate(forebay_core::ByteSize::mib(1));
    let mut world = World::new(1, 8, Settings { scrub_rate: Some(rate), ..settings() });
    let group = fill(&mut world, "a", 0..9);
    world.ask(Request::Seal { group }).unwrap();
    world.settle();
    let start = world.shard.geometry().region_offset(forebay_flash::layout::RegionId(0));
    for entry in [1_u64, 4, 6] {
        let at = start + 4096 + entry * 100_096 / 4096 * 4096 + 8192;
        let mut block = world.disk.get(at);
        block[77] ^= 1;
        world.disk.put(at, &block);
    }
    while world.shard.counters().entries_damaged < 3 {
        let wake = world.shard.wake_at().expect("the scrubber runs").max(world.now);
        world.advance(wake.checked_sub(world.now).unwrap());
        world.settle();
    }
    let counters = world.shard.counters();
    assert_eq!((counters.entries_damaged, counters.regions_lost), (3, 1));
    assert_eq!((counters.regions_quarantined, counters.regions_free), (1, 7));
    assert!(world.now > Duration::from_millis(300), "at its rate: {:?}", world.now);
    world.advance(Duration::from_hours(1));
    assert_eq!(world.shard.counters().regions_free, 8, "tried again later");
}

//! States of groups and regions.

use std::time::Duration;

use forebay_flash::shard::{
    EntryName, GroupState, GuardKind, RequestError, Settings, ShardAnswer, ShardRequest,
};

use crate::world::{World, content, key, settings};

fn fill(
    world: &mut World,
    name: &str,
    keys: std::ops::Range<u64>,
) -> forebay_flash::index::GroupId {
    let group = world.group(name, false);
    for number in keys {
        world.append(group, EntryName::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    group
}

fn free(group: forebay_flash::index::GroupId, lease_timeout: Duration) -> ShardRequest {
    ShardRequest::Free { group, lease_timeout }
}

/// Promise 6: the capacity is never exceeded. The region that was begun first is evicted first,
/// whole.
#[test]
fn the_oldest_region_is_evicted_for_space() {
    let mut world = World::new(1, 4, settings());
    fill(&mut world, "a", 0..60);
    let left: Vec<u64> =
        (0..60).filter(|n| world.bytes(EntryName::Key(key(*n))).is_some()).collect();
    assert!(left.len() >= 27 && left.windows(2).all(|pair| pair[1] == pair[0] + 1), "{left:?}");
    assert_eq!(*left.last().unwrap(), 59);
    let counters = world.shard.counters();
    assert_eq!(counters.entries, left.len() as u64);
    assert!(counters.regions_evicted >= 2);
    let ratio = counters.device_bytes_written as f64 / counters.inserted_bytes as f64;
    assert!(ratio < 1.02, "{ratio}");
}

/// Forgotten and replaced entries do not count, not even after a restart. A region without indexed
/// entries is freed.
#[test]
fn entries_that_are_not_indexed_take_no_space() {
    let mut world = World::new(1, 8, settings());
    let group = fill(&mut world, "a", 0..40);
    world.request(ShardRequest::Flush).unwrap();
    let there = |world: &mut World| {
        (0..40).filter(|number| world.bytes(EntryName::Key(key(*number))).is_some()).count() as u64
    };
    let (before, all) = (world.shard.counters(), there(&mut world));
    assert_eq!((before.entries, before.bytes), (all, all * 100_000));
    // Some of each region, and all of the first.
    let first = (0..40).step_by(4).chain(0..10);
    for number in first {
        world.request(ShardRequest::Forget { key: key(number) }).unwrap();
        world.request(ShardRequest::Forget { key: key(number) }).unwrap();
    }
    world.settle();
    let (after, left) = (world.shard.counters(), there(&mut world));
    assert_eq!((left, after.entries), (23, 23));
    let bytes = 23 * 100_000;
    assert!((bytes - 17 * 64..=bytes).contains(&after.bytes), "{} of {bytes}", after.bytes);
    assert_eq!(after.regions_free, before.regions_free + 1);
    assert_eq!(after.regions_evicted, 0);
    for number in 20..40 {
        world.append(group, EntryName::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    world.request(ShardRequest::Flush).unwrap();
    let count = there(&mut world);
    assert_eq!(world.shard.counters().entries, count);
    // Forgotten entries may be back, but none counts twice.
    let mut world = world.crashed();
    let count = there(&mut world);
    let counters = world.shard.counters();
    assert!(count >= 23 && counters.entries == count, "{} of {count}", counters.entries);
    assert!(counters.bytes <= count * 100_000);
}

#[test]
fn pinned_and_leased_groups_stay() {
    for guard in [GuardKind::Pin, GuardKind::Lease] {
        let mut world = World::new(1, 4, settings());
        let kept = fill(&mut world, "kept", 0..9);
        world.request(ShardRequest::Seal { group: kept }).unwrap();
        world.request(ShardRequest::Acquire { group: kept, guard }).unwrap();
        fill(&mut world, "others", 100..160);
        assert!((0..9).all(|number| world.bytes(EntryName::Key(key(number))).is_some()));
        world.request(ShardRequest::Release { group: kept, guard }).unwrap();
        fill(&mut world, "others", 200..260);
        assert!((0..9).all(|number| world.bytes(EntryName::Key(key(number))).is_none()));
    }
}

#[test]
fn a_full_device_with_all_groups_pinned_accepts_no_more() {
    let mut world = World::new(1, 4, settings());
    let group = world.group("a", false);
    world.request(ShardRequest::Acquire { group, guard: GuardKind::Pin }).unwrap();
    let mut taken = 0;
    let error = loop {
        match world.append(group, EntryName::Key(key(taken)), &content(taken, 100_000)) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, RequestError::NoSpace);
    assert!((0..taken).all(|number| world.bytes(EntryName::Key(key(number))).is_some()));
    assert_eq!(world.request(free(group, Duration::ZERO)).unwrap_err(), RequestError::Pinned);
}

/// Filling, sealed, marked (no new readers), draining (leases, forced deadline), freed.
#[test]
fn a_group_is_marked_drained_and_freed() {
    let mut world = World::new(1, 8, settings());
    let group = fill(&mut world, "a", 0..20);
    world.request(ShardRequest::Acquire { group, guard: GuardKind::Lease }).unwrap();
    world.request(ShardRequest::Seal { group }).unwrap();
    let late = world.append(group, EntryName::Key(key(50)), &content(50, 10));
    assert_eq!(late.unwrap_err(), RequestError::Closed);
    world.request(ShardRequest::Mark { group }).unwrap();
    let lease = ShardRequest::Acquire { group, guard: GuardKind::Lease };
    assert_eq!(world.request(lease).unwrap_err(), RequestError::Closed);
    assert!(world.bytes(EntryName::Key(key(1))).is_none(), "no new readers");
    let leased =
        ShardRequest::Read { name: EntryName::Key(key(1)), range: None, leased: true, into: None };
    assert!(
        matches!(world.request(leased), Ok(ShardAnswer::Read(Some(_)))),
        "a leased reader continues"
    );

    let freeing = world.begin(free(group, Duration::from_secs(9)));
    world.settle();
    assert!(!world.answers.contains_key(&freeing), "the lease blocks it");
    world.request(ShardRequest::Release { group, guard: GuardKind::Lease }).unwrap();
    assert!(matches!(world.wait_for(freeing), Ok(ShardAnswer::Done)));
    world.settle();
    assert_eq!(world.shard.counters().regions_free, 8);
    assert_eq!(world.request(ShardRequest::Seal { group }).unwrap_err(), RequestError::Gone);

    let group = fill(&mut world, "b", 0..20);
    world.request(ShardRequest::Acquire { group, guard: GuardKind::Lease }).unwrap();
    world.request(free(group, Duration::from_secs(9))).unwrap();
    assert_eq!(world.now, Duration::from_secs(9), "the lease times out");
}

/// Promise 6: the number of empty groups is bounded.
#[test]
fn empty_groups_are_forgotten() {
    let mut world = World::new(1, 4, settings());
    let full = fill(&mut world, "full", 0..5);
    let kept = world.group("pinned", false);
    world.request(ShardRequest::Acquire { group: kept, guard: GuardKind::Pin }).unwrap();
    let empty = world.group("empty", false);
    for number in 0..10_000 {
        world.group(&format!("name {number}"), number % 2 == 0);
    }
    let Ok(ShardAnswer::Groups(groups)) = world.request(ShardRequest::Groups) else {
        panic!("not a list")
    };
    assert!(groups.len() < 5000, "{}", groups.len());
    for group in [full, kept] {
        world.append(group, EntryName::Key(key(100)), &content(100, 10)).unwrap();
    }
    let gone = world.append(empty, EntryName::Key(key(101)), &content(101, 10));
    assert_eq!(gone.unwrap_err(), RequestError::Gone);
    let again = world.group("empty", false);
    world.append(again, EntryName::Key(key(101)), &content(101, 10)).unwrap();
    assert!((0..5).all(|number| world.bytes(EntryName::Key(key(number))).is_some()));
}

#[test]
fn groups_and_their_entries_can_be_listed() {
    let mut world = World::new(1, 8, settings());
    fill(&mut world, "a", 0..25);
    let dense = world.group("d", true);
    for ordinal in [3, 1, 2] {
        world.append(dense, EntryName::Ordinal(dense, ordinal), &content(ordinal, 100)).unwrap();
    }
    world.request(ShardRequest::Seal { group: dense }).unwrap();
    let Ok(ShardAnswer::Groups(groups)) = world.request(ShardRequest::Groups) else {
        panic!("not a list")
    };
    let facts: Vec<_> =
        groups.iter().map(|g| (g.name.as_slice(), g.entries, g.bytes, g.state)).collect();
    assert_eq!(
        facts,
        [(&b"a"[..], 25, 2_500_000, GroupState::Filling), (&b"d"[..], 3, 300, GroupState::Sealed)]
    );
    let Ok(ShardAnswer::Entries(entries)) =
        world.request(ShardRequest::Entries { group: groups[0].id })
    else {
        panic!("not a list")
    };
    assert!(entries.iter().map(|entry| entry.key).eq((0..25).map(|number| key(number).0)));
    let Ok(ShardAnswer::Entries(entries)) = world.request(ShardRequest::Entries { group: dense })
    else {
        panic!("not a list")
    };
    assert!(entries.iter().all(|entry| entry.length == 100) && entries.len() == 3);
}

/// More groups than staging buffers and than may be filling: all entries are still there.
#[test]
fn many_groups_are_filled_side_by_side() {
    let mut world = World::new(3, 40, settings());
    for round in 0..6 {
        for group in 0..6_u64 {
            let id = world.group(&format!("group {group}"), false);
            let number = round * 100 + group;
            world.append(id, EntryName::Key(key(number)), &content(number, 9000)).unwrap();
        }
    }
    for round in 0..6 {
        for group in 0..6 {
            let number = round * 100 + group;
            assert_eq!(world.bytes(EntryName::Key(key(number))).unwrap(), content(number, 9000));
        }
    }
}

/// The scrubber finds damage without a read request, and a region with many damaged entries is
/// quarantined.
#[test]
fn the_scrubber_finds_damage_and_the_region_is_quarantined() {
    let rate = forebay_core::units::ByteRate(forebay_core::ByteSize::mib(1));
    let mut world = World::new(1, 8, Settings { scrub_rate: Some(rate), ..settings() });
    let group = fill(&mut world, "a", 0..9);
    world.request(ShardRequest::Seal { group }).unwrap();
    world.settle();
    let start = world.shard.geometry().region_offset(forebay_flash::format::RegionId(0));
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
    assert_eq!(world.shard.counters().regions_free, 8, "the quarantine ends");
}

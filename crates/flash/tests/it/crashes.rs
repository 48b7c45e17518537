//! Power failures at any moment.

use std::time::Duration;

use forebay_flash::shard::{EntryName, GroupState, Settings, ShardAnswer, ShardRequest};

use crate::world::{World, content, key, seeds, settings};

/// What has been acknowledged to a workload.
#[derive(Default)]
struct Acknowledged {
    /// Keys that are durable.
    durable: Vec<u64>,
    /// Keys that are freed.
    freed: Vec<u64>,
}

/// A small workload that stops after `commands` commands. True if it was completed.
fn work(world: &mut World, commands: u64, acknowledged: &mut Acknowledged) -> bool {
    let mut left = commands;
    let mut wait = |world: &mut World, token: u64| loop {
        if let Some(outcome) = world.answers.remove(&token) {
            outcome.expect("the disk has no faults");
            return true;
        }
        if left == 0 {
            return false;
        }
        left -= 1;
        world.step();
    };
    for (number, name) in ["a", "b"].iter().enumerate() {
        let group = world.group(name, false);
        let keys = number as u64 * 100..number as u64 * 100 + 12;
        for number in keys.clone() {
            let append =
                crate::world::append(group, EntryName::Key(key(number)), &content(number, 90_000));
            let token = world.begin(append);
            if !wait(world, token) {
                return false;
            }
        }
        let token = world.begin(ShardRequest::Seal { group });
        if !wait(world, token) {
            return false;
        }
        acknowledged.durable.extend(keys);
    }
    let group = world.group("a", false);
    let freeing = acknowledged.durable.extract_if(.., |number| *number < 100).collect::<Vec<_>>();
    let token = world.begin(ShardRequest::Free { group, lease_timeout: Duration::ZERO });
    if !wait(world, token) {
        // The free was not answered, so either state is right.
        return false;
    }
    acknowledged.freed.extend(freeing);
    let group = world.group("c", false);
    for number in 200..212 {
        let append =
            crate::world::append(group, EntryName::Key(key(number)), &content(number, 90_000));
        let token = world.begin(append);
        if !wait(world, token) {
            return false;
        }
    }
    let token = world.begin(ShardRequest::Flush);
    if !wait(world, token) {
        return false;
    }
    acknowledged.durable.extend(200..212);
    true
}

fn check(world: &mut World, acknowledged: &Acknowledged) {
    for number in (0..12).chain(100..112).chain(200..212) {
        let found = world.bytes(EntryName::Key(key(number)));
        if let Some(found) = &found {
            assert_eq!(*found, content(number, 90_000), "promise 1");
        }
        if acknowledged.durable.contains(&number) {
            assert!(found.is_some(), "promise 7: {number} was durable");
        }
        if acknowledged.freed.contains(&number) {
            assert!(found.is_none(), "{number} was freed");
        }
    }
}

/// Promises 1 and 7, and the traps: checkpoint durable before its data; eviction that forgot its
/// log.
#[test]
fn a_crash_at_every_single_command() {
    for commands in 0.. {
        let mut world = World::new(commands, 8, settings());
        let mut acknowledged = Acknowledged::default();
        let finished = work(&mut world, commands, &mut acknowledged);
        let mut world = world.crashed();
        check(&mut world, &acknowledged);
        // Scanned regions are sealed now, so the next crash finds the same.
        world.settle();
        let mut world = world.crashed();
        assert_eq!(world.found.regions_scanned, 0, "all regions are sealed");
        check(&mut world, &acknowledged);
        if finished {
            assert!(commands > 50, "the workload has more than 50 commands");
            break;
        }
    }
}

/// An explicit eviction is durable when it is answered, also without discards.
#[test]
fn freed_entries_stay_away() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 8, Settings { discard: false, ..settings() });
        let group = world.group("a", false);
        world.append(group, EntryName::Key(key(1)), &content(1, 9000)).unwrap();
        world.request(ShardRequest::Seal { group }).unwrap();
        world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
        assert!(world.crashed().bytes(EntryName::Key(key(1))).is_none());
    }
}

/// Crashes during recovery from a crash, and work in between.
#[test]
fn crashes_in_a_row() {
    for seed in seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(seed, 12, settings());
        let mut durable = Vec::new();
        for round in 0..6_u64 {
            let group = world.group("a", false);
            let keys: Vec<u64> = (round * 10..round * 10 + random.u64(1..10)).collect();
            for number in &keys {
                world
                    .append(group, EntryName::Key(key(*number)), &content(*number, 30_000))
                    .unwrap();
            }
            if random.bool() {
                world.request(ShardRequest::Flush).unwrap();
                durable.extend(keys);
            }
            for _ in 0..random.u8(..20) {
                world.step();
            }
            world = world.crashed();
            if random.bool() {
                world = world.crashed();
            }
            for number in &durable {
                assert_eq!(
                    world.bytes(EntryName::Key(key(*number))).unwrap(),
                    content(*number, 30_000)
                );
            }
        }
    }
}

/// Trap: stale checkpoint after a run without one. The old footer of a reused region must not
/// count.
#[test]
fn an_old_footer_does_not_count_for_a_new_generation() {
    let settings = Settings { discard: false, ..settings() };
    let mut world = World::new(5, 4, settings.clone());
    let first = world.group("first", true);
    for ordinal in 0..40 {
        world.append(first, EntryName::Ordinal(first, ordinal), &content(1, 90_000)).unwrap();
    }
    world.request(ShardRequest::Seal { group: first }).unwrap();
    world.request(ShardRequest::Free { group: first, lease_timeout: Duration::ZERO }).unwrap();
    let again = world.group("first", true);
    for ordinal in 100..104 {
        world.append(again, EntryName::Ordinal(again, ordinal), &content(ordinal, 30_000)).unwrap();
    }
    world.advance(settings.flush_after);
    world.settle();
    let mut world = World::open(world.disk.kill(), 4, settings);
    let group = world.group("first", true);
    for ordinal in 0..200 {
        let found = world.bytes(EntryName::Ordinal(group, ordinal));
        let there = (100..104).contains(&ordinal).then(|| content(ordinal, 30_000).to_vec());
        assert_eq!(found, there, "{ordinal}");
    }
}

/// Of two entries with one name the later one counts, before and after a restart.
#[test]
fn the_later_entry_counts() {
    for dense in [false, true] {
        let mut world = World::new(5, 12, settings());
        let group = world.group("a", dense);
        let name = |number| {
            if dense { EntryName::Ordinal(group, number) } else { EntryName::Key(key(number)) }
        };
        // Several regions in all, and two entries of one name in some of them.
        for seed in 0..30 {
            world.append(group, name(seed % 4), &content(seed, 200_000)).unwrap();
        }
        world.request(ShardRequest::Flush).unwrap();
        for _ in 0..2 {
            for (number, seed) in [(2, 26), (3, 27), (0, 28), (1, 29)] {
                assert_eq!(world.bytes(name(number)).unwrap(), content(seed, 200_000));
            }
            world = world.crashed();
        }
    }
}

/// A sealed dense group is known to be complete after a restart.
#[test]
fn a_sealed_group_is_still_sealed_after_a_crash() {
    let mut world = World::new(5, 12, settings());
    let whole = world.group("whole", true);
    for ordinal in 0..30 {
        world.append(whole, EntryName::Ordinal(whole, ordinal), &content(ordinal, 60_000)).unwrap();
    }
    world.request(ShardRequest::Seal { group: whole }).unwrap();
    let half = world.group("half", true);
    world.append(half, EntryName::Ordinal(half, 0), &content(0, 60_000)).unwrap();
    world.request(ShardRequest::Flush).unwrap();
    let empty = world.group("empty", true);
    world.request(ShardRequest::Seal { group: empty }).unwrap();
    let mut world = world.crashed();
    let Ok(ShardAnswer::Groups(groups)) = world.request(ShardRequest::Groups) else {
        panic!("not a list")
    };
    let mut states: Vec<_> = groups.into_iter().map(|group| (group.name, group.state)).collect();
    states.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        states,
        [
            (b"empty".to_vec(), GroupState::Sealed),
            (b"half".to_vec(), GroupState::Filling),
            (b"whole".to_vec(), GroupState::Sealed)
        ]
    );
    let whole = world.group("whole", true);
    assert!(
        (0..30).all(|n| world.bytes(EntryName::Ordinal(whole, n)).unwrap() == content(n, 60_000))
    );
}

/// An explicit eviction is durable when answered, also for regions that were given up before: their
/// old headers must not bring the group back.
#[test]
fn regions_given_up_before_a_free_stay_away() {
    let mut world = World::new(5, 12, settings());
    let group = world.group("a", true);
    for ordinal in 0..9 {
        world
            .append(group, EntryName::Ordinal(group, ordinal), &content(ordinal, 100_000))
            .unwrap();
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let start = world.shard.geometry().region_offset(forebay_flash::format::RegionId(0));
    for ordinal in [1, 4, 6] {
        let at = start + 4096 + ordinal * 100_096 / 4096 * 4096 + 8192;
        let mut block = world.disk.get(at);
        block[77] ^= 1;
        world.disk.put(at, &block);
        assert!(world.bytes(EntryName::Ordinal(group, ordinal)).is_none(), "damaged");
    }
    assert_eq!(world.shard.counters().regions_quarantined, 1);
    world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
    let mut world = world.crashed();
    let again = world.group("a", true);
    assert!((0..9).all(|ordinal| world.bytes(EntryName::Ordinal(again, ordinal)).is_none()));
}

/// A device that shrinks and grows again does not restore what lay beyond.
#[test]
fn entries_beyond_a_reduced_size_stay_away() {
    let mut world = World::new(5, 12, settings());
    let group = world.group("a", true);
    for ordinal in 0..80 {
        world
            .append(group, EntryName::Ordinal(group, ordinal), &content(ordinal, 100_000))
            .unwrap();
    }
    world.request(ShardRequest::Flush).unwrap();
    let mut world = world.resized(5);
    let group = world.group("a", true);
    let left: Vec<u64> = (0..80)
        .filter(|ordinal| world.bytes(EntryName::Ordinal(group, *ordinal)).is_some())
        .collect();
    assert!(left.len() >= 27 && left.len() < 60, "{left:?}");
    world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
    let mut world = world.resized(12);
    let group = world.group("a", true);
    assert!((0..80).all(|ordinal| world.bytes(EntryName::Ordinal(group, ordinal)).is_none()));
    world.append(group, EntryName::Ordinal(group, 3), &content(3, 1000)).unwrap();
    assert_eq!(world.bytes(EntryName::Ordinal(group, 3)).unwrap(), content(3, 1000));
}

/// What a killed process has written to the system is kept. `flush_after` (500 ms) bounds the loss.
#[test]
fn flushed_entries_survive_a_kill() {
    let mut world = World::new(5, 8, settings());
    let group = world.group("a", false);
    for number in 0..3 {
        world.append(group, EntryName::Key(key(number)), &content(number, 1000)).unwrap();
        world.advance(Duration::from_millis(200));
        world.settle();
    }
    world.advance(Duration::from_millis(300));
    world.settle();
    world.append(group, EntryName::Key(key(3)), &content(3, 1000)).unwrap();
    let mut world = World::open(world.disk.kill(), 8, settings());
    for number in 0..3 {
        assert_eq!(world.bytes(EntryName::Key(key(number))).unwrap(), content(number, 1000));
    }
    assert!(world.bytes(EntryName::Key(key(3))).is_none(), "it was only in memory");
}

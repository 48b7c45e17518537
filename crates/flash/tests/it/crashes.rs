//! The power goes, at any moment.

use std::time::Duration;

use forebay_flash::shard::{Answer, Life, Name, Request, Settings};

use crate::world::{World, content, key, seeds, settings};

/// What a small workload has been promised.
#[derive(Default)]
struct Promised {
    /// Keys whose durability was answered.
    durable: Vec<u64>,
    /// Keys whose eviction was answered.
    gone: Vec<u64>,
}

/// A small workload that stops after so many commands. True if it got to its end.
fn work(world: &mut World, commands: u64, promised: &mut Promised) -> bool {
    let mut left = commands;
    let mut wait = |world: &mut World, token: u64| loop {
        if let Some(outcome) = world.answers.remove(&token) {
            outcome.expect("the disk is well");
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
                crate::world::append(group, Name::Key(key(number)), &content(number, 90_000));
            let token = world.begin(append);
            if !wait(world, token) {
                return false;
            }
        }
        let token = world.begin(Request::Seal { group });
        if !wait(world, token) {
            return false;
        }
        promised.durable.extend(keys);
    }
    let group = world.group("a", false);
    let freed = promised.durable.extract_if(.., |number| *number < 100).collect::<Vec<_>>();
    let token = world.begin(Request::Free { group, patience: Duration::ZERO });
    if !wait(world, token) {
        // Neither here nor there.
        return false;
    }
    promised.gone.extend(freed);
    let group = world.group("c", false);
    for number in 200..212 {
        let append = crate::world::append(group, Name::Key(key(number)), &content(number, 90_000));
        let token = world.begin(append);
        if !wait(world, token) {
            return false;
        }
    }
    let token = world.begin(Request::Flush);
    if !wait(world, token) {
        return false;
    }
    promised.durable.extend(200..212);
    true
}

fn check(world: &mut World, promised: &Promised) {
    for number in (0..12).chain(100..112).chain(200..212) {
        let found = world.bytes(Name::Key(key(number)));
        if let Some(found) = &found {
            assert_eq!(*found, content(number, 90_000), "promise 1");
        }
        if promised.durable.contains(&number) {
            assert!(found.is_some(), "promise 7: {number} was durable");
        }
        if promised.gone.contains(&number) {
            assert!(found.is_none(), "{number} was evicted for good");
        }
    }
}

/// Promises 1 and 7, and the traps: checkpoint durable before its data; eviction that forgot its log.
#[test]
fn a_crash_at_every_single_command() {
    for commands in 0.. {
        let mut world = World::new(commands, 8, settings());
        let mut promised = Promised::default();
        let finished = work(&mut world, commands, &mut promised);
        let mut world = world.crashed();
        check(&mut world, &promised);
        // What was scanned has been sealed: the next crash finds the same.
        world.settle();
        let mut world = world.crashed();
        assert_eq!(world.found.scanned, 0, "sealed by now");
        check(&mut world, &promised);
        if finished {
            assert!(commands > 50, "that is no workload");
            break;
        }
    }
}

/// An explicit eviction is durable when it is answered, also where nothing is discarded.
#[test]
fn what_was_freed_stays_away() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 8, Settings { discard: false, ..settings() });
        let group = world.group("a", false);
        world.append(group, Name::Key(key(1)), &content(1, 9000)).unwrap();
        world.ask(Request::Seal { group }).unwrap();
        world.ask(Request::Free { group, patience: Duration::ZERO }).unwrap();
        assert!(world.crashed().bytes(Name::Key(key(1))).is_none());
    }
}

/// A crash while recovering from a crash, and again, and work in between.
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
                world.append(group, Name::Key(key(*number)), &content(*number, 30_000)).unwrap();
            }
            if random.bool() {
                world.ask(Request::Flush).unwrap();
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
                assert_eq!(world.bytes(Name::Key(key(*number))).unwrap(), content(*number, 30_000));
            }
        }
    }
}

/// Trap: stale checkpoint after a run without one. A region that is used again must not be taken for what
/// its old footer says.
#[test]
fn an_old_footer_says_nothing_about_a_new_life() {
    let settings = Settings { discard: false, ..settings() };
    let mut world = World::new(5, 4, settings.clone());
    let first = world.group("first", true);
    for ordinal in 0..40 {
        world.append(first, Name::Ordinal(first, ordinal), &content(1, 90_000)).unwrap();
    }
    world.ask(Request::Seal { group: first }).unwrap();
    world.ask(Request::Free { group: first, patience: Duration::ZERO }).unwrap();
    let again = world.group("first", true);
    for ordinal in 100..104 {
        world.append(again, Name::Ordinal(again, ordinal), &content(ordinal, 30_000)).unwrap();
    }
    world.advance(settings.flush_after);
    world.settle();
    let mut world = World::open(world.disk.killed(), 4, settings);
    let group = world.group("first", true);
    for ordinal in 0..200 {
        let found = world.bytes(Name::Ordinal(group, ordinal));
        let there = (100..104).contains(&ordinal).then(|| content(ordinal, 30_000).to_vec());
        assert_eq!(found, there, "{ordinal}");
    }
}

/// Of two entries of one name the later one counts, before a restart and after it.
#[test]
fn the_later_entry_counts() {
    for dense in [false, true] {
        let mut world = World::new(5, 12, settings());
        let group = world.group("a", dense);
        let name = |number| {
            if dense { Name::Ordinal(group, number) } else { Name::Key(key(number)) }
        };
        // Long enough for several regions, and short enough for two in one.
        for seed in 0..30 {
            world.append(group, name(seed % 4), &content(seed, 200_000)).unwrap();
        }
        world.ask(Request::Flush).unwrap();
        for _ in 0..2 {
            for (number, seed) in [(2, 26), (3, 27), (0, 28), (1, 29)] {
                assert_eq!(world.bytes(name(number)).unwrap(), content(seed, 200_000));
            }
            world = world.crashed();
        }
    }
}

/// A dense group that was sealed is known to be whole after a restart.
#[test]
fn a_sealed_group_is_still_sealed_after_a_crash() {
    let mut world = World::new(5, 12, settings());
    let whole = world.group("whole", true);
    for ordinal in 0..30 {
        world.append(whole, Name::Ordinal(whole, ordinal), &content(ordinal, 60_000)).unwrap();
    }
    world.ask(Request::Seal { group: whole }).unwrap();
    let half = world.group("half", true);
    world.append(half, Name::Ordinal(half, 0), &content(0, 60_000)).unwrap();
    world.ask(Request::Flush).unwrap();
    let empty = world.group("empty", true);
    world.ask(Request::Seal { group: empty }).unwrap();
    let mut world = world.crashed();
    let Ok(Answer::Groups(groups)) = world.ask(Request::Groups) else { panic!("a list") };
    let mut lives: Vec<_> = groups.into_iter().map(|group| (group.name, group.life)).collect();
    lives.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        lives,
        [
            (b"empty".to_vec(), Life::Sealed),
            (b"half".to_vec(), Life::Filling),
            (b"whole".to_vec(), Life::Sealed)
        ]
    );
    let whole = world.group("whole", true);
    assert!((0..30).all(|n| world.bytes(Name::Ordinal(whole, n)).unwrap() == content(n, 60_000)));
}

/// An explicit eviction is durable when answered, also for regions that had been given up before: their old
/// headers must not bring the group back.
#[test]
fn what_was_given_up_before_it_was_freed_stays_away() {
    let mut world = World::new(5, 12, settings());
    let group = world.group("a", true);
    for ordinal in 0..9 {
        world.append(group, Name::Ordinal(group, ordinal), &content(ordinal, 100_000)).unwrap();
    }
    world.ask(Request::Seal { group }).unwrap();
    let start = world.shard.geometry().region_offset(forebay_flash::layout::RegionId(0));
    for ordinal in [1, 4, 6] {
        let at = start + 4096 + ordinal * 100_096 / 4096 * 4096 + 8192;
        let mut block = world.disk.get(at);
        block[77] ^= 1;
        world.disk.put(at, &block);
        assert!(world.bytes(Name::Ordinal(group, ordinal)).is_none(), "damaged");
    }
    assert_eq!(world.shard.counters().regions_quarantined, 1);
    world.ask(Request::Free { group, patience: Duration::ZERO }).unwrap();
    let mut world = world.crashed();
    let again = world.group("a", true);
    assert!((0..9).all(|ordinal| world.bytes(Name::Ordinal(again, ordinal)).is_none()));
}

/// A device that was made smaller and larger again does not remember what lay beyond.
#[test]
fn what_was_cut_off_stays_away() {
    let mut world = World::new(5, 12, settings());
    let group = world.group("a", true);
    for ordinal in 0..80 {
        world.append(group, Name::Ordinal(group, ordinal), &content(ordinal, 100_000)).unwrap();
    }
    world.ask(Request::Flush).unwrap();
    let mut world = world.resized(5);
    let group = world.group("a", true);
    let left: Vec<u64> =
        (0..80).filter(|ordinal| world.bytes(Name::Ordinal(group, *ordinal)).is_some()).collect();
    assert!(left.len() >= 27 && left.len() < 60, "{left:?}");
    world.ask(Request::Free { group, patience: Duration::ZERO }).unwrap();
    let mut world = world.resized(12);
    let group = world.group("a", true);
    assert!((0..80).all(|ordinal| world.bytes(Name::Ordinal(group, ordinal)).is_none()));
    world.append(group, Name::Ordinal(group, 3), &content(3, 1000)).unwrap();
    assert_eq!(world.bytes(Name::Ordinal(group, 3)).unwrap(), content(3, 1000));
}

/// A process that is killed leaves what it has given to the system: what waited for a while is not lost.
#[test]
fn what_waited_for_a_while_survives_a_kill() {
    let mut world = World::new(5, 8, settings());
    let group = world.group("a", false);
    for number in 0..3 {
        world.append(group, Name::Key(key(number)), &content(number, 1000)).unwrap();
        world.advance(Duration::from_millis(200));
        world.settle();
    }
    world.advance(Duration::from_millis(300));
    world.settle();
    world.append(group, Name::Key(key(3)), &content(3, 1000)).unwrap();
    let mut world = World::open(world.disk.killed(), 8, settings());
    for number in 0..3 {
        assert_eq!(world.bytes(Name::Key(key(number))).unwrap(), content(number, 1000));
    }
    assert!(world.bytes(Name::Key(key(3))).is_none(), "it was in memory only");
}

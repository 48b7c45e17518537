//! What was written is what is read: whole, in ranges, from memory, from the device, and from both.

use std::time::Duration;

use forebay_flash::{
    index::GroupId,
    layout::{BLOCK_SIZE, FRAME_SIZE, Geometry, RegionId},
    shard::{Answer, Name, Refusal, Request},
};

use crate::world::{World, append, content, key, seeds, settings};

#[test]
fn entries_of_all_lengths_are_read_whole_and_in_ranges() {
    for seed in seeds(20) {
        let mut world = World::new(seed, 8, settings());
        let mut random = fastrand::Rng::with_seed(seed);
        let group = world.group("a", false);
        let lengths: [usize; 10] =
            [0, 1, 63, 64, 4095, 4096, FRAME_SIZE, FRAME_SIZE + 1, 17 * FRAME_SIZE, 400_000];
        for (number, length) in (0..).zip(lengths) {
            let bytes = content(number, length);
            assert!(world.append(group, Name::Key(key(number)), &bytes).is_ok());
            if random.bool() {
                world.settle();
            }
            if random.u8(..4) == 0 {
                assert!(matches!(world.ask(Request::Flush), Ok(Answer::Done)));
            }
        }
        for (number, length) in (0..).zip(lengths) {
            let (name, bytes) = (Name::Key(key(number)), content(number, length));
            let whole = world.read(name, None).expect("it was written");
            assert_eq!((&*whole.bytes, whole.length as usize, whole.tag), (&bytes[..], length, 9));
            for _ in 0..10 {
                let start = random.usize(..=length);
                let end = random.usize(start..=length);
                let part = world.read(name, Some(start as u64..end as u64)).expect("inside");
                assert_eq!(&*part.bytes, &bytes[start..end], "{start}..{end} of {length}");
            }
            assert!(world.read(name, Some(0..length as u64 + 1)).is_none(), "beyond its end");
        }
        assert!(world.read(Name::Key(key(99)), None).is_none(), "a miss is not an error");
    }
}

/// Trap: wrong value on a hash collision.
#[test]
fn two_keys_with_one_fingerprint_never_read_each_other() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    let first = key(1);
    let mut second = first;
    second.0[20] ^= 1;
    world.append(group, Name::Key(first), &content(1, 5000)).unwrap();
    assert!(world.bytes(Name::Key(second)).is_none(), "not its own");
    assert!(world.bytes(Name::Key(first)).is_some(), "and no harm to the other");
    world.append(group, Name::Key(second), &content(2, 5000)).unwrap();
    assert_eq!(world.bytes(Name::Key(second)).unwrap(), content(2, 5000));
    assert!(world.bytes(Name::Key(first)).is_none(), "its place was taken: a miss, no more");
    assert_eq!(world.shard.counters().entries_damaged, 0);
}

/// Promise 1: each entry carries its region's generation. The device said that it had written, and kept what
/// an earlier life of the region had there: the same name, the same length, the same place.
#[test]
fn what_an_earlier_life_wrote_is_not_read_in_a_later_one() {
    let mut world = World::new(1, 4, settings());
    let live = |world: &mut World, seed: u64| {
        let group = world.group("stream", true);
        world.append(group, Name::Ordinal(group, 0), &content(seed, 5000)).unwrap();
        world.ask(Request::Seal { group }).unwrap();
        assert_eq!(world.bytes(Name::Ordinal(group, 0)).unwrap(), content(seed, 5000));
        group
    };
    let die = |world: &mut World, group: GroupId| {
        world.ask(Request::Free { group, patience: Duration::ZERO }).unwrap();
        world.settle();
    };
    let first = live(&mut world, 1);
    let [start, end] = [0, 1].map(|region| world.shard.geometry().region_offset(RegionId(region)));
    let blocks = (start + BLOCK_SIZE as u64..end).step_by(BLOCK_SIZE);
    let blocks: Vec<_> = blocks.map(|offset| (offset, world.disk.get(offset))).collect();
    die(&mut world, first);
    // The other regions have their turn.
    for seed in 2..5 {
        let group = live(&mut world, seed);
        die(&mut world, group);
    }
    let second = live(&mut world, 5);
    for (offset, block) in blocks {
        world.disk.put(offset, &block);
    }
    assert!(world.bytes(Name::Ordinal(second, 0)).is_none());
    assert_eq!(world.shard.counters().entries_damaged, 1);
}

/// The longest entry fits, one byte more is refused, and so is what is called wrongly.
#[test]
fn limits_are_refusals() {
    let mut world = World::new(1, 8, settings());
    let (keyed, dense) = (world.group("keyed", false), world.group("dense", true));
    let max = Geometry::entry_length_max(&world.shard.geometry());
    let longest = content(1, usize::try_from(max).unwrap());
    assert!(world.append(keyed, Name::Key(key(1)), &longest).is_ok());
    assert_eq!(world.bytes(Name::Key(key(1))).unwrap(), longest);
    let longer = content(1, usize::try_from(max + 1).unwrap());
    let refused = world.append(keyed, Name::Key(key(2)), &longer).unwrap_err();
    assert_eq!(refused, Refusal::TooLong { length: max + 1, max });
    let bytes = content(1, 10);
    for (group, name) in [
        (keyed, Name::Ordinal(keyed, 1)),
        (dense, Name::Key(key(1))),
        (dense, Name::Ordinal(dense, 1 << 26)),
        (dense, Name::Ordinal(keyed, 1)),
    ] {
        assert_eq!(world.append(group, name, &bytes).unwrap_err(), Refusal::Naming);
    }
    let other_kind = Request::Open { name: "dense".into(), class: 0, dense: false };
    assert_eq!(world.ask(other_kind).unwrap_err(), Refusal::Group);
    let long_name = Request::Open { name: vec![1; 256], class: 0, dense: false };
    assert_eq!(world.ask(long_name).unwrap_err(), Refusal::Group);
}

/// Promise 6: what waits to be written is bounded.
#[test]
fn too_much_at_once_is_refused() {
    let bounded = forebay_flash::shard::Settings { queue_bytes_max: 100_000, ..settings() };
    let mut world = World::new(1, 8, bounded);
    let group = world.group("a", false);
    let bytes = content(1, 90_000);
    let tokens: Vec<_> =
        (0..20).map(|n| world.begin(append(group, Name::Key(key(n)), &bytes))).collect();
    let outcomes: Vec<_> = tokens.into_iter().map(|token| world.wait_for(token)).collect();
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(Refusal::Busy))));
    assert!(outcomes.iter().any(Result::is_ok));
    assert!(world.append(group, Name::Key(key(50)), &bytes).is_ok(), "and then it goes on");
}

#[test]
fn readers_who_hold_on_to_memory_keep_nobody_from_writing() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    let bytes = content(1, 300_000);
    for number in 0..10 {
        world.append(group, Name::Key(key(number)), &bytes).unwrap();
    }
    let mut held = Vec::new();
    while world.memory().reading.take(400_000).is_some() {
        held.push(world.read(Name::Key(key(1)), None).expect("there is memory"));
    }
    assert!(world.append(group, Name::Key(key(99)), &bytes).is_ok());
    let late = world.ask(Request::Read { name: Name::Key(key(2)), range: None, leased: false });
    assert_eq!(late.unwrap_err(), Refusal::TimedOut, "no memory in time");
    held.clear();
    assert!(world.read(Name::Key(key(2)), None).is_some());
}

//! Reads return what was written: whole and in ranges, from memory, from the device, and from both.

use std::time::Duration;

use forebay_flash::{
    format::{BLOCK_SIZE, FRAME_SIZE, Geometry, RegionId},
    index::GroupId,
    shard::{EntryName, RequestError, ShardAnswer, ShardRequest},
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
            assert!(world.append(group, EntryName::Key(key(number)), &bytes).is_ok());
            if random.bool() {
                world.settle();
            }
            if random.u8(..4) == 0 {
                assert!(matches!(world.request(ShardRequest::Flush), Ok(ShardAnswer::Done)));
            }
        }
        for (number, length) in (0..).zip(lengths) {
            let (name, bytes) = (EntryName::Key(key(number)), content(number, length));
            let whole = world.read(name, None).expect("it was written");
            assert_eq!((&*whole.bytes, whole.length as usize, whole.tag), (&bytes[..], length, 9));
            for _ in 0..10 {
                let start = random.usize(..=length);
                let end = random.usize(start..=length);
                let part =
                    world.read(name, Some(start as u64..end as u64)).expect("the range is inside");
                assert_eq!(&*part.bytes, &bytes[start..end], "{start}..{end} of {length}");
            }
            assert!(world.read(name, Some(0..length as u64 + 1)).is_none(), "beyond its end");
        }
        assert!(world.read(EntryName::Key(key(99)), None).is_none(), "a miss is not an error");
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
    world.append(group, EntryName::Key(first), &content(1, 5000)).unwrap();
    assert!(world.bytes(EntryName::Key(second)).is_none(), "another key's entry");
    assert!(world.bytes(EntryName::Key(first)).is_some(), "the first key is not affected");
    world.append(group, EntryName::Key(second), &content(2, 5000)).unwrap();
    assert_eq!(world.bytes(EntryName::Key(second)).unwrap(), content(2, 5000));
    assert!(world.bytes(EntryName::Key(first)).is_none(), "replaced in the index: a miss");
    assert_eq!(world.shard.counters().entries_damaged, 0);
}

/// Promise 1: each entry carries its region's generation. Here the device reports a write as done
/// but keeps an entry of an earlier generation with the same name, length and location.
#[test]
fn an_entry_of_an_earlier_generation_is_not_read() {
    let mut world = World::new(1, 4, settings());
    let fill = |world: &mut World, seed: u64| {
        let group = world.group("stream", true);
        world.append(group, EntryName::Ordinal(group, 0), &content(seed, 5000)).unwrap();
        world.request(ShardRequest::Seal { group }).unwrap();
        assert_eq!(world.bytes(EntryName::Ordinal(group, 0)).unwrap(), content(seed, 5000));
        group
    };
    let free = |world: &mut World, group: GroupId| {
        world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
        world.settle();
    };
    let first = fill(&mut world, 1);
    let [start, end] = [0, 1].map(|region| world.shard.geometry().region_offset(RegionId(region)));
    let blocks = (start + BLOCK_SIZE as u64..end).step_by(BLOCK_SIZE);
    let blocks: Vec<_> = blocks.map(|offset| (offset, world.disk.get(offset))).collect();
    free(&mut world, first);
    // Uses the other regions once.
    for seed in 2..5 {
        let group = fill(&mut world, seed);
        free(&mut world, group);
    }
    let second = fill(&mut world, 5);
    for (offset, block) in blocks {
        world.disk.put(offset, &block);
    }
    assert!(world.bytes(EntryName::Ordinal(second, 0)).is_none());
    assert_eq!(world.shard.counters().entries_damaged, 1);
}

/// The longest entry fits. One byte more is rejected, and so are invalid names.
#[test]
fn requests_beyond_the_limits_are_rejected() {
    let mut world = World::new(1, 8, settings());
    let (keyed, dense) = (world.group("keyed", false), world.group("dense", true));
    let max = Geometry::entry_length_max(&world.shard.geometry());
    let longest = content(1, usize::try_from(max).unwrap());
    assert!(world.append(keyed, EntryName::Key(key(1)), &longest).is_ok());
    assert_eq!(world.bytes(EntryName::Key(key(1))).unwrap(), longest);
    let longer = content(1, usize::try_from(max + 1).unwrap());
    let error = world.append(keyed, EntryName::Key(key(2)), &longer).unwrap_err();
    assert_eq!(error, RequestError::TooLong { length: max + 1, max });
    let bytes = content(1, 10);
    for (group, name) in [
        (keyed, EntryName::Ordinal(keyed, 1)),
        (dense, EntryName::Key(key(1))),
        (dense, EntryName::Ordinal(dense, 1 << 26)),
        (dense, EntryName::Ordinal(keyed, 1)),
    ] {
        assert_eq!(world.append(group, name, &bytes).unwrap_err(), RequestError::InvalidName);
    }
    let other_kind = ShardRequest::Open { name: "dense".into(), class: 0, dense: false };
    assert_eq!(world.request(other_kind).unwrap_err(), RequestError::InvalidGroup);
    let long_name = ShardRequest::Open { name: vec![1; 256], class: 0, dense: false };
    assert_eq!(world.request(long_name).unwrap_err(), RequestError::InvalidGroup);
}

/// Promise 6: the append queue is bounded.
#[test]
fn a_full_queue_rejects_appends() {
    let bounded = forebay_flash::shard::Settings { queue_bytes_max: 100_000, ..settings() };
    let mut world = World::new(1, 8, bounded);
    let group = world.group("a", false);
    let bytes = content(1, 90_000);
    let tokens: Vec<_> =
        (0..20).map(|n| world.begin(append(group, EntryName::Key(key(n)), &bytes))).collect();
    let outcomes: Vec<_> = tokens.into_iter().map(|token| world.wait_for(token)).collect();
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(RequestError::Busy))));
    assert!(outcomes.iter().any(Result::is_ok));
    assert!(world.append(group, EntryName::Key(key(50)), &bytes).is_ok(), "later appends succeed");
}

#[test]
fn kept_reads_do_not_block_appends() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    let bytes = content(1, 300_000);
    for number in 0..10 {
        world.append(group, EntryName::Key(key(number)), &bytes).unwrap();
    }
    let mut kept = Vec::new();
    while world.pools().read.take(400_000).is_some() {
        kept.push(world.read(EntryName::Key(key(1)), None).expect("there is memory"));
    }
    assert!(world.append(group, EntryName::Key(key(99)), &bytes).is_ok());
    let late = world.request(ShardRequest::Read {
        name: EntryName::Key(key(2)),
        range: None,
        leased: false,
        into: None,
    });
    assert_eq!(late.unwrap_err(), RequestError::TimedOut, "no memory in time");
    kept.clear();
    assert!(world.read(EntryName::Key(key(2)), None).is_some());
}

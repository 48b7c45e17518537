//! What streams ask of the engine: entries filled in place, reads into the reader's slots, release
//! of ordinals, syncs without seals, and regions that end with the process.

use std::time::Duration;

use bytes::Bytes;
use forebay_flash::{
    format::{CLASS_EPHEMERAL, CLASS_STREAM},
    index::GroupId,
    io::IoCommand,
    reservation::{Reservation, stream_block_length},
    shard::{EntryName, GuardKind, RequestError, Settings, ShardAnswer, ShardRequest},
};

use crate::world::{REGION_SIZE, World, commit, content, key, seeds, settings};

/// Lets the device catch up before the memory for writing is used up.
fn make_room(world: &mut World) {
    let memory = &world.pools().in_place;
    if memory.free_bytes() < memory.size() / 4 * 3 {
        world.settle();
    }
}

fn put(world: &mut World, group: GroupId, ordinal: u64, payload: &Bytes) {
    make_room(world);
    let request = commit(world.pools(), group, EntryName::Ordinal(group, ordinal), payload);
    match world.request(request) {
        Ok(ShardAnswer::Appended { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn try_put(
    world: &mut World,
    group: GroupId,
    ordinal: u64,
    length: usize,
) -> Result<(), RequestError> {
    make_room(world);
    let payload = content(ordinal, length);
    let request = commit(world.pools(), group, EntryName::Ordinal(group, ordinal), &payload);
    match world.request(request) {
        Ok(ShardAnswer::NotCommitted { error, entry }) => {
            assert!(entry.payload() == payload, "the caller gets its entry back");
            Err(error)
        }
        Ok(_) => Ok(()),
        Err(error) => panic!("{error}: an entry in place is always returned"),
    }
}

fn release(world: &mut World, group: GroupId, ordinals: std::ops::Range<u64>) {
    world.request(ShardRequest::ReleaseOrdinals { group, ordinals: vec![ordinals] }).unwrap();
}

fn found(world: &mut World, group: GroupId, ordinal: u64) -> Option<Vec<u8>> {
    world.bytes(EntryName::Ordinal(group, ordinal))
}

/// Entries in place and copied ones of all lengths stand side by side, before and after a crash,
/// with a footer and without.
#[test]
fn entries_in_place_are_read_back_beside_copied_ones() {
    for seed in seeds(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(seed, 16, settings());
        let group = world.group_of_class("a", CLASS_STREAM, true);
        let lengths: Vec<usize> = (0..30).map(|_| random.usize(..60_000)).collect();
        for (ordinal, length) in (0..).zip(&lengths) {
            let payload = content(ordinal, *length);
            if random.bool() {
                put(&mut world, group, ordinal, &payload);
            } else {
                world.append(group, EntryName::Ordinal(group, ordinal), &payload).unwrap();
            }
            assert_eq!(found(&mut world, group, ordinal).unwrap(), payload, "staged");
        }
        world.request(ShardRequest::Sync { group }).unwrap();
        let scanned = seed % 2 == 0;
        if !scanned {
            world.request(ShardRequest::Flush).unwrap();
        }
        let mut world = world.crashed();
        assert_eq!(world.found.regions_scanned > 0, scanned);
        let group = world.group_of_class("a", CLASS_STREAM, true);
        for (ordinal, length) in (0..).zip(&lengths) {
            let expected = content(ordinal, *length);
            assert_eq!(found(&mut world, group, ordinal).unwrap(), expected, "{seed} {ordinal}");
        }
    }
}

/// A crash at every single command: what was synced is found, in regions that are not sealed.
#[test]
fn synced_entries_survive_a_crash_at_every_command() {
    for commands in 0.. {
        let mut world = World::new(commands, 8, settings());
        let group = world.group_of_class("a", CLASS_STREAM, true);
        let (mut left, mut synced, mut finished) = (commands, 0, true);
        'work: for ordinal in 0..12 {
            let name = EntryName::Ordinal(group, ordinal);
            make_room(&mut world);
            let append = commit(world.pools(), group, name, &content(ordinal, 150_000));
            for request in [append, ShardRequest::Sync { group }] {
                let token = world.begin(request);
                while world.answers.remove(&token).map(Result::unwrap).is_none() {
                    if left == 0 {
                        finished = false;
                        break 'work;
                    }
                    left -= 1;
                    world.step();
                }
            }
            synced = ordinal + 1;
        }
        let mut world = world.crashed();
        let group = world.group_of_class("a", CLASS_STREAM, true);
        for ordinal in 0..12 {
            let bytes = found(&mut world, group, ordinal);
            assert!(bytes.is_some() || ordinal >= synced, "{ordinal} of {synced} was synced");
            assert!(bytes.is_none_or(|bytes| bytes == content(ordinal, 150_000)), "promise 1");
        }
        if finished {
            assert!(commands > 30, "the workload has more than 30 commands");
            break;
        }
    }
}

/// A reader with a slot of its own waits for no other reader, and the slot comes back.
#[test]
fn a_read_into_a_slot_needs_no_other_memory() {
    let mut world = World::new(3, 8, settings());
    let group = world.group_of_class("a", CLASS_STREAM, true);
    for ordinal in 0..6 {
        put(&mut world, group, ordinal, &content(ordinal, 200_000));
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let slots = world.pools().read.carve(2 * 220_000).unwrap();
    let everything = world.pools().read.carve(world.pools().read.free_bytes()).unwrap();
    for ordinal in 0..6 {
        for range in [None, Some(150_000..199_999)] {
            let into = slots.take(220_000);
            assert!(into.is_some(), "the slots of earlier reads are back");
            let name = EntryName::Ordinal(group, ordinal);
            let read = ShardRequest::Read { name, range: range.clone(), leased: false, into };
            let Ok(ShardAnswer::Read(Some(unverified))) = world.request(read) else { panic!() };
            let verified = world.shard.verify(&unverified).unwrap();
            let range = range.map_or(0..200_000, |_| 150_000..199_999);
            assert_eq!(verified.bytes[..], content(ordinal, 200_000)[range]);
        }
    }
    let (name, into) = (EntryName::Ordinal(group, 99), slots.take(220_000));
    let read = ShardRequest::Read { name, range: None, leased: false, into };
    assert!(matches!(world.request(read), Ok(ShardAnswer::Read(None))));
    let (name, into) = (EntryName::Ordinal(group, 1), slots.take(4096));
    let read = ShardRequest::Read { name, range: None, leased: false, into };
    assert!(matches!(world.request(read), Err(RequestError::Range)), "the slot is too short");
    drop(everything);
    assert_eq!(slots.free_bytes(), slots.size(), "every slot is back");
}

/// Space comes back while a sealed and pinned group is read, region by region.
#[test]
fn released_ordinals_free_their_regions() {
    for seed in seeds(20) {
        let mut world = World::new(seed, 12, settings());
        let group = world.group_of_class("a", CLASS_STREAM, true);
        world.request(ShardRequest::Acquire { group, guard: GuardKind::Pin }).unwrap();
        for ordinal in 0..30 {
            put(&mut world, group, ordinal, &content(ordinal, 300_000));
        }
        world.request(ShardRequest::Seal { group }).unwrap();
        assert_eq!(world.shard.counters().regions_free, 2, "three entries per region");
        for ordinal in 0..30_u64 {
            assert!(found(&mut world, group, ordinal).is_some());
            // Reads in progress keep a region.
            let (name, range) = (EntryName::Ordinal(group, ordinal), None);
            let read = ShardRequest::Read { name, range, leased: false, into: None };
            let token = world.begin(read);
            release(&mut world, group, ordinal..ordinal + 1);
            let answer = world.wait_for(token);
            let Ok(ShardAnswer::Read(Some(unverified))) = answer else { panic!("{answer:?}") };
            assert_eq!(unverified.verify().unwrap().bytes[..], content(ordinal, 300_000)[..]);
            world.settle();
            assert!(found(&mut world, group, ordinal).is_none(), "released");
            let free = world.shard.counters().regions_free;
            assert_eq!(free, 2 + (ordinal + 1) / 3, "regions without live entries are free");
        }
        assert_eq!(world.shard.counters().entries, 0);
    }
}

/// A region that is being filled is freed as soon as it is sealed, if all of it was released.
#[test]
fn a_region_released_while_it_is_filled_is_freed_later() {
    let mut world = World::new(1, 6, settings());
    let group = world.group_of_class("a", CLASS_EPHEMERAL, true);
    for ordinal in 0..100 {
        put(&mut world, group, ordinal, &content(ordinal, 300_000));
        release(&mut world, group, ordinal..ordinal + 1);
        world.settle();
        assert!(world.shard.counters().regions_free >= 4, "one region is filled, one is sealed");
    }
}

/// Streams are never victims, and a writer without space learns when there is some.
#[test]
fn streams_are_not_evicted_and_waiters_for_space_are_woken() {
    for class in [CLASS_STREAM, CLASS_EPHEMERAL] {
        let mut world = World::new(1, 6, settings());
        let cache = world.group("cache", false);
        world.append(cache, EntryName::Key(key(1)), &content(1, 300_000)).unwrap();
        let group = world.group_of_class("a", class, true);
        let mut stored = 0;
        while stored < 100
            && let Ok(()) = try_put(&mut world, group, stored, 300_000)
        {
            stored += 1;
        }
        assert_eq!(try_put(&mut world, group, stored, 300_000), Err(RequestError::NoSpace));
        assert_eq!(stored, 18, "six regions of three: the cache has made room");
        assert!(world.bytes(EntryName::Key(key(1))).is_none());
        assert!((0..stored).all(|ordinal| found(&mut world, group, ordinal).is_some()));
        let waiting = world.begin(ShardRequest::AwaitSpace { timeout: None });
        let timeout = Some(Duration::from_secs(7));
        let (timed, since) = (world.begin(ShardRequest::AwaitSpace { timeout }), world.now);
        world.wait_for(timed).unwrap();
        assert!(world.now >= since + Duration::from_secs(7), "no region is free");
        assert!(!world.answers.contains_key(&waiting));
        release(&mut world, group, 0..2);
        world.settle();
        assert!(!world.answers.contains_key(&waiting), "one entry is left in the region");
        release(&mut world, group, 2..3);
        world.wait_for(waiting).unwrap();
        assert_eq!(try_put(&mut world, group, stored, 300_000), Ok(()));
    }
}

/// An ephemeral stream is written without a sync, and is gone after a restart.
#[test]
fn an_ephemeral_group_needs_no_syncs_and_is_free_after_a_restart() {
    for seed in seeds(20) {
        let mut world = World::new(seed, 6, settings());
        let before = world.disk.completed();
        let group = world.group_of_class("a", CLASS_EPHEMERAL, true);
        let mut syncs = 0;
        for round in 0..4 {
            for ordinal in round * 12..round * 12 + 12 {
                make_room(&mut world);
                let name = EntryName::Ordinal(group, ordinal);
                let payload = content(ordinal, 300_000);
                let token = world.begin(commit(world.pools(), group, name, &payload));
                while !world.answers.contains_key(&token) {
                    world.step();
                    let sync = |command: &IoCommand| matches!(command, IoCommand::Sync { .. });
                    syncs += world.disk.pending().filter(|command| sync(command)).count();
                }
                world.answers.remove(&token).unwrap().unwrap();
                assert_eq!(found(&mut world, group, ordinal).unwrap(), payload);
            }
            release(&mut world, group, round * 12..round * 12 + 12);
        }
        assert!(world.disk.completed() > before + 48);
        assert_eq!(syncs, 0);
        put(&mut world, group, 100, &content(100, 300_000));
        let free = ShardRequest::Free { group, lease_timeout: Duration::ZERO };
        if seed % 2 == 0 {
            world.request(free).unwrap();
        }
        let mut world = world.crashed();
        assert_eq!((world.found.entries, world.shard.counters().regions_free), (0, 6));
        let group = world.group_of_class("a", CLASS_EPHEMERAL, true);
        assert!(found(&mut world, group, 100).is_none());
    }
}

/// A freed group's space can be used when the request is answered, even if writes were in progress.
#[test]
fn the_space_of_an_ephemeral_group_is_free_when_its_end_is_answered() {
    for seed in seeds(20) {
        let mut world = World::new(seed, 6, settings());
        let group = world.group_of_class("a", CLASS_EPHEMERAL, true);
        for ordinal in 0..12 {
            put(&mut world, group, ordinal, &content(ordinal, 300_000));
        }
        let read = ShardRequest::Read {
            name: EntryName::Ordinal(group, seed % 12),
            range: None,
            leased: false,
            into: None,
        };
        world.begin(read);
        world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
        assert_eq!(world.shard.counters().regions_free, 6);
    }
}

/// Promise 1: an ephemeral use of a region must not make its previous contents come back as damage.
#[test]
fn an_evicted_region_reused_without_syncs_costs_no_damaged_entry() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 4, Settings { discard: false, ..settings() });
        let cache = world.group("cache", false);
        for number in 0..12 {
            world.append(cache, EntryName::Key(key(number)), &content(number, 300_000)).unwrap();
        }
        world.request(ShardRequest::Flush).unwrap();
        let group = world.group_of_class("a", CLASS_EPHEMERAL, true);
        for ordinal in 0..6 {
            put(&mut world, group, ordinal, &content(ordinal, 300_000));
        }
        for _ in 0..seed {
            world.step();
        }
        let mut world = world.crashed();
        for number in 0..12 {
            let bytes = world.bytes(EntryName::Key(key(number)));
            assert!(bytes.is_none_or(|bytes| bytes == content(number, 300_000)));
        }
        assert_eq!(world.shard.counters().entries_damaged, 0);
    }
}

/// The sync of a region's header is hidden: the next region is durable before the last is full.
#[test]
fn the_next_region_is_opened_before_the_last_is_full() {
    let mut world = World::new(1, 12, settings());
    let group = world.group_of_class("a", CLASS_STREAM, true);
    for ordinal in 0..30 {
        put(&mut world, group, ordinal, &content(ordinal, 200_000));
        world.settle();
        if ordinal % 5 == 3 {
            // The next region's header is durable while this one has room for an entry.
            let regions = u64::from(world.shard.geometry().regions);
            let used = regions - world.shard.counters().regions_free;
            assert_eq!(used, ordinal / 5 + 2);
        }
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    world.settle();
    assert_eq!(world.shard.counters().regions_free, 12 - 6, "the prepared region is given back");
    let mut world = world.crashed();
    let group = world.group_of_class("a", CLASS_STREAM, true);
    assert!((0..30).all(|ordinal| found(&mut world, group, ordinal).is_some()));
}

/// A prepared region is given up for a group that needs it.
#[test]
fn a_prepared_region_is_no_space_lost() {
    let mut world = World::new(1, 4, settings());
    let (first, second) = ("first", "second");
    let first = world.group_of_class(first, CLASS_STREAM, true);
    let second = world.group_of_class(second, CLASS_STREAM, true);
    for ordinal in 0..3 {
        put(&mut world, first, ordinal, &content(ordinal, 300_000));
    }
    world.settle();
    for ordinal in 0..9 {
        assert_eq!(try_put(&mut world, second, ordinal, 300_000), Ok(()), "{ordinal}");
    }
    assert_eq!(try_put(&mut world, second, 9, 300_000), Err(RequestError::NoSpace));
    assert!((0..3).all(|ordinal| found(&mut world, first, ordinal).is_some()));
}

/// Device bytes per payload byte, for a long stream of default blocks: at most 1.01.
#[test]
fn a_long_stream_writes_little_more_than_its_payload() {
    let mut world = World::new(1, 44, settings());
    let group = world.group_of_class("a", CLASS_STREAM, true);
    let length = usize::try_from(stream_block_length(REGION_SIZE)).unwrap();
    assert!(Reservation::memory(length) as u64 > REGION_SIZE * 98 / 100);
    for ordinal in 0..40 {
        put(&mut world, group, ordinal, &content(ordinal, length));
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let counters = world.shard.counters();
    let ratio = counters.device_bytes_written as f64 / counters.inserted_bytes as f64;
    assert!(ratio <= 1.01, "{ratio}");
    assert_eq!(counters.regions_free, 4, "one block per region");
}

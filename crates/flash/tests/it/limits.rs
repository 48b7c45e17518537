//! Limits: infinite timeouts, many small entries, slow devices, invalid names.

use std::time::Duration;

use bytes::Bytes;
use forebay_flash::{
    GroupGuard,
    format::RegionId,
    io::Backend,
    shard::{EntryName, GuardKind, RequestError, Settings, ShardRequest},
};
use futures::FutureExt as _;

use crate::{
    devices::{TestDevices, wait},
    world::{World, append, content, key, settings},
};

/// A region that is quarantined and then discarded becomes free once.
#[test]
fn a_damaged_region_that_is_freed_is_free_once() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..9 {
        world.append(group, EntryName::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let start = world.shard.geometry().region_offset(RegionId(0));
    for entry in [1_u64, 4, 6] {
        let at = start + 4096 + entry * 100_096 / 4096 * 4096 + 8192;
        let mut block = world.disk.get(at);
        block[77] ^= 1;
        world.disk.put(at, &block);
        assert!(world.bytes(EntryName::Key(key(entry))).is_none());
    }
    world.request(ShardRequest::Free { group, lease_timeout: Duration::ZERO }).unwrap();
    world.settle();
    world.advance(Duration::from_hours(1));
    world.settle();
    let counters = world.shard.counters();
    assert_eq!((counters.regions_free, counters.regions_quarantined), (8, 0));
}

#[test]
fn infinite_timeouts_are_possible() {
    let never = Duration::MAX;
    let settings = Settings {
        flush_after: never,
        read_deadline: never,
        append_deadline: never,
        quarantine: never,
        ..settings()
    };
    let mut world = World::new(1, 8, settings);
    world.advance(Duration::from_secs(1));
    let group = world.group("a", false);
    world.append(group, EntryName::Key(key(1)), &content(1, 100)).unwrap();
    assert!(world.bytes(EntryName::Key(key(1))).is_some());
    world.request(ShardRequest::Acquire { group, guard: GuardKind::Lease }).unwrap();
    let freeing = world.begin(ShardRequest::Free { group, lease_timeout: never });
    world.request(ShardRequest::Release { group, guard: GuardKind::Lease }).unwrap();
    world.wait_for(freeing).unwrap();
}

/// A region is closed when its footer would exceed the memory for it.
#[test]
fn nine_thousand_one_byte_entries_are_recovered() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..9000 {
        world.append(group, EntryName::Key(key(number)), &content(number, 1)).unwrap();
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let mut world = world.crashed();
    assert_eq!((world.found.entries, world.found.regions_scanned), (9000, 0));
    assert_eq!(world.bytes(EntryName::Key(key(8999))).unwrap(), content(8999, 1));
}

/// Staged bytes are written after `flush_after` (500 ms), even if more arrive all the time.
#[test]
fn slow_appends_are_written() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..20 {
        world.append(group, EntryName::Key(key(number)), &content(number, 100)).unwrap();
        world.advance(Duration::from_millis(300));
        world.settle();
    }
    let world = World::open(world.disk.kill(), 8, settings());
    assert!(world.found.entries >= 17, "{} of 20", world.found.entries);
}

/// Promise 6: the queue also bounds entries without bytes.
#[test]
fn empty_entries_fill_the_queue_too() {
    let mut world = World::new(1, 8, Settings { queue_bytes_max: 100_000, ..settings() });
    let group = world.group("a", false);
    let memory = std::iter::from_fn(|| world.pools().staging.take(4096)).collect::<Vec<_>>();
    let tokens: Vec<_> = (0..1000)
        .map(|n| world.begin(append(group, EntryName::Key(key(n)), &Bytes::new())))
        .collect();
    drop(memory);
    let rejected = |token| matches!(world.wait_for(token), Err(RequestError::Busy));
    assert!(tokens.into_iter().map(rejected).filter(|rejected| *rejected).count() > 700);
}

/// Promise 5: a device that accepts nothing blocks no caller and causes no busy loop.
#[test]
fn requests_to_a_hung_device_time_out() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    world.append(group, EntryName::Key(key(0)), &content(0, 9000)).unwrap();
    world.request(ShardRequest::Flush).unwrap();
    let read = world.begin(ShardRequest::Read {
        name: EntryName::Key(key(0)),
        range: None,
        leased: false,
        into: None,
    });
    let memory = std::iter::from_fn(|| world.pools().staging.take(4096)).collect::<Vec<_>>();
    let write = world.begin(append(group, EntryName::Key(key(1)), &content(1, 9000)));
    // No command runs.
    let mut woken = 0;
    while let Some(at) = world.shard.wake_at().filter(|at| *at < Duration::from_mins(1)) {
        world.advance(at.saturating_sub(world.now));
        woken += 1;
        assert!(woken < 10, "no busy loop");
    }
    let (mut commands, mut answers) = (Vec::new(), Vec::new());
    world.shard.take(&mut commands, &mut answers);
    let late: Vec<_> = answers.into_iter().map(|(token, outcome)| (token, outcome.err())).collect();
    assert_eq!(late, [(read, Some(RequestError::TimedOut)), (write, Some(RequestError::TimedOut))]);
    drop(memory);
}

#[test]
fn a_group_that_is_being_freed_cannot_be_pinned() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    world.append(group, EntryName::Key(key(1)), &content(1, 100)).unwrap();
    world.request(ShardRequest::Acquire { group, guard: GuardKind::Lease }).unwrap();
    world.begin(ShardRequest::Free { group, lease_timeout: Duration::from_secs(9) });
    let pin = ShardRequest::Acquire { group, guard: GuardKind::Pin };
    assert_eq!(world.request(pin).unwrap_err(), RequestError::Closed);
}

#[test]
fn a_rejected_lease_does_not_release_another() {
    let setup = TestDevices::new(Backend::Threads, &[8, 8]);
    let flash = setup.open();
    let group = wait(flash.group(b"a", 1, true)).unwrap();
    wait(group.append_ordinal(1, 0, content(1, 100))).unwrap();
    let lease = group.lease().unwrap();
    wait(group.mark()).unwrap();
    assert!(group.lease().is_err());
    assert!(wait(lease.read_ordinal(1, None)).unwrap().is_some());
    let leases = wait(flash.groups()).unwrap().into_iter().map(|group| group.leases);
    assert_eq!(leases.collect::<Vec<_>>(), [1, 1]);
}

struct LeasedBytes {
    bytes: Bytes,
    _lease: GroupGuard,
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A payload may be dropped anywhere, and its drop may use the engine.
#[test]
fn bytes_that_hold_a_lease_can_be_appended() {
    let setup = TestDevices::new(Backend::Threads, &[8]);
    let flash = setup.open();
    let group = wait(flash.group(b"a", 1, false)).unwrap();
    wait(group.append(key(1), 0, content(1, 100))).unwrap();
    for number in 2..200 {
        let payload =
            LeasedBytes { bytes: content(number, 200_000), _lease: group.lease().unwrap() };
        let append = group.append(key(number), 0, Bytes::from_owner(payload));
        // The append is dropped while it waits, whatever it returns.
        let _ = append.now_or_never();
    }
    wait(flash.flush()).unwrap();
    assert!(flash.counters()[0].inserted_bytes > 0);
}

/// The damaged superblock may be the newer one, so its epoch is skipped.
#[test]
fn no_epoch_is_used_twice() {
    let setup = TestDevices::new(Backend::Threads, &[8]);
    let path = setup.path(0);
    let epochs = || {
        let bytes = std::fs::read(&path).unwrap();
        forebay_flash::format::SUPERBLOCK_OFFSETS.map(|at| {
            let at = usize::try_from(at).unwrap();
            forebay_flash::format::Superblock::decode(&bytes[at..at + 4096])
                .map(|block| block.epoch)
        })
    };
    drop(setup.open());
    drop(setup.open());
    let before = epochs().into_iter().flatten().max().unwrap();
    let newer = epochs().iter().position(|epoch| *epoch == Ok(before)).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(forebay_flash::format::SUPERBLOCK_OFFSETS[newer]).unwrap() + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    drop(setup.open());
    assert!(epochs().into_iter().flatten().max().unwrap() > before);
}

/// Buffers are reused. The padding of a block must be zeros, not bytes of another entry.
#[test]
fn the_padding_of_a_block_is_zeros() {
    let setup = TestDevices::new(Backend::Threads, &[16]);
    let flash = setup.open();
    let small = [0xBB_u8; 21];
    wait(async {
        for number in 0..8 {
            // The small entry probably gets memory that the large one has just used.
            let large = flash.group(b"large", 1, false).await.unwrap();
            large.append(key(number), 0, Bytes::from(vec![0xAA; 200_000])).await.unwrap();
            flash.flush().await.unwrap();
            let group = flash.group(&number.to_le_bytes(), 1, false).await.unwrap();
            group.append(key(100 + number), 0, small.to_vec().into()).await.unwrap();
            flash.flush().await.unwrap();
        }
    });
    drop(flash);
    let device = std::fs::read(setup.path(0)).unwrap();
    let found = device.windows(small.len()).enumerate().filter(|(_, bytes)| *bytes == small);
    let found: Vec<usize> = found.map(|(at, _)| at + small.len()).collect();
    assert_eq!(found.len(), 8);
    for end in found {
        let block = &device[end..end.next_multiple_of(4096)];
        assert!(!block.contains(&0xAA), "old bytes after the entry that ends at {end}");
    }
}

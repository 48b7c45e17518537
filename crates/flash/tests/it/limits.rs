//! Limits, and what happens at them: times without end, many small entries, slow devices, names at odds.

use std::time::Duration;

use bytes::Bytes;
use forebay_flash::{
    Held,
    io::Backend,
    layout::RegionId,
    shard::{Hold, Name, Refusal, Request, Settings},
};
use futures::FutureExt as _;

use crate::{
    devices::{Place, wait},
    world::{World, append, content, key, settings},
};

/// A region that is set aside and discarded comes back once.
#[test]
fn a_damaged_region_that_is_freed_is_free_once() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..9 {
        world.append(group, Name::Key(key(number)), &content(number, 100_000)).unwrap();
    }
    world.ask(Request::Seal { group }).unwrap();
    let start = world.shard.geometry().region_offset(RegionId(0));
    for entry in [1_u64, 4, 6] {
        let at = start + 4096 + entry * 100_096 / 4096 * 4096 + 8192;
        let mut block = world.disk.get(at);
        block[77] ^= 1;
        world.disk.put(at, &block);
        assert!(world.bytes(Name::Key(key(entry))).is_none());
    }
    world.ask(Request::Free { group, patience: Duration::ZERO }).unwrap();
    world.settle();
    world.advance(Duration::from_hours(1));
    world.settle();
    let counters = world.shard.counters();
    assert_eq!((counters.regions_free, counters.regions_quarantined), (8, 0));
}

#[test]
fn times_without_end_are_possible() {
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
    world.append(group, Name::Key(key(1)), &content(1, 100)).unwrap();
    assert!(world.bytes(Name::Key(key(1))).is_some());
    world.ask(Request::Hold { group, hold: Hold::Lease }).unwrap();
    let freeing = world.begin(Request::Free { group, patience: never });
    world.ask(Request::LetGo { group, hold: Hold::Lease }).unwrap();
    world.wait_for(freeing).unwrap();
}

/// A region ends when its footer would not find memory.
#[test]
fn very_many_very_small_entries() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..9000 {
        world.append(group, Name::Key(key(number)), &content(number, 1)).unwrap();
    }
    world.ask(Request::Seal { group }).unwrap();
    let mut world = world.crashed();
    assert_eq!((world.found.entries, world.found.scanned), (9000, 0));
    assert_eq!(world.bytes(Name::Key(key(8999))).unwrap(), content(8999, 1));
}

/// What has waited for half a second is written, also if more comes all the time.
#[test]
fn a_trickle_is_written() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..20 {
        world.append(group, Name::Key(key(number)), &content(number, 100)).unwrap();
        world.advance(Duration::from_millis(300));
        world.settle();
    }
    let world = World::open(world.disk.killed(), 8, settings());
    assert!(world.found.entries >= 17, "{} of 20", world.found.entries);
}

/// Promise 6: also of entries without any bytes only so many may wait.
#[test]
fn empty_entries_fill_the_queue_too() {
    let mut world = World::new(1, 8, Settings { queue_bytes_max: 100_000, ..settings() });
    let group = world.group("a", false);
    let memory = std::iter::from_fn(|| world.memory().staging.take(4096)).collect::<Vec<_>>();
    let tokens: Vec<_> =
        (0..1000).map(|n| world.begin(append(group, Name::Key(key(n)), &Bytes::new()))).collect();
    drop(memory);
    let refused = |token| matches!(world.wait_for(token), Err(Refusal::Busy));
    assert!(tokens.into_iter().map(refused).filter(|refused| *refused).count() > 700);
}

/// Promise 5: nobody waits for ever for a device that takes nothing, or spins meanwhile.
#[test]
fn what_hangs_is_over_for_those_who_wait() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    world.append(group, Name::Key(key(0)), &content(0, 9000)).unwrap();
    world.ask(Request::Flush).unwrap();
    let read = world.begin(Request::Read { name: Name::Key(key(0)), range: None, leased: false });
    let memory = std::iter::from_fn(|| world.memory().staging.take(4096)).collect::<Vec<_>>();
    let write = world.begin(append(group, Name::Key(key(1)), &content(1, 9000)));
    // No command is carried out.
    let mut woken = 0;
    while let Some(at) = world.shard.wake_at().filter(|at| *at < Duration::from_mins(1)) {
        world.advance(at.saturating_sub(world.now));
        woken += 1;
        assert!(woken < 10, "it has nothing to wake up for");
    }
    let (mut commands, mut answers) = (Vec::new(), Vec::new());
    world.shard.take(&mut commands, &mut answers);
    let late: Vec<_> = answers.into_iter().map(|(token, outcome)| (token, outcome.err())).collect();
    assert_eq!(late, [(read, Some(Refusal::TimedOut)), (write, Some(Refusal::TimedOut))]);
    drop(memory);
}

#[test]
fn a_group_that_is_going_is_not_pinned() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    world.append(group, Name::Key(key(1)), &content(1, 100)).unwrap();
    world.ask(Request::Hold { group, hold: Hold::Lease }).unwrap();
    world.begin(Request::Free { group, patience: Duration::from_secs(9) });
    let pin = Request::Hold { group, hold: Hold::Pin };
    assert_eq!(world.ask(pin).unwrap_err(), Refusal::Closed);
}

#[test]
fn a_lease_that_was_refused_takes_nobody_elses_away() {
    let place = Place::new(Backend::Threads, &[8, 8]);
    let flash = place.open();
    let group = wait(flash.group(b"a", 1, true)).unwrap();
    wait(group.append_ordinal(1, 0, content(1, 100))).unwrap();
    let lease = group.lease().unwrap();
    wait(group.mark()).unwrap();
    assert!(group.lease().is_err());
    assert!(wait(lease.read_ordinal(1, None)).unwrap().is_some());
    let leases = wait(flash.groups()).unwrap().into_iter().map(|group| group.leases);
    assert_eq!(leases.collect::<Vec<_>>(), [1, 1]);
}

struct Owner {
    bytes: Bytes,
    _lease: Held,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What an entry is made of may be dropped anywhere, and may itself use the engine.
#[test]
fn bytes_that_hold_a_lease_can_be_appended() {
    let place = Place::new(Backend::Threads, &[8]);
    let flash = place.open();
    let group = wait(flash.group(b"a", 1, false)).unwrap();
    wait(group.append(key(1), 0, content(1, 100))).unwrap();
    for number in 2..200 {
        let owner = Owner { bytes: content(number, 200_000), _lease: group.lease().unwrap() };
        let append = group.append(key(number), 0, Bytes::from_owner(owner));
        // Whatever it says: it is dropped while it waits.
        let _ = append.now_or_never();
    }
    wait(flash.flush()).unwrap();
    assert!(flash.counters()[0].inserted_bytes > 0);
}

/// The damaged superblock may have been the newer one: its number is not used again.
#[test]
fn no_life_has_the_number_of_one_before() {
    let place = Place::new(Backend::Threads, &[8]);
    let path = place.path(0);
    let epochs = || {
        let bytes = std::fs::read(&path).unwrap();
        forebay_flash::layout::SUPERBLOCK_OFFSETS.map(|at| {
            let at = usize::try_from(at).unwrap();
            forebay_flash::layout::Superblock::decode(&bytes[at..at + 4096])
                .map(|block| block.epoch)
        })
    };
    drop(place.open());
    drop(place.open());
    let before = epochs().into_iter().flatten().max().unwrap();
    let newer = epochs().iter().position(|epoch| *epoch == Ok(before)).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(forebay_flash::layout::SUPERBLOCK_OFFSETS[newer]).unwrap() + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    drop(place.open());
    assert!(epochs().into_iter().flatten().max().unwrap() > before);
}

/// Memory is used again and again, and whoever reads the device finds nothing there but what was written for
/// good: what fills up a block is zeros, not somebody's former bytes.
#[test]
fn what_fills_up_a_block_is_zeros() {
    let place = Place::new(Backend::Threads, &[16]);
    let flash = place.open();
    let small = [0xBB_u8; 21];
    wait(async {
        for number in 0..8 {
            // Whatever memory the small one gets, the large one has had it a moment ago.
            let large = flash.group(b"large", 1, false).await.unwrap();
            large.append(key(number), 0, Bytes::from(vec![0xAA; 200_000])).await.unwrap();
            flash.flush().await.unwrap();
            let group = flash.group(&number.to_le_bytes(), 1, false).await.unwrap();
            group.append(key(100 + number), 0, small.to_vec().into()).await.unwrap();
            flash.flush().await.unwrap();
        }
    });
    drop(flash);
    let device = std::fs::read(place.path(0)).unwrap();
    let found = device.windows(small.len()).enumerate().filter(|(_, bytes)| *bytes == small);
    let found: Vec<usize> = found.map(|(at, _)| at + small.len()).collect();
    assert_eq!(found.len(), 8);
    for end in found {
        let block = &device[end..end.next_multiple_of(4096)];
        assert!(!block.contains(&0xAA), "former bytes behind the entry that ends at {end}");
    }
}

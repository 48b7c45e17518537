//! Device health: a device that cannot sync or be read accepts no entries (promises 3 and 5).

use std::time::Duration;

use forebay_flash::{
    io::sim::FaultRates,
    shard::{EntryName, RequestError, ShardRequest},
};

use crate::world::{World, content, key, settings};

/// More than the longest pause between two probes.
const PROBE: Duration = Duration::from_secs(31);

#[test]
fn failing_syncs_take_the_device_out_although_writes_succeed() {
    let mut world = World::new(1, 8, settings());
    world.disk_is_reliable = false;
    let group = world.group("a", false);
    world.disk.set_fault_rates(FaultRates { sync_failed: 1000, ..FaultRates::default() });
    let mut stored = 0;
    let refused = (0..100).find_map(|number| {
        let appended = world.append(group, EntryName::Key(key(number)), &content(number, 30_000));
        stored += u32::from(appended.is_ok());
        let _ = world.request(ShardRequest::Flush);
        world.settle();
        appended.err()
    });
    assert_eq!(refused, Some(RequestError::Unhealthy), "{stored} of 100 were stored");
    assert!(!world.shard.counters().healthy);
    assert!(stored <= 3, "{stored} were stored before the third failure");
    // Probes fail as well.
    world.advance(PROBE);
    world.settle();
    assert!(!world.shard.counters().healthy);
    world.disk.set_fault_rates(FaultRates::default());
    world.advance(PROBE);
    world.settle();
    assert!(world.shard.counters().healthy, "a probe has synced");
    world.append(group, EntryName::Key(key(200)), &content(200, 30_000)).unwrap();
    world.request(ShardRequest::Flush).unwrap();
    assert_eq!(world.bytes(EntryName::Key(key(200))).unwrap(), content(200, 30_000));
}

#[test]
fn a_device_that_cannot_be_read_accepts_nothing() {
    let mut world = World::new(1, 8, settings());
    let group = world.group("a", false);
    for number in 0..9 {
        world.append(group, EntryName::Key(key(number)), &content(number, 30_000)).unwrap();
    }
    world.request(ShardRequest::Seal { group }).unwrap();
    let group = world.group("b", false);
    world.disk.set_fault_rates(FaultRates { read_failed: 1000, ..FaultRates::default() });
    for number in 0..3 {
        assert!(world.bytes(EntryName::Key(key(number))).is_none());
    }
    let appended = world.append(group, EntryName::Key(key(100)), &content(100, 100));
    assert_eq!(appended.unwrap_err(), RequestError::Unhealthy);
    world.disk.set_fault_rates(FaultRates::default());
    world.advance(PROBE);
    world.settle();
    world.append(group, EntryName::Key(key(100)), &content(100, 100)).unwrap();
    assert_eq!(world.bytes(EntryName::Key(key(8))).unwrap(), content(8, 30_000));
}

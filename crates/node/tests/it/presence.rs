//! Presence: a client that asks again gets the changes, in few bytes.

use forebay_core::{ByteSize, node::presence::KnownPresence};

use crate::harness::{Data, TestNode, put};

const BLOBS: u16 = 4000;

fn has(known: &KnownPresence, blob: usize) -> bool {
    known.bits()[blob / 8] >> (blob % 8) & 1 == 1
}

/// Presence (bits per chunk, then deltas) costs at most 2 bytes per item drawn.
#[test]
fn changes_take_few_bytes() {
    let node = TestNode::start(ByteSize::mib(64));
    let blobs = usize::from(BLOBS);
    let data = Data::new(&vec![100; blobs]);
    let (mut client, handle) = node.open(&data);
    let mut known = KnownPresence::new(BLOBS.into());
    let first = client.presence_since(handle, &mut known).unwrap();
    assert_eq!(first, 65 + 5, "no blob is resident");
    let mut spent = 0;
    for round in 0..20 {
        for blob in 0..20 {
            put(&mut client, handle, &data, (round * 20 + blob) * 7 % blobs);
        }
        // The node does not scan for every request.
        while !has(&known, (round * 20 + 19) * 7 % blobs) {
            spent = client.presence_since(handle, &mut known).unwrap();
        }
        assert!(spent <= 65 + 40, "20 changes in {spent} bytes");
    }
    let (mut other, other_handle) = node.open(&data);
    assert_eq!(
        other.presence(other_handle, BLOBS.into()).unwrap(),
        known.bits(),
        "another client gets the same"
    );
    let resident: u32 = known.bits().iter().map(|bits| bits.count_ones()).sum();
    assert_eq!(resident, 400);
    client.evict(handle).unwrap();
    while has(&known, 0) {
        client.presence_since(handle, &mut known).unwrap();
    }
    assert!(known.bits().iter().all(|bits| *bits == 0), "evictions are changes as well");
}

/// A version of another incarnation of the node is not valid.
#[test]
fn after_a_restart_presence_is_complete() {
    let node = TestNode::start(ByteSize::mib(64));
    let data = Data::new(&[100; 200]);
    let (mut client, handle) = node.open(&data);
    let mut known = KnownPresence::new(200);
    (0..10).for_each(|blob| put(&mut client, handle, &data, blob));
    client.presence_since(handle, &mut known).unwrap();
    let version = known.version();
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    client.presence_since(handle, &mut known).unwrap();
    assert_ne!(known.version(), version);
    let resident: u32 = known.bits().iter().map(|bits| bits.count_ones()).sum();
    assert_eq!(resident, 10);
}

/// Blobs that two datasets share are resident for both.
#[test]
fn presence_includes_blobs_put_for_another_dataset() {
    let node = TestNode::start(ByteSize::mib(64));
    let (small, large) = (Data::new(&[100; 10]), Data::new(&[100; 30]));
    let (mut one, one_handle) = node.open(&small);
    let (mut other, other_handle) = node.open(&large);
    let mut known = KnownPresence::new(30);
    other.presence_since(other_handle, &mut known).unwrap();
    put(&mut one, one_handle, &small, 3);
    while !has(&known, 3) {
        other.presence_since(other_handle, &mut known).unwrap();
    }
}

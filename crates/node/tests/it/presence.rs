//! Presence: whoever asks again is told what changed, in few bytes.

use forebay_core::{ByteSize, presence::Known};

use crate::harness::{Data, TestNode, put};

const BLOBS: u16 = 4000;

fn has(known: &Known, blob: usize) -> bool {
    known.bits()[blob / 8] >> (blob % 8) & 1 == 1
}

/// DESIGN 4.3: presence (bits per chunk, then deltas) costs at most 2 bytes per item drawn.
#[test]
fn changes_are_told_in_few_bytes() {
    let node = TestNode::start(ByteSize::mib(64));
    let blobs = usize::from(BLOBS);
    let data = Data::new(&vec![100; blobs]);
    let (mut client, handle) = node.open(&data);
    let mut known = Known::new(BLOBS.into());
    let first = client.presence_since(handle, &mut known).unwrap();
    assert_eq!(first, 65 + 5, "nothing is there, and that is soon said");
    let mut spent = 0;
    for round in 0..20 {
        for blob in 0..20 {
            put(&mut client, handle, &data, (round * 20 + blob) * 7 % blobs);
        }
        // Stock is not taken for every question.
        while !has(&known, (round * 20 + 19) * 7 % blobs) {
            spent = client.presence_since(handle, &mut known).unwrap();
        }
        assert!(spent <= 65 + 40, "20 changes in {spent} bytes");
    }
    let (mut other, its) = node.open(&data);
    assert_eq!(other.presence(its, BLOBS.into()).unwrap(), known.bits(), "as another sees it");
    let here: u32 = known.bits().iter().map(|bits| bits.count_ones()).sum();
    assert_eq!(here, 400);
    client.evict(handle).unwrap();
    while has(&known, 0) {
        client.presence_since(handle, &mut known).unwrap();
    }
    assert!(known.bits().iter().all(|bits| *bits == 0), "what goes is told as well");
}

/// A version of another life of the node says nothing of this one.
#[test]
fn a_node_that_was_restarted_tells_everything() {
    let node = TestNode::start(ByteSize::mib(64));
    let data = Data::new(&[100; 200]);
    let (mut client, handle) = node.open(&data);
    let mut known = Known::new(200);
    (0..10).for_each(|blob| put(&mut client, handle, &data, blob));
    client.presence_since(handle, &mut known).unwrap();
    let version = known.version();
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    client.presence_since(handle, &mut known).unwrap();
    assert_ne!(known.version(), version);
    let here: u32 = known.bits().iter().map(|bits| bits.count_ones()).sum();
    assert_eq!(here, 10);
}

/// Blobs that two datasets share are there for both, whoever put them.
#[test]
fn what_another_dataset_brought_is_told_too() {
    let node = TestNode::start(ByteSize::mib(64));
    let (small, large) = (Data::new(&[100; 10]), Data::new(&[100; 30]));
    let (mut one, its) = node.open(&small);
    let (mut other, theirs) = node.open(&large);
    let mut known = Known::new(30);
    other.presence_since(theirs, &mut known).unwrap();
    put(&mut one, its, &small, 3);
    while !has(&known, 3) {
        other.presence_since(theirs, &mut known).unwrap();
    }
}

//! Reports of wrong bytes over the wire: what they may name, and what they change.

use std::time::Duration;

use forebay_client::ClientError;
use forebay_core::{BlobOrdinal, ByteSize};
use forebay_wire::{ErrorCode, RecheckAnswer, Reply, Request};

use crate::harness::{Data, Raw, TestNode, get, put};

fn blobs(ordinals: &[u64]) -> Vec<BlobOrdinal> {
    ordinals.iter().copied().map(BlobOrdinal::new).collect()
}

/// A report changes nothing that is sound, however often it is made.
#[test]
fn a_reported_blob_that_is_sound_stays() {
    let node = TestNode::start(ByteSize::mib(32));
    let data = Data::new(&[100_000, 9 << 20, 0, 50_000]);
    let (mut client, handle) = node.open(&data);
    (0..3).for_each(|blob| put(&mut client, handle, &data, blob));
    for _ in 0..3 {
        let answers = client.report_wrong_bytes(handle, &blobs(&[0, 1, 2, 3])).unwrap();
        let sound = RecheckAnswer::Sound;
        assert_eq!(answers, [sound, sound, sound, RecheckAnswer::Absent]);
    }
    for blob in 0..3 {
        let read = get(&mut client, handle, &data, blob, Duration::ZERO);
        assert_eq!(read.unwrap(), data.blobs[blob]);
    }
    let counters = node.service.counters();
    assert_eq!((counters.blobs_reported.get(), counters.blobs_dropped.get()), (12, 0));
    assert_eq!(counters.blobs_unchecked.get(), 3);
}

/// Promise 4: a client reports blobs of datasets that it has opened. The connection survives a
/// report of others.
#[test]
fn a_report_names_blobs_that_the_client_can_read() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 3]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    match client.report_wrong_bytes(handle, &blobs(&[0, 3])) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Malformed),
        other => panic!("{other:?}"),
    }
    let mut other = Raw::hello(&node);
    let reply = other.call(&Request::WrongBytes { handle: 0, blobs: blobs(&[0]) });
    assert!(matches!(reply, Reply::Error(refusal) if refusal.code == ErrorCode::Unknown));
    assert_eq!(node.service.counters().blobs_reported.get(), 0);
    assert_eq!(client.report_wrong_bytes(handle, &blobs(&[0])).unwrap(), [RecheckAnswer::Sound]);
}

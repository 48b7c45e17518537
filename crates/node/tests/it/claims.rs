//! Several clients, one fetch (promise 3), and nobody waits for ever (promise 5).

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use forebay_core::ByteSize;
use forebay_wire::{BlobProgress, ClaimAnswer, GetAnswer, RenewAnswer};

use crate::harness::{Data, PATIENCE, TestNode, get, put};

/// Promise 3: a blob that is resident or claimed is not fetched again.
#[test]
fn many_jobs_fetch_every_blob_once_between_them() {
    let node = TestNode::start(ByteSize::mib(64));
    let data = Data::new(&[20_000; 60]);
    let fetched = AtomicU64::new(0);
    thread::scope(|scope| {
        for job in 0..4_u64 {
            let (node, data, fetched) = (&node, &data, &fetched);
            scope.spawn(move || {
                let (mut client, handle) = node.open(data);
                let mut order: Vec<usize> = (0..60).collect();
                let turn = usize::try_from(job).unwrap() * 15;
                order.rotate_left(turn);
                for blob in order {
                    let bytes = loop {
                        if client.claim(handle, &[blob as u64]).unwrap() == [ClaimAnswer::Granted] {
                            fetched.fetch_add(1, SeqCst);
                            client.put(handle, blob as u64, &data.blobs[blob]).unwrap();
                        }
                        if let Ok(bytes) = get(&mut client, handle, data, blob, PATIENCE) {
                            break bytes;
                        }
                    };
                    assert_eq!(bytes, data.blobs[blob]);
                }
            });
        }
    });
    assert_eq!(fetched.into_inner(), 60);
    assert_eq!(node.service.counters().puts.get(), 60);
    assert_eq!(node.service.gauges().claims_held, 0);
}

/// Promise 5: a waiter gets its bytes or its turn.
#[test]
fn a_holder_that_goes_passes_its_turn_on_at_once() {
    let node = TestNode::start_with(|config| config.lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[500; 10]);
    let (mut holder, handle) = node.open(&data);
    assert_eq!(holder.claim(handle, &[4]).unwrap(), [ClaimAnswer::Granted]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (mut client, handle) = node.open(&data);
            assert_eq!(client.claim(handle, &[4]).unwrap(), [ClaimAnswer::Held]);
            let said = get(&mut client, handle, &data, 4, PATIENCE);
            assert_eq!(said, Err(GetAnswer::Miss));
            put(&mut client, handle, &data, 4);
        });
        while node.service.counters().waits.get() == 0 {
            thread::yield_now();
        }
        drop(holder);
        waiter.join().unwrap();
    });
    assert_eq!(node.service.gauges().resident_blobs, 1);
}

#[test]
fn a_silent_holder_loses_its_claim_and_a_renewing_one_keeps_it() {
    let node = TestNode::start_with(|config| config.lease = Duration::from_millis(400), Vec::new());
    let data = Data::new(&[500; 10]);
    let (mut silent, silent_handle) = node.open(&data);
    let (mut other, handle) = node.open(&data);
    silent.claim(silent_handle, &[1, 2]).unwrap();
    for bytes in 1..=4 {
        thread::sleep(Duration::from_millis(200));
        let renewed = silent.renew(silent_handle, &[BlobProgress { blob: 2, bytes }]).unwrap();
        assert_eq!(renewed, [RenewAnswer::Renewed]);
    }
    assert_eq!(other.claim(handle, &[1, 2]).unwrap(), [ClaimAnswer::Granted, ClaimAnswer::Held]);
    let refused = silent.put(silent_handle, 1, &data.blobs[1]).unwrap_err();
    assert!(refused.to_string().contains("claim is not held"), "{refused}");
    assert_eq!(node.service.counters().claims_expired.get(), 1);
    let in_time = get(&mut other, handle, &data, 2, Duration::from_millis(50));
    assert_eq!(in_time, Err(GetAnswer::Claimed), "the wait has its end");
    silent.release(silent_handle, &[2]).unwrap();
    assert_eq!(get(&mut other, handle, &data, 2, PATIENCE), Err(GetAnswer::Miss));
}

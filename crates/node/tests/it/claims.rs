//! Claims: each blob is fetched once (promise 3), and no client waits for ever (promise 5).

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use forebay_core::{BlobOrdinal, ByteSize};
use forebay_wire::{BlobProgress, ClaimAnswer, GetAnswer, RenewAnswer};

use crate::harness::{Data, TIMEOUT, TestNode, get, put};

/// Promise 3: a blob that is resident or claimed is not fetched again.
#[test]
fn several_jobs_fetch_every_blob_once() {
    let node = TestNode::start(ByteSize::mib(64));
    let data = Data::new(&[20_000; 60]);
    let fetched = AtomicU64::new(0);
    thread::scope(|scope| {
        for job in 0..4_u64 {
            let (node, data, fetched) = (&node, &data, &fetched);
            scope.spawn(move || {
                let (mut client, handle) = node.open(data);
                let mut order: Vec<usize> = (0..60).collect();
                let start = usize::try_from(job).unwrap() * 15;
                order.rotate_left(start);
                for blob in order {
                    let bytes = loop {
                        if client.claim(handle, &[BlobOrdinal::new(blob as u64)]).unwrap()
                            == [ClaimAnswer::Granted]
                        {
                            fetched.fetch_add(1, SeqCst);
                            client
                                .put(handle, BlobOrdinal::new(blob as u64), &data.blobs[blob])
                                .unwrap();
                        }
                        if let Ok(bytes) = get(&mut client, handle, data, blob, TIMEOUT) {
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

/// Promise 5: a waiter gets the bytes or the claim.
#[test]
fn the_claim_of_a_disconnected_holder_ends_at_once() {
    let node =
        TestNode::start_with(|config| config.claim_lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[500; 10]);
    let (mut holder, handle) = node.open(&data);
    assert_eq!(holder.claim(handle, &[BlobOrdinal::new(4)]).unwrap(), [ClaimAnswer::Granted]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (mut client, handle) = node.open(&data);
            assert_eq!(client.claim(handle, &[BlobOrdinal::new(4)]).unwrap(), [ClaimAnswer::Held]);
            let answer = get(&mut client, handle, &data, 4, TIMEOUT);
            assert_eq!(answer, Err(GetAnswer::Miss));
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
    let node =
        TestNode::start_with(|config| config.claim_lease = Duration::from_millis(400), Vec::new());
    let data = Data::new(&[500; 10]);
    let (mut silent, silent_handle) = node.open(&data);
    let (mut other, handle) = node.open(&data);
    silent.claim(silent_handle, &[1, 2].map(BlobOrdinal::new)).unwrap();
    for bytes in 1..=4 {
        thread::sleep(Duration::from_millis(200));
        let renewed = silent
            .renew(silent_handle, &[BlobProgress { blob: BlobOrdinal::new(2), bytes }])
            .unwrap();
        assert_eq!(renewed, [RenewAnswer::Renewed]);
    }
    assert_eq!(
        other.claim(handle, &[1, 2].map(BlobOrdinal::new)).unwrap(),
        [ClaimAnswer::Granted, ClaimAnswer::Held]
    );
    let refused = silent.put(silent_handle, BlobOrdinal::new(1), &data.blobs[1]).unwrap_err();
    assert!(refused.to_string().contains("claim is not held"), "{refused}");
    assert_eq!(node.service.counters().claims_expired.get(), 1);
    let in_time = get(&mut other, handle, &data, 2, Duration::from_millis(50));
    assert_eq!(in_time, Err(GetAnswer::Claimed), "the wait timed out");
    silent.release(silent_handle, &[BlobOrdinal::new(2)]).unwrap();
    assert_eq!(get(&mut other, handle, &data, 2, TIMEOUT), Err(GetAnswer::Miss));
}

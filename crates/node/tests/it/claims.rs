//! Claims: each blob is fetched once (promise 3), and no client waits for ever (promise 5).

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use forebay_client::Client;
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

/// Promise 5: a holder that reports progress for ever makes another job wait for some seconds, not
/// for ten leases.
#[test]
fn a_waiter_takes_over_from_a_holder_that_invents_progress() {
    let node =
        TestNode::start_with(|config| config.claim_lease = Duration::from_secs(10), Vec::new());
    let (node, data) = (&node, &Data::new(&[500; 10]));
    let connect = |job: &str| {
        let mut client = Client::connect(&node.config.socket, job, TIMEOUT).unwrap();
        let handle = client.open(&data.digest).unwrap();
        (client, handle)
    };
    let (mut hostile, handle) = connect("hostile");
    let all: Vec<BlobOrdinal> = (0..10).map(BlobOrdinal::new).collect();
    assert_eq!(hostile.claim(handle, &all).unwrap(), [ClaimAnswer::Granted; 10]);
    let is_done = AtomicBool::new(false);
    let waited = thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = 0;
            while !is_done.load(SeqCst) {
                bytes += 1;
                let progress: Vec<BlobProgress> =
                    all.iter().map(|blob| BlobProgress { blob: *blob, bytes }).collect();
                hostile.renew(handle, &progress).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
        });
        let began = Instant::now();
        thread::scope(|waiters| {
            for blob in 0..10 {
                let connect = &connect;
                waiters.spawn(move || {
                    let (mut client, handle) = connect("honest");
                    loop {
                        let claimed = client.claim(handle, &[BlobOrdinal::new(blob)]).unwrap();
                        if claimed == [ClaimAnswer::Granted] {
                            let content = &data.blobs[usize::try_from(blob).unwrap()];
                            client.put(handle, BlobOrdinal::new(blob), content).unwrap();
                            return;
                        }
                        let at = usize::try_from(blob).unwrap();
                        if get(&mut client, handle, data, at, Duration::from_secs(10)).is_ok() {
                            return;
                        }
                    }
                });
            }
        });
        is_done.store(true, SeqCst);
        began.elapsed()
    });
    // 4 s, and the time to find out that the holder is at fault. Ten leases are 100 s.
    assert!(waited < Duration::from_secs(40), "{waited:?}");
    assert_eq!(node.service.counters().claims_overtaken.get(), 10);
    assert_eq!(node.service.counters().puts.get(), 10, "each is fetched once more, by one waiter");
}

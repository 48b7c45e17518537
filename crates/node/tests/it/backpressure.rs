//! Backpressure: clients that are slow, take too much, or never finish do not affect others
//! (promises 5 and 6).

use std::{thread, time::Duration};

use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, DatasetId, Namespace, dataset::chunking::Chunking,
};
use forebay_wire::{
    BlobLength, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, PutAnswer, Refusal, Reply, Request,
};

use crate::harness::{Data, Raw, TIMEOUT, TestNode, get, put};

const NOW: Duration = Duration::ZERO;
const AN_HOUR_MS: u32 = 3_600_000;

fn range(blob: u64, length: u32) -> BlobRange {
    BlobRange { blob: BlobOrdinal::new(blob), offset: 0, length }
}

/// Promise 5: a job that is stopped in the middle of a batch does not hang others.
#[test]
fn a_client_that_never_reads_does_not_delay_others() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100; 10]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    let mut stalled = Raw::open(&node, &data);
    for _ in 0..32 {
        stalled.send(&Request::Get { handle: 0, wait_ms: 0, ranges: vec![range(1, 100); 1000] });
    }
    // Wait until its queue and the socket are full.
    let mut before = u64::MAX;
    while before != node.service.counters().hits.get() || before < 257 {
        before = node.service.counters().hits.get();
        thread::sleep(Duration::from_millis(100));
    }
    assert!(before < 32_000, "{before} hits: it is not limited");
    for blob in 2..10 {
        put(&mut client, handle, &data, blob);
        assert_eq!(get(&mut client, handle, &data, blob, NOW).unwrap(), data.blobs[blob]);
    }
    // When it reads again, it gets the rest.
    let hits = (0..32_000).filter(|_| {
        let reply = stalled.reply().expect("a reply").1;
        matches!(reply, Reply::Get { answer: GetAnswer::Hit, .. })
    });
    assert_eq!(hits.count(), 32_000);
}

/// The request that ends a wait may come over the connection that waits: an agent waits for the
/// fetches of others and puts its own blobs.
#[test]
fn a_connection_that_waits_can_send_requests() {
    let node =
        TestNode::start_with(|config| config.claim_lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[100; 300]);
    let (mut other, handle) = node.open(&data);
    let claimed_by_other: Vec<BlobOrdinal> = (0..200).map(BlobOrdinal::new).collect();
    assert_eq!(other.claim(handle, &claimed_by_other).unwrap(), [ClaimAnswer::Granted; 200]);
    let mut agent = Raw::open(&node, &data);
    for blob in claimed_by_other {
        let ranges = vec![range(blob.0, 100)];
        agent.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges });
    }
    let claimed = agent.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(250)] });
    assert_eq!(claimed, Reply::Claim { answers: vec![ClaimAnswer::Granted] });
    let payload = data.blobs[250].clone();
    let put =
        agent.call(&Request::Put { handle: 0, blob: BlobOrdinal::new(250), offset: 0, payload });
    assert_eq!(put, Reply::Put(PutAnswer::Stored));
    // Waits beyond the limit are answered at once, and are no error.
    let ranges = vec![range(1, 100); 10_000];
    agent.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges });
    let (_, reply) = agent.reply().expect("a reply");
    assert!(matches!(reply, Reply::Get { answer: GetAnswer::Claimed, .. }), "{reply:?}");
}

/// Promise 6: connections are limited, with or without a hello, and a rejected one gets the reason.
#[test]
fn connections_beyond_the_limit_are_refused_with_a_reason() {
    let node = TestNode::start_with(|config| config.max_connections = 3, Vec::new());
    let data = Data::new(&[100; 10]);
    let silent = [Raw::without_hello(&node), Raw::without_hello(&node)];
    let last = Raw::hello(&node);
    let (_, reply) = Raw::without_hello(&node).reply().expect("a refusal");
    assert!(
        matches!(&reply, Reply::Error(Refusal { code: ErrorCode::TooMuch, text })
            if text.contains("connections")),
        "{reply:?}"
    );
    assert_eq!(node.service.counters().connections_refused.get(), 1);
    drop((silent, last));
    node.wait_until_connections(0);
    until_accepted(&node, &data);
}

/// A connection stops counting when its client disconnects, even during a wait.
#[test]
fn a_client_that_disconnects_during_a_wait_frees_its_connection() {
    let node = TestNode::start_with(
        |config| (config.max_connections, config.claim_lease) = (2, Duration::from_mins(5)),
        Vec::new(),
    );
    let data = Data::new(&[100; 10]);
    let (mut holder, handle) = node.open(&data);
    holder.claim(handle, &[BlobOrdinal::new(1)]).unwrap();
    let mut waiter = Raw::open(&node, &data);
    waiter.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges: vec![range(1, 100)] });
    while node.service.counters().waits.get() == 0 {
        thread::yield_now();
    }
    drop(waiter);
    until_accepted(&node, &data);
}

/// Connects again and again, until the node has noticed that another client disconnected.
fn until_accepted(node: &TestNode, data: &Data) {
    let connect = || forebay_client::Client::connect(&node.config.socket, "x", TIMEOUT);
    let connected = (0..1000).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        connect().ok()
    });
    connected.expect("the node accepts a connection again").open(&data.digest).unwrap();
}

/// Promise 6: a client that claims, begins a put and is then silent holds nothing after its claim
/// expires.
#[test]
fn a_put_that_is_never_finished_ends_with_its_claim() {
    let node = TestNode::start_with(
        |config| {
            (config.capacity, config.claim_lease) =
                (Some(ByteSize::mib(8)), Duration::from_secs(1));
        },
        Vec::new(),
    );
    let data = Data::new(&[600_000, 600_000]);
    let mut silent = Raw::open(&node, &data);
    silent.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(0)] });
    let part = |offset: usize| {
        let payload = data.blobs[0].slice(offset..offset + 300_000);
        Request::Put { handle: 0, blob: BlobOrdinal::new(0), offset: offset as u64, payload }
    };
    assert_eq!(silent.call(&part(0)), Reply::Put(PutAnswer::More));
    let (mut client, handle) = node.open(&data);
    while node.service.counters().claims_expired.get() == 0 {
        thread::yield_now();
    }
    let stored = (0..1000).find(|_| {
        let granted =
            client.claim(handle, &[BlobOrdinal::new(0)]).unwrap() == [ClaimAnswer::Granted];
        granted && client.put(handle, BlobOrdinal::new(0), &data.blobs[0]).is_ok() || {
            client.release(handle, &[BlobOrdinal::new(0)]).unwrap();
            thread::sleep(Duration::from_millis(10));
            false
        }
    });
    assert!(stored.is_some(), "another client can put it");
    let late = silent.call(&part(300_000));
    assert!(
        matches!(&late, Reply::Error(refusal) if refusal.code == ErrorCode::NotClaimed),
        "{late:?}"
    );
}

/// The release of a claim ends its put, and the next holder can put the blob at once.
#[test]
fn a_released_claim_ends_its_put() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[600_000]);
    let mut first = Raw::open(&node, &data);
    let blobs = || vec![BlobOrdinal::new(0)];
    let part = |offset: usize| {
        let payload = data.blobs[0].slice(offset..offset + 300_000);
        Request::Put { handle: 0, blob: BlobOrdinal::new(0), offset: offset as u64, payload }
    };
    first.call(&Request::Claim { handle: 0, blobs: blobs() });
    assert_eq!(first.call(&part(0)), Reply::Put(PutAnswer::More));
    first.call(&Request::Release { handle: 0, blobs: blobs() });
    let late = first.call(&part(300_000));
    assert!(
        matches!(&late, Reply::Error(refusal) if refusal.code == ErrorCode::NotClaimed),
        "{late:?}"
    );
    let (mut second, handle) = node.open(&data);
    put(&mut second, handle, &data, 0);
}

/// Promise 6: a table with impossible lengths is refused.
#[test]
fn impossible_lengths_are_refused() {
    let node = TestNode::start(ByteSize::mib(8));
    let row = BlobLength { address: Address::from_bytes([7; 32]), length: u64::MAX };
    let chunking = Chunking::for_dataset(ByteSize(1), 1);
    let mut id = DatasetIdHasher::new();
    id.push(&row.address, row.length);
    let dataset: DatasetId = id.finish(chunking);
    let upload = Request::Upload {
        namespace: Namespace::public().id(),
        dataset,
        chunks: chunking.chunks(),
        partitions: chunking.partitions(),
        blobs: 1,
        first: 0,
        page: vec![row],
    };
    let mut raw = Raw::hello(&node);
    let reply = raw.call(&upload);
    if reply == (Reply::Open { handle: 0 }) {
        raw.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(0)] });
        let payload = bytes::Bytes::from_static(b"x");
        let put =
            raw.call(&Request::Put { handle: 0, blob: BlobOrdinal::new(0), offset: 0, payload });
        panic!("the table was accepted, and a put answered with {put:?}");
    }
    assert!(
        matches!(&reply, Reply::Error(refusal) if refusal.code == ErrorCode::Malformed),
        "{reply:?}"
    );
}

/// A refused request grants none of its claims.
#[test]
fn a_refused_claim_holds_nothing() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100; 10]);
    let (mut client, handle) = node.open(&data);
    assert!(client.claim(handle, &[1, 2, 99].map(BlobOrdinal::new)).is_err());
    assert_eq!(node.service.gauges().claims_held, 0);
}

/// Promise 6: "slow readers cannot make memory grow". A wait counts until its answer is sent.
#[test]
fn unread_answers_of_waits_do_not_accumulate() {
    const GETS: usize = 100_000;
    let node =
        TestNode::start_with(|config| config.claim_lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[100; 4]);
    let (mut holder, handle) = node.open(&data);
    holder.claim(handle, &[BlobOrdinal::new(1)]).unwrap();
    let mut stalled = Raw::open(&node, &data);
    let get = Request::Get { handle: 0, wait_ms: 1, ranges: vec![range(1, 100)] };
    let requests = get.encode(7).to_bytes().repeat(GETS);
    thread::scope(|scope| {
        let sender = scope.spawn(|| stalled.send_bytes(&requests));
        let (mut before, mut still) = (0, 0);
        while still < 10 && !sender.is_finished() {
            thread::sleep(Duration::from_millis(100));
            let waits = node.service.counters().waits.get();
            still = if waits == before && waits > 0 { still + 1 } else { 0 };
            before = waits;
        }
        // The limit of waits, and the answers in the queue and the socket.
        assert!(before < 20_000, "{before} waits began, and no answer was read");
        drop(node);
    });
}

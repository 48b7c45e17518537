//! Clients that take their time, take too much, or take and never give: nobody else pays for it
//! (promises 5 and 6).

use std::{thread, time::Duration};

use forebay_core::{
    Address, ByteSize, DatasetId, Namespace, chunking::Chunking, digest::DatasetIdHasher,
};
use forebay_wire::{
    BlobLength, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, PutAnswer, Refusal, Reply, Request,
};

use crate::harness::{Data, PATIENCE, Raw, TestNode, get, put};

const NOW: Duration = Duration::ZERO;
const AN_HOUR_MS: u32 = 3_600_000;

fn range(blob: u64, length: u32) -> BlobRange {
    BlobRange { blob, offset: 0, length }
}

/// Promise 5: a job whose process was stopped in the middle of a batch hangs no other.
#[test]
fn a_client_that_never_reads_holds_up_nobody_else() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100; 10]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    let mut stalled = Raw::open(&node, &data);
    for _ in 0..32 {
        stalled.send(&Request::Get { handle: 0, wait_ms: 0, ranges: vec![range(1, 100); 1000] });
    }
    // By now it has been given all that can wait for it, and more than the socket takes.
    let mut before = u64::MAX;
    while before != node.service.counters().hits.get() || before < 257 {
        before = node.service.counters().hits.get();
        thread::sleep(Duration::from_millis(100));
    }
    assert!(before < 32_000, "it is held up: {before}");
    for blob in 2..10 {
        put(&mut client, handle, &data, blob);
        assert_eq!(get(&mut client, handle, &data, blob, NOW).unwrap(), data.blobs[blob]);
    }
    // And when it reads again, it gets the rest.
    let hits = (0..32_000).filter(|_| {
        let reply = stalled.reply().expect("an answer").1;
        matches!(reply, Reply::Get { answer: GetAnswer::Hit, .. })
    });
    assert_eq!(hits.count(), 32_000);
}

/// What ends a wait may come over the very connection that waits: an agent waits for others' fetches, and
/// puts its own.
#[test]
fn whoever_waits_may_still_speak() {
    let node = TestNode::start_with(|config| config.lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[100; 300]);
    let (mut other, handle) = node.open(&data);
    let theirs: Vec<u64> = (0..200).collect();
    assert_eq!(other.claim(handle, &theirs).unwrap(), [ClaimAnswer::Granted; 200]);
    let mut agent = Raw::open(&node, &data);
    for blob in theirs {
        let ranges = vec![range(blob, 100)];
        agent.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges });
    }
    let claimed = agent.ask(&Request::Claim { handle: 0, blobs: vec![250] });
    assert_eq!(claimed, Reply::Claim { answers: vec![ClaimAnswer::Granted] });
    let payload = data.blobs[250].clone();
    let put = agent.ask(&Request::Put { handle: 0, blob: 250, offset: 0, payload });
    assert_eq!(put, Reply::Put(PutAnswer::Stored));
    // Too many waits are no error: for those, the wait is over.
    let ranges = vec![range(1, 100); 10_000];
    agent.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges });
    let (_, reply) = agent.reply().expect("an answer");
    assert!(matches!(reply, Reply::Get { answer: GetAnswer::Claimed, .. }), "{reply:?}");
}

/// Promise 6: connections are bounded, whether they say anything or not, and those turned away are told.
#[test]
fn too_many_connections_are_turned_away_with_a_word() {
    let node = TestNode::start_with(|config| config.connections = 3, Vec::new());
    let data = Data::new(&[100; 10]);
    let silent = [Raw::silent(&node), Raw::silent(&node)];
    let last = Raw::hello(&node);
    let (_, reply) = Raw::silent(&node).reply().expect("a word");
    assert!(
        matches!(&reply, Reply::Error(Refusal { code: ErrorCode::TooMuch, text }) if text.contains("connections")),
        "{reply:?}"
    );
    assert_eq!(node.service.counters().connections_refused.get(), 1);
    drop((silent, last));
    node.wait_for_connections(0);
    until_accepted(&node, &data);
}

/// A place is free as soon as its owner has gone, whatever it was waiting for.
#[test]
fn who_leaves_in_the_middle_of_a_wait_leaves_its_place() {
    let node = TestNode::start_with(
        |config| (config.connections, config.lease) = (2, Duration::from_mins(5)),
        Vec::new(),
    );
    let data = Data::new(&[100; 10]);
    let (mut holder, handle) = node.open(&data);
    holder.claim(handle, &[1]).unwrap();
    let mut waiter = Raw::open(&node, &data);
    waiter.send(&Request::Get { handle: 0, wait_ms: AN_HOUR_MS, ranges: vec![range(1, 100)] });
    while node.service.counters().waits.get() == 0 {
        thread::yield_now();
    }
    drop(waiter);
    until_accepted(&node, &data);
}

/// The node notices in its own time that somebody has gone.
fn until_accepted(node: &TestNode, data: &Data) {
    let connect = || forebay_client::Client::connect(&node.config.socket, "x", PATIENCE);
    let connected = (0..1000).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        connect().ok()
    });
    connected.expect("there is a place again").open(&data.digest).unwrap();
}

/// Promise 6: whoever claims, begins to put and falls silent holds nothing once its claim is lost.
#[test]
fn a_put_that_is_never_finished_ends_with_its_claim() {
    let node = TestNode::start_with(
        |config| {
            (config.capacity, config.lease) = (Some(ByteSize::mib(8)), Duration::from_secs(1));
        },
        Vec::new(),
    );
    let data = Data::new(&[600_000, 600_000]);
    let mut silent = Raw::open(&node, &data);
    silent.ask(&Request::Claim { handle: 0, blobs: vec![0] });
    let piece = |offset: usize| {
        let payload = data.blobs[0].slice(offset..offset + 300_000);
        Request::Put { handle: 0, blob: 0, offset: offset as u64, payload }
    };
    assert_eq!(silent.ask(&piece(0)), Reply::Put(PutAnswer::More));
    let (mut client, handle) = node.open(&data);
    while node.service.counters().claims_expired.get() == 0 {
        thread::yield_now();
    }
    let stored = (0..1000).find(|_| {
        let granted = client.claim(handle, &[0]).unwrap() == [ClaimAnswer::Granted];
        granted && client.put(handle, 0, &data.blobs[0]).is_ok() || {
            client.release(handle, &[0]).unwrap();
            thread::sleep(Duration::from_millis(10));
            false
        }
    });
    assert!(stored.is_some(), "somebody else may put it");
    let late = silent.ask(&piece(300_000));
    assert!(
        matches!(&late, Reply::Error(refusal) if refusal.code == ErrorCode::NotClaimed),
        "{late:?}"
    );
}

/// Promise 6: a table that lies about lengths is refused, and costs nobody anything.
#[test]
fn lengths_that_cannot_be_are_refused() {
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
    let reply = raw.ask(&upload);
    if reply == (Reply::Open { handle: 0 }) {
        raw.ask(&Request::Claim { handle: 0, blobs: vec![0] });
        let payload = bytes::Bytes::from_static(b"x");
        let put = raw.ask(&Request::Put { handle: 0, blob: 0, offset: 0, payload });
        panic!("it was opened, and a put was answered with {put:?}");
    }
    assert!(
        matches!(&reply, Reply::Error(refusal) if refusal.code == ErrorCode::Malformed),
        "{reply:?}"
    );
}

/// Whoever is refused holds nothing that it does not know of.
#[test]
fn a_refused_claim_holds_nothing() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100; 10]);
    let (mut client, handle) = node.open(&data);
    assert!(client.claim(handle, &[1, 2, 99]).is_err());
    assert_eq!(node.service.gauges().claims_held, 0);
}

/// Promise 6: "slow readers cannot make memory grow". Waits that are over count until their answers have left.
#[test]
fn waits_that_nobody_hears_the_end_of_do_not_pile_up() {
    const GETS: usize = 100_000;
    let node = TestNode::start_with(|config| config.lease = Duration::from_mins(5), Vec::new());
    let data = Data::new(&[100; 4]);
    let (mut holder, handle) = node.open(&data);
    holder.claim(handle, &[1]).unwrap();
    let mut deaf = Raw::open(&node, &data);
    let get = Request::Get { handle: 0, wait_ms: 1, ranges: vec![range(1, 100)] };
    let said = get.encode(7).to_bytes().repeat(GETS);
    thread::scope(|scope| {
        let speaking = scope.spawn(|| deaf.send_bytes(&said));
        let (mut before, mut still) = (0, 0);
        while still < 10 && !speaking.is_finished() {
            thread::sleep(Duration::from_millis(100));
            let waits = node.service.counters().waits.get();
            still = if waits == before && waits > 0 { still + 1 } else { 0 };
            before = waits;
        }
        // As many as may wait, and those whose answers the queue and the socket hold.
        assert!(before < 20_000, "{before} waits were begun, and none was heard of");
        drop(node);
    });
}

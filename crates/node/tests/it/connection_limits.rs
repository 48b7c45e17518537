//! Connection limits: slots and memory of connections, under clients that do not read, do not send
//! or do not authenticate (promise 6).

use std::{
    io::Write as _,
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use forebay_core::{BlobOrdinal, ByteSize, Namespace};
use forebay_wire::{BODY_SIZE_MAX, BlobRange, ErrorCode, Header, Reply, Request};

use crate::{
    harness::{Data, Raw, TIMEOUT, get, put},
    process::{MemoryGroup, NodeProcess},
    two_tenants::{OURS, THEIRS, TenantSetup, Transport, code, hello, token_of},
};

const MIB: usize = 1 << 20;

/// Gets of a blob, `count` times.
fn gets(blob: u64, length: usize, count: usize) -> Request {
    let length = u32::try_from(length).unwrap();
    let range = BlobRange { blob: BlobOrdinal::new(blob), offset: 0, length };
    Request::Get { handle: 0, wait_ms: 0, ranges: vec![range; count] }
}

/// Promise 6: "no tenant has more than half of the connections". A client that has stopped sending
/// and does not read holds its slot for as long as its replies wait.
#[test]
fn a_half_closed_connection_keeps_its_slot() {
    let setup = TenantSetup::with(Transport::Cleartext, |config| config.max_connections = 64);
    let data = Data::of(&Namespace::public(), &[MIB - 1000; 2]);
    let mut client = setup.connect(&setup.by_token(OURS), "honest").unwrap();
    let handle = client.open(&data.digest).unwrap();
    put(&mut client, handle, &data, 0);
    let began = Instant::now();
    let (mut held, mut refused) = (Vec::new(), 0);
    // Replies that are not read are dropped after 5 s at the earliest.
    while began.elapsed() < Duration::from_secs(4) && held.len() + refused < 63 {
        let socket = TcpStream::connect(setup.node.listen.unwrap()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut raw = Raw::over(socket.try_clone().unwrap());
        match raw.call(&hello("greedy", token_of(THEIRS).as_bytes())) {
            Reply::Hello { .. } => {}
            Reply::Error(refusal) => {
                assert_eq!(refusal.code, ErrorCode::TooMuch, "{refusal}");
                refused += 1;
                continue;
            }
            other => panic!("{other:?}"),
        }
        raw.open_first(&data);
        raw.send(&gets(0, data.blobs[0].len(), 24));
        socket.shutdown(Shutdown::Write).unwrap();
        held.push(raw);
    }
    assert!(held.len() <= 32, "{} of 64 connections are one tenant's", held.len());
    // The others are served meanwhile.
    let mut other = setup.connect(&setup.by_token(OURS), "other").unwrap();
    other.open(&data.digest).unwrap();
    let mut owner = setup.node.client();
    owner.stats().unwrap();
    // Replies that are not read do not hold a slot for ever.
    let slots_are_free = (0..3000).any(|_| {
        thread::sleep(Duration::from_millis(20));
        setup.node.service.gauges().connections_open <= 3
    });
    assert!(slots_are_free, "{} slots are held", setup.node.service.gauges().connections_open);
}

/// Promise 6: the owner repairs a node whose connections all tenants have taken.
#[test]
fn the_owner_is_served_while_tenants_have_all_connections() {
    let setup = TenantSetup::with(Transport::Cleartext, |config| config.max_connections = 16);
    let mut held = Vec::new();
    for tenant in [OURS, THEIRS] {
        held.extend((0..8).map_while(|_| {
            let mut raw = setup.without_hello();
            let reply = raw.call(&hello("greedy", token_of(tenant).as_bytes()));
            matches!(reply, Reply::Hello { .. }).then_some(raw)
        }));
    }
    assert_eq!(held.len(), 14, "two of 16 are reserved");
    let mut owner = setup.node.client();
    owner.stats().unwrap();
}

/// A refusal must not look like a server without TLS.
#[test]
fn a_full_node_refuses_after_the_tls_handshake() {
    let setup = TenantSetup::with(Transport::Tls, |config| config.max_connections = 4);
    let _held: Vec<_> = [OURS, OURS, THEIRS, THEIRS]
        .map(|tenant| setup.connect(&setup.by_token(tenant), "held").unwrap())
        .into();
    let refused = setup.connect(&setup.by_token(OURS), "one too many").unwrap_err();
    assert_eq!(code(&refused), ErrorCode::TooMuch);
}

/// Promise 6: before authentication, no more is read than a hello.
#[test]
fn unauthenticated_peers_take_little_memory() {
    let node = NodeProcess::start(None);
    // Once before, so that threads and buffers exist.
    drop(node.open(&Data::new(&[1000; 4])));
    let before = node.memory("VmRSS");
    let mut peers = Vec::new();
    let head = Header { kind: 1, id: 1, body_size: BODY_SIZE_MAX }.encode();
    for _ in 0..64 {
        let mut peer = TcpStream::connect(&node.listen).unwrap();
        peer.set_write_timeout(Some(TIMEOUT)).unwrap();
        peer.write_all(&head).unwrap();
        peers.push(peer);
    }
    // As far as the node reads it.
    let (body, mut written) = (vec![7; MIB], 0);
    for _ in 0..16 {
        for peer in &mut peers {
            written += usize::from(peer.write_all(&body).is_ok());
        }
    }
    let growth = node.memory("VmRSS").0.saturating_sub(before.0);
    assert!(growth <= 8 << 20, "{} MiB for {written} MiB of strangers", growth >> 20);
}

/// Promise 6: memory does not grow with slow readers, and the default limits fit a small container.
#[test]
fn a_container_of_1_gib_survives_200_slow_readers() {
    // Where control groups cannot be made, nothing is tested.
    let Some(group) = MemoryGroup::new(ByteSize::mib(1 << 10)) else { return };
    let mut node = NodeProcess::start(Some(&group));
    // Longer than what the memory cache takes: each read is a buffer of its own.
    let data = Data::new(&[2 * MIB; 8]);
    let (mut client, handle) = node.open(&data);
    (0..8).for_each(|blob| put(&mut client, handle, &data, blob));
    let slow: Vec<Raw> = (0..200)
        .map(|_| {
            let socket = UnixStream::connect(node.socket()).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut raw = Raw::over(socket);
            raw.call(&hello("slow", b""));
            raw.open_first(&data);
            (0..8).for_each(|blob| {
                raw.send(&gets(blob, 2 * MIB, 2));
            });
            raw
        })
        .collect();
    // A client that reads is served, although the memory of connections is used up.
    let (mut fast, handle) = node.open(&data);
    for blob in 0..8 {
        assert_eq!(get(&mut fast, handle, &data, blob, TIMEOUT).unwrap(), data.blobs[blob]);
    }
    let peak = node.memory("VmHWM");
    assert!(node.is_alive() && peak.0 <= 900_000_000, "{peak}");
    drop(slow);
}

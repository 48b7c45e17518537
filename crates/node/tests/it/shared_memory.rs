//! Shared memory: correct bytes, isolation between clients, and limits.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::Duration,
};

use forebay_client::{Client, Handle, ReadInto, View};
use forebay_core::{BlobOrdinal, ByteSize};
use forebay_shm::ShmMapping;
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Refusal, Reply, Request, ShmRange};

use crate::harness::{Data, Raw, TIMEOUT, TestNode, get, put};

/// Default size of a client's shm region.
const REGION_SIZE: u64 = 32 << 20;

fn node(shm: ByteSize, memory: ByteSize) -> TestNode {
    let change = |config: &mut forebay_node::Config| {
        config.capacity = Some(ByteSize::mib(128));
        config.shared_memory = Some(shm);
        config.memory_cache = Some(memory);
    };
    TestNode::start_with(change, Vec::new())
}

fn whole(data: &Data, blob: usize) -> BlobRange {
    let length = u32::try_from(data.blobs[blob].len()).unwrap();
    BlobRange { blob: BlobOrdinal::new(blob as u64), offset: 0, length }
}

fn views(client: &mut Client, handle: Handle, ranges: &[BlobRange]) -> Vec<View> {
    let answers = client.get_views(handle, TIMEOUT, ranges).unwrap();
    answers.into_iter().map(|answer| answer.expect("a hit")).collect()
}

/// Promise 1: never wrong bytes. All sizes, from the device and from memory, whole blobs and
/// ranges, views and copies.
#[test]
fn bytes_are_right_on_every_path() {
    let lengths = [1, 4095, 4096, 4097, 128 << 10, (1 << 20) + 1, 9 << 20, 16 << 20];
    let data = Data::new(&lengths);
    for (shm, memory) in [(512, 0), (512, 64), (0, 0), (0, 64)] {
        let node = node(ByteSize::mib(shm), ByteSize::mib(memory));
        let (mut client, handle) = node.open(&data);
        for blob in 0..lengths.len() {
            put(&mut client, handle, &data, blob);
        }
        let mut random = fastrand::Rng::with_seed(shm + memory);
        for round in 0..30 {
            let mut ranges: Vec<BlobRange> = Vec::new();
            for (blob, all) in lengths.into_iter().enumerate() {
                let end = random.usize(0..=all);
                let start = random.usize(0..=end);
                let whole = if round % 3 == 0 { 0..all } else { start..end };
                let length = u32::try_from(whole.len()).unwrap();
                ranges.push(BlobRange {
                    blob: BlobOrdinal::new(blob as u64),
                    offset: whole.start as u64,
                    length,
                });
            }
            random.shuffle(&mut ranges);
            let expected = |range: &BlobRange| {
                let start = usize::try_from(range.offset).unwrap();
                let blob = usize::try_from(range.blob.0).unwrap();
                data.blobs[blob].slice(start..start + range.length as usize)
            };
            for (range, view) in ranges.iter().zip(views(&mut client, handle, &ranges)) {
                assert!(view[..] == expected(range)[..], "{range:?}");
                assert!(shm > 0 || !view.is_shared());
            }
            let memory = ranges.iter().map(|range| vec![0; range.length as usize]);
            let mut memory: Vec<Vec<u8>> = memory.collect();
            let wanted = ranges.iter().zip(&mut memory);
            let wanted = wanted.map(|(range, into)| ReadInto {
                blob: range.blob,
                offset: range.offset,
                into,
            });
            let answers = client.get(handle, TIMEOUT, &mut wanted.collect::<Vec<_>>()).unwrap();
            assert!(answers.iter().all(|answer| *answer == GetAnswer::Hit));
            for (range, bytes) in ranges.iter().zip(&memory) {
                assert!(bytes[..] == expected(range)[..], "{range:?}");
            }
        }
        let placed = node.service.counters().shm_hit_bytes.get();
        assert_eq!(placed > 0, shm > 0);
        assert_eq!(node.service.gauges().shm_bytes > 0, shm > 0);
    }
}

/// A `get_shm` answers misses and waits like a get.
#[test]
fn misses_and_waits_are_answered_as_without_shm() {
    let data = Data::new(&[100_000; 4]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    let (mut other, other_handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    other.claim(other_handle, &[2, 3].map(BlobOrdinal::new)).unwrap();
    let ranges: Vec<BlobRange> = (0..4).map(|blob| whole(&data, blob)).collect();
    let answers = client.get_views(handle, Duration::ZERO, &ranges).unwrap();
    let kinds: Vec<Option<GetAnswer>> =
        answers.iter().map(|answer| answer.as_ref().err().copied()).collect();
    let (miss, claimed) = (Some(GetAnswer::Miss), Some(GetAnswer::Claimed));
    assert_eq!(kinds, [None, miss, claimed, claimed]);
    let waiting = thread::spawn(move || views(&mut client, handle, &ranges[2..3])[0].to_vec());
    while node.service.counters().waits.get() == 0 {
        thread::yield_now();
    }
    other.put(other_handle, BlobOrdinal::new(2), &data.blobs[2]).unwrap();
    assert!(waiting.join().unwrap() == data.blobs[2]);
}

/// When a shm region is full, bytes come over the socket. When views are dropped, the region is
/// used again.
#[test]
fn a_full_shm_region_falls_back_to_the_socket() {
    let data = Data::new(&[1 << 20; 40]);
    let node = node(ByteSize::mib(512), ByteSize::mib(64));
    let (mut client, handle) = node.open(&data);
    for blob in 0..40 {
        put(&mut client, handle, &data, blob);
    }
    let ranges: Vec<BlobRange> = (0..40).map(|blob| whole(&data, blob)).collect();
    for _ in 0..3 {
        let held = views(&mut client, handle, &ranges);
        let shared = held.iter().filter(|view| view.is_shared()).count();
        assert_eq!(shared as u64, REGION_SIZE >> 20, "the region is full");
        assert!(held.iter().zip(&data.blobs).all(|(view, blob)| view[..] == blob[..]));
        let more = views(&mut client, handle, &ranges[..1]);
        assert!(!more[0].is_shared() && more[0][..] == data.blobs[0][..], "all slots are held");
        assert!(held[0][..] == data.blobs[0][..], "held views do not change");
    }
}

/// A view outlives its client and the node.
#[test]
fn a_view_outlives_its_client() {
    let data = Data::new(&[300_000; 2]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    let view = views(&mut client, handle, &[whole(&data, 0)]).remove(0);
    assert!(view.is_shared());
    drop(client);
    node.wait_until_connections(0);
    assert_eq!(node.service.gauges().shm_bytes, REGION_SIZE, "the view holds the region");
    let view = thread::spawn(move || view).join().unwrap();
    assert!(view[..] == data.blobs[0][..]);
    let kept = std::sync::Arc::clone(&node.service);
    drop(node);
    assert!(view[..] == data.blobs[0][..], "without the node as well");
    drop(view);
    assert_eq!(kept.gauges().shm_bytes, 0, "the memory is free");
}

/// Promise 6 (bounded): all shm regions together keep the limit. Further clients use the socket.
#[test]
fn shm_regions_keep_the_limit() {
    let data = Data::new(&[50_000; 3]);
    let node = node(ByteSize(2 * REGION_SIZE + 5), ByteSize::mib(1));
    let mut clients: Vec<(Client, Handle)> = (0..4).map(|_| node.open(&data)).collect();
    let handle = clients[0].1;
    put(&mut clients[0].0, handle, &data, 1);
    let are_shared = |clients: &mut Vec<(Client, Handle)>| -> Vec<bool> {
        let one = |(client, handle): &mut (Client, Handle)| {
            let view = views(client, *handle, &[whole(&data, 1)]).remove(0);
            assert!(view[..] == data.blobs[1][..]);
            view.is_shared()
        };
        clients.iter_mut().map(one).collect()
    };
    assert_eq!(are_shared(&mut clients), [true, true, false, false]);
    assert_eq!(node.service.gauges().shm_bytes, 2 * REGION_SIZE);
    assert_eq!(node.service.counters().shm_regions_refused.get(), 2);
    clients.drain(..2);
    node.wait_until_connections(2);
    while node.service.gauges().shm_bytes > 0 {
        thread::yield_now();
    }
    clients.push(node.open(&data));
    assert_eq!(
        are_shared(&mut clients),
        [false, false, true],
        "a refused client does not ask again"
    );
}

/// A connection with a shm region that sends requests which the client never sends.
struct Hostile {
    raw: Raw,
    descriptor: Option<OwnedFd>,
    size: u64,
}

impl Hostile {
    fn new(node: &TestNode, data: &Data, size: u64) -> Self {
        let mut raw = Raw::open(node, data);
        let (reply, descriptor) = raw.request_shm(size);
        let Reply::ShmMap { size } = reply else { panic!("{reply:?}") };
        Self { raw, descriptor, size }
    }

    fn get_shm(&mut self, released: &[u32], ranges: &[BlobRange]) -> Reply {
        let (released, ranges) = (released.to_vec(), ranges.to_vec());
        self.raw.call(&Request::GetShm { handle: 0, wait_ms: 0, released, ranges })
    }

    fn get_one(&mut self, released: &[u32], range: BlobRange) -> ShmRange {
        match self.get_shm(released, &[range]) {
            Reply::GetShm { ranges } if ranges.len() == 1 => ranges[0],
            other => panic!("{other:?}"),
        }
    }
}

fn is_malformed(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(Refusal { code: ErrorCode::Malformed, .. }))
}

/// Promise 4: a hit is authorised. A client that releases a slot which it does not hold loses its
/// shm region and nothing else. Other clients are not affected.
#[test]
fn an_invalid_release_revokes_the_shm_region_only() {
    let data = Data::new(&[10_000; 5]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut other, handle) = node.open(&data);
    for blob in 0..4 {
        put(&mut other, handle, &data, blob);
    }
    let held = views(&mut other, handle, &[whole(&data, 0), whole(&data, 1)]);
    let wrong: [fn(ShmRange) -> Vec<u32>; 5] = [
        |slot| vec![slot.offset, slot.offset],
        |slot| vec![slot.offset + 4096],
        |slot| vec![slot.offset + 1],
        |_| vec![u32::MAX],
        |_| vec![1 << 30],
    ];
    for (at, wrong) in wrong.into_iter().enumerate() {
        let mut hostile = Hostile::new(&node, &data, 1 << 20);
        assert_eq!(hostile.size, 1 << 20);
        let slot = hostile.get_one(&[], whole(&data, 2));
        assert!(is_malformed(&hostile.get_shm(&wrong(slot), &[whole(&data, 2)])), "{at}");
        assert_eq!(node.service.counters().shm_regions_revoked.get(), at as u64 + 1);
        let over_socket = hostile.get_shm(&[], &[whole(&data, 2)]);
        assert!(matches!(&over_socket, Reply::Get { payload, .. } if *payload == data.blobs[2]));
        assert!(is_malformed(&hostile.get_shm(&[slot.offset], &[])), "the region is revoked");
        assert!(is_malformed(&hostile.raw.request_shm(1 << 20).0), "no second region is granted");
        // The slot that it was granted does not change.
        let mapping = ShmMapping::open(hostile.descriptor.unwrap(), 1 << 20).unwrap();
        assert!(mapping.view(slot.offset, slot.length).unwrap()[..] == data.blobs[2][..]);
    }
    assert!(held[0][..] == data.blobs[0][..] && held[1][..] == data.blobs[1][..]);
    assert!(views(&mut other, handle, &[whole(&data, 3)])[0][..] == data.blobs[3][..]);
    drop(held);
    node.wait_until_connections(1);
    while node.service.gauges().shm_bytes > REGION_SIZE {
        thread::yield_now();
    }
}

/// A shm region contains only the bytes that its client requested; the rest is zero.
#[test]
fn a_shm_region_contains_only_requested_bytes() {
    let data = Data::new(&[10_000; 5]);
    let node = node(ByteSize::mib(512), ByteSize::mib(16));
    let (mut other, handle) = node.open(&data);
    for blob in 0..3 {
        put(&mut other, handle, &data, blob);
    }
    let mut hostile = Hostile::new(&node, &data, 1 << 20);
    let mapping = ShmMapping::open(hostile.descriptor.take().unwrap(), 1 << 20).unwrap();
    let _held = views(&mut other, handle, &[whole(&data, 0), whole(&data, 1)]);
    let slot =
        hostile.get_one(&[], BlobRange { blob: BlobOrdinal::new(2), offset: 10, length: 50 });
    assert!(matches!(
        hostile.get_shm(&[], &[whole(&data, 4)]),
        Reply::Get { answer: GetAnswer::Miss, .. }
    ));
    let all = mapping.view(0, 1 << 20).unwrap();
    let start = slot.offset as usize;
    assert!(all[start..start + 50] == data.blobs[2][10..60]);
    assert!(all[..start].iter().chain(&all[start + 50..]).all(|byte| *byte == 0));
}

/// A size above the maximum is reduced, one below the minimum is refused, and so is a second
/// region.
#[test]
fn size_and_number_of_shm_regions_are_limited() {
    let data = Data::new(&[10_000, (1 << 20) + 1]);
    let node = node(ByteSize::mib(300), ByteSize(0));
    let huge = Hostile::new(&node, &data, u64::MAX);
    assert_eq!((huge.size, huge.descriptor.is_some()), (256 << 20, true));
    let late = Hostile::new(&node, &data, 256 << 20);
    assert_eq!((late.size, late.descriptor.is_some()), (0, false), "no memory left");
    for little in [0, 1, 4096, (1 << 20) - 1] {
        assert_eq!(Hostile::new(&node, &data, little).size, 0);
    }
    let mut two = Hostile::new(&node, &data, 1 << 20);
    assert!(is_malformed(&two.raw.request_shm(1 << 20).0));
    assert!(node.service.gauges().shm_bytes <= 300 << 20);
    let mut tiny = Hostile::new(&node, &data, (1 << 20) + 4095);
    assert_eq!(tiny.size, 1 << 20, "whole pages");
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    let reply = tiny.get_shm(&[], &[whole(&data, 1)]);
    assert!(
        matches!(reply, Reply::Get { answer: GetAnswer::Hit, .. }),
        "the blob does not fit in the region"
    );
}

/// The memory of a client that dies, or disconnects and keeps its mapping, is free when it is
/// unmapped.
#[test]
fn the_memory_of_dead_clients_is_freed() {
    let data = Data::new(&[100_000; 3]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    drop(client);
    for _ in 0..20 {
        let mut dying = Hostile::new(&node, &data, 8 << 20);
        dying.get_one(&[], whole(&data, 0));
        // Requested, but never read.
        let ranges = vec![whole(&data, 0); 50];
        dying.raw.send(&Request::GetShm { handle: 0, wait_ms: 0, released: Vec::new(), ranges });
    }
    node.wait_until_connections(0);
    while node.service.gauges().shm_bytes > 0 {
        thread::yield_now();
    }
    let client = Hostile::new(&node, &data, 8 << 20);
    let mapping = ShmMapping::open(client.descriptor.as_ref().unwrap().as_fd(), 8 << 20).unwrap();
    drop(client);
    node.wait_until_connections(0);
    assert_eq!(node.service.gauges().shm_bytes, 8 << 20, "it counts while it is mapped");
    drop(mapping);
    while node.service.gauges().shm_bytes > 0 {
        thread::yield_now();
    }
}

/// A node without shared memory serves over the socket.
#[test]
fn without_shared_memory_the_socket_is_used() {
    let data = Data::new(&[10_000; 2]);
    let node = node(ByteSize(0), ByteSize::mib(1));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    assert_eq!(get(&mut client, handle, &data, 0, TIMEOUT).unwrap(), data.blobs[0]);
    assert_eq!(Hostile::new(&node, &data, 1 << 20).size, 0);
    assert_eq!(node.service.gauges().shm_bytes, 0);
    assert_eq!(node.service.counters().shm_regions_granted.get(), 0);
}

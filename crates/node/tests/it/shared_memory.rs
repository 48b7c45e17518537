//! Bytes in memory that a node shares with one client: right, its own, and bounded.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::Duration,
};

use forebay_client::{Client, Handle, View, Wanted};
use forebay_core::ByteSize;
use forebay_segment::Window;
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Placed, Refusal, Reply, Request};

use crate::harness::{Data, PATIENCE, Raw, TestNode, get, put};

/// A client's segment, as it asks for it without being told otherwise.
const USUAL: u64 = 32 << 20;

fn node(segments: ByteSize, memory: ByteSize) -> TestNode {
    let change = |config: &mut forebay_server::Config| {
        config.capacity = Some(ByteSize::mib(128));
        config.segments = segments;
        config.memory = memory;
    };
    TestNode::start_with(change, Vec::new())
}

fn whole(data: &Data, blob: usize) -> BlobRange {
    let length = u32::try_from(data.blobs[blob].len()).unwrap();
    BlobRange { blob: blob as u64, offset: 0, length }
}

fn views(client: &mut Client, handle: Handle, ranges: &[BlobRange]) -> Vec<View> {
    let answers = client.get_views(handle, PATIENCE, ranges).unwrap();
    answers.into_iter().map(|answer| answer.expect("a hit")).collect()
}

/// Promise 1: never wrong bytes. Of all sizes, from the device and from memory, whole and in ranges, by views
/// and by copies: what is placed is what was put.
#[test]
fn bytes_are_right_on_every_path() {
    let lengths = [1, 4095, 4096, 4097, 128 << 10, (1 << 20) + 1, 9 << 20, 16 << 20];
    let data = Data::new(&lengths);
    for (segments, memory) in [(512, 0), (512, 64), (0, 0), (0, 64)] {
        let node = node(ByteSize::mib(segments), ByteSize::mib(memory));
        let (mut client, handle) = node.open(&data);
        for blob in 0..lengths.len() {
            put(&mut client, handle, &data, blob);
        }
        let mut random = fastrand::Rng::with_seed(segments + memory);
        for round in 0..30 {
            let mut ranges: Vec<BlobRange> = Vec::new();
            for (blob, all) in lengths.into_iter().enumerate() {
                let end = random.usize(0..=all);
                let start = random.usize(0..=end);
                let whole = if round % 3 == 0 { 0..all } else { start..end };
                let length = u32::try_from(whole.len()).unwrap();
                ranges.push(BlobRange { blob: blob as u64, offset: whole.start as u64, length });
            }
            random.shuffle(&mut ranges);
            let expected = |range: &BlobRange| {
                let start = usize::try_from(range.offset).unwrap();
                let blob = usize::try_from(range.blob).unwrap();
                data.blobs[blob].slice(start..start + range.length as usize)
            };
            for (range, view) in ranges.iter().zip(views(&mut client, handle, &ranges)) {
                assert!(view[..] == expected(range)[..], "{range:?}");
                assert!(segments > 0 || !view.is_shared());
            }
            let memory = ranges.iter().map(|range| vec![0; range.length as usize]);
            let mut memory: Vec<Vec<u8>> = memory.collect();
            let wanted = ranges.iter().zip(&mut memory);
            let wanted =
                wanted.map(|(range, into)| Wanted { blob: range.blob, offset: range.offset, into });
            let answers = client.get(handle, PATIENCE, &mut wanted.collect::<Vec<_>>()).unwrap();
            assert!(answers.iter().all(|answer| *answer == GetAnswer::Hit));
            for (range, bytes) in ranges.iter().zip(&memory) {
                assert!(bytes[..] == expected(range)[..], "{range:?}");
            }
        }
        let placed = node.service.counters().placed_bytes.get();
        assert_eq!(placed > 0, segments > 0);
        assert_eq!(node.service.gauges().segment_bytes > 0, segments > 0);
    }
}

/// Misses and waits are answered over the segment's connection as over any other.
#[test]
fn misses_and_waits_stay_what_they_are() {
    let data = Data::new(&[100_000; 4]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    let (mut other, other_handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    other.claim(other_handle, &[2, 3]).unwrap();
    let ranges: Vec<BlobRange> = (0..4).map(|blob| whole(&data, blob)).collect();
    let answers = client.get_views(handle, Duration::ZERO, &ranges).unwrap();
    let said: Vec<Option<GetAnswer>> =
        answers.iter().map(|answer| answer.as_ref().err().copied()).collect();
    let (miss, claimed) = (Some(GetAnswer::Miss), Some(GetAnswer::Claimed));
    assert_eq!(said, [None, miss, claimed, claimed]);
    let waiting = thread::spawn(move || views(&mut client, handle, &ranges[2..3])[0].to_vec());
    while node.service.counters().waits.get() == 0 {
        thread::yield_now();
    }
    other.put(other_handle, 2, &data.blobs[2]).unwrap();
    assert!(waiting.join().unwrap() == data.blobs[2]);
}

/// A segment that is full costs nobody anything: bytes come over the socket, and into the segment again when
/// views were dropped.
#[test]
fn a_full_segment_falls_back_to_the_socket() {
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
        assert_eq!(shared as u64, USUAL >> 20, "as many as fit");
        assert!(held.iter().zip(&data.blobs).all(|(view, blob)| view[..] == blob[..]));
        let more = views(&mut client, handle, &ranges[..1]);
        assert!(!more[0].is_shared() && more[0][..] == data.blobs[0][..], "all of it is held");
        assert!(held[0][..] == data.blobs[0][..], "what is held stays as it is");
    }
}

/// A view outlives the client that it came from, and the node itself.
#[test]
fn a_view_outlives_its_client() {
    let data = Data::new(&[300_000; 2]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    let view = views(&mut client, handle, &[whole(&data, 0)]).remove(0);
    assert!(view.is_shared());
    drop(client);
    node.wait_for_connections(0);
    assert_eq!(node.service.gauges().segment_bytes, USUAL, "somebody still holds it");
    let view = thread::spawn(move || view).join().unwrap();
    assert!(view[..] == data.blobs[0][..]);
    let kept = std::sync::Arc::clone(&node.service);
    drop(node);
    assert!(view[..] == data.blobs[0][..], "without its node, too");
    drop(view);
    assert_eq!(kept.gauges().segment_bytes, 0, "the memory is back");
}

/// Promise 6: bounded. What all segments take together stays within the limit; whoever comes too late goes on
/// over the socket.
#[test]
fn segments_keep_to_their_limit() {
    let data = Data::new(&[50_000; 3]);
    let node = node(ByteSize(2 * USUAL + 5), ByteSize::mib(1));
    let mut clients: Vec<(Client, Handle)> = (0..4).map(|_| node.open(&data)).collect();
    let handle = clients[0].1;
    put(&mut clients[0].0, handle, &data, 1);
    let look = |clients: &mut Vec<(Client, Handle)>| -> Vec<bool> {
        let one = |(client, handle): &mut (Client, Handle)| {
            let view = views(client, *handle, &[whole(&data, 1)]).remove(0);
            assert!(view[..] == data.blobs[1][..]);
            view.is_shared()
        };
        clients.iter_mut().map(one).collect()
    };
    assert_eq!(look(&mut clients), [true, true, false, false]);
    assert_eq!(node.service.gauges().segment_bytes, 2 * USUAL);
    assert_eq!(node.service.counters().segments_refused.get(), 2);
    clients.drain(..2);
    node.wait_for_connections(2);
    while node.service.gauges().segment_bytes > 0 {
        thread::yield_now();
    }
    clients.push(node.open(&data));
    assert_eq!(look(&mut clients), [false, false, true], "told no once, and not asked again");
}

/// A connection that says what the client never would, with its segment.
struct Hostile {
    raw: Raw,
    descriptor: Option<OwnedFd>,
    size: u64,
}

impl Hostile {
    fn new(node: &TestNode, data: &Data, size: u64) -> Self {
        let mut raw = Raw::open(node, data);
        let (reply, descriptor) = raw.ask_for_segment(size);
        let Reply::Segment { size } = reply else { panic!("{reply:?}") };
        Self { raw, descriptor, size }
    }

    fn place(&mut self, released: &[u32], ranges: &[BlobRange]) -> Reply {
        let (released, ranges) = (released.to_vec(), ranges.to_vec());
        self.raw.ask(&Request::Place { handle: 0, wait_ms: 0, released, ranges })
    }

    fn placed(&mut self, released: &[u32], range: BlobRange) -> Placed {
        match self.place(released, &[range]) {
            Reply::Placed { places } if places.len() == 1 => places[0],
            other => panic!("{other:?}"),
        }
    }
}

fn is_malformed(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(Refusal { code: ErrorCode::Malformed, .. }))
}

/// Promise 4: a hit is authorised. Whoever lets go of what it does not hold, of anything twice, or of what lies
/// outside, loses its segment and nothing else; its neighbours lose nothing.
#[test]
fn whoever_misbehaves_loses_its_segment_and_harms_nobody() {
    let data = Data::new(&[10_000; 5]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut neighbour, handle) = node.open(&data);
    for blob in 0..4 {
        put(&mut neighbour, handle, &data, blob);
    }
    let held = views(&mut neighbour, handle, &[whole(&data, 0), whole(&data, 1)]);
    let wrong: [fn(Placed) -> Vec<u32>; 5] = [
        |place| vec![place.offset, place.offset],
        |place| vec![place.offset + 4096],
        |place| vec![place.offset + 1],
        |_| vec![u32::MAX],
        |_| vec![1 << 30],
    ];
    for (at, wrong) in wrong.into_iter().enumerate() {
        let mut hostile = Hostile::new(&node, &data, 1 << 20);
        assert_eq!(hostile.size, 1 << 20);
        let place = hostile.placed(&[], whole(&data, 2));
        assert!(is_malformed(&hostile.place(&wrong(place), &[whole(&data, 2)])), "{at}");
        assert_eq!(node.service.counters().segments_lost.get(), at as u64 + 1);
        let over_socket = hostile.place(&[], &[whole(&data, 2)]);
        assert!(matches!(&over_socket, Reply::Get { payload, .. } if *payload == data.blobs[2]));
        assert!(is_malformed(&hostile.place(&[place.offset], &[])), "it has none any more");
        assert!(is_malformed(&hostile.raw.ask_for_segment(1 << 20).0), "and is given no other");
        // Its own view of what it was given stays as it is.
        let window = Window::open(hostile.descriptor.unwrap(), 1 << 20).unwrap();
        assert!(window.view(place.offset, place.length).unwrap()[..] == data.blobs[2][..]);
    }
    assert!(held[0][..] == data.blobs[0][..] && held[1][..] == data.blobs[1][..]);
    assert!(views(&mut neighbour, handle, &[whole(&data, 3)])[0][..] == data.blobs[3][..]);
    drop(held);
    node.wait_for_connections(1);
    while node.service.gauges().segment_bytes > USUAL {
        thread::yield_now();
    }
}

/// Nothing of another's lands in a segment, nor anything that is not read: it is as fresh as it was.
#[test]
fn nothing_but_what_was_asked_for_lies_in_a_segment() {
    let data = Data::new(&[10_000; 5]);
    let node = node(ByteSize::mib(512), ByteSize::mib(16));
    let (mut neighbour, handle) = node.open(&data);
    for blob in 0..3 {
        put(&mut neighbour, handle, &data, blob);
    }
    let mut hostile = Hostile::new(&node, &data, 1 << 20);
    let window = Window::open(hostile.descriptor.take().unwrap(), 1 << 20).unwrap();
    let _held = views(&mut neighbour, handle, &[whole(&data, 0), whole(&data, 1)]);
    let place = hostile.placed(&[], BlobRange { blob: 2, offset: 10, length: 50 });
    assert!(matches!(
        hostile.place(&[], &[whole(&data, 4)]),
        Reply::Get { answer: GetAnswer::Miss, .. }
    ));
    let all = window.view(0, 1 << 20).unwrap();
    let start = place.offset as usize;
    assert!(all[start..start + 50] == data.blobs[2][10..60]);
    assert!(all[..start].iter().chain(&all[start + 50..]).all(|byte| *byte == 0));
}

/// Whoever asks for too much is given what there is; for nothing, nothing; for two, one.
#[test]
fn sizes_and_numbers_of_segments_are_bounded() {
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
    assert!(is_malformed(&two.raw.ask_for_segment(1 << 20).0));
    assert!(node.service.gauges().segment_bytes <= 300 << 20);
    let mut tiny = Hostile::new(&node, &data, (1 << 20) + 4095);
    assert_eq!(tiny.size, 1 << 20, "whole pages");
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    let reply = tiny.place(&[], &[whole(&data, 1)]);
    assert!(matches!(reply, Reply::Get { answer: GetAnswer::Hit, .. }), "too little for it");
}

/// A client that dies with slots held, or hangs up and keeps its mapping, gives all back when it lets go.
#[test]
fn memory_comes_back_from_the_dead() {
    let data = Data::new(&[100_000; 3]);
    let node = node(ByteSize::mib(512), ByteSize(0));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    drop(client);
    for _ in 0..20 {
        let mut dying = Hostile::new(&node, &data, 8 << 20);
        dying.placed(&[], whole(&data, 0));
        // Asked for, and never read.
        let ranges = vec![whole(&data, 0); 50];
        dying.raw.send(&Request::Place { handle: 0, wait_ms: 0, released: Vec::new(), ranges });
    }
    node.wait_for_connections(0);
    while node.service.gauges().segment_bytes > 0 {
        thread::yield_now();
    }
    let keeping = Hostile::new(&node, &data, 8 << 20);
    let window = Window::open(keeping.descriptor.as_ref().unwrap().as_fd(), 8 << 20).unwrap();
    drop(keeping);
    node.wait_for_connections(0);
    assert_eq!(node.service.gauges().segment_bytes, 8 << 20, "it counts as long as it is there");
    drop(window);
    while node.service.gauges().segment_bytes > 0 {
        thread::yield_now();
    }
}

/// A node that lends nothing says so, and serves all the same.
#[test]
fn a_node_without_segments_serves_over_the_socket() {
    let data = Data::new(&[10_000; 2]);
    let node = node(ByteSize(0), ByteSize::mib(1));
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    assert_eq!(get(&mut client, handle, &data, 0, PATIENCE).unwrap(), data.blobs[0]);
    assert_eq!(Hostile::new(&node, &data, 1 << 20).size, 0);
    assert_eq!(node.service.gauges().segment_bytes, 0);
    assert_eq!(node.service.counters().segments_lent.get(), 0);
}

//! Streams through a node: complete or lost, within a budget, each tenant for itself.

use std::time::Duration;

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_client::NodeStreams;
use forebay_core::{
    ByteSize,
    node::stream_quotas::READERS_MAX,
    streams::{BlockNumber, Lifetime},
};
use forebay_streams::StreamError;
use forebay_wire::{ErrorCode, Reply, Request, StreamReply, StreamRequest};

use crate::{
    harness::{Data, Raw, TestNode, get, put},
    two_tenants::{OURS, THEIRS, TenantSetup, Transport, refusal},
};

/// A region of the stores of these tests.
const REGION: u64 = 4 << 20;

pub fn node(budget: ByteSize) -> TestNode {
    TestNode::start_with(|config| config.streams = budget, Vec::new())
}

pub fn streams(node: &TestNode) -> NodeStreams {
    NodeStreams::new(node.config.socket.as_path(), Credentials::default(), "test")
}

fn tenants(ours: ByteSize, theirs: ByteSize) -> TenantSetup {
    TenantSetup::with(Transport::Cleartext, |config| {
        for (tenant, budget) in config.tenants.iter_mut().zip([ours, theirs]) {
            tenant.streams = budget;
        }
    })
}

fn streams_of(setup: &TenantSetup, tenant: &str) -> NodeStreams {
    NodeStreams::new(setup.endpoint(), setup.by_token(tenant), "test")
}

/// A block whose content depends on its number.
pub fn block(number: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Writes blocks of these lengths and seals.
pub fn write(streams: &NodeStreams, name: &str, lifetime: Lifetime, lengths: &[usize]) {
    let mut writer = streams.create(name, lifetime).unwrap();
    for (number, length) in (0..).zip(lengths) {
        writer.append(&block(number, *length)).unwrap();
    }
    let info = writer.seal().unwrap();
    assert_eq!((info.name.as_str(), info.blocks), (name, lengths.len() as u64));
    assert_eq!(info.bytes, lengths.iter().sum::<usize>() as u64);
}

/// Reads a stream to its end, and checks every byte.
pub fn read(streams: &NodeStreams, name: &str, consume: bool, lengths: &[usize]) {
    let mut numbers = 0..;
    for read in streams.open(name, consume).unwrap().blocks() {
        let (read, number) = (read.unwrap(), numbers.next().unwrap());
        let expected = block(number, lengths[usize::try_from(number).unwrap()]);
        assert!(*read == *expected, "block {number} has other bytes");
        assert_eq!(read.as_ptr() as usize % 64, 0, "aligned for Arrow");
    }
    assert_eq!(numbers.next().unwrap(), lengths.len() as u64);
}

pub fn names(streams: &NodeStreams) -> Vec<String> {
    streams.list().unwrap().iter().map(|info| info.name.to_string()).collect()
}

/// Waits for what a closed connection causes.
pub fn eventually(mut is_done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("20 s have passed");
}

/// Promise 9: through a node also, a sealed stream is read back whole.
#[test]
fn a_stream_comes_back_byte_for_byte() {
    let node = node(ByteSize::mib(256));
    let streams = streams(&node);
    let (_, longest) = streams.facts().unwrap();
    let longest = usize::try_from(longest).unwrap();
    let lengths = [longest, 1, 0, longest, 100_000, longest - 1];
    write(&streams, "x", Lifetime::Process, &lengths);
    write(&streams, "empty", Lifetime::Process, &[]);
    read(&streams, "x", false, &lengths);
    read(&streams, "empty", false, &[]);
    assert_eq!(names(&streams), ["empty", "x"]);
    let (facts, _) = streams.facts().unwrap();
    assert_eq!((facts.streams, facts.budget), (2, ByteSize::mib(256)));
    // Each block of the longest length takes a region, and so does the empty stream.
    assert_eq!(facts.used, ByteSize(6 * REGION));

    let taken = streams.create("x", Lifetime::Kept).err().unwrap();
    assert!(taken.to_string().contains("\"x\" exists"), "{taken}");
    let mut writer = streams.create("long", Lifetime::Kept).unwrap();
    let too_long = writer.append(&vec![0; longest + 1]).unwrap_err();
    assert!(matches!(too_long, StreamError::TooLong { .. }), "{too_long}");
    drop(writer);

    read(&streams, "x", true, &lengths);
    let gone = streams.open("x", false).err().unwrap();
    assert!(gone.to_string().contains("no stream \"x\""), "{gone}");
    streams.destroy("empty").unwrap();
    assert!(streams.destroy("empty").unwrap_err().to_string().contains("no stream"));
    assert_eq!(streams.facts().unwrap().0.used, ByteSize(0), "all space is back");

    let total = lengths.iter().sum::<usize>() as u64;
    let counters = node.service.counters();
    assert_eq!(counters.stream_appended_bytes.get(), total);
    assert_eq!(counters.stream_read_bytes.get(), 2 * total);
    assert_eq!(counters.stream_abandoned.get(), 1, "`long`");
}

/// Promises 7 and 9: sealed and durable survives, the rest does not.
#[test]
fn a_restart_keeps_what_was_sealed_durably() {
    let node = node(ByteSize::mib(256));
    let lengths = [3_000_000, 5];
    let before = streams(&node);
    write(&before, "kept", Lifetime::Kept, &lengths);
    write(&before, "leased", Lifetime::Lease(Duration::from_hours(1)), &lengths);
    write(&before, "expired", Lifetime::Lease(Duration::from_millis(1)), &lengths);
    write(&before, "process", Lifetime::Process, &lengths);
    let mut unsealed = before.create("unsealed", Lifetime::Kept).unwrap();
    unsealed.append(&block(0, 1000)).unwrap();
    let node = node.restarted(|_| {});
    assert!(unsealed.seal().is_err(), "its connection has ended");
    let streams = streams(&node);
    assert_eq!(names(&streams), ["kept", "leased"]);
    read(&streams, "kept", false, &lengths);
    read(&streams, "leased", true, &lengths);
    let (facts, _) = streams.facts().unwrap();
    // What was sealed before the restart is charged by the regions that it has.
    assert_eq!((facts.streams, facts.used), (1, ByteSize(REGION)));
    streams.destroy("kept").unwrap();
    assert_eq!(streams.facts().unwrap().0.used, ByteSize(0));
    write(&streams, "kept", Lifetime::Kept, &lengths);
}

/// Promise 9: a connection that ends in the middle is an error, never a shorter stream.
#[test]
fn a_cut_connection_is_an_error_for_a_reader() {
    let node = node(ByteSize::mib(256));
    let (streams, lengths) = (streams(&node), [4_000_000; 12]);
    write(&streams, "x", Lifetime::Kept, &lengths);
    let mut reader = streams.open("x", false).unwrap();
    reader.next().unwrap().unwrap();
    drop(node);
    let rest: Vec<_> = reader.blocks().collect();
    assert!(rest.len() < lengths.len(), "{} blocks", rest.len());
    let error = rest.last().unwrap().as_ref().unwrap_err();
    assert!(matches!(error, StreamError::ConnectionLost(_)), "{error}");
}

/// An unsealed stream ends with its connection; then its name and its space are free.
#[test]
fn an_unsealed_stream_ends_with_its_connection() {
    let node = node(ByteSize::mib(64));
    let streams = streams(&node);
    let mut raw = Raw::hello(&node);
    let created = raw.call(&create("x"));
    assert!(matches!(created, Reply::Stream(StreamReply::Created { handle: 0, .. })));
    let payload = Bytes::from(block(0, 1000));
    let append = StreamRequest::Append { handle: 0, block: BlockNumber(0), payload };
    assert_eq!(raw.call(&Request::Stream(append)), Reply::Stream(StreamReply::Done));
    let unsealed = streams.open("x", false).err().unwrap();
    assert!(unsealed.to_string().contains("is being written"), "{unsealed}");
    drop(raw);
    eventually(|| streams.facts().unwrap().0.streams == 0);
    assert_eq!(node.service.counters().stream_abandoned.get(), 1);
    write(&streams, "x", Lifetime::Kept, &[7]);
}

fn create(name: &str) -> Request {
    Request::Stream(StreamRequest::Create { name: name.to_owned(), lifetime: Lifetime::Process })
}

/// Promise 4: two tenants that use the same names learn nothing about each other.
#[test]
fn two_tenants_never_see_each_others_streams() {
    let setup = tenants(ByteSize::mib(128), ByteSize::mib(128));
    let (ours, theirs) = (streams_of(&setup, OURS), streams_of(&setup, THEIRS));
    write(&ours, "x", Lifetime::Kept, &[10, 20]);
    write(&ours, "secret", Lifetime::Kept, &[30]);
    write(&theirs, "x", Lifetime::Kept, &[10, 20, 30]);
    assert_eq!(names(&ours), ["secret", "x"]);
    assert_eq!(names(&theirs), ["x"]);
    assert_eq!(theirs.facts().unwrap().0.streams, 1);
    let never_was = theirs.open("nothing", false).err().unwrap().to_string();
    for name in ["secret", "ours/secret", "/secret", "../ours/secret", "theirs/../ours/secret"] {
        let expected = never_was.replace("nothing", name);
        assert_eq!(theirs.open(name, false).err().unwrap().to_string(), expected);
        assert_eq!(theirs.open(name, true).err().unwrap().to_string(), expected);
        assert_eq!(theirs.destroy(name).unwrap_err().to_string(), expected);
    }
    // Handles belong to a connection.
    let mut raw = setup.raw(OURS);
    let open = StreamRequest::Open { name: "secret".to_owned(), consume: false };
    let opened = raw.call(&Request::Stream(open));
    assert!(matches!(opened, Reply::Stream(StreamReply::Opened { handle: 0, .. })), "{opened:?}");
    let mut attacker = setup.raw(THEIRS);
    for request in [
        StreamRequest::Next { handle: 0, block: BlockNumber(0) },
        StreamRequest::Close { handle: 0 },
        StreamRequest::Seal { handle: 0, blocks: 0, bytes: 0 },
    ] {
        let refused = refusal(attacker.call(&Request::Stream(request)));
        assert_eq!(refused.code, ErrorCode::Unknown);
    }
    theirs.destroy("x").unwrap();
    read(&ours, "x", false, &[10, 20]);
    read(&ours, "secret", false, &[30]);
    // The node's owner has names of its own, too, and here no budget.
    let owner = streams(&setup.node);
    assert!(matches!(owner.list().unwrap_err(), StreamError::RefusedFull(_)));
}

/// Promise 6: a full budget stops its tenant and no other.
#[test]
fn a_full_budget_stops_its_tenant_alone() {
    let setup = tenants(ByteSize::mib(64), ByteSize::mib(128));
    let (ours, theirs) = (streams_of(&setup, OURS), streams_of(&setup, THEIRS));
    let mut writer = ours.create("greedy", Lifetime::Kept).unwrap();
    let full = (0..100).find_map(|number| writer.append(&block(number, 4_000_000)).err()).unwrap();
    assert!(matches!(full, StreamError::RefusedFull(_)), "{full}");
    let text = full.to_string();
    for part in ["stream \"greedy\" needs 4 MiB", "64 MiB", "destroy streams", "`streams`"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(ours.create("more", Lifetime::Kept), Err(StreamError::RefusedFull(_))));
    assert!(setup.node.service.counters().stream_refused.get() >= 2);
    assert!(setup.node.service.gauges().streams.used <= ByteSize::mib(64));
    write(&theirs, "x", Lifetime::Kept, &[4_000_000; 20]);
    read(&theirs, "x", false, &[4_000_000; 20]);
    drop(writer);
    write(&ours, "greedy", Lifetime::Kept, &[4_000_000; 10]);
    read(&ours, "greedy", true, &[4_000_000; 10]);
}

/// Many short streams: each is charged a region, so that they cannot take the space of others.
#[test]
fn short_streams_are_charged_whole_regions() {
    let node = node(ByteSize::mib(64));
    let streams = streams(&node);
    let written = (0..100).take_while(|number| {
        let writer = streams.create(&number.to_string(), Lifetime::Process);
        writer.and_then(forebay_streams::Writer::seal).is_ok()
    });
    // The last one needs two regions while it is written.
    assert_eq!(written.count(), 15);
    assert_eq!(streams.facts().unwrap().0.used, ByteSize(15 * REGION));
}

#[test]
fn a_client_without_a_budget_is_refused_with_the_remedy() {
    let node = TestNode::start(ByteSize::mib(64));
    let streams = streams(&node);
    for refused in [
        streams.create("x", Lifetime::Kept).err().unwrap(),
        streams.open("x", false).err().unwrap(),
        streams.destroy("x").unwrap_err(),
        streams.list().unwrap_err(),
        streams.facts().unwrap_err(),
    ] {
        assert!(refused.to_string().contains("set `streams` in the node's"), "{refused}");
    }
    assert!(!node.config.directory.join("streams").exists(), "no store without a budget");
}

/// Promise 6: clients that do not read keep their own slots and nothing else.
#[test]
fn clients_that_do_not_read_delay_no_other_tenant() {
    let setup = tenants(ByteSize::mib(128), ByteSize::mib(128));
    let (ours, theirs) = (streams_of(&setup, OURS), streams_of(&setup, THEIRS));
    let lengths = [4_000_000; 8];
    write(&ours, "x", Lifetime::Kept, &lengths);
    write(&theirs, "x", Lifetime::Kept, &lengths);
    let stalled: Vec<Raw> = (0..READERS_MAX)
        .map(|_| {
            let mut raw = setup.raw(OURS);
            let open = StreamRequest::Open { name: "x".to_owned(), consume: false };
            let opened = raw.call(&Request::Stream(open));
            assert!(matches!(opened, Reply::Stream(StreamReply::Opened { .. })), "{opened:?}");
            for block in 0..8 {
                let next = StreamRequest::Next { handle: 0, block: BlockNumber(block) };
                raw.send(&Request::Stream(next));
            }
            raw
        })
        .collect();
    let refused = ours.open("x", false).err().unwrap();
    assert!(refused.to_string().contains("readers are open"), "{refused}");
    for _ in 0..3 {
        read(&theirs, "x", false, &lengths);
    }
    let gauges = setup.node.service.gauges();
    assert_eq!(gauges.streams.readers, u64::from(READERS_MAX));
    let memory = setup.node.config.connection_memory_size();
    assert!(gauges.connection_bytes <= memory.0, "{} of {memory}", gauges.connection_bytes);
    drop(stalled);
    eventually(|| setup.node.service.gauges().streams.readers == 0);
    read(&ours, "x", false, &lengths);
}

/// A destroy waits for readers, and then they get an error: never the end of the stream.
#[test]
fn a_destroyed_stream_is_an_error_for_its_readers() {
    let node = node(ByteSize::mib(128));
    let streams = streams(&node);
    write(&streams, "x", Lifetime::Kept, &[4_000_000; 8]);
    let mut reader = streams.open("x", false).unwrap();
    reader.next().unwrap().unwrap();
    streams.destroy("x").unwrap();
    let rest: Vec<_> = reader.blocks().collect();
    assert!(rest.last().unwrap().is_err() && rest.len() < 8, "{} blocks", rest.len());
    write(&streams, "x", Lifetime::Kept, &[5]);
    read(&streams, "x", false, &[5]);
}

/// Wrong sequences of requests are refused, and leave no stream that is shorter or has a hole.
#[test]
fn blocks_out_of_order_are_refused() {
    let node = node(ByteSize::mib(64));
    let mut raw = Raw::hello(&node);
    raw.call(&create("x"));
    let append = |block| {
        let payload = Bytes::from_static(b"block");
        Request::Stream(StreamRequest::Append { handle: 0, block: BlockNumber(block), payload })
    };
    let seal = |blocks, bytes| Request::Stream(StreamRequest::Seal { handle: 0, blocks, bytes });
    assert_eq!(raw.call(&append(0)), Reply::Stream(StreamReply::Done));
    for refused in [append(0), append(2), seal(0, 0), seal(1, 6), seal(2, 10)] {
        assert_eq!(refusal(raw.call(&refused)).code, ErrorCode::Malformed);
    }
    let sealed = raw.call(&seal(1, 5));
    assert!(matches!(sealed, Reply::Stream(StreamReply::Sealed(_))), "{sealed:?}");
    assert_eq!(refusal(raw.call(&append(1))).code, ErrorCode::Unknown, "it is sealed");
    let open = StreamRequest::Open { name: "x".to_owned(), consume: false };
    raw.call(&Request::Stream(open));
    let next =
        |block| Request::Stream(StreamRequest::Next { handle: 1, block: BlockNumber(block) });
    assert_eq!(refusal(raw.call(&next(1))).code, ErrorCode::Malformed);
    let payload = Bytes::from_static(b"block");
    assert_eq!(raw.call(&next(0)), Reply::Stream(StreamReply::Block { payload }));
    assert_eq!(raw.call(&next(1)), Reply::Stream(StreamReply::End));
    assert_eq!(refusal(raw.call(&next(2))).code, ErrorCode::Unknown);
    for name in ["", "a\nb", &"x".repeat(500)] {
        assert_eq!(refusal(raw.call(&create(name))).code, ErrorCode::Malformed);
    }
}

/// Streams and cached blobs do not compete: a full cache evicts blobs and no stream.
#[test]
fn a_node_with_streams_still_serves_its_cache() {
    let node = node(ByteSize::mib(64));
    let streams = streams(&node);
    write(&streams, "x", Lifetime::Kept, &[4_000_000; 10]);
    let data = Data::new(&[8_000_000; 12]);
    let (mut client, handle) = node.open(&data);
    for blob in 0..12 {
        put(&mut client, handle, &data, blob);
    }
    assert!(node.service.flash_counters()[0].regions_evicted > 0, "the cache is full");
    let last = get(&mut client, handle, &data, 11, Duration::ZERO).unwrap();
    assert!(last == data.blobs[11]);
    read(&streams, "x", false, &[4_000_000; 10]);
    let stats = client.stats().unwrap();
    let value = |name: &str| stats.iter().find(|(named, _)| named == name).unwrap().1;
    assert_eq!(value("stream_budget_bytes"), 64 << 20);
    assert_eq!((value("stream_count"), value("stream_used_bytes")), (1, 10 * REGION));
    assert_eq!(value("stream_read_bytes"), 40_000_000);
}

/// Blocks of [`FULL_BLOCK`] bytes that fit into a budget of 64 MiB.
const FIT: usize = 14;
/// Bytes of a block that takes a region.
const FULL_BLOCK: usize = 4_000_000;

/// Writes a stream that takes most of a budget of 64 MiB, and seals it. False if it does not fit.
fn fill(streams: &NodeStreams, name: &str, lifetime: Lifetime) -> bool {
    let Ok(mut writer) = streams.create(name, lifetime) else { return false };
    let bytes = block(0, FULL_BLOCK);
    (0..FIT).all(|_| writer.append(&bytes).is_ok()) && writer.seal().is_ok()
}

/// Promise 6: no order of requests takes more of the device than the budget.
#[test]
fn a_name_that_is_used_again_frees_no_space_of_the_budget() {
    let setup = tenants(ByteSize::mib(64), ByteSize::mib(64));
    let (ours, theirs) = (streams_of(&setup, OURS), streams_of(&setup, THEIRS));
    for round in 0..3 {
        let name = format!("x{round}");
        let unsealed = ours.create(&name, Lifetime::Process).unwrap();
        ours.destroy(&name).unwrap();
        assert_eq!(fill(&ours, &name, Lifetime::Process), round == 0, "round {round}");
        // The end of the first stream of this name.
        drop(unsealed);
        eventually(|| ours.facts().unwrap().0.used <= ByteSize(FIT as u64 * REGION));
        assert_eq!(ours.facts().unwrap().0.used, ByteSize(FIT as u64 * REGION));
    }
    assert!(fill(&theirs, "mine", Lifetime::Process));
}

/// Promise 6: a stream whose lease has ended takes space while it is read.
#[test]
fn readers_of_streams_whose_leases_have_ended_are_charged() {
    let setup = tenants(ByteSize::mib(64), ByteSize::mib(64));
    let (ours, theirs) = (streams_of(&setup, OURS), streams_of(&setup, THEIRS));
    let mut readers = Vec::new();
    for round in 0..READERS_MAX {
        let name = format!("x{round}");
        // Long enough to open the stream on a busy machine.
        let is_stored = fill(&ours, &name, Lifetime::Lease(Duration::from_secs(3)));
        assert_eq!(is_stored, round == 0, "round {round}");
        if is_stored {
            readers.push(ours.open(&name, false).unwrap());
            eventually(|| names(&ours).is_empty());
        }
        let used = ours.facts().unwrap().0.used;
        assert!(used >= ByteSize(FIT as u64 * REGION), "{used} are charged");
    }
    assert!(fill(&theirs, "mine", Lifetime::Process));
    drop(readers);
    eventually(|| ours.facts().unwrap().0.used == ByteSize(0));
}

#[test]
fn a_lease_that_ends_at_once_gives_its_budget_back() {
    let node = node(ByteSize::mib(64));
    let streams = streams(&node);
    for round in 0..40 {
        let lease = Lifetime::Lease(Duration::from_millis(1));
        let mut writer = streams.create(&format!("x{round}"), lease).unwrap();
        writer.append(&block(0, 1_000)).unwrap();
        // It may have ended before the answer.
        drop(writer.seal());
    }
    eventually(|| streams.facts().unwrap().0.used == ByteSize(0));
}

/// Promise 6: what a connection has open is bounded.
#[test]
fn streams_that_were_destroyed_leave_nothing_on_their_connection() {
    let node = node(ByteSize::mib(64));
    let mut raw = Raw::hello(&node);
    for _ in 0..1_000 {
        assert!(matches!(raw.call(&create("x")), Reply::Stream(StreamReply::Created { .. })));
        let destroy = Request::Stream(StreamRequest::Destroy { name: "x".to_owned() });
        assert_eq!(raw.call(&destroy), Reply::Stream(StreamReply::Done));
    }
    let close = |handle| Request::Stream(StreamRequest::Close { handle });
    assert!(matches!(raw.call(&close(0)), Reply::Error(_)), "the first writer is gone");
    assert_eq!(raw.call(&close(999)), Reply::Stream(StreamReply::Done));
}

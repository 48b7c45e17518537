//! Invalid input on the socket: a refusal with a code and a text, and no effect on the node.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    time::Duration,
};

use forebay_client::{Client, ClientError, ReadInto};
use forebay_core::{BlobOrdinal, ByteSize};
use forebay_digest::proof_of;
use forebay_node::{Config, Server};
use forebay_wire::{
    BODY_SIZE_MAX, ErrorCode, Header, OpenAnswer, Refusal, Reply, Request, SentToken,
};

use crate::harness::{Data, Raw, TIMEOUT, TestNode, get, put, read_reply};

/// Sends bytes. Returns one reply, and whether the connection was closed after it.
fn send(node: &TestNode, bytes: &[u8]) -> (Option<Reply>, bool) {
    let mut socket = UnixStream::connect(&node.config.socket).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.write_all(bytes).unwrap();
    let reply = read_reply(&mut socket).map(|(_, reply)| reply);
    // A socket that is closed with unread data is reset.
    let closed = socket
        .read_to_end(&mut Vec::new())
        .map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
    (reply, closed)
}

fn code(reply: Option<Reply>) -> ErrorCode {
    match reply {
        Some(Reply::Error(Refusal { code, .. })) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn malformed_input_is_refused_and_the_node_continues() {
    let node = TestNode::start(ByteSize::mib(8));
    let hello = |version_min, version_max| {
        Request::Hello {
            version_min,
            version_max,
            job: "x".to_owned(),
            token: SentToken::default(),
        }
        .encode(1)
        .to_bytes()
    };
    let (reply, closed) = send(&node, &hello(7, 9));
    assert!(
        matches!(&reply, Some(Reply::Error(refusal)) if refusal.text.contains("versions 7 to 9"))
    );
    assert!(code(reply) == ErrorCode::Version && closed);
    let (reply, closed) = send(&node, b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
    assert!(code(reply) == ErrorCode::Malformed && closed);
    let mut over = Header { kind: 1, id: 1, body_size: BODY_SIZE_MAX }.encode();
    over[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let (reply, closed) = send(&node, &over);
    assert!(code(reply) == ErrorCode::Malformed && closed, "a frame over the limit");
    let (reply, closed) = send(&node, &Request::Stats.encode(1).to_bytes());
    assert!(code(reply) == ErrorCode::Malformed && closed, "no hello");
    let (reply, closed) = send(&node, &[hello(1, 1), hello(1, 1)].concat());
    assert!(matches!(reply, Some(Reply::Hello { .. })) && closed, "hello twice");

    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        let mut bytes = hello(1, 1);
        bytes.extend((0..random.usize(1..200)).map(|_| random.u8(..)));
        let mut socket = UnixStream::connect(&node.config.socket).unwrap();
        let _ = socket.write_all(&bytes);
    }
    let data = Data::new(&[1000; 10]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    assert_eq!(get(&mut client, handle, &data, 1, TIMEOUT).unwrap(), data.blobs[1]);
}

#[test]
fn wrong_bytes_are_never_stored() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let (mut client, handle) = node.open(&data);
    client.claim(handle, &[BlobOrdinal::new(1)]).unwrap();
    let refused = client.put(handle, BlobOrdinal::new(1), &data.blobs[2]).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::WrongBytes)
    );
    let short = client.put(handle, BlobOrdinal::new(1), &data.blobs[1].slice(..999));
    assert!(short.is_err(), "truncated");
    assert_eq!(node.service.counters().put_hash_mismatches.get(), 1);
    assert_eq!(node.service.gauges().resident_bytes, 0);
    drop(client);
    node.wait_until_connections(0);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    let refused = client.put(handle, BlobOrdinal::new(3), &data.blobs[3]).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::NotClaimed)
    );
}

#[test]
fn ranges_and_ordinals_outside_the_dataset_are_refused() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let (mut client, handle) = node.open(&data);
    let mut refused = |blob, offset, length| {
        let wanted = ReadInto { blob, offset, into: &mut vec![0; length] };
        let refusal = client.get(handle, TIMEOUT, &mut [wanted]).unwrap_err();
        assert!(matches!(&refusal, ClientError::Refused(refusal)
                if refusal.code == ErrorCode::Malformed));
    };
    refused(BlobOrdinal::new(10), 0, 1);
    refused(BlobOrdinal::new(0), 0, 1001);
    refused(BlobOrdinal::new(0), u64::MAX, 2);
    assert!(
        client.claim(handle, &[BlobOrdinal::new(10)]).is_err()
            && client.presence(handle, 11).is_err()
    );
    assert!(client.claim(forebay_client::Handle(3), &[BlobOrdinal::new(0)]).is_err(), "not opened");
    assert!(client.stats().is_ok(), "a refusal leaves the connection usable");
}

#[test]
fn a_socket_is_replaced_only_if_its_process_is_dead() {
    let node = TestNode::start(ByteSize::mib(8));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bind = |config: &Config| runtime.block_on(Server::bind(config, Vec::new())).map(drop);
    let error = format!("{:#}", bind(&node.config).unwrap_err());
    assert!(error.contains("another forebay listens"), "{error}");
    let elsewhere =
        Config { socket: node.directory.path().join("run/other.sock"), ..node.config.clone() };
    let error = format!("{:#}", bind(&elsewhere).unwrap_err());
    assert!(error.contains("in use by another process"), "{error}");

    let stale = node.directory.path().join("stale/node.sock");
    std::fs::create_dir(stale.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let config = Config {
        socket: stale.clone(),
        directory: node.directory.path().join("other"),
        ..node.config.clone()
    };
    assert!(bind(&config).is_ok(), "the socket of a dead process is replaced");
    std::fs::set_permissions(stale.parent().unwrap(), PermissionsExt::from_mode(0o777)).unwrap();
    let error = format!("{:#}", bind(&config).unwrap_err());
    assert!(error.contains("others may write"), "{error}");
    let refused = Client::connect(&stale, "x", Duration::from_secs(1)).unwrap_err();
    assert!(refused.to_string().contains("no process listens at"), "{refused}");
}

/// Promise 4: a client that receives bytes has proved that it holds the digest. A challenge can be
/// answered once, and a wrong proof is refused like an unknown dataset.
#[test]
fn a_wrong_proof_opens_nothing() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let _holder = node.open(&data);
    let dataset = data.digest.summary().dataset;
    let namespace = data.digest.namespace().unwrap();
    let mut raw = Raw::hello(&node);
    let mut call = |request: Request| raw.call(&request);
    let Reply::OpenAnswer(OpenAnswer::Prove { nonce }) = call(Request::Open { namespace, dataset })
    else {
        panic!("the node has the dataset, and must ask for a proof");
    };
    let right = proof_of(&data.digest, &nonce).unwrap();
    let mut wrong = right;
    wrong[31] ^= 1;
    assert_eq!(code(Some(call(Request::Prove { dataset, proof: wrong }))), ErrorCode::Unknown);
    let late = call(Request::Prove { dataset, proof: right });
    assert_eq!(code(Some(late)), ErrorCode::Unknown, "a challenge can be answered once");
    let blind = Request::Get { handle: 0, wait_ms: 0, ranges: Vec::new() };
    assert_eq!(code(Some(call(blind))), ErrorCode::Unknown, "nothing is open");
    assert_eq!(node.service.counters().proofs_refused.get(), 1);
}

/// The last client that has the dataset open may disconnect between a challenge and its proof.
#[test]
fn a_challenge_outlives_the_other_clients_of_a_dataset() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let holder = node.open(&data);
    let dataset = data.digest.summary().dataset;
    let namespace = data.digest.namespace().unwrap();
    let mut raw = Raw::hello(&node);
    let mut call = |request: Request| raw.call(&request);
    let Reply::OpenAnswer(OpenAnswer::Prove { nonce }) = call(Request::Open { namespace, dataset })
    else {
        panic!("the node has the dataset, and must ask for a proof");
    };
    drop(holder);
    node.wait_until_connections(1);
    let proof = proof_of(&data.digest, &nonce).unwrap();
    assert!(matches!(call(Request::Prove { dataset, proof }), Reply::Open { .. }));
}

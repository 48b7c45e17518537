//! Streams through connections that break, and nodes that are older than streams.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use forebay_auth::Credentials;
use forebay_client::NodeStreams;
use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::StreamError;
use forebay_wire::{HEADER_SIZE, Header, Reply, Request, VERSION_STREAMS};

use crate::{
    harness::TestNode,
    streams::{block, names, node, read, streams, write},
};

/// Calls to a node that is older.
const CALLS: usize = 5;

fn streams_at(path: &Path) -> NodeStreams {
    NodeStreams::new(path, Credentials::default(), "test")
}

/// A socket that passes on what a node sends, up to a number of bytes per connection.
struct CutProxy {
    path: PathBuf,
    limit: Arc<AtomicU64>,
    /// Bytes that the node has sent on the last connection.
    passed: Arc<AtomicU64>,
}

impl CutProxy {
    fn start(node: &TestNode) -> Self {
        let path = node.config.directory.join("proxy.sock");
        let (limit, passed) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
        let listener = UnixListener::bind(&path).unwrap();
        let proxy = Self { path, limit: Arc::clone(&limit), passed: Arc::clone(&passed) };
        let node = node.config.socket.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&node) else { return };
                let (limit, passed) = (limit.load(Relaxed), Arc::clone(&passed));
                passed.store(0, Relaxed);
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut &from, &mut &to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                thread::spawn(move || {
                    let mut piece = vec![0; 64 << 10];
                    let mut left = limit;
                    while left > 0 {
                        let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                        let Ok(read @ 1..) = (&server).read(&mut piece[..length]) else { break };
                        if (&client).write_all(&piece[..read]).is_err() {
                            break;
                        }
                        left -= read as u64;
                        passed.fetch_add(read as u64, Relaxed);
                    }
                    for socket in [client, server] {
                        let _ = socket.shutdown(Shutdown::Both);
                    }
                });
            }
        });
        proxy
    }

    fn cut_after(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }
}

/// Promise 9: a connection cut at any byte of a reply, in its header, its fields or its payload, is
/// an error of the stream: never its end, never other bytes.
#[test]
fn a_connection_cut_in_the_middle_of_a_frame_is_an_error() {
    let node = node(ByteSize::mib(128));
    let direct = streams(&node);
    let lengths = [100_000, 0, 300_000];
    write(&direct, "x", Lifetime::Kept, &lengths);
    let proxy = CutProxy::start(&node);
    let through = streams_at(&proxy.path);
    read(&through, "x", false, &lengths);
    let all = proxy.passed.load(Relaxed);
    assert!(all > 400_000);
    let mut random = fastrand::Rng::with_seed(7);
    // The short replies around the payloads, and places in the payloads.
    let places = (0..200).chain(all - 130..all).step_by(3);
    let places = places.chain((0..40).map(|_| random.u64(200..all))).collect::<Vec<_>>();
    for cut in places {
        proxy.cut_after(cut);
        let outcome = through.open("x", false).and_then(|reader| {
            let mut blocks = 0;
            for read in reader.blocks() {
                let read = read?;
                let length = lengths[usize::try_from(blocks).unwrap()];
                assert!(*read == *block(blocks, length), "cut after {cut} bytes");
                blocks += 1;
            }
            Ok(blocks)
        });
        match outcome {
            Err(StreamError::ConnectionLost(_) | StreamError::Refused(_)) => {}
            other => panic!("cut after {cut} of {all} bytes: {other:?}"),
        }
    }
    // A writer whose connection is cut has no stream.
    for cut in [20, 40, 60, 80] {
        proxy.cut_after(cut);
        let written = through.create("y", Lifetime::Kept).and_then(|mut writer| {
            for number in 0..8 {
                writer.append(&block(number, 100_000))?;
            }
            writer.seal()
        });
        assert!(written.is_err(), "cut after {cut} bytes");
    }
    crate::streams::eventually(|| {
        names(&direct) == ["x"] && direct.create("y", Lifetime::Kept).is_ok()
    });
    read(&direct, "x", false, &lengths);
}

/// A node whose version has no streams closes the connection at a request that it does not know, so
/// the client says what is wrong, and sends none.
#[test]
fn an_older_node_is_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let older = thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok).take(CALLS) {
            let mut header = [0; HEADER_SIZE];
            client.read_exact(&mut header).unwrap();
            let header = Header::decode(&header).unwrap();
            let mut body = vec![0; header.body_size];
            client.read_exact(&mut body).unwrap();
            let hello = Request::decode(&header, &body.into()).unwrap();
            assert!(matches!(hello, Request::Hello { version_min: ..VERSION_STREAMS, .. }));
            let reply = Reply::Hello { version: VERSION_STREAMS - 1, lease_ms: 1000 };
            client.write_all(&reply.encode(header.id).to_bytes()).unwrap();
            let mut more = Vec::new();
            client.read_to_end(&mut more).unwrap();
            assert!(more.is_empty(), "no request");
        }
    });
    let streams = streams_at(&path);
    for refused in [
        streams.create("x", Lifetime::Kept).err().unwrap(),
        streams.open("x", false).err().unwrap(),
        streams.destroy("x").unwrap_err(),
        streams.list().unwrap_err(),
        streams.facts().unwrap_err(),
    ] {
        let text = refused.to_string();
        assert!(text.contains("older than this client: install the same forebay"), "{text}");
    }
    older.join().unwrap();
}

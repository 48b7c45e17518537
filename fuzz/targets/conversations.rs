//! Whole conversations with a node, over a real socket and a real directory: whatever is said in whatever
//! order, the node neither panics nor hangs, and keeps within its capacity.
#![no_main]

use std::{cell::OnceCell, sync::Arc, time::Duration};

use forebay_client::{Next, Opening, hello};
use forebay_core::{ByteSize, Namespace};
use forebay_fuzz::{content, digest, directory, seed};
use forebay_identity::Credentials;
use forebay_server::{Accepted, Config, NodeService, Server, session};
use forebay_wire::{BlobLength, BlobProgress, BlobRange, PICKED, Reply, Request, ShowAnswer};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    runtime::Runtime,
    time::timeout,
};

const CAPACITY: ByteSize = ByteSize::mib(64);

struct Scene {
    runtime: Runtime,
    node: Arc<NodeService>,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = directory();
        let config = Config {
            socket: directory.path().join("node.sock"),
            directory: directory.path().join("cache"),
            capacity: Some(CAPACITY),
            memory: ByteSize::mib(1),
            segments: ByteSize::mib(1),
            lease: Duration::from_millis(100),
            ..Config::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let server = runtime.block_on(Server::bind(&config, Vec::new())).expect("a node");
        let node = Arc::clone(server.node());
        runtime.spawn(server.run(std::future::pending()));
        Self { runtime, node, _directory: directory }
    }
}

thread_local!(static SCENE: OnceCell<Scene> = const { OnceCell::new() });

/// Everything that a well-behaved job and its agent say.
fn well_behaved() -> Vec<Request> {
    let digest = digest();
    let (mut opening, show) = Opening::begin(&digest).expect("a digest");
    let mut said = vec![hello("job", &Credentials::default()), show];
    if let Ok(Next::Ask(upload)) = opening.reply(Reply::Show(ShowAnswer::Upload)) {
        said.push(upload);
    }
    let handle = 0;
    let range = |blob| BlobRange { blob, offset: 0, length: 10 };
    said.extend([
        Request::Presence { handle, first: 0, count: 4, since: 0 },
        Request::Claim { handle, blobs: vec![0, 1, 2, 3] },
        Request::Renew { handle, blobs: vec![BlobProgress { blob: 1, bytes: 5 }] },
        Request::Put { handle, blob: 0, offset: 0, payload: content(0) },
        Request::Put { handle, blob: 1, offset: 0, payload: content(1).slice(..5) },
        Request::Put { handle, blob: 1, offset: 5, payload: content(1).slice(5..) },
        Request::Get { handle, wait_ms: 1, ranges: vec![range(0), range(1), range(2)] },
        Request::Release { handle, blobs: vec![2, 3] },
        Request::Want { handle, blobs: vec![3] },
        Request::Segment { size: 1 << 16 },
        Request::Place { handle, wait_ms: 1, released: Vec::new(), ranges: vec![range(0), range(1)] },
        Request::Place { handle, wait_ms: 0, released: vec![0], ranges: vec![range(0)] },
        Request::Explain { handle },
        Request::Evict { handle },
        Request::Leave { handle },
        Request::Ring,
        Request::Stats,
    ]);
    let namespace = Namespace::public();
    let picked = |blob| BlobLength {
        address: namespace.address(&content(blob)),
        length: content(blob).len() as u64,
    };
    let blobs = vec![picked(2), picked(0), picked(3)];
    said.extend([
        Request::Pick { namespace: namespace.id(), blobs },
        Request::Claim { handle: PICKED, blobs: vec![0, 2] },
        Request::Put { handle: PICKED, blob: 0, offset: 0, payload: content(2) },
        Request::Get { handle: PICKED, wait_ms: 1, ranges: vec![range(0), range(1), range(2)] },
        Request::Release { handle: PICKED, blobs: vec![2] },
        Request::Evict { handle: PICKED },
        Request::Pick { namespace: namespace.id(), blobs: Vec::new() },
    ]);
    said
}

fuzz_target!(
    init: {
        let frames: Vec<Vec<u8>> =
            well_behaved().iter().zip(1..).map(|(said, id)| said.encode(id).to_bytes()).collect();
        seed("whole", &frames.concat());
        for (at, frame) in frames.iter().enumerate() {
            seed(&format!("{at:02}"), &[&frames[..3].concat()[..], &frame[..]].concat());
        }
    },
    |data: &[u8]| {
        SCENE.with(|scene| {
            let scene = scene.get_or_init(Scene::new);
            let talk = async {
                let (client, server) = UnixStream::pair().expect("a pair");
                let accepted = Accepted::unix(server).expect("a peer");
                let serving = tokio::spawn(session::serve(Arc::clone(&scene.node), accepted, ()));
                let (mut reader, mut writer) = client.into_split();
                let reading = tokio::spawn(async move {
                    let mut replies = Vec::new();
                    let _ = reader.read_to_end(&mut replies).await;
                });
                let _ = writer.write_all(data).await;
                let _ = writer.shutdown().await;
                reading.await.expect("reads");
                let _ = serving.await.expect("serving does not panic");
            };
            let limit = Duration::from_secs(20);
            let ended = scene.runtime.block_on(async { timeout(limit, talk).await });
            assert!(ended.is_ok(), "the node hangs");
            let gauges = scene.node.gauges();
            assert_eq!(gauges.connections_open, 0);
            assert_eq!(gauges.claims_held, 0, "claims go with their holder");
            assert!(gauges.resident_bytes <= CAPACITY.0);
        });
    }
);

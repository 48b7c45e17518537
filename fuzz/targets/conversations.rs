//! Sequences of requests to a node, over a real socket and a real directory: for any requests in
//! any order the node neither panics nor hangs, and stays within its capacity.
#![no_main]

use std::{cell::OnceCell, sync::Arc, time::Duration};

use forebay_auth::Credentials;
use forebay_client::{Next, Opening, hello};
use forebay_core::{BlobOrdinal, ByteSize, Namespace};
use forebay_fuzz::{content, digest, directory, seed};
use forebay_node::{Config, NodeService, Server};
use forebay_transport::{Accepted, session};
use forebay_wire::{
    BlobLength, BlobProgress, BlobRange, OpenAnswer, Reply, Request, SELECTED_HANDLE,
};
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
            memory_cache: Some(ByteSize::mib(1)),
            shared_memory: Some(ByteSize::mib(1)),
            claim_lease: Duration::from_millis(100),
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

/// Every request of a correct job and its agent.
fn valid_requests() -> Vec<Request> {
    let digest = digest();
    let (mut opening, open) = Opening::begin(&digest).expect("a digest");
    let mut requests = vec![hello("job", &Credentials::default()), open];
    if let Ok(Next::Ask(upload)) = opening.reply(Reply::OpenAnswer(OpenAnswer::Upload)) {
        requests.push(upload);
    }
    let handle = 0;
    let blob = BlobOrdinal::new;
    let blobs = |ordinals: &[u64]| ordinals.iter().copied().map(blob).collect::<Vec<_>>();
    let range = |at| BlobRange { blob: blob(at), offset: 0, length: 10 };
    requests.extend([
        Request::Presence { handle, first: 0, count: 4, since: 0 },
        Request::Claim { handle, blobs: blobs(&[0, 1, 2, 3]) },
        Request::Renew { handle, blobs: vec![BlobProgress { blob: blob(1), bytes: 5 }] },
        Request::Put { handle, blob: blob(0), offset: 0, payload: content(0) },
        Request::Put { handle, blob: blob(1), offset: 0, payload: content(1).slice(..5) },
        Request::Put { handle, blob: blob(1), offset: 5, payload: content(1).slice(5..) },
        Request::Get { handle, wait_ms: 1, ranges: vec![range(0), range(1), range(2)] },
        Request::Release { handle, blobs: blobs(&[2, 3]) },
        Request::PrefetchHint { handle, blobs: blobs(&[3]) },
        Request::ShmMap { size: 1 << 16 },
        Request::GetShm {
            handle,
            wait_ms: 1,
            released: Vec::new(),
            ranges: vec![range(0), range(1)],
        },
        Request::GetShm { handle, wait_ms: 0, released: vec![0], ranges: vec![range(0)] },
        Request::Explain { handle },
        Request::Evict { handle },
        Request::Leave { handle },
        Request::Ring,
        Request::Stats,
    ]);
    let namespace = Namespace::public();
    let selected = |at| BlobLength {
        address: namespace.address(&content(at)),
        length: content(at).len() as u64,
    };
    let selection = vec![selected(2), selected(0), selected(3)];
    requests.extend([
        Request::SelectByAddress { namespace: namespace.id(), blobs: selection },
        Request::Claim { handle: SELECTED_HANDLE, blobs: blobs(&[0, 2]) },
        Request::Put { handle: SELECTED_HANDLE, blob: blob(0), offset: 0, payload: content(2) },
        Request::Get {
            handle: SELECTED_HANDLE,
            wait_ms: 1,
            ranges: vec![range(0), range(1), range(2)],
        },
        Request::Release { handle: SELECTED_HANDLE, blobs: blobs(&[2]) },
        Request::Evict { handle: SELECTED_HANDLE },
        Request::SelectByAddress { namespace: namespace.id(), blobs: Vec::new() },
    ]);
    requests
}

fuzz_target!(
    init: {
        let frame = |(request, id): (&Request, u64)| request.encode(id).to_bytes();
        let frames: Vec<Vec<u8>> = valid_requests().iter().zip(1..).map(frame).collect();
        seed("whole", &frames.concat());
        for (at, frame) in frames.iter().enumerate() {
            seed(&format!("{at:02}"), &[&frames[..3].concat()[..], &frame[..]].concat());
        }
    },
    |data: &[u8]| {
        SCENE.with(|scene| {
            let scene = scene.get_or_init(Scene::new);
            let exchange = async {
                let (client, server) = UnixStream::pair().expect("a pair");
                let accepted = Accepted::unix(server).expect("a peer");
                let slot = scene.node.owner_slot().expect("a slot");
                let serving = tokio::spawn(session::serve(Arc::clone(&scene.node), accepted, slot));
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
            let ended = scene.runtime.block_on(async { timeout(limit, exchange).await });
            assert!(ended.is_ok(), "the node hangs");
            let gauges = scene.node.gauges();
            assert_eq!(gauges.connections_open, 0);
            assert_eq!(gauges.claims_held, 0, "claims end with their connection");
            assert!(gauges.resident_bytes <= CAPACITY.0);
        });
    }
);

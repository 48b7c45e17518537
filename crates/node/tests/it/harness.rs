//! Harness: a node on its own threads, a raw connection, and a dataset with computed content.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use forebay_client::{Client, Handle, Next, Opening, ReadInto};
use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{BlobOrdinal, ByteSize, Namespace, dataset::chunking::Chunking};
use forebay_digest::{Blob, Digest, DigestWriter, Header, ItemSpan, Part, Summary};
use forebay_node::{Config, NodeService, Server};
use forebay_wire::{GetAnswer, HEADER_SIZE, Reply, Request, SentToken};
use tokio::sync::oneshot;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

/// Longest wait of a test for a node.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A running node. It is stopped when dropped.
pub struct TestNode {
    pub directory: tempfile::TempDir,
    pub config: Config,
    pub service: Arc<NodeService>,
    pub metrics: Option<std::net::SocketAddr>,
    pub listen: Option<std::net::SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl TestNode {
    pub fn start(capacity: ByteSize) -> Self {
        Self::start_with(|config| config.capacity = Some(capacity), Vec::new())
    }

    pub fn start_with(change: impl FnOnce(&mut Config), namespaces: Vec<Namespace>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config {
            socket: directory.path().join("run/node.sock"),
            directory: directory.path().join("cache"),
            capacity: Some(ByteSize::mib(64)),
            claim_lease: Duration::from_secs(2),
            ..Config::default()
        };
        change(&mut config);
        Self::run(directory, config, namespaces)
    }

    fn run(directory: tempfile::TempDir, config: Config, namespaces: Vec<Namespace>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, readied) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let config = config.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    // Few, so that a blocked one is noticed.
                    .max_blocking_threads(4)
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let server = Server::bind(&config, namespaces).await.unwrap();
                    let addresses = (server.metrics_address(), server.listen_address());
                    ready.send((Arc::clone(server.node()), addresses)).unwrap();
                    server.run(async { stopped.await.unwrap_or(()) }).await.unwrap();
                });
            }
        });
        let (service, (metrics, listen)) = readied.recv().expect("the node starts");
        Self { directory, config, service, metrics, listen, stop: Some(stop), thread: Some(thread) }
    }

    /// Stops the node and starts it again on the same directory.
    pub fn restarted(mut self, change: impl FnOnce(&mut Config)) -> Self {
        self.finish();
        change(&mut self.config);
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        let config = self.config.clone();
        // The service holds the directory as well.
        drop(self);
        Self::run(directory, config, Vec::new())
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.config.socket, "test", TIMEOUT).unwrap()
    }

    pub fn open(&self, data: &Data) -> (Client, Handle) {
        let mut client = self.client();
        let handle = client.open(&data.digest).unwrap();
        (client, handle)
    }

    /// Waits until at most `count` connections are open.
    pub fn wait_until_connections(&self, count: u64) {
        while self.service.gauges().connections_open > count {
            thread::yield_now();
        }
    }

    /// The path of its device.
    pub fn device(&self) -> PathBuf {
        self.config.directory.join("cache.flash")
    }

    fn finish(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the node stops in order");
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A connection that sends single frames, also such as the client never sends.
pub struct Raw {
    socket: Box<dyn Socket>,
    last_id: u64,
}

/// A socket of any kind. File descriptors can be passed over a Unix socket.
pub trait Socket: Read + Write + Send {
    fn unix(&self) -> Option<&UnixStream> {
        None
    }
}
impl Socket for UnixStream {
    fn unix(&self) -> Option<&UnixStream> {
        Some(self)
    }
}
impl Socket for TcpStream {}
impl<T: Read + Write + Send> Socket for StreamOwned<ClientConnection, T> {}

impl Raw {
    /// Connects without a hello.
    pub fn without_hello(node: &TestNode) -> Self {
        let socket = UnixStream::connect(&node.config.socket).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self::over(socket)
    }

    /// A connection over an open socket.
    pub fn over(socket: impl Socket + 'static) -> Self {
        Self { socket: Box::new(socket), last_id: 0 }
    }

    /// Connects and sends a hello.
    pub fn hello(node: &TestNode) -> Self {
        let mut raw = Self::without_hello(node);
        raw.call(&Request::Hello {
            version_min: 1,
            version_max: 1,
            job: "x".to_owned(),
            token: SentToken::default(),
        });
        raw
    }

    /// Connects and opens a dataset, as handle 0.
    pub fn open(node: &TestNode, data: &Data) -> Self {
        let mut raw = Self::hello(node);
        raw.open_first(data);
        raw
    }

    /// Opens the first dataset, as handle 0.
    pub fn open_first(&mut self, data: &Data) {
        let (mut opening, mut request) = Opening::begin(&data.digest).unwrap();
        loop {
            match opening.reply(self.call(&request)).unwrap() {
                Next::Ask(next) => request = next,
                Next::Open(handle) => return assert_eq!(handle, Handle(0)),
            }
        }
    }

    /// Sends bytes. Ignores errors: the node may have closed the connection.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes).and_then(|()| self.socket.flush());
    }

    /// Sends a request and returns its id.
    pub fn send(&mut self, request: &Request) -> u64 {
        self.last_id += 1;
        self.socket.write_all(&request.encode(self.last_id).to_bytes()).unwrap();
        self.socket.flush().unwrap();
        self.last_id
    }

    /// Requests a shm region. Returns the reply and the file descriptor.
    pub fn request_shm(&mut self, size: u64) -> (Reply, Option<OwnedFd>) {
        self.send(&Request::ShmMap { size });
        let mut header = [0; HEADER_SIZE];
        let (read, descriptor) =
            forebay_shm::receive_with_fd(self.socket.unix().expect("a Unix socket"), &mut header)
                .unwrap();
        self.socket.read_exact(&mut header[read..]).unwrap();
        (read_body(&mut self.socket, &header).1, descriptor)
    }

    /// The next reply with its id, or `None` at the end of the connection.
    pub fn reply(&mut self) -> Option<(u64, Reply)> {
        read_reply(&mut self.socket)
    }

    /// Sends a request and returns its reply. Skips other replies.
    pub fn call(&mut self, request: &Request) -> Reply {
        let sent = self.send(request);
        loop {
            let (id, reply) = self.reply().expect("a reply");
            if id == sent {
                return reply;
            }
        }
    }
}

pub fn read_reply(socket: &mut impl Read) -> Option<(u64, Reply)> {
    let mut header = [0; HEADER_SIZE];
    socket.read_exact(&mut header).ok()?;
    Some(read_body(socket, &header))
}

fn read_body(socket: &mut impl Read, header: &[u8; HEADER_SIZE]) -> (u64, Reply) {
    let header = forebay_wire::Header::decode(header).unwrap();
    let mut body = vec![0; header.body_size];
    socket.read_exact(&mut body).unwrap();
    (header.id, Reply::decode(&header, &body.into()).unwrap())
}

/// A dataset and its content.
pub struct Data {
    pub digest: Digest,
    pub blobs: Vec<Bytes>,
}

impl Data {
    pub fn new(lengths: &[usize]) -> Self {
        Self::of(&Namespace::public(), lengths)
    }

    pub fn of(namespace: &Namespace, lengths: &[usize]) -> Self {
        Self::from(namespace, 0, lengths)
    }

    /// A dataset whose blobs have the numbers from `first`. Blobs with other numbers have other
    /// content.
    pub fn from(namespace: &Namespace, first: usize, lengths: &[usize]) -> Self {
        let content = |blob: usize, length: usize| -> Bytes {
            // Every blob has its own content.
            let number = blob.to_le_bytes().into_iter();
            let rest =
                (8..length).map(|at| u8::try_from((at * 7 + blob * 13 + at / 255) % 256).unwrap());
            number.chain(rest).take(length).collect()
        };
        let blobs: Vec<Bytes> =
            (first..).zip(lengths).map(|(blob, length)| content(blob, *length)).collect();
        let rows: Vec<Blob> = blobs
            .iter()
            .enumerate()
            .map(|(index, content)| row(namespace, index, content))
            .collect();
        let bytes = rows.iter().map(Blob::length).sum();
        let chunking = Chunking::for_dataset(ByteSize(bytes), rows.len() as u64);
        let mut id = DatasetIdHasher::new();
        for row in &rows {
            id.push(&row.address, row.length());
        }
        let summary = Summary {
            dataset: id.finish(chunking),
            namespace: if namespace.is_public() {
                "public".into()
            } else {
                namespace.id().to_string()
            },
            origin: "file:///nowhere".to_owned(),
            layout: "files".to_owned(),
            chunking,
            items: rows.len() as u64,
            blobs: rows.len() as u64,
            bytes,
        };
        let mut writer = DigestWriter::new(
            Vec::new(),
            Header { summary, columns: Vec::new(), has_trees: false },
        )
        .unwrap();
        for row in &rows {
            writer.push(row, &[vec![]]).unwrap();
        }
        let digest = Digest::open(writer.finish().unwrap().into()).unwrap();
        Self { digest, blobs }
    }
}

fn row(namespace: &Namespace, index: usize, content: &Bytes) -> Blob {
    let length = content.len() as u64;
    let part =
        Part { object: format!("{index:05}"), version: "\"1\"".to_owned(), offset: 0, length };
    Blob {
        address: namespace.address(content),
        parts: vec![part],
        items: vec![ItemSpan { offset: 0, length }],
        tree: None,
    }
}

/// Claims and puts a blob.
pub fn put(client: &mut Client, handle: Handle, data: &Data, blob: usize) {
    let granted = client.claim(handle, &[BlobOrdinal::new(blob as u64)]).unwrap();
    assert_eq!(granted, [forebay_wire::ClaimAnswer::Granted], "blob {blob}");
    client.put(handle, BlobOrdinal::new(blob as u64), &data.blobs[blob]).unwrap();
}

/// Reads a whole blob: its bytes, or the answer without bytes.
pub fn get(
    client: &mut Client,
    handle: Handle,
    data: &Data,
    blob: usize,
    wait: Duration,
) -> Result<Vec<u8>, GetAnswer> {
    let mut bytes = vec![0; data.blobs[blob].len()];
    let wanted = ReadInto { blob: BlobOrdinal::new(blob as u64), offset: 0, into: &mut bytes };
    match client.get(handle, wait, &mut [wanted]).unwrap()[0] {
        GetAnswer::Hit => Ok(bytes),
        other => Err(other),
    }
}

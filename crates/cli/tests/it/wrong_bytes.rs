//! Wrong bytes end to end: a node that returns them, whatever the cause, costs a job time and never
//! correctness (promise 1).

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use forebay_client::{Client, Counts, Reader};
use forebay_core::{
    BlobOrdinal, ByteSize, ItemOrdinal, Namespace,
    dataset::{possession::NamespaceBinding, verification::VerifyPolicy},
};
use forebay_flash::{DeviceConfig, EntryKey, Flash, FlashConfig};
use forebay_wire::{ClaimAnswer, HEADER_SIZE, Header};

use crate::{
    harness::{Running, Sandbox, content, wait_until_within},
    node_and_agent::{Setup, ready},
};

const OBJECTS: usize = 24;
/// Items of several leaves of a hash tree.
const SIZE: usize = 40_000;
const PACK: [&str; 4] = ["--layout", "pack", "--pack-size", "300kB"];
/// Kinds of frames.
const HELLO_REPLY: u8 = 0x81;
const GET_REPLY: u8 = 0x86;
const WRONG_BYTES: u8 = 25;

/// The content of an item, as [`Sandbox::with_objects`] writes it.
fn object(item: usize) -> Vec<u8> {
    content(item as u64, SIZE + item % 7)
}

fn items() -> Vec<ItemOrdinal> {
    (0..OBJECTS as u64).map(ItemOrdinal::new).collect()
}

fn setup(options: &[&str]) -> Setup {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", options).succeeds();
    let digest = forebay_digest::open(&sandbox.out("x.digest")).unwrap().digest;
    origin.reset_counters();
    Setup { sandbox, origin, digest }
}

/// Puts the first `count` blobs, as an agent would.
fn fill(setup: &Setup, count: u64) {
    let timeout = Duration::from_mins(1);
    let mut client = Client::connect(setup.node_socket(), "fill", timeout).unwrap();
    let handle = client.open(&setup.digest).unwrap();
    for blob in (0..count).map(BlobOrdinal::new) {
        assert_eq!(client.claim(handle, &[blob]).unwrap(), [ClaimAnswer::Granted]);
        client.put(handle, blob, &blob_content(setup, blob)).unwrap();
    }
}

/// The bytes of a blob, from the files of the origin.
fn blob_content(setup: &Setup, blob: BlobOrdinal) -> Bytes {
    let mut content = Vec::new();
    for part in setup.digest.blob(blob).unwrap().parts() {
        content.extend(fs::read(setup.sandbox.data().join(part.unwrap().object)).unwrap());
    }
    content.into()
}

/// What the forwarder of a connection does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hostility {
    /// Flips a bit of every range.
    FlipBits,
    /// The same, and says that the node supports version 1 only.
    FlipBitsOfOldNode,
}

/// A node between a client and the real node, which changes what the real one sends.
struct HostileNode {
    address: SocketAddr,
    flipped: Arc<AtomicUsize>,
    /// Kinds of the requests that it has received.
    kinds: Arc<Mutex<BTreeSet<u8>>>,
}

impl HostileNode {
    fn before(node: SocketAddr, hostility: Hostility) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (flipped, kinds) =
            (Arc::<AtomicUsize>::default(), Arc::<Mutex<BTreeSet<u8>>>::default());
        let (flips, seen) = (Arc::clone(&flipped), Arc::clone(&kinds));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(node)) = (client, TcpStream::connect(node)) else { return };
                let (from, to) = (client.try_clone().unwrap(), node.try_clone().unwrap());
                let (flips, seen) = (Arc::clone(&flips), Arc::clone(&seen));
                thread::spawn(move || {
                    forward(from, to, |kind, _| seen.lock().unwrap().extend([kind]));
                });
                thread::spawn(move || {
                    forward(node, client, |kind, body| {
                        if kind == HELLO_REPLY && hostility == Hostility::FlipBitsOfOldNode {
                            body[..2].copy_from_slice(&[1, 0]);
                        }
                        // After the index, a hit and at least one byte.
                        if kind == GET_REPLY && body.len() > 5 {
                            let at = 5 + flips.fetch_add(1, SeqCst) * 997 % (body.len() - 5);
                            body[at] ^= 1;
                        }
                    });
                });
            }
        });
        Self { address, flipped, kinds }
    }

    fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }
}

/// Passes frames on until either side closes.
fn forward(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(u8, &mut [u8])) {
    let mut next = || -> io::Result<()> {
        let mut header = [0; HEADER_SIZE];
        from.read_exact(&mut header)?;
        let Header { kind, body_size, .. } =
            Header::decode(&header).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut body = vec![0; body_size];
        from.read_exact(&mut body)?;
        change(kind, &mut body);
        to.write_all(&[&header[..], &body].concat())
    };
    while next().is_ok() {}
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A node that also listens on TCP.
fn node_on_tcp(setup: &Setup) -> (Running, SocketAddr) {
    let socket = setup.node_socket();
    let args = ["serve", "--socket", socket.to_str().unwrap(), "--directory", "../cache"];
    let options = ["--capacity", "64MB", "--listen", "127.0.0.1:0"];
    let mut node = setup.sandbox.forebay(args.iter().chain(&options)).start();
    let mut line = String::new();
    BufReader::new(node.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).expect("the node is ready");
    (node, ready["listen"].as_str().unwrap().parse().unwrap())
}

fn agent(setup: &Setup, node: &str) -> (Running, PathBuf) {
    let socket = setup.sandbox.path("agent").join("agent.sock");
    let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--node", node];
    (ready(setup.sandbox.forebay(args).reaching(&setup.origin).start()), socket)
}

fn reader(setup: &Setup, node: &str, agent: &Path, policy: &str) -> Reader {
    let seeds = node.parse().unwrap();
    let reader = Reader::new(setup.digest.clone(), Some(seeds), agent, "test");
    reader.with_verification(policy.parse().unwrap(), None)
}

/// Reads all items both ways, and checks them.
fn read_all(reader: &mut Reader) {
    let views = reader.get_views(&items()).unwrap();
    for (item, view) in views.iter().enumerate() {
        assert!(view[..] == object(item)[..], "item {item}");
    }
    for (item, bytes) in reader.get(&items()).unwrap().iter().enumerate() {
        assert!(*bytes == object(item), "item {item}");
    }
}

fn count(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).expect(name).1
}

/// Promise 1, against the node itself. By default every item from another machine is verified,
/// also inside a pack; a wrong one is read again from the agent, whose own node is sound. So the
/// origin is not read, and the sound copies of the node stay.
#[test]
fn a_hostile_node_over_tcp_costs_time_only() {
    for layout in [&PACK[..], &[]] {
        let setup = setup(layout);
        let blobs = setup.digest.summary().blobs;
        assert_eq!(setup.digest.has_trees(), !layout.is_empty());
        let (_node, address) = node_on_tcp(&setup);
        fill(&setup, blobs);
        let hostile = HostileNode::before(address, Hostility::FlipBits);
        let (_agent, agent) = agent(&setup, setup.node_socket().to_str().unwrap());

        // Without verification the job would get the wrong bytes.
        let mut trusting = reader(&setup, &hostile.endpoint(), &agent, "never");
        let views = trusting.get_views(&items()).unwrap();
        assert!(views.iter().enumerate().all(|(item, view)| view[..] != object(item)[..]));
        assert_eq!(trusting.counts().verified, 0);

        let mut careful =
            reader(&setup, &hostile.endpoint(), &agent, &VerifyPolicy::default().to_string());
        read_all(&mut careful);
        let all = 2 * OBJECTS as u64;
        let Counts { items, verified, unverifiable, hash_mismatches, bytes, .. } = careful.counts();
        assert_eq!((items, verified, unverifiable, hash_mismatches), (all, all, 0, all));
        assert_eq!(bytes, 2 * setup.sandbox.data_size(), "what verifies an item is not counted");
        assert_eq!(hostile.flipped.load(SeqCst), 3 * OBJECTS);
        assert_eq!(setup.origin.counters().bytes_sent, 0);
        let of_agent = careful.agent_stats().unwrap();
        // Two calls, each of which reports a blob once.
        assert_eq!(count(&of_agent, "agent_wrong_bytes_reported"), 2 * blobs);
        assert_eq!(count(&of_agent, "agent_hash_mismatches"), 0);
        let status = setup.status();
        assert_eq!(
            (&status["blobs_reported"], &status["blobs_dropped"]),
            (&(2 * blobs).into(), &0.into())
        );
        assert_eq!(status["resident_blobs"], blobs);
    }
}

/// The agent has no other node than the hostile one, so it reads the origin.
#[test]
fn an_agent_of_a_hostile_node_reads_the_origin() {
    let setup = setup(&[]);
    let (_node, address) = node_on_tcp(&setup);
    fill(&setup, OBJECTS as u64);
    let hostile = HostileNode::before(address, Hostility::FlipBits);
    let (_agent, agent) = agent(&setup, &hostile.endpoint());
    let mut reader = reader(&setup, &hostile.endpoint(), &agent, "remote");
    let read = reader.get(&items()).unwrap();
    assert!(read.iter().enumerate().all(|(item, bytes)| *bytes == object(item)));
    let stats = reader.agent_stats().unwrap();
    assert!(count(&stats, "agent_hash_mismatches") >= OBJECTS as u64, "{stats:?}");
    assert_eq!(setup.origin.counters().bytes_sent, setup.sandbox.data_size());
    assert!(hostile.kinds.lock().unwrap().contains(&WRONG_BYTES));
}

/// Version skew: a node of version 1 would close a connection that reports wrong bytes.
#[test]
fn a_node_of_before_receives_no_reports() {
    let setup = setup(&PACK);
    let (_node, address) = node_on_tcp(&setup);
    fill(&setup, setup.digest.summary().blobs);
    let hostile = HostileNode::before(address, Hostility::FlipBitsOfOldNode);
    let (_agent, agent) = agent(&setup, &hostile.endpoint());
    let mut reader = reader(&setup, &hostile.endpoint(), &agent, "remote");
    read_all(&mut reader);
    assert!(reader.counts().hash_mismatches >= OBJECTS as u64);
    let kinds = hostile.kinds.lock().unwrap().clone();
    assert!(!kinds.contains(&WRONG_BYTES), "{kinds:?}");
    assert_eq!(setup.status()["blobs_reported"], 0);
}

/// Writes wrong bytes with correct checksums to the device of a stopped node.
fn damage(setup: &Setup, blobs: impl Iterator<Item = u64>) {
    let directory = setup.sandbox.out("../cache");
    let path = directory.join("cache.flash");
    let capacity = ByteSize(fs::metadata(&path).unwrap().len());
    let owner = fs::read(directory.join("node.id")).unwrap().try_into().unwrap();
    let device = DeviceConfig { path, capacity, region_size: None, owner };
    let flash = Flash::open(&FlashConfig::new(vec![device])).unwrap();
    let binding = NamespaceBinding::new(Namespace::public().id());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let known = flash.groups().await.unwrap();
        let known = known.iter().find(|group| group.entries > 0).expect("the dataset's");
        let group = flash.group(&known.name, known.class, known.dense).await.unwrap();
        for blob in blobs.map(BlobOrdinal::new) {
            let address = binding.address(&setup.digest.blob(blob).unwrap().address);
            let mut wrong = blob_content(setup, blob).to_vec();
            let at = wrong.len() / 2;
            wrong[at] ^= 0x20;
            group.append(EntryKey(*address.as_bytes()), 0, wrong.into()).await.unwrap();
        }
        flash.flush().await.unwrap();
    });
}

/// A node whose flash returns wrong bytes, which no checksum notices: over shared memory, with
/// every item verified. The node drops its wrong copies, and each is fetched from the origin once.
#[test]
fn wrong_bytes_on_flash_are_replaced() {
    for layout in [&PACK[..], &[]] {
        let setup = setup(layout);
        let blobs = setup.digest.summary().blobs;
        let (sound, wrong) = (blobs - 2, 2);
        let node = setup.node(&["--capacity", "64MB"]);
        fill(&setup, sound);
        node.signal(rustix::process::Signal::TERM);
        node.finish();
        damage(&setup, sound..blobs);
        let _node = setup.node(&["--capacity", "64MB"]);
        assert_eq!(setup.status()["resident_blobs"], blobs);

        let (_agent, agent) = setup.agent("agent", true);
        let node = setup.node_socket();
        let mut reader = reader(&setup, node.to_str().unwrap(), &agent, "always");
        read_all(&mut reader);
        let Counts { verified, hash_mismatches, .. } = reader.counts();
        assert_eq!(verified, 2 * OBJECTS as u64);
        let wrong_items: u64 = (sound..blobs)
            .map(|blob| setup.digest.blob(BlobOrdinal::new(blob)).unwrap().item_count())
            .sum();
        // Of a pack, the items beside the wrong byte are right.
        assert!((wrong..=wrong_items).contains(&hash_mismatches), "{hash_mismatches}");
        let status = setup.status();
        assert_eq!(
            (&status["blobs_reported"], &status["blobs_dropped"]),
            (&wrong.into(), &wrong.into())
        );
        let bytes = |blob| setup.digest.blob(BlobOrdinal::new(blob)).unwrap().length;
        let refetched: u64 = (sound..blobs).map(bytes).sum();
        assert_eq!(setup.origin.counters().bytes_sent, refetched, "one fetch of each");
        wait_until_within(Duration::from_secs(30), "all are resident again", || {
            setup.status()["resident_blobs"] == blobs
        });
        read_all(&mut reader);
        assert_eq!(reader.counts().hash_mismatches, hash_mismatches, "the copies are right now");
    }
}

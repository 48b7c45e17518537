//! What operators do with a node: look at it, have it read its configuration again, stop it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use forebay_client::{Client, ClientError, Handle};
use forebay_wire::{ClaimAnswer, ErrorCode};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    harness::{Running, content, until},
    serving::Scene,
};

const SIZE: usize = 3000;
const PATIENCE: Duration = Duration::from_secs(20);

fn scene() -> Scene {
    Scene::of(10, SIZE, |_| {})
}

/// A node with a configuration of its own, and where its metrics are.
struct Node {
    process: Running,
    metrics: String,
    config: PathBuf,
}

impl Node {
    fn start(scene: &Scene, config: &str, options: &[&str]) -> Self {
        let path = scene.place.out("forebay.toml");
        fs::write(&path, config).unwrap();
        let socket = scene.node_socket();
        let socket = socket.to_str().unwrap();
        let args = ["serve", "--config", "forebay.toml", "--metrics", "127.0.0.1:0"];
        let places = ["--directory", "../cache", "--socket", socket];
        let args = args.iter().chain(&places).chain(options);
        let mut process = scene.place.forebay(args).start();
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let metrics = told["metrics"].as_str().unwrap().to_owned();
        Self { process, metrics, config: path }
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.metrics).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics").expect("the node answers");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("forebay_{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    /// Has it read its configuration again, and waits until it has.
    fn reload(&self, config: &str, outcome: &str) {
        let before = self.metric(outcome);
        fs::write(&self.config, config).unwrap();
        self.process.signal(Signal::HUP);
        until("the configuration is read", || self.metric(outcome) > before);
    }
}

fn open(scene: &Scene) -> (Client, Handle) {
    let mut client = Client::connect(scene.node_socket(), "test", PATIENCE).unwrap();
    let handle = client.open(&scene.digest).unwrap();
    (client, handle)
}

/// Issue 6: a running node keeps running on its last good configuration.
#[test]
fn a_bad_configuration_changes_nothing_and_a_good_one_what_it_can() {
    let scene = scene();
    let first = "memory = \"8MiB\"\nconnections = 5\ncapacity = \"64MB\"\n";
    let node = Node::start(&scene, first, &[]);
    assert_eq!(node.metric("memory_capacity_bytes"), 8 << 20);
    for bad in
        ["memory = 5", "colour = \"red\"", "namespaces = [\"none.key\"]", "connections = 0", "]"]
    {
        node.reload(bad, "reloads_refused_total");
        assert_eq!(node.metric("memory_capacity_bytes"), 8 << 20);
        drop(open(&scene));
    }
    until("nobody is connected", || node.metric("connections_open") == 0);
    let mut held = Vec::new();
    for _ in 0..5 {
        // A place is free a moment after it is left.
        until("there is a place", || {
            let client = Client::connect(scene.node_socket(), "test", PATIENCE);
            client.map(|client| held.push(client)).is_ok()
        });
    }
    let refused = Client::connect(scene.node_socket(), "test", PATIENCE).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::TooMuch),
        "{refused}"
    );
    // Whoever is slow to speak is told the same, and does not find a closed door.
    let mut slow = UnixStream::connect(scene.node_socket()).unwrap();
    let mut told = [0; 64];
    assert_ne!(slow.read(&mut told).unwrap(), 0);
    slow.write_all(b"a hello").expect("it is heard");
    drop(slow);
    node.reload("memory = \"4MiB\"\nconnections = 9\nlease = \"3s\"\n", "reloads_total");
    assert_eq!(node.metric("memory_capacity_bytes"), 4 << 20);
    Client::connect(scene.node_socket(), "test", PATIENCE).expect("there is room for more");
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("the last good one stays"), "{ran:?}");
    assert!(
        ran.stderr.contains("did you mean") || ran.stderr.contains("there is no such key"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("these need a restart") && ran.stderr.contains("lease"), "{ran:?}");
}

/// The level of the log can be changed while it runs.
#[test]
fn the_log_can_be_made_to_say_more() {
    let scene = scene();
    let node = Node::start(&scene, "log = \"warn\"\ncapacity = \"64MB\"\n", &[]);
    drop(open(&scene));
    node.reload("log = \"debug\"\ncapacity = \"64MB\"\n", "reloads_total");
    drop(open(&scene));
    until("it has noticed", || node.metric("connections_open") == 0);
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    let connected = ran.stderr.lines().filter(|line| line.contains("connected")).count();
    assert_eq!(connected, 1, "only the second: {ran:?}");
}

/// Stopping in order: no claims are granted any more, what is under way is finished, and those who send jobs
/// here know it.
#[test]
fn a_node_that_stops_finishes_what_is_under_way() {
    let scene = scene();
    let node = Node::start(&scene, "capacity = \"64MB\"\n", &["--grace", "20s"]);
    assert_eq!(node.get("/readyz"), Some((200, "ok\n".to_owned())));
    let (mut client, handle) = open(&scene);
    assert_eq!(client.claim(handle, &[0]).unwrap(), [ClaimAnswer::Granted]);
    node.process.signal(Signal::TERM);
    until("it is not ready", || node.get("/readyz") == Some((503, "stopping\n".to_owned())));
    assert_eq!(node.get("/livez"), Some((200, "ok\n".to_owned())), "it lives");
    assert_eq!(node.metric("ready"), 0);
    let refused = client.claim(handle, &[1]).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::Stopping),
        "{refused}"
    );
    client.put(handle, 0, &content(0, SIZE).into()).expect("what was claimed may be put");
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let _node = Node::start(&scene, "capacity = \"64MB\"\n", &[]);
    assert_eq!(scene.status()["resident_blobs"], 1, "and it is there again");
}

/// Promise 6: a stop takes no longer than was said.
#[test]
fn a_stop_does_not_wait_for_ever() {
    let scene = scene();
    let node =
        Node::start(&scene, "capacity = \"64MB\"\ngrace = \"200ms\"\nlease = \"5min\"\n", &[]);
    let (mut client, handle) = open(&scene);
    client.claim(handle, &[0]).unwrap();
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(client.stats().is_err());
}

/// A device that is full or gone at the start is named, with the remedy; others are used.
#[test]
fn devices_that_cannot_be_used_are_named() {
    let scene = scene();
    let serve = |options: &[&str]| {
        let args = ["serve", "--socket", "../run/node.sock", "--directory", "../cache"];
        scene.place.forebay(args.iter().chain(options)).run()
    };
    let ran = serve(&["--capacity", "900TB"]);
    ran.must_refuse(&["900", "free"]);
    let ran = serve(&["--capacity", "64MB", "--device", "../gone/cache.flash"]);
    ran.must_refuse(&["gone"]);
    fs::write(scene.place.path("foreign"), vec![7; 1 << 20]).unwrap();
    let ran = serve(&["--capacity", "64MB", "--device", "../foreign"]);
    ran.must_refuse(&["foreign", "not forebay's"]);
}

/// The reference page is written by a command, and is not allowed to lie.
#[test]
fn the_page_of_metrics_is_fresh() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let written = fs::read_to_string(&page).unwrap_or_default();
    let scene = crate::harness::Place::new();
    let fresh = scene.forebay(["dev", "metrics"]).succeeds().stdout;
    assert!(written == fresh, "write it anew: forebay dev metrics > docs/metrics.md");
}

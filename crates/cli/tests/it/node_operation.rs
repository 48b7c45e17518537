//! Operation of a node: metrics, reloads of the configuration, and shutdown.

use forebay_core::BlobOrdinal;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use forebay_client::{Client, ClientError, Handle};
use forebay_wire::{ClaimAnswer, ErrorCode};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    harness::{Forebay, Running, content, wait_until},
    node_and_agent::Setup,
};

const SIZE: usize = 3000;
const TIMEOUT: Duration = Duration::from_secs(20);

fn small_setup() -> Setup {
    Setup::of(10, SIZE, |_| {})
}

/// A node with its configuration file and the address of its metrics.
struct Node {
    process: Running,
    metrics: String,
    config: PathBuf,
}

impl Node {
    fn start(setup: &Setup, config: &str, options: &[&str]) -> Self {
        let path = setup.sandbox.out("forebay.toml");
        fs::write(&path, config).unwrap();
        let socket = setup.node_socket();
        let socket = socket.to_str().unwrap();
        let args = ["serve", "--config", "forebay.toml", "--metrics", "127.0.0.1:0"];
        let paths = ["--directory", "../cache", "--socket", socket];
        let args = args.iter().chain(&paths).chain(options);
        let mut process = setup.sandbox.forebay(args).start();
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let metrics = ready["metrics"].as_str().unwrap().to_owned();
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

    /// Reloads the configuration, and waits until the counter `outcome` has increased.
    fn reload(&self, config: &str, outcome: &str) {
        let before = self.metric(outcome);
        fs::write(&self.config, config).unwrap();
        self.process.signal(Signal::HUP);
        wait_until("the configuration is reloaded", || self.metric(outcome) > before);
    }
}

fn open(setup: &Setup) -> (Client, Handle) {
    let mut client = Client::connect(setup.node_socket(), "test", TIMEOUT).unwrap();
    let handle = client.open(&setup.digest).unwrap();
    (client, handle)
}

/// A node keeps its last valid configuration.
#[test]
fn an_invalid_configuration_changes_nothing_and_a_valid_one_is_applied() {
    let setup = small_setup();
    let first = "memory_cache = \"8MiB\"\nmax_connections = 5\ncapacity = \"64MB\"\n";
    let node = Node::start(&setup, first, &[]);
    assert_eq!(node.metric("memory_capacity_bytes"), 8 << 20);
    for bad in [
        "memory_cache = 5",
        "colour = \"red\"",
        "namespaces = [\"none.key\"]",
        "max_connections = 0",
        "]",
    ] {
        node.reload(bad, "reloads_refused_total");
        assert_eq!(node.metric("memory_capacity_bytes"), 8 << 20);
        drop(open(&setup));
    }
    wait_until("no client is connected", || node.metric("connections_open") == 0);
    let mut held = Vec::new();
    for _ in 0..5 {
        // A connection is free a moment after it is closed.
        wait_until("a connection is free", || {
            let client = Client::connect(setup.node_socket(), "test", TIMEOUT);
            client.map(|client| held.push(client)).is_ok()
        });
    }
    let refused = Client::connect(setup.node_socket(), "test", TIMEOUT).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::TooMuch),
        "{refused}"
    );
    // A client that sends its hello late gets the same refusal, not a closed connection.
    let mut slow = UnixStream::connect(setup.node_socket()).unwrap();
    let mut refusal = [0; 64];
    assert_ne!(slow.read(&mut refusal).unwrap(), 0);
    slow.write_all(b"a hello").expect("the connection is open");
    drop(slow);
    node.reload(
        "memory_cache = \"4MiB\"\nmax_connections = 9\nclaim_lease = \"3s\"\n",
        "reloads_total",
    );
    assert_eq!(node.metric("memory_capacity_bytes"), 4 << 20);
    Client::connect(setup.node_socket(), "test", TIMEOUT).expect("more connections are allowed");
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("the last valid one stays"), "{ran:?}");
    assert!(ran.stderr.contains("`colour`: unknown key"), "{ran:?}");
    assert!(
        ran.stderr.contains("these keys need a restart") && ran.stderr.contains("lease"),
        "{ran:?}"
    );
}

#[test]
fn a_reload_changes_the_log_level() {
    let setup = small_setup();
    let node = Node::start(&setup, "log = \"warn\"\ncapacity = \"64MB\"\n", &[]);
    drop(open(&setup));
    node.reload("log = \"debug\"\ncapacity = \"64MB\"\n", "reloads_total");
    drop(open(&setup));
    wait_until("the connection is closed", || node.metric("connections_open") == 0);
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    let connected = ran.stderr.lines().filter(|line| line.contains("connected")).count();
    assert_eq!(connected, 1, "only the second connection is logged: {ran:?}");
}

/// A node that stops grants no more claims, finishes requests in progress, and is not ready.
#[test]
fn a_stopping_node_finishes_requests_in_progress() {
    let setup = small_setup();
    let node = Node::start(&setup, "capacity = \"64MB\"\n", &["--shutdown-grace", "20s"]);
    assert_eq!(node.get("/readyz"), Some((200, "ok\n".to_owned())));
    let (mut client, handle) = open(&setup);
    assert_eq!(client.claim(handle, &[BlobOrdinal::new(0)]).unwrap(), [ClaimAnswer::Granted]);
    node.process.signal(Signal::TERM);
    wait_until("the node is not ready", || {
        node.get("/readyz") == Some((503, "stopping\n".to_owned()))
    });
    assert_eq!(node.get("/livez"), Some((200, "ok\n".to_owned())), "the process is live");
    assert_eq!(node.metric("ready"), 0);
    let refused = client.claim(handle, &[BlobOrdinal::new(1)]).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::Stopping),
        "{refused}"
    );
    client
        .put(handle, BlobOrdinal::new(0), &content(0, SIZE).into())
        .expect("a claimed blob may be put");
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let _node = Node::start(&setup, "capacity = \"64MB\"\n", &[]);
    assert_eq!(setup.status()["resident_blobs"], 1, "it is resident after the restart");
}

/// Promise 6: a stop takes at most `shutdown_grace`.
#[test]
fn a_stop_ends_after_the_grace_period() {
    let setup = small_setup();
    let node = Node::start(
        &setup,
        "capacity = \"64MB\"\nshutdown_grace = \"200ms\"\nclaim_lease = \"5min\"\n",
        &[],
    );
    let (mut client, handle) = open(&setup);
    client.claim(handle, &[BlobOrdinal::new(0)]).unwrap();
    node.process.signal(Signal::TERM);
    let ran = node.process.finish();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(client.stats().is_err());
}

/// A limit of 0 bytes per file stands for a full disk. Without a handler, its signal would end the
/// node without a message.
#[test]
fn a_first_start_without_space_is_an_error_and_the_next_start_works() {
    let setup = small_setup();
    let args = ["serve", "--socket", "../run/node.sock", "--directory", "../cache"];
    let args = || args.into_iter().chain(["--capacity", "64MB"]);
    let inner = setup.sandbox.forebay(args()).0;
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(inner.get_program());
    limited.args(inner.get_args()).current_dir(inner.get_current_dir().unwrap()).env_clear();
    limited.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Forebay(limited).refuses(&["File too large"]);
    let mut process = setup.sandbox.forebay(args()).start();
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("capacity_bytes"), "{:?}", process.finish());
}

#[test]
fn unusable_devices_are_named() {
    let setup = small_setup();
    let serve = |options: &[&str]| {
        let args = ["serve", "--socket", "../run/node.sock", "--directory", "../cache"];
        setup.sandbox.forebay(args.iter().chain(options)).run()
    };
    let ran = serve(&["--capacity", "900TB"]);
    ran.must_refuse(&["900", "free"]);
    let ran = serve(&["--capacity", "64MB", "--device", "../gone/cache.flash"]);
    ran.must_refuse(&["gone"]);
    fs::write(setup.sandbox.path("foreign"), vec![7; 1 << 20]).unwrap();
    let ran = serve(&["--capacity", "64MB", "--device", "../foreign"]);
    ran.must_refuse(&["foreign", "not forebay's"]);
}

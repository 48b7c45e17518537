//! `forebay serve`, `agent` and `status`: a node and agents, with kills, stops and restarts.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use forebay_client::{Client, Reader};
use forebay_core::{
    BlobOrdinal, ByteSize, ItemOrdinal,
    dataset::{DatasetIdHasher, chunking::Chunking},
};
use forebay_dev_origin::{Config, DevOrigin, Fault};
use forebay_digest::{Blob, Digest, Header, ItemSpan, Part, PendingDigest};
use rustix::process::Signal;

use crate::harness::{Running, Sandbox, content, wait_until};

const SIZE: usize = 3000;
const OBJECTS: u64 = 60;

/// A dataset behind an origin, with its digest, and paths for sockets.
pub struct Setup {
    pub sandbox: Sandbox,
    pub origin: DevOrigin,
    pub digest: Digest,
}

impl Setup {
    fn new() -> Self {
        Self::of(usize::try_from(OBJECTS).unwrap(), SIZE, |_| {})
    }

    /// `objects` objects of about `size` bytes, behind an origin with this configuration.
    pub fn of(objects: usize, size: usize, shape: impl FnOnce(&mut Config)) -> Self {
        let sandbox = Sandbox::with_objects(objects, size);
        let origin = sandbox.serve(shape);
        sandbox.build_from(&origin, "x.digest", &[]).succeeds();
        let digest = forebay_digest::open(&sandbox.out("x.digest")).unwrap().digest.clone();
        origin.reset_counters();
        Self { sandbox, origin, digest }
    }

    pub fn node_socket(&self) -> PathBuf {
        self.sandbox.path("run/node.sock")
    }

    pub fn node(&self, options: &[&str]) -> Running {
        let socket = self.node_socket();
        let args = ["serve", "--socket", socket.to_str().unwrap(), "--directory", "../cache"];
        ready(self.sandbox.forebay(args.iter().chain(options)).start())
    }

    pub fn agent(&self, name: &str, with_node: bool) -> (Running, PathBuf) {
        let (socket, node) = (self.sandbox.path(name).join("agent.sock"), self.node_socket());
        let mut args = vec!["agent", "x.digest", "--socket", socket.to_str().unwrap()];
        if with_node {
            args.extend(["--node", node.to_str().unwrap()]);
        }
        (ready(self.sandbox.forebay(args).reaching(&self.origin).start()), socket)
    }

    pub fn reader(&self, agent: &Path) -> Reader {
        Reader::new(self.digest.clone(), Some(self.node_socket().into()), agent, "test")
    }

    pub fn status(&self) -> serde_json::Value {
        let socket = self.node_socket();
        let args = ["status", "--format", "json", "--socket", socket.to_str().unwrap()];
        self.sandbox.forebay(args).succeeds().json()
    }
}

/// Reads and checks these items.
fn read(reader: &mut Reader, items: impl Iterator<Item = u64>) {
    for item in items {
        let bytes = reader.get(&[ItemOrdinal::new(item)]).unwrap();
        assert_eq!(bytes[0], object(item), "item {item}");
    }
}

fn object(item: u64) -> Vec<u8> {
    content(item, SIZE + usize::try_from(item).unwrap() % 7)
}

/// Waits for the line that a process prints when it is ready.
pub fn ready(mut process: Running) -> Running {
    let mut line = String::new();
    let mut stdout = BufReader::new(process.child().stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "the process is ready: {line}");
    process
}

/// Promise 3: two jobs, one dataset, one fetch of every blob.
#[test]
fn two_agents_and_a_node_fetch_everything_once() {
    let setup = Setup::new();
    let _node = setup.node(&["--capacity", "64MB"]);
    let agents = [setup.agent("a", true), setup.agent("b", true)];
    thread::scope(|scope| {
        for (job, (_, socket)) in agents.iter().enumerate() {
            let setup = &setup;
            scope.spawn(move || {
                let mut reader = setup.reader(socket);
                let forwards = 0..OBJECTS;
                match job {
                    0 => read(&mut reader, forwards),
                    _ => read(&mut reader, forwards.rev()),
                }
            });
        }
    });
    assert_eq!(setup.origin.counters().bytes_sent, setup.sandbox.data_size());
    let status = setup.status();
    assert_eq!(status["puts"], OBJECTS);
    assert_eq!((&status["claims_held"], &status["put_hash_mismatches"]), (&0.into(), &0.into()));
}

/// Promise 5: no cache fault fails or hangs a job. Promise 7: stored blobs survive a crash.
#[test]
fn a_killed_node_does_not_fail_a_job() {
    let setup = Setup::new();
    let node = setup.node(&[]);
    let (_agent, socket) = setup.agent("a", true);
    let mut reader = setup.reader(&socket);
    read(&mut reader, 0..20);
    wait_until("everything is resident", || setup.status()["resident_blobs"] == OBJECTS);
    let written = || setup.status()["flash_device_written_bytes"].as_u64().unwrap();
    wait_until("everything is written to the device", || written() > setup.sandbox.data_size());
    node.signal(Signal::KILL);
    drop(node);
    read(&mut reader, 20..40);
    let _node = setup.node(&[]);
    assert_eq!(setup.status()["resident_blobs"], OBJECTS, "a warm restart");
    thread::sleep(Duration::from_millis(1100));
    read(&mut reader, 40..60);
    assert!(setup.status()["hits"].as_u64() >= Some(19), "{}", setup.status());
}

/// Promise 5: no cache fault hangs a job. A stopped node neither answers nor refuses, which costs
/// one timeout, not one per item.
#[test]
fn a_hung_node_costs_one_timeout() {
    let setup = Setup::new();
    let node = setup.node(&["--capacity", "64MB"]);
    let (_agent, socket) = setup.agent("a", true);
    let mut reader = setup.reader(&socket);
    read(&mut reader, 0..2);
    node.signal(Signal::STOP);
    read(&mut reader, 0..OBJECTS);
    let counters = reader.agent_stats().unwrap();
    let fallbacks = counters.iter().find(|(name, _)| name == "agent_fallbacks").unwrap().1;
    assert!(fallbacks > 0, "{counters:?}");
    node.signal(Signal::CONT);
}

#[test]
fn without_a_node_an_agent_reads_the_origin() {
    let setup = Setup::new();
    let (_agent, socket) = setup.agent("a", false);
    let mut reader = setup.reader(&socket);
    read(&mut reader, 0..OBJECTS);
    read(&mut reader, 0..OBJECTS);
    assert_eq!(
        setup.origin.counters().bytes_sent,
        setup.sandbox.data_size(),
        "the agent keeps the blobs in memory"
    );
}

/// Promise 5, for faults of the origin: one hung answer and one damaged transfer delay a job and do
/// not fail it.
#[test]
fn a_hung_answer_and_a_damaged_transfer_are_fetched_again() {
    let mut setup = Setup::of(6, SIZE, |_| {});
    let faults = vec![Fault::CorruptBody, Fault::HangInBody, Fault::HangBeforeHead];
    setup.origin = setup.sandbox.serve(|config| config.get_faults = faults);
    let (_agent, socket) = setup.agent("a", false);
    let mut reader = setup.reader(&socket);
    let damaged = |reader: &mut Reader| {
        let counters = reader.agent_stats().unwrap();
        counters.iter().find(|(name, _)| name == "agent_transfers_damaged").unwrap().1
    };
    read(&mut reader, 0..6);
    assert_eq!(damaged(&mut reader), 1);
    let counters = setup.origin.counters();
    assert_eq!((counters.failures_injected, counters.requests.get), (3, 9));
}

/// Promise 1: an object whose bytes really differ is an error, not data.
#[test]
fn two_damaged_transfers_of_a_blob_are_an_error() {
    let mut setup = Setup::of(2, SIZE, |_| {});
    let faults = vec![Fault::CorruptBody; 2];
    setup.origin = setup.sandbox.serve(|config| config.get_faults = faults);
    let (_agent, socket) = setup.agent("a", false);
    let mut reader = setup.reader(&socket);
    let refused = reader.get(&[ItemOrdinal::new(0)]).unwrap_err().to_string();
    assert!(refused.contains("differs from the digest"), "{refused}");
    read(&mut reader, 0..2);
}

/// A digest that passes the full check, of one object that it says is much longer than it is.
fn lying_digest(setup: &Setup, path: &Path) -> Digest {
    let length = 60 << 30;
    let first = setup.digest.blob(BlobOrdinal::new(0)).unwrap();
    let part = first.parts().next().unwrap().unwrap();
    let (object, version) = (part.object.to_owned(), part.version.to_owned());
    let blob = Blob {
        address: first.address,
        parts: vec![Part { object, version, offset: 0, length: 3 * length }],
        items: vec![ItemSpan { offset: length, length }],
        tree: None,
    };
    let mut summary = setup.digest.summary().clone();
    let mut id = DatasetIdHasher::new();
    id.push(&blob.address, blob.length());
    summary.chunking = Chunking::for_dataset(ByteSize(blob.length()), 1);
    summary.dataset = id.finish(summary.chunking);
    (summary.items, summary.blobs, summary.bytes) = (1, 1, blob.length());
    let mut pending =
        PendingDigest::create(path, Header { summary, columns: Vec::new(), has_trees: false })
            .unwrap();
    pending.push(&blob, &[vec![]]).unwrap();
    pending.publish().unwrap();
    forebay_digest::open(path).unwrap().digest
}

/// Promise 6: a length in a digest is believed when the origin has the bytes. Before that, neither
/// the job nor its agent allocates memory for it.
#[test]
fn a_digest_that_lies_about_lengths_is_an_error_and_takes_no_memory() {
    let mut setup = Setup::of(3, SIZE, |_| {});
    setup.digest = lying_digest(&setup, &setup.sandbox.out("x.digest"));
    let (mut agent, socket) = setup.agent("a", false);
    let mut reader = setup.reader(&socket);
    for _ in 0..3 {
        let refused = reader.get(&[ItemOrdinal::new(0)]).unwrap_err().to_string();
        assert!(refused.contains("has changed since it was listed"), "{refused}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", agent.child().id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 500_000, "the agent took {peak} kB");
}

/// Nodes and agents hold keys, tokens and other users' data.
#[test]
fn nodes_and_agents_dump_no_core() {
    let setup = Setup::of(1, SIZE, |_| {});
    let mut node = setup.node(&["--capacity", "64MB"]);
    let (mut agent, _) = setup.agent("a", true);
    for process in [&mut node, &mut agent] {
        let limits = fs::read_to_string(format!("/proc/{}/limits", process.child().id())).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).collect::<Vec<_>>(), ["0", "0", "bytes"]);
    }
}

#[test]
fn a_dead_agent_is_noticed_and_another_takes_over() {
    let setup = Setup::new();
    let _node = setup.node(&["--claim-lease", "500ms"]);
    let (agent, socket) = setup.agent("a", true);
    let mut reader = setup.reader(&socket);
    read(&mut reader, 0..10);
    agent.signal(Signal::KILL);
    drop(agent);
    let (_agent, _) = setup.agent("a", true);
    // Hits need no agent. The first miss finds the dead agent, the next one the new agent.
    for item in 10..OBJECTS {
        let items = [ItemOrdinal::new(item)];
        let bytes = reader.get(&items).or_else(|_| reader.get(&items)).unwrap();
        assert_eq!(bytes[0], object(item), "item {item}");
    }
}

#[test]
fn an_agent_ends_with_its_job() {
    let setup = Setup::new();
    let mut job = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (socket, id) = (setup.sandbox.path("a/agent.sock"), job.id().to_string());
    let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--job-pid", &id];
    let mut agent = ready(setup.sandbox.forebay(args).reaching(&setup.origin).start());
    assert!(agent.is_running());
    job.kill().unwrap();
    job.wait().unwrap();
    wait_until("the agent has ended", || !agent.is_running());
    assert!(!socket.exists(), "its socket is removed");
}

#[test]
fn an_object_that_changed_is_named() {
    let setup = Setup::new();
    let _node = setup.node(&[]);
    setup.sandbox.write("item 007.bin", b"something else");
    let (_agent, socket) = setup.agent("a", true);
    let mut reader = setup.reader(&socket);
    read(&mut reader, 0..7);
    let error = reader.get(&[ItemOrdinal::new(7)]).unwrap_err().to_string();
    assert!(error.contains("item 007.bin") && error.contains("changed"), "{error}");
    read(&mut reader, 8..OBJECTS);
}

#[test]
fn a_stopped_node_removes_its_socket() {
    let setup = Setup::new();
    for signal in [Signal::TERM, Signal::INT] {
        let node = setup.node(&[]);
        node.signal(signal);
        let ran = node.finish();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.stderr.contains("node ready") && ran.stderr.contains("node stopped"),
            "{ran:?}"
        );
        assert!(!setup.node_socket().exists());
    }
    let socket = setup.node_socket();
    let args = ["status", "--socket", socket.to_str().unwrap()];
    setup.sandbox.forebay(args).refuses(&["no node listens", "check --node", "forebay serve"]);
    let args = ["status", "--node", "localhost:7070"];
    setup.sandbox.forebay(args).refuses(&["no node listens", "did you mean tcp://localhost:7070?"]);
    let mut idle = setup.node(&["--idle-exit", "100ms"]);
    wait_until("the idle node has stopped", || !idle.is_running());
}

#[test]
fn status_prints_text() {
    let setup = Setup::new();
    let _node = setup.node(&["--capacity", "9MB"]);
    let socket = setup.node_socket();
    let ran = setup.sandbox.forebay(["status", "--socket", socket.to_str().unwrap()]).succeeds();
    assert!(ran.stdout.contains("resident  0 B of 7.34 MB in 0 blobs"), "{ran:?}");
    assert!(Client::connect(&socket, "x", Duration::from_secs(5)).is_ok());
}

#[test]
fn invalid_configurations_are_rejected_with_the_remedy() {
    let setup = Setup::new();
    let socket = setup.node_socket();
    for (text, expected) in [
        ("capcity = \"5GB\"", "did you mean `capacity`"),
        ("metrics = \"0.0.0.0:9\"", "use 127.0.0.1:9"),
        ("socket = ", "line 1"),
        ("namespaces = [\"none.key\"]", "none.key"),
    ] {
        fs::write(setup.sandbox.out("forebay.toml"), text).unwrap();
        setup.sandbox.forebay(["serve", "--config", "forebay.toml"]).refuses(&[expected]);
    }
    setup.sandbox.forebay(["serve", "--config", "missing.toml"]).refuses(&["missing.toml"]);
    let template = setup.sandbox.forebay(["serve", "--print-config"]).succeeds().stdout;
    fs::write(setup.sandbox.out("forebay.toml"), template).unwrap();
    let ran = setup.sandbox.forebay(["serve", "--config", "forebay.toml", "--check-config"]).run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--options-from-stdin"];
    setup.sandbox.forebay(args).refuses(&["not a JSON object"]);
}

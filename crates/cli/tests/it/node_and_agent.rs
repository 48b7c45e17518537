//! `forebay serve`, `agent` and `status`: real processes, killed in every way.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use forebay_client::{Client, Reader};
use forebay_core::{ItemOrdinal, digest::Digest};
use forebay_dev_origin::{Config, DevOrigin};
use rustix::process::Signal;

use crate::harness::{Place, Running, content, until};

const SIZE: usize = 3000;
const OBJECTS: u64 = 60;

/// A dataset behind an origin, with its digest, and sockets to be.
pub struct Scene {
    pub place: Place,
    pub origin: DevOrigin,
    pub digest: Digest,
}

impl Scene {
    fn new() -> Self {
        Self::of(usize::try_from(OBJECTS).unwrap(), SIZE, |_| {})
    }

    /// So many objects of about this size, behind an origin of this shape.
    pub fn of(objects: usize, size: usize, shape: impl FnOnce(&mut Config)) -> Self {
        let place = Place::with_objects(objects, size);
        let origin = place.serve(shape);
        place.build_from(&origin, "x.digest", &[]).succeeds();
        let digest = forebay_digest::open(&place.out("x.digest")).unwrap().digest.clone();
        origin.reset_counters();
        Self { place, origin, digest }
    }

    pub fn node_socket(&self) -> PathBuf {
        self.place.path("run/node.sock")
    }

    pub fn node(&self, options: &[&str]) -> Running {
        let socket = self.node_socket();
        let args = ["serve", "--socket", socket.to_str().unwrap(), "--directory", "../cache"];
        ready(self.place.forebay(args.iter().chain(options)).start())
    }

    pub fn agent(&self, name: &str, with_node: bool) -> (Running, PathBuf) {
        let (socket, node) = (self.place.path(name).join("agent.sock"), self.node_socket());
        let mut args = vec!["agent", "x.digest", "--socket", socket.to_str().unwrap()];
        if with_node {
            args.extend(["--node", node.to_str().unwrap()]);
        }
        (ready(self.place.forebay(args).reaching(&self.origin).start()), socket)
    }

    pub fn reader(&self, agent: &Path) -> Reader {
        Reader::new(self.digest.clone(), Some(self.node_socket().into()), agent, "test")
    }

    pub fn status(&self) -> serde_json::Value {
        let socket = self.node_socket();
        let args = ["status", "--format", "json", "--socket", socket.to_str().unwrap()];
        self.place.forebay(args).succeeds().json()
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

/// Waits for the line that says so.
pub fn ready(mut process: Running) -> Running {
    let mut line = String::new();
    let mut stdout = BufReader::new(process.child().stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "it starts: {line}");
    process
}

/// Promise 3: two jobs, one dataset, one fetch of every blob.
#[test]
fn two_agents_and_a_node_fetch_everything_once() {
    let scene = Scene::new();
    let _node = scene.node(&["--capacity", "64MB"]);
    let agents = [scene.agent("a", true), scene.agent("b", true)];
    thread::scope(|scope| {
        for (job, (_, socket)) in agents.iter().enumerate() {
            let scene = &scene;
            scope.spawn(move || {
                let mut reader = scene.reader(socket);
                let forwards = 0..OBJECTS;
                match job {
                    0 => read(&mut reader, forwards),
                    _ => read(&mut reader, forwards.rev()),
                }
            });
        }
    });
    assert_eq!(scene.origin.counters().bytes_sent, scene.place.data_size());
    let status = scene.status();
    assert_eq!(status["puts"], OBJECTS);
    assert_eq!((&status["claims_held"], &status["puts_poisoned"]), (&0.into(), &0.into()));
}

/// Promise 5: no cache fault fails or hangs a job. Promise 7: what was stored is served again.
#[test]
fn a_killed_node_costs_a_job_nothing_but_time() {
    let scene = Scene::new();
    let node = scene.node(&[]);
    let (_agent, socket) = scene.agent("a", true);
    let mut reader = scene.reader(&socket);
    read(&mut reader, 0..20);
    until("everything is resident", || scene.status()["resident_blobs"] == OBJECTS);
    let written = || scene.status()["flash_device_written_bytes"].as_u64().unwrap();
    until("and on its way to the device", || written() > scene.place.data_size());
    node.signal(Signal::KILL);
    drop(node);
    read(&mut reader, 20..40);
    let _node = scene.node(&[]);
    assert_eq!(scene.status()["resident_blobs"], OBJECTS, "a warm restart");
    thread::sleep(Duration::from_millis(1100));
    read(&mut reader, 40..60);
    assert!(scene.status()["hits"].as_u64() >= Some(19), "{}", scene.status());
}

/// Promise 5: no cache fault hangs a job. A node that was stopped neither answers nor refuses; that costs
/// its patience once, not for every item.
#[test]
fn a_node_that_says_nothing_is_left_alone() {
    let scene = Scene::new();
    let node = scene.node(&["--capacity", "64MB"]);
    let (_agent, socket) = scene.agent("a", true);
    let mut reader = scene.reader(&socket);
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
    let scene = Scene::new();
    let (_agent, socket) = scene.agent("a", false);
    let mut reader = scene.reader(&socket);
    read(&mut reader, 0..OBJECTS);
    read(&mut reader, 0..OBJECTS);
    assert_eq!(scene.origin.counters().bytes_sent, scene.place.data_size(), "kept in memory");
}

#[test]
fn a_dead_agent_is_noticed_and_another_takes_over() {
    let scene = Scene::new();
    let _node = scene.node(&["--lease", "500ms"]);
    let (agent, socket) = scene.agent("a", true);
    let mut reader = scene.reader(&socket);
    read(&mut reader, 0..10);
    agent.signal(Signal::KILL);
    drop(agent);
    let (_agent, _) = scene.agent("a", true);
    // What the node has is read without the agent; the first miss tells that it died, the next goes on.
    for item in 10..OBJECTS {
        let items = [ItemOrdinal::new(item)];
        let bytes = reader.get(&items).or_else(|_| reader.get(&items)).unwrap();
        assert_eq!(bytes[0], object(item), "item {item}");
    }
}

#[test]
fn an_agent_ends_with_its_job() {
    let scene = Scene::new();
    let mut job = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (socket, id) = (scene.place.path("a/agent.sock"), job.id().to_string());
    let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--job-pid", &id];
    let mut agent = ready(scene.place.forebay(args).reaching(&scene.origin).start());
    assert!(agent.is_running());
    job.kill().unwrap();
    job.wait().unwrap();
    until("the agent has ended", || !agent.is_running());
    assert!(!socket.exists(), "and its socket is gone");
}

#[test]
fn an_object_that_changed_is_named() {
    let scene = Scene::new();
    let _node = scene.node(&[]);
    scene.place.write("item 007.bin", b"something else");
    let (_agent, socket) = scene.agent("a", true);
    let mut reader = scene.reader(&socket);
    read(&mut reader, 0..7);
    let error = reader.get(&[ItemOrdinal::new(7)]).unwrap_err().to_string();
    assert!(error.contains("item 007.bin") && error.contains("changed"), "{error}");
    read(&mut reader, 8..OBJECTS);
}

#[test]
fn a_node_stops_in_order_and_leaves_its_name() {
    let scene = Scene::new();
    for signal in [Signal::TERM, Signal::INT] {
        let node = scene.node(&[]);
        node.signal(signal);
        let ran = node.finish();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("serving") && ran.stderr.contains("stopped"), "{ran:?}");
        assert!(!scene.node_socket().exists());
    }
    let socket = scene.node_socket();
    let args = ["status", "--socket", socket.to_str().unwrap()];
    scene.place.forebay(args).refuses(&["no forebay node", "forebay serve"]);
    let mut idle = scene.node(&["--idle-exit", "100ms"]);
    until("nobody needed it", || !idle.is_running());
}

#[test]
fn status_is_for_people_too() {
    let scene = Scene::new();
    let _node = scene.node(&["--capacity", "9MB"]);
    let socket = scene.node_socket();
    let ran = scene.place.forebay(["status", "--socket", socket.to_str().unwrap()]).succeeds();
    assert!(ran.stdout.contains("resident  0 B of 7 MiB in 0 blobs"), "{ran:?}");
    assert!(Client::connect(&socket, "x", Duration::from_secs(5)).is_ok());
}

#[test]
fn bad_configurations_are_refused_with_the_remedy() {
    let scene = Scene::new();
    let socket = scene.node_socket();
    for (text, saying) in [
        ("capcity = \"5GB\"", "did you mean `capacity`"),
        ("metrics = \"0.0.0.0:9\"", "use 127.0.0.1:9"),
        ("socket = ", "line 1"),
        ("namespaces = [\"none.key\"]", "none.key"),
    ] {
        fs::write(scene.place.out("forebay.toml"), text).unwrap();
        scene.place.forebay(["serve", "--config", "forebay.toml"]).refuses(&[saying]);
    }
    scene.place.forebay(["serve", "--config", "missing.toml"]).refuses(&["missing.toml"]);
    let template = scene.place.forebay(["serve", "--show-config"]).succeeds().stdout;
    fs::write(scene.place.out("forebay.toml"), template).unwrap();
    let ran = scene.place.forebay(["serve", "--config", "forebay.toml", "--check-config"]).run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--options-from-stdin"];
    scene.place.forebay(args).refuses(&["no JSON object"]);
}

//! Several nodes from a list: real processes, killed, stopped and started again at random.
//!
//! Everything that is random follows from a seed: `SEED=n` replays one, `SEEDS=n` runs so many, and with either
//! there are 32 jobs at once.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_client::{Layout, Reader};
use forebay_core::{
    BlobOrdinal, ByteSize, ItemOrdinal, Namespace, NodeName,
    digest::Digest,
    manager::{Answer, Report},
    presence::Known,
    ring::{Contacts, Ring},
    sampler::{Plan, Sampler},
};
use forebay_dev_origin::DevOrigin;
use forebay_server::{Config, memory_max};
use rustix::process::Signal;

use crate::harness::{Forebay, Place, Running, content, until};

const KIB: usize = 1 << 10;
/// What a node may hold.
const CAPACITY: ByteSize = ByteSize::mib(128);
/// Nodes are killed so often, and as often stopped, before the last jobs are started.
const FAULTS: u32 = 3;
/// What it keeps in memory.
const MEMORY: ByteSize = ByteSize::mib(8);

/// A dataset behind an origin, and nodes that share it.
struct Cluster {
    place: Place,
    origin: DevOrigin,
    digest: Digest,
    names: Vec<String>,
    nodes: Vec<Option<Running>>,
    connections: usize,
}

impl Cluster {
    /// Nothing runs yet but the origin.
    fn new(nodes: usize, sizes: &[usize], jobs: usize) -> Self {
        let place = Place::new();
        for (at, size) in sizes.iter().enumerate() {
            place.write(&format!("item {at:03}.bin"), &content(at as u64, *size));
        }
        let origin = place.serve(|_| {});
        place.build_from(&origin, "x.digest", &[]).succeeds();
        let digest = forebay_digest::open(&place.out("x.digest")).unwrap().digest.clone();
        origin.reset_counters();
        let names = (0..nodes).map(|at| format!("n{at}")).collect();
        // Each job has two: its own, and its agent's. A job that was cut off may come back before the node knows.
        let connections = 4 * jobs + 8;
        let nodes = (0..nodes).map(|_| None).collect();
        let cluster = Self { place, origin, digest, names, nodes, connections };
        cluster.write_list("nodes.toml", "", |_| "");
        cluster
    }

    fn started(nodes: usize, sizes: &[usize], jobs: usize) -> Self {
        let mut cluster = Self::new(nodes, sizes, jobs);
        (0..nodes).for_each(|at| cluster.start(at));
        cluster
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.place.path(&format!("run/{at}/node.sock"))
    }

    /// A list of all nodes, with something more for each.
    fn write_list(&self, file: &str, head: &str, more: impl Fn(usize) -> &'static str) {
        let node = |(at, name): (usize, &String)| {
            let socket = self.socket(at);
            format!(
                "[[nodes]]\nname = \"{name}\"\nendpoint = \"{}\"\n{}\n",
                socket.display(),
                more(at)
            )
        };
        let nodes: String = self.names.iter().enumerate().map(node).collect();
        let text = format!(
            "capacity = \"{}B\"\nmemory = \"{}B\"\nconnections = {}\nlease = \"1s\"\n{head}\n{nodes}",
            CAPACITY.0, MEMORY.0, self.connections
        );
        fs::write(self.place.out(file), text).unwrap();
    }

    fn start(&mut self, at: usize) {
        self.start_as(at, &self.names[at].clone(), "nodes.toml");
    }

    fn start_as(&mut self, at: usize, name: &str, list: &str) {
        let (socket, directory) = (self.socket(at), self.directory(at));
        let args = ["serve", "--config", list, "--name", name, "--socket", path(&socket)];
        let args = args.iter().copied().chain(["--directory", path(&directory)]);
        let node = self.place.forebay(args).env("FOREBAY_LOG", "error").start();
        self.nodes[at] = Some(ready(node));
    }

    fn directory(&self, at: usize) -> PathBuf {
        self.place.path(&format!("cache-{at}"))
    }

    fn node(&self, at: usize) -> &Running {
        self.nodes[at].as_ref().unwrap()
    }

    fn kill(&mut self, at: usize) {
        self.check_memory(at);
        // Dropped, it is killed and waited for.
        self.nodes[at] = None;
    }

    fn contacts(&self) -> String {
        let sockets: Vec<String> =
            (0..self.names.len()).map(|at| path(&self.socket(at)).to_owned()).collect();
        sockets.join(",")
    }

    fn status(&self, at: usize) -> serde_json::Value {
        let args =
            ["status", "--format", "json", "--socket", path(&self.socket(at))].map(str::to_owned);
        self.place.forebay(args).run().json()
    }

    fn counter(&self, at: usize, name: &str) -> u64 {
        self.status(at)[name].as_u64().unwrap()
    }

    fn ring(&self) -> Ring {
        let (list, zone) = forebay_server::read_node_list(&self.place.out("nodes.toml")).unwrap();
        list.ring(zone.as_ref()).unwrap()
    }

    /// Blobs and bytes that each node owns.
    fn shares(&self) -> Vec<(u64, u64)> {
        let ring = self.ring();
        let mut shares = vec![(0, 0); self.names.len()];
        for blob in 0..self.digest.summary().blobs {
            let row = self.digest.blob(BlobOrdinal::new(blob)).unwrap();
            let (blobs, bytes) = &mut shares[ring.owner(&row.address)];
            (*blobs, *bytes) = (*blobs + 1, *bytes + row.length);
        }
        shares
    }

    /// A job that reads everything so often and proves every byte of it.
    fn job(&self, seed: u64, epochs: u64, contacts: &str) -> Job {
        let (agent, socket) = self.agent(&format!("job-{seed}"), contacts);
        let reader = self.reader(&socket, contacts);
        let read = thread::spawn(move || train(reader, seed, epochs));
        Job { read, _agent: agent }
    }

    fn agent(&self, name: &str, contacts: &str) -> (Running, PathBuf) {
        let socket = self.place.path(name).join("agent.sock");
        let args = ["agent", "x.digest", "--socket", path(&socket), "--node", contacts];
        let agent: Forebay = self.place.forebay(args).reaching(&self.origin);
        (ready(agent.env("FOREBAY_LOG", "error").start()), socket)
    }

    fn reader(&self, agent: &Path, contacts: &str) -> Reader {
        let contacts: Contacts = contacts.parse().unwrap();
        Reader::new(self.digest.clone(), Some(contacts), agent, "test")
    }

    /// Promise 6: a daemon's memory stays below what its configuration says.
    fn check_memory(&self, at: usize) {
        let Some(node) = &self.nodes[at] else { return };
        let config = Config::read(&self.place.out("nodes.toml")).unwrap();
        let bound = memory_max(&config, CAPACITY, self.digest.summary().blobs);
        let used = most_memory(node.id());
        assert!(used <= bound, "node {at} took {used} of {bound}");
    }
}

/// Reads everything and checks it.
fn read_all(reader: &mut Reader, sizes: &[usize]) {
    let items: Vec<ItemOrdinal> = (0..sizes.len() as u64).map(ItemOrdinal::new).collect();
    for (at, bytes) in reader.get(&items).unwrap().iter().enumerate() {
        assert!(*bytes == content(at as u64, sizes[at]), "item {at}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The most memory that a process has had.
fn most_memory(process: u32) -> ByteSize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    ByteSize::kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Waits for the line that says so.
fn ready(mut process: Running) -> Running {
    let mut line = String::new();
    let mut stdout = BufReader::new(process.child().stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "it starts: {line}");
    process
}

fn count(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
}

/// Promise 3, for several nodes: of many jobs, whichever of them asks whichever node, each blob is fetched once,
/// and lies with its owner.
#[test]
fn every_blob_is_fetched_once_and_lies_with_its_owner() {
    let sizes: Vec<usize> = (0..48).map(|at| 3 * KIB + at * 97).collect();
    for nodes in [1, 3, 5] {
        let cluster = Cluster::started(nodes, &sizes, 3);
        let contacts = cluster.contacts();
        let first = path(&cluster.socket(nodes - 1)).to_owned();
        let jobs = [(1, &contacts), (2, &first), (3, &first)];
        let jobs = jobs.map(|(seed, contacts)| cluster.job(seed, 2, contacts));
        for job in jobs {
            job.finish();
        }
        assert_eq!(
            cluster.origin.counters().bytes_sent,
            cluster.place.data_size(),
            "{nodes} nodes"
        );
        for (at, (blobs, _)) in cluster.shares().into_iter().enumerate() {
            assert_eq!(cluster.counter(at, "puts"), blobs, "node {at} of {nodes}");
            cluster.check_memory(at);
        }
        let args = ["evict", "x.digest", "--format", "json", "--socket", &first];
        let evicted = cluster.place.forebay(args).succeeds().json();
        assert_eq!(evicted["bytes"], cluster.place.data_size(), "from all of them");
        for at in 0..nodes {
            assert_eq!(cluster.counter(at, "resident_blobs"), 0, "node {at} of {nodes}");
        }
    }
}

/// Promises 1, 5 and 6: nodes are killed, stopped and started again at random; every byte is checked, every
/// job completes, and no daemon takes more memory than it says.
#[test]
fn whatever_becomes_of_nodes_every_job_completes() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seeds, jobs) = match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, 32),
        (None, Some(seeds)) => (0..seeds, 32),
        (None, None) => (0..1, 4),
    };
    for seed in seeds {
        for nodes in [1, 3, 5] {
            live_through(nodes, jobs, seed);
        }
    }
}

/// From 1 KiB to 16 MiB, most of them small.
fn sizes_of_all_kinds(random: &mut fastrand::Rng) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..56).map(|_| random.usize(KIB..64 * KIB)).collect();
    sizes.extend([KIB, 500 * KIB, 1024 * KIB, 4096 * KIB, 16 << 20]);
    random.shuffle(&mut sizes);
    sizes
}

/// So many jobs at once, one after the other, until enough has happened to the nodes.
fn live_through(nodes: usize, jobs: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let sizes = sizes_of_all_kinds(&mut random);
    let mut cluster = Cluster::started(nodes, &sizes, jobs);
    let contacts = cluster.contacts();
    let mut running: Vec<Job> = Vec::new();
    let mut changes: Vec<(Instant, usize, Change)> = Vec::new();
    let (mut started, mut kills, mut stops) = (0, 0, 0);
    loop {
        let is_enough = kills >= FAULTS && stops >= FAULTS;
        let done = running.extract_if(.., |job| !job.is_running());
        for job in done.collect::<Vec<_>>() {
            assert_eq!(index(job.finish()), 2 * sizes.len(), "seed {seed}, {nodes} nodes");
        }
        while running.len() < jobs && (!is_enough || started < jobs as u64) {
            running.push(cluster.job(started, 2, &contacts));
            started += 1;
        }
        if running.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(random.u64(20..200)));
        let due = changes.extract_if(.., |(at, ..)| *at <= Instant::now());
        for (_, at, change) in due.collect::<Vec<_>>() {
            match change {
                Change::Start => cluster.start(at),
                Change::Continue => cluster.node(at).signal(Signal::CONT),
            }
        }
        let at = random.usize(..nodes);
        if is_enough || changes.iter().any(|(_, busy, _)| *busy == at) {
            continue;
        }
        let (wait, change) = if random.bool() {
            cluster.kill(at);
            kills += 1;
            (random.u64(100..1500), Change::Start)
        } else {
            cluster.node(at).signal(Signal::STOP);
            stops += 1;
            // One longer stop than a job has patience is enough to see what it costs.
            let is_long = stops == 1 && nodes == 3;
            (if is_long { 7000 } else { random.u64(100..1500) }, Change::Continue)
        };
        changes.push((Instant::now() + Duration::from_millis(wait), at, change));
    }
    for at in 0..nodes {
        if cluster.nodes[at].is_some() {
            cluster.node(at).signal(Signal::CONT);
        }
        cluster.check_memory(at);
    }
}

/// A job: its agent is a process, and it reads on a thread.
struct Job {
    read: thread::JoinHandle<u64>,
    _agent: Running,
}

impl Job {
    fn is_running(&self) -> bool {
        !self.read.is_finished()
    }

    /// How many items it has read.
    fn finish(self) -> u64 {
        self.read.join().expect("every item was read, and right")
    }
}

/// Every item once per epoch, in a random order that takes what is cached first; every byte is proved.
fn train(mut reader: Reader, seed: u64, epochs: u64) -> u64 {
    let digest = reader.digest().clone();
    let layout = Layout::new(&digest).unwrap();
    let mut known = Known::new(u32::try_from(digest.summary().blobs).unwrap());
    let mut times = vec![0; index(digest.summary().items)];
    for epoch in 0..epochs {
        let mut sampler = Sampler::new(layout.pieces(), Plan::new(seed, epoch, 32)).unwrap();
        loop {
            reader.presence(&mut known);
            let Some(batch) = sampler.draw(layout.residents(known.bits())) else { break };
            let contents = reader.get(batch.items()).unwrap();
            sampler.yielded(batch.number()).unwrap();
            for (item, content) in batch.items().iter().zip(&contents) {
                let blob = digest.blob(digest.item(*item).unwrap().blob).unwrap();
                assert_eq!(Namespace::public().address(content), blob.address, "item {item}");
                times[index(item.0)] += 1;
            }
        }
    }
    assert!(times.iter().all(|times| *times == epochs), "{times:?}");
    times.iter().sum()
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// What happens to a node later.
enum Change {
    Start,
    Continue,
}

/// Promises 3 and 5: a node that dies costs its share of hits only, which are read from the origin, once and
/// counted; when it is back, without anything, its share is put there again in the background.
#[test]
fn a_lost_share_is_read_once_and_refilled() {
    let sizes: Vec<usize> = (0..40).map(|at| 2 * KIB + at * 51).collect();
    let mut cluster = Cluster::started(3, &sizes, 1);
    let shares = cluster.shares();
    let (agent, socket) = cluster.agent("a", &cluster.contacts());
    let mut reader = cluster.reader(&socket, &cluster.contacts());
    read_all(&mut reader, &sizes);
    for (at, (blobs, _)) in shares.iter().enumerate() {
        until("everything is there", || cluster.counter(at, "resident_blobs") == *blobs);
    }
    assert_eq!(cluster.origin.counters().bytes_sent, cluster.place.data_size());
    let before = reader.counts().hits;
    cluster.kill(1);
    fs::remove_dir_all(cluster.directory(1)).unwrap();
    read_all(&mut reader, &sizes);
    assert_eq!(reader.counts().hits - before, sizes.len() as u64 - shares[1].0, "all others hit");
    let counters = reader.agent_stats().unwrap();
    assert_eq!(count(&counters, "agent_fallbacks_ring"), shares[1].0, "{counters:?}");
    assert_eq!(count(&counters, "agent_fallbacks_of_n1"), shares[1].0, "{counters:?}");
    let mut known = Known::new(u32::try_from(sizes.len()).unwrap());
    reader.presence(&mut known);
    let present = known.bits().iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
    assert_eq!(
        present,
        sizes.len() as u64 - shares[1].0,
        "presence is that of those who are there"
    );
    cluster.start(1);
    until("the share is there again", || cluster.counter(1, "resident_blobs") == shares[1].0);
    let expected = cluster.place.data_size() + shares[1].1;
    assert_eq!(cluster.origin.counters().bytes_sent, expected, "what was read meanwhile was kept");
    let all = sizes.len() as u64;
    until("the reader has noticed", || {
        let before = reader.counts().hits;
        read_all(&mut reader, &sizes);
        reader.counts().hits - before == all
    });
    drop(agent);
}

/// Somebody else where a node should be costs its share of hits; one with another list is told, and used.
#[test]
fn wrong_nodes_and_other_lists_are_noticed() {
    let sizes = [4 * KIB; 30];
    let mut cluster = Cluster::new(3, &sizes, 1);
    // The third weighs more in one list than in the others; the second thinks that it is the first.
    cluster.write_list("other.toml", "", |at| if at == 2 { "weight = 2" } else { "" });
    let swapped = fs::read_to_string(cluster.place.out("nodes.toml")).unwrap();
    let swapped = swapped.replace("run/0/", "run/x/").replace("run/1/", "run/0/");
    fs::write(cluster.place.out("swapped.toml"), swapped.replace("run/x/", "run/1/")).unwrap();
    cluster.start(0);
    cluster.start_as(1, "n0", "swapped.toml");
    cluster.start_as(2, "n2", "other.toml");
    let contact = path(&cluster.socket(0)).to_owned();
    let (_agent, socket) = cluster.agent("a", &contact);
    let mut reader = cluster.reader(&socket, &contact);
    read_all(&mut reader, &sizes);
    let (shares, counters) = (cluster.shares(), reader.agent_stats().unwrap());
    assert!(count(&counters, "agent_ring_wrong") > 0, "{counters:?}");
    assert_eq!(count(&counters, "agent_ring_differs"), 1, "{counters:?}");
    assert_eq!(count(&counters, "agent_fallbacks_of_n1"), shares[1].0);
    assert_eq!(cluster.counter(1, "puts"), 0, "nobody asks it for anything");
    assert_eq!(cluster.counter(2, "puts"), shares[2].0);
    let status = cluster.status(0);
    let found: Vec<&str> = status["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["state"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["well", "wrong", "other list"]);
}

/// A node that is down or hung costs its share of a warming, and is named.
#[test]
fn warming_costs_a_node_that_is_away_its_share_only() {
    let sizes = [4 * KIB; 40];
    let mut cluster = Cluster::started(3, &sizes, 1);
    let shares = cluster.shares();
    let warm = |cluster: &Cluster, format: &str| {
        let args = ["warm", "x.digest", "--format", format, "--node", &cluster.contacts()]
            .map(str::to_owned);
        let warm = cluster.place.forebay(args).reaching(&cluster.origin);
        warm.env("FOREBAY_LOG", "error").run()
    };
    // The first contact is dead, and another node is hung.
    cluster.kill(0);
    cluster.node(2).signal(Signal::STOP);
    let (code, report) = warm(&cluster, "json").verdict();
    assert_eq!((code, report["resident_blobs"].as_u64()), (1, Some(shares[1].0)), "{report}");
    let behind = report["behind"].as_array().unwrap();
    assert_eq!(behind.len(), 2, "{report}");
    for (behind, node) in behind.iter().zip([0, 2]) {
        assert_eq!(
            (&behind["node"], &behind["state"]),
            (&cluster.names[node].as_str().into(), &"away".into())
        );
        assert_eq!(behind["blobs"], shares[node].0, "{report}");
    }
    cluster.node(2).signal(Signal::CONT);
    let ran = warm(&cluster, "text");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stdout.contains("the node `n0` does not answer") && !ran.stdout.contains("`n2`"),
        "{ran:?}"
    );
    cluster.start(0);
    let (code, report) = warm(&cluster, "json").verdict();
    assert_eq!((code, report["resident_blobs"].as_u64()), (0, Some(40)), "{report}");
    assert_eq!(cluster.origin.counters().bytes_sent, cluster.place.data_size(), "each once");
    (0..3).for_each(|at| cluster.kill(at));
    let ran = warm(&cluster, "json");
    ran.must_refuse(&["start one with `forebay serve`"]);
}

/// Quiver 4.9: zones that are apart share nothing.
#[test]
fn a_job_stays_in_its_zone() {
    let sizes = [4 * KIB; 24];
    let mut cluster = Cluster::new(4, &sizes, 1);
    let zone = |at| if at % 2 == 0 { "zone = \"east\"" } else { "zone = \"west\"" };
    cluster.write_list("nodes.toml", "zones_apart = true", zone);
    (0..4).for_each(|at| cluster.start(at));
    cluster.job(1, 1, path(&cluster.socket(3))).finish();
    let puts: Vec<u64> = (0..4).map(|at| cluster.counter(at, "puts")).collect();
    assert_eq!((puts[0], puts[2], puts[1] + puts[3]), (0, 0, 24));
    assert!(puts[1] > 0 && puts[3] > 0, "{puts:?}");
}

/// The manager of a dataset is where the ring says, and the next one if nobody is there.
#[test]
fn reports_go_to_the_first_in_order_that_answers() {
    let sizes = [4 * KIB; 12];
    let mut cluster = Cluster::started(3, &sizes, 1);
    let (_agent, socket) = cluster.agent("a", &cluster.contacts());
    let mut reader = cluster.reader(&socket, &cluster.contacts());
    let order = cluster.ring().order(&cluster.digest.summary().dataset);
    let report = || Report { is_all: true, epoch_batches: 2, ..Report::default() };
    for at in order {
        let answer = reader.report(&report()).unwrap();
        assert!(matches!(answer, Some(Answer::Draw { .. })), "{answer:?}");
        assert_eq!(cluster.counter(at, "reports"), 1, "node {at}");
        reader.leave().unwrap();
        cluster.kill(at);
    }
    assert_eq!(reader.report(&report()).unwrap(), None, "nobody is left");
}

/// A client may have the list itself, and one node may be all there is.
#[test]
fn a_list_of_ones_own_will_do() {
    let sizes = [4 * KIB; 12];
    let cluster = Cluster::started(3, &sizes, 1);
    let list = cluster.place.out("nodes.toml");
    let agent_socket = cluster.place.path("a/agent.sock");
    let args = ["agent", "x.digest", "--socket", path(&agent_socket), "--node-list", path(&list)];
    let _agent = ready(cluster.place.forebay(args).reaching(&cluster.origin).start());
    let (nodes, zone) = forebay_server::read_node_list(&list).unwrap();
    let contacts = Contacts::of_list(nodes, zone).unwrap();
    let mut reader = Reader::new(cluster.digest.clone(), Some(contacts), &agent_socket, "test");
    read_all(&mut reader, &sizes);
    for (at, (blobs, _)) in cluster.shares().into_iter().enumerate() {
        until("it is there", || cluster.counter(at, "puts") == blobs);
    }
}

#[test]
fn status_shows_all_nodes() {
    let mut cluster = Cluster::started(3, &[KIB; 3], 1);
    cluster.kill(1);
    let status = cluster.status(0);
    let nodes = status["nodes"].as_array().unwrap();
    let found: Vec<&str> = nodes.iter().map(|node| node["state"].as_str().unwrap()).collect();
    assert_eq!(found, ["well", "down", "well"]);
    assert_eq!(nodes[2]["name"], "n2");
    let socket = cluster.socket(0);
    let text = cluster.place.forebay(["status", "--socket", path(&socket)]).succeeds().stdout;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("node.sock")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("n1") && lines[1].contains("down"), "{text}");
    let name: NodeName = "n2".parse().unwrap();
    assert_eq!(cluster.ring().place_of(&name), Some(2));
}

/// What a node says of a dataset is said to be one node's.
#[test]
fn explaining_says_which_node_was_asked() {
    let cluster = Cluster::started(3, &[4 * KIB; 12], 1);
    let socket = cluster.socket(1);
    let explain = |format: &str| {
        let args = ["explain", "x.digest", "--format", format, "--node", path(&socket)];
        cluster.place.forebay(args).succeeds()
    };
    let told = explain("json").json();
    assert_eq!((&told["node"], &told["nodes"]), (&"n1".into(), &3.into()), "{told}");
    assert_eq!((&told["blobs"], &told["blobs_here"]), (&12.into(), &0.into()), "{told}");
    let text = explain("text").stdout;
    assert!(text.contains("0 of 12 blobs are on the node `n1`, one of 3"), "{text}");
}

#[test]
fn lists_that_make_no_sense_are_refused_with_the_remedy() {
    let cluster = Cluster::new(2, &[KIB], 1);
    let node =
        |name: &str, rest: &str| format!("[[nodes]]\nname = \"{name}\"\nendpoint = \"{rest}\n");
    for (text, saying) in [
        (node("a", "/x\"") + &node("a", "/y\""), "two nodes are called `a`"),
        (node("a", "/x\"") + &node("b", "/x\""), "`a` and `b` have the same endpoint"),
        (node("a", "/x\"\nweight = 0"), "use a number from 0.001"),
        (node("a", "/x\"\nwieght = 1"), "did you mean `weight`?"),
        (node("b", "/x\""), "there are b"),
        (node("a", "http://x\""), "tls://HOST:PORT"),
        ("zones_apart = true\n".to_owned() + &node("a", "/x\""), "give every node a `zone`"),
    ] {
        fs::write(cluster.place.out("bad.toml"), text).unwrap();
        let args = ["serve", "--config", "bad.toml", "--name", "a", "--check-config"];
        cluster.place.forebay(args).refuses(&[saying]);
    }
    let args = ["serve", "--config", "nodes.toml", "--check-config"];
    cluster.place.forebay(args).refuses(&["say it with `name`"]);
}

//! A cluster of several nodes: real processes, killed, stopped and restarted at random.
//!
//! All randomness comes from a seed. `SEED=n` replays one seed, `SEEDS=n` runs n seeds; both run 32
//! jobs in parallel.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_client::{ItemMap, Reader};
use forebay_core::{
    BlobOrdinal, ByteSize, ItemOrdinal, Namespace, NodeName,
    cluster::ring::{Ring, Seeds},
    node::presence::KnownPresence,
    train::{
        manager::{Report, ReportAnswer},
        sampler::{EpochPlan, Sampler},
    },
};
use forebay_dev_origin::DevOrigin;
use forebay_digest::Digest;
use forebay_node::{Config, memory_max};
use rustix::process::Signal;

use crate::harness::{Forebay, Running, Sandbox, content, wait_until};

const KIB: usize = 1 << 10;
/// Capacity of a node.
const CAPACITY: ByteSize = ByteSize::mib(128);
/// Number of kills, and of stops, before the last jobs are started.
const FAULTS: u32 = 3;
/// Memory cache of a node.
const MEMORY: ByteSize = ByteSize::mib(8);

/// A dataset behind an origin, and the nodes of a cluster.
struct Cluster {
    sandbox: Sandbox,
    origin: DevOrigin,
    digest: Digest,
    names: Vec<String>,
    nodes: Vec<Option<Running>>,
    connections: usize,
}

impl Cluster {
    /// Only the origin runs.
    fn new(nodes: usize, sizes: &[usize], jobs: usize) -> Self {
        let sandbox = Sandbox::new();
        for (at, size) in sizes.iter().enumerate() {
            sandbox.write(&format!("item {at:03}.bin"), &content(at as u64, *size));
        }
        let origin = sandbox.serve(|_| {});
        sandbox.build_from(&origin, "x.digest", &[]).succeeds();
        let digest = forebay_digest::open(&sandbox.out("x.digest")).unwrap().digest.clone();
        origin.reset_counters();
        let names = (0..nodes).map(|at| format!("n{at}")).collect();
        // Each job has two connections, its own and that of its agent. A job may reconnect before
        // the node has noticed the end of the old connections.
        let connections = 4 * jobs + 8;
        let nodes = (0..nodes).map(|_| None).collect();
        let cluster = Self { sandbox, origin, digest, names, nodes, connections };
        cluster.write_list("nodes.toml", "", |_| "");
        cluster
    }

    fn started(nodes: usize, sizes: &[usize], jobs: usize) -> Self {
        let mut cluster = Self::new(nodes, sizes, jobs);
        (0..nodes).for_each(|at| cluster.start(at));
        cluster
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.sandbox.path(&format!("run/{at}/node.sock"))
    }

    /// Writes a configuration with the list of all nodes: after `head`, and with `more` for each
    /// node.
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
            "capacity = \"{}B\"\nmemory_cache = \"{}B\"\nmax_connections = {}\n\
             claim_lease = \"1s\"\n{head}\n{nodes}",
            CAPACITY.0, MEMORY.0, self.connections
        );
        fs::write(self.sandbox.out(file), text).unwrap();
    }

    fn start(&mut self, at: usize) {
        self.start_as(at, &self.names[at].clone(), "nodes.toml");
    }

    fn start_as(&mut self, at: usize, name: &str, list: &str) {
        let (socket, directory) = (self.socket(at), self.directory(at));
        let args = ["serve", "--config", list, "--name", name, "--socket", path(&socket)];
        let args = args.iter().copied().chain(["--directory", path(&directory)]);
        let node = self.sandbox.forebay(args).env("FOREBAY_LOG", "error").start();
        self.nodes[at] = Some(ready(node));
    }

    fn directory(&self, at: usize) -> PathBuf {
        self.sandbox.path(&format!("cache-{at}"))
    }

    fn node(&self, at: usize) -> &Running {
        self.nodes[at].as_ref().unwrap()
    }

    fn kill(&mut self, at: usize) {
        self.check_memory(at);
        // Dropping kills the process and waits for it.
        self.nodes[at] = None;
    }

    fn seeds(&self) -> String {
        let sockets: Vec<String> =
            (0..self.names.len()).map(|at| path(&self.socket(at)).to_owned()).collect();
        sockets.join(",")
    }

    fn status(&self, at: usize) -> serde_json::Value {
        let args =
            ["status", "--format", "json", "--socket", path(&self.socket(at))].map(str::to_owned);
        self.sandbox.forebay(args).run().json()
    }

    fn counter(&self, at: usize, name: &str) -> u64 {
        self.status(at)[name].as_u64().unwrap()
    }

    fn ring(&self) -> Ring {
        let (list, zone) = forebay_node::read_node_list(&self.sandbox.out("nodes.toml")).unwrap();
        list.ring(zone.as_ref()).unwrap()
    }

    /// Number and bytes of the blobs that each node owns.
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

    /// A job that reads everything `epochs` times and verifies every byte.
    fn job(&self, seed: u64, epochs: u64, seeds: &str) -> Job {
        let (agent, socket) = self.agent(&format!("job-{seed}"), seeds);
        let reader = self.reader(&socket, seeds);
        let read = thread::spawn(move || train(reader, seed, epochs));
        Job { read, _agent: agent }
    }

    fn agent(&self, name: &str, seeds: &str) -> (Running, PathBuf) {
        let socket = self.sandbox.path(name).join("agent.sock");
        let args = ["agent", "x.digest", "--socket", path(&socket), "--node", seeds];
        let agent: Forebay = self.sandbox.forebay(args).reaching(&self.origin);
        (ready(agent.env("FOREBAY_LOG", "error").start()), socket)
    }

    fn reader(&self, agent: &Path, seeds: &str) -> Reader {
        let seeds: Seeds = seeds.parse().unwrap();
        Reader::new(self.digest.clone(), Some(seeds), agent, "test")
    }

    /// Promise 6: the memory of a node stays below the bound of its configuration.
    fn check_memory(&self, at: usize) {
        let Some(node) = &self.nodes[at] else { return };
        let config = Config::read(&self.sandbox.out("nodes.toml")).unwrap();
        let bound = memory_max(&config, CAPACITY);
        let used = peak_memory(node.id());
        assert!(used <= bound, "node {at} used {used} of {bound}");
    }
}

/// Reads and checks all items.
fn read_all(reader: &mut Reader, sizes: &[usize]) {
    let items: Vec<ItemOrdinal> = (0..sizes.len() as u64).map(ItemOrdinal::new).collect();
    for (at, bytes) in reader.get(&items).unwrap().iter().enumerate() {
        assert!(*bytes == content(at as u64, sizes[at]), "item {at}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Peak memory of a process.
fn peak_memory(process: u32) -> ByteSize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    ByteSize::kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Waits for the line that a process prints when it is ready.
fn ready(mut process: Running) -> Running {
    let mut line = String::new();
    let mut stdout = BufReader::new(process.child().stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "the process is ready: {line}");
    process
}

fn count(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
}

/// Promise 3 for a cluster: each blob is fetched once and stored on its owner, for any seeds of the
/// jobs.
#[test]
fn every_blob_is_fetched_once_and_stored_on_its_owner() {
    let sizes: Vec<usize> = (0..48).map(|at| 3 * KIB + at * 97).collect();
    for nodes in [1, 3, 5] {
        let cluster = Cluster::started(nodes, &sizes, 3);
        let seeds = cluster.seeds();
        let first = path(&cluster.socket(nodes - 1)).to_owned();
        let jobs = [(1, &seeds), (2, &first), (3, &first)];
        let jobs = jobs.map(|(seed, seeds)| cluster.job(seed, 2, seeds));
        for job in jobs {
            job.finish();
        }
        assert_eq!(
            cluster.origin.counters().bytes_sent,
            cluster.sandbox.data_size(),
            "{nodes} nodes"
        );
        for (at, (blobs, _)) in cluster.shares().into_iter().enumerate() {
            assert_eq!(cluster.counter(at, "puts"), blobs, "node {at} of {nodes}");
            cluster.check_memory(at);
        }
        let args = ["evict", "x.digest", "--format", "json", "--socket", &first];
        let evicted = cluster.sandbox.forebay(args).succeeds().json();
        assert_eq!(evicted["bytes"], cluster.sandbox.data_size(), "from all nodes");
        for at in 0..nodes {
            assert_eq!(cluster.counter(at, "resident_blobs"), 0, "node {at} of {nodes}");
        }
    }
}

/// Promises 1, 5 and 6: while nodes are killed, stopped and restarted at random, every byte is
/// right, every job completes, and no node exceeds its memory.
#[test]
fn every_job_completes_while_nodes_fail() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seeds, jobs) = match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, 32),
        (None, Some(seeds)) => (0..seeds, 32),
        (None, None) => (0..1, 4),
    };
    for seed in seeds {
        for nodes in [1, 3, 5] {
            run_with_faults(nodes, jobs, seed);
        }
    }
}

/// From 1 KiB to 16 MiB, most of them small.
fn mixed_sizes(random: &mut fastrand::Rng) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..56).map(|_| random.usize(KIB..64 * KIB)).collect();
    sizes.extend([KIB, 500 * KIB, 1024 * KIB, 4096 * KIB, 16 << 20]);
    random.shuffle(&mut sizes);
    sizes
}

/// Keeps `jobs` jobs running until there were enough faults.
fn run_with_faults(nodes: usize, jobs: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let sizes = mixed_sizes(&mut random);
    let mut cluster = Cluster::started(nodes, &sizes, jobs);
    let seeds = cluster.seeds();
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
            running.push(cluster.job(started, 2, &seeds));
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
            // One stop is longer than the timeout of a job.
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

/// A job: a thread that reads, and the process of its agent.
struct Job {
    read: thread::JoinHandle<u64>,
    _agent: Running,
}

impl Job {
    fn is_running(&self) -> bool {
        !self.read.is_finished()
    }

    /// Waits for its end. Returns the number of items read.
    fn finish(self) -> u64 {
        self.read.join().expect("every item was read correctly")
    }
}

/// Reads every item once per epoch, resident items first, and verifies every byte.
fn train(mut reader: Reader, seed: u64, epochs: u64) -> u64 {
    let digest = reader.digest().clone();
    let layout = ItemMap::new(&digest).unwrap();
    let mut known = KnownPresence::new(u32::try_from(digest.summary().blobs).unwrap());
    let mut times = vec![0; index(digest.summary().items)];
    for epoch in 0..epochs {
        let mut sampler =
            Sampler::new(layout.half_chunks(), EpochPlan::new(seed, epoch, 32)).unwrap();
        loop {
            reader.presence(&mut known);
            let Some(batch) = sampler.draw(layout.residents(known.bits())) else { break };
            let contents = reader.get(batch.items()).unwrap();
            sampler.on_yielded(batch.number()).unwrap();
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

/// A later change to a node.
enum Change {
    Start,
    Continue,
}

/// Promises 3 and 5: a killed node costs its own share of hits only. That share is read from the
/// origin once, and counted. After a restart with an empty cache, it is put there again in the
/// background.
#[test]
fn the_share_of_a_lost_node_is_fetched_once_and_refilled() {
    let sizes: Vec<usize> = (0..40).map(|at| 2 * KIB + at * 51).collect();
    let mut cluster = Cluster::started(3, &sizes, 1);
    let shares = cluster.shares();
    let (agent, socket) = cluster.agent("a", &cluster.seeds());
    let mut reader = cluster.reader(&socket, &cluster.seeds());
    read_all(&mut reader, &sizes);
    for (at, (blobs, _)) in shares.iter().enumerate() {
        wait_until("everything is resident", || cluster.counter(at, "resident_blobs") == *blobs);
    }
    assert_eq!(cluster.origin.counters().bytes_sent, cluster.sandbox.data_size());
    let before = reader.counts().hits;
    cluster.kill(1);
    fs::remove_dir_all(cluster.directory(1)).unwrap();
    read_all(&mut reader, &sizes);
    assert_eq!(
        reader.counts().hits - before,
        sizes.len() as u64 - shares[1].0,
        "all other items hit"
    );
    let counters = reader.agent_stats().unwrap();
    assert_eq!(count(&counters, "agent_fallbacks_ring"), shares[1].0, "{counters:?}");
    assert_eq!(count(&counters, "agent_fallbacks_of_n1"), shares[1].0, "{counters:?}");
    let mut known = KnownPresence::new(u32::try_from(sizes.len()).unwrap());
    reader.presence(&mut known);
    let present = known.bits().iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
    assert_eq!(present, sizes.len() as u64 - shares[1].0, "presence covers the live nodes");
    cluster.start(1);
    wait_until("the share is resident again", || {
        cluster.counter(1, "resident_blobs") == shares[1].0
    });
    let expected = cluster.sandbox.data_size() + shares[1].1;
    assert_eq!(
        cluster.origin.counters().bytes_sent,
        expected,
        "fallback reads were kept by the agent"
    );
    let all = sizes.len() as u64;
    wait_until("the reader uses the node again", || {
        let before = reader.counts().hits;
        read_all(&mut reader, &sizes);
        reader.counts().hits - before == all
    });
    drop(agent);
}

/// A wrong node at an endpoint costs its share of hits. A node with another list is reported, and
/// used.
#[test]
fn wrong_nodes_and_different_lists_are_detected() {
    let sizes = [4 * KIB; 30];
    let mut cluster = Cluster::new(3, &sizes, 1);
    // Node 2 has a higher weight in its own list. Node 1 is configured as node 0.
    cluster.write_list("other.toml", "", |at| if at == 2 { "weight = 2" } else { "" });
    let swapped = fs::read_to_string(cluster.sandbox.out("nodes.toml")).unwrap();
    let swapped = swapped.replace("run/0/", "run/x/").replace("run/1/", "run/0/");
    fs::write(cluster.sandbox.out("swapped.toml"), swapped.replace("run/x/", "run/1/")).unwrap();
    cluster.start(0);
    cluster.start_as(1, "n0", "swapped.toml");
    cluster.start_as(2, "n2", "other.toml");
    let seed_endpoint = path(&cluster.socket(0)).to_owned();
    let (_agent, socket) = cluster.agent("a", &seed_endpoint);
    let mut reader = cluster.reader(&socket, &seed_endpoint);
    read_all(&mut reader, &sizes);
    let (shares, counters) = (cluster.shares(), reader.agent_stats().unwrap());
    assert!(count(&counters, "agent_ring_wrong") > 0, "{counters:?}");
    assert_eq!(count(&counters, "agent_ring_differs"), 1, "{counters:?}");
    assert_eq!(count(&counters, "agent_fallbacks_of_n1"), shares[1].0);
    assert_eq!(cluster.counter(1, "puts"), 0, "no client uses it");
    assert_eq!(cluster.counter(2, "puts"), shares[2].0);
    let status = cluster.status(0);
    let found: Vec<&str> = status["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["state"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["healthy", "wrong node", "other list"]);
}

/// A node that is down or hung misses its own share of a warming, and is named.
#[test]
fn warming_skips_only_the_shares_of_unreachable_nodes() {
    let sizes = [4 * KIB; 40];
    let mut cluster = Cluster::started(3, &sizes, 1);
    let shares = cluster.shares();
    let warm = |cluster: &Cluster, format: &str| {
        let args =
            ["warm", "x.digest", "--format", format, "--node", &cluster.seeds()].map(str::to_owned);
        let warm = cluster.sandbox.forebay(args).reaching(&cluster.origin);
        warm.env("FOREBAY_LOG", "error").run()
    };
    // The first seed is down, and another node is hung.
    cluster.kill(0);
    cluster.node(2).signal(Signal::STOP);
    let (code, report) = warm(&cluster, "json").verdict();
    assert_eq!((code, report["resident_blobs"].as_u64()), (1, Some(shares[1].0)), "{report}");
    let incomplete = report["incomplete_nodes"].as_array().unwrap();
    assert_eq!(incomplete.len(), 2, "{report}");
    for (missing, node) in incomplete.iter().zip([0, 2]) {
        assert_eq!(
            (&missing["node"], &missing["state"]),
            (&cluster.names[node].as_str().into(), &"unreachable".into())
        );
        assert_eq!(missing["blobs"], shares[node].0, "{report}");
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
    assert_eq!(
        cluster.origin.counters().bytes_sent,
        cluster.sandbox.data_size(),
        "each blob is fetched once"
    );
    (0..3).for_each(|at| cluster.kill(at));
    let ran = warm(&cluster, "json");
    ran.must_refuse(&["start one with `forebay serve`"]);
}

/// Quiver 4.9: isolated zones share nothing.
#[test]
fn a_job_stays_in_its_zone() {
    let sizes = [4 * KIB; 24];
    let mut cluster = Cluster::new(4, &sizes, 1);
    let zone = |at| if at % 2 == 0 { "zone = \"east\"" } else { "zone = \"west\"" };
    cluster.write_list("nodes.toml", "isolate_zones = true", zone);
    (0..4).for_each(|at| cluster.start(at));
    cluster.job(1, 1, path(&cluster.socket(3))).finish();
    let puts: Vec<u64> = (0..4).map(|at| cluster.counter(at, "puts")).collect();
    assert_eq!((puts[0], puts[2], puts[1] + puts[3]), (0, 0, 24));
    assert!(puts[1] > 0 && puts[3] > 0, "{puts:?}");
}

/// The manager of a dataset is the first live node in the order of the ring.
#[test]
fn reports_go_to_the_first_live_node_in_order() {
    let sizes = [4 * KIB; 12];
    let mut cluster = Cluster::started(3, &sizes, 1);
    let (_agent, socket) = cluster.agent("a", &cluster.seeds());
    let mut reader = cluster.reader(&socket, &cluster.seeds());
    let order = cluster.ring().order(&cluster.digest.summary().dataset);
    let report = || Report { is_full: true, epoch_batches: 2, ..Report::default() };
    for at in order {
        let answer = reader.report(&report()).unwrap();
        assert!(matches!(answer, Some(ReportAnswer::Draw { .. })), "{answer:?}");
        assert_eq!(cluster.counter(at, "reports"), 1, "node {at}");
        reader.leave().unwrap();
        cluster.kill(at);
    }
    assert_eq!(reader.report(&report()).unwrap(), None, "no node is left");
}

#[test]
fn a_client_can_use_a_list_from_a_file() {
    let sizes = [4 * KIB; 12];
    let cluster = Cluster::started(3, &sizes, 1);
    let list = cluster.sandbox.out("nodes.toml");
    let agent_socket = cluster.sandbox.path("a/agent.sock");
    let args = ["agent", "x.digest", "--socket", path(&agent_socket), "--node-list", path(&list)];
    let _agent = ready(cluster.sandbox.forebay(args).reaching(&cluster.origin).start());
    let (nodes, zone) = forebay_node::read_node_list(&list).unwrap();
    let seeds = Seeds::of_list(nodes, zone).unwrap();
    let mut reader = Reader::new(cluster.digest.clone(), Some(seeds), &agent_socket, "test");
    read_all(&mut reader, &sizes);
    for (at, (blobs, _)) in cluster.shares().into_iter().enumerate() {
        wait_until("the share is resident", || cluster.counter(at, "puts") == blobs);
    }
}

#[test]
fn status_shows_all_nodes() {
    let mut cluster = Cluster::started(3, &[KIB; 3], 1);
    cluster.kill(1);
    let status = cluster.status(0);
    let nodes = status["nodes"].as_array().unwrap();
    let found: Vec<&str> = nodes.iter().map(|node| node["state"].as_str().unwrap()).collect();
    assert_eq!(found, ["healthy", "down", "healthy"]);
    assert_eq!(nodes[2]["name"], "n2");
    let socket = cluster.socket(0);
    let text = cluster.sandbox.forebay(["status", "--socket", path(&socket)]).succeeds().stdout;
    let rows = text.lines().filter(|line| line.contains("node.sock") && line.starts_with('n'));
    let lines: Vec<&str> = rows.collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("n1") && lines[1].contains("down"), "{text}");
    let name: NodeName = "n2".parse().unwrap();
    assert_eq!(cluster.ring().index_of(&name), Some(2));
}

#[test]
fn explain_names_the_node_that_answered() {
    let cluster = Cluster::started(3, &[4 * KIB; 12], 1);
    let socket = cluster.socket(1);
    let explain = |format: &str| {
        let args = ["explain", "x.digest", "--format", format, "--node", path(&socket)];
        cluster.sandbox.forebay(args).succeeds()
    };
    let explained = explain("json").json();
    assert_eq!((&explained["node"], &explained["nodes"]), (&"n1".into(), &3.into()), "{explained}");
    assert_eq!(
        (&explained["blobs"], &explained["blobs_here"]),
        (&12.into(), &0.into()),
        "{explained}"
    );
    let text = explain("text").stdout;
    assert!(text.contains("0 of 12 blobs are on the node `n1`, one of 3"), "{text}");
}

#[test]
fn invalid_lists_are_rejected_with_the_remedy() {
    let cluster = Cluster::new(2, &[KIB], 1);
    let node =
        |name: &str, rest: &str| format!("[[nodes]]\nname = \"{name}\"\nendpoint = \"{rest}\n");
    for (text, expected) in [
        (node("a", "/x\"") + &node("a", "/y\""), "two nodes are called `a`"),
        (node("a", "/x\"") + &node("b", "/x\""), "`a` and `b` have the same endpoint"),
        (node("a", "/x\"\nweight = 0"), "use a number from 0.001"),
        (node("a", "/x\"\nwieght = 1"), "did you mean `weight`?"),
        (node("b", "/x\""), "the list has b"),
        (node("a", "http://x\""), "tls://HOST:PORT"),
        ("isolate_zones = true\n".to_owned() + &node("a", "/x\""), "give every node a `zone`"),
    ] {
        fs::write(cluster.sandbox.out("bad.toml"), text).unwrap();
        let args = ["serve", "--config", "bad.toml", "--name", "a", "--check-config"];
        cluster.sandbox.forebay(args).refuses(&[expected]);
    }
    let args = ["serve", "--config", "nodes.toml", "--check-config"];
    cluster.sandbox.forebay(args).refuses(&["say it with `name`"]);
}
